"""The leaderboard: every measured method beside its published figures, as a page of Markdown and a picture."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from concm.data.bank import Bank
from concm.evaluation import published
from concm.evaluation.published import Row
from concm.files import write_whole
from concm.methods import Choice, choose
from concm.report import figures
from concm.report.bench import CONTROL

MEASURED = ("AHM", "FA", "base", "PD", "last base / novel", "above the curve", "s", "MB", "parameters")
COLUMNS = ("method", *MEASURED, "published AHM / FA (base; backbone)")
ALIASES = {"imprint": "iw"}


def write(path: Path, bank: Bank, rows: list[dict[str, Any]], draws: int) -> list[Path]:
    """The page, and its picture beside it."""
    picture = path.with_suffix(".png")
    figures.trade_offs(rows, CONTROL, picture)
    write_whole(path, page(bank, rows, draws, picture.name).encode())
    return [path, picture]


def page(bank: Bank, rows: list[dict[str, Any]], draws: int, picture: str) -> str:
    """All of it, from the rows that the bench measured."""
    scenario = bank.scenario
    printed = {_key(row.method): row for row in published.beside(scenario)}
    ordered = sorted(rows, key=lambda row: -row["ahm"])
    lines = [
        f"# Leaderboard: {scenario.name}",
        "",
        f"{scenario.base} base classes, then {scenario.sessions} sessions of {scenario.way}-way {scenario.shot}-shot. "
        f"Measured: features of one frozen {bank.encoder['name']} (weights `{bank.encoder['weights']}`), mean ± "
        f"standard deviation of {draws} draws of the shots, the same for every method. Settings are the papers' "
        "or, where a method's file marks them so, chosen on validation banks. "
        "Published: the table of the ConCM paper, one draw, each method with a backbone of its own.",
        "",
        f"![Base and novel accuracy after the last session]({picture})",
        "",
        "*Where each method stands after the last session, and the curve that nearest class mean describes with any "
        "constant on its novel scores: HM is mostly a place on that curve, so what counts is to lie above it.*",
        "",
        _line(*COLUMNS),
        "|---" * len(COLUMNS) + "|",
    ]
    for row in ordered:
        above = "–" if row["above_curve"] is None else f"{row['above_curve']:+.1f}".replace("-", "−")
        cells = (
            f"{row['ahm']:.2f} ± {row['ahm_std']:.2f}",
            f"{row['fa']:.2f} ± {row['fa_std']:.2f}",
            f"{row['base_acc']:.2f}",
            f"{row['pd']:.2f}",
            f"{row['last_base']:.1f} / {row['last_novel']:.1f}",
            above,
            f"{row['seconds']:.1f}",
            f"{row['memory_bytes'] / 1e6:.1f}",
            f"{row['parameters']:,.0f}",
        )
        lines.append(_line(f"`{row['method']}`", *cells, _published(row["method"], printed)))
    lines += [
        "",
        "Seconds: one draw, all sessions with their evaluation, one thread. MB: what is kept of the data.",
        "",
    ]
    lines += [
        "## What each one is, needs and leaves out",
        "",
        _line("method", "paper", "group", "needs", "here"),
        "|---" * 5 + "|",
    ]
    for row in ordered:
        choice = choose(row["method"])
        entry = choice.entry
        needs = ", ".join(choice.needs) or "nothing more"
        lines.append(_line(f"`{row['method']}`", entry.paper, entry.group, needs, _here(choice)))
    return "\n".join([*lines, ""])


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _key(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.partition(":")[0].lower())
    return ALIASES.get(plain, plain)


def _published(method: str, printed: dict[str, Row]) -> str:
    row = printed.get(_key(method))
    if row is None or ":" in method:
        return "no row"
    return f"{row.ahm} / {row.fa} ({row.base_acc}; {row.backbone or 'not said'})"


def _here(choice: Choice) -> str:
    """What the method's file says of how it differs from its paper."""
    text = inspect.getdoc(sys.modules[choice.entry.make.__module__]) or ""
    found = re.search(r"\bHere: (.*)", text, flags=re.S)
    return " ".join(found.group(1).split()) if found else "as it is"
