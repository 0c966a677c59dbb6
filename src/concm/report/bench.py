"""The bench's table and picture: measured rows, controls, published rows beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from concm.errors import ConcmError
from concm.evaluation import published
from concm.evaluation.results import Result, above, aggregate
from concm.features.bank import Bank
from concm.files import write_whole
from concm.report.tables import print_whole, say

CONTROL = "ncm"


def rows(results: list[Result]) -> list[dict[str, Any]]:
    """A row a method, in the order in which they were asked for."""
    by_label: dict[str, list[Result]] = {}
    for result in results:
        by_label.setdefault(result["label"], []).append(result)
    found = {label: aggregate(runs) for label, runs in by_label.items()}
    for row in found.values():
        row["above_curve"] = None if CONTROL not in found else above(row, found[CONTROL])
    return list(found.values())


def table(bank: Bank, rows: list[dict[str, Any]], draws: int, at_once: int) -> dict[str, Any]:
    """The aggregate, with the published rows of the scenario beside the measured ones; so many runs went at a time."""
    scenario = bank.scenario
    return {
        "scenario": scenario.name,
        "cut": {name: getattr(scenario, name) for name in ("base", "way", "shot", "sessions")},
        "draws": draws,
        "at_once": at_once,
        "backbone": bank.encoder,
        "training": bank.card.get("training"),
        "rows": rows,
        "published": [
            {"method": row.method, "backbone": row.backbone, "base_acc": row.base_acc, "ahm": row.ahm, "fa": row.fa}
            | {"hm": list(row.hm), "note": row.note}
            for row in published.beside(scenario)
        ],
    }


def write_json(path: Path, found: dict[str, Any]) -> None:
    """Such a table as a file."""
    write_whole(path, (json.dumps(found, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read it back."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        whole = found.keys() >= {"scenario", "cut", "draws", "backbone", "training", "rows", "published"}
    except (OSError, ValueError, AttributeError) as error:
        raise ConcmError(f"{path} is no table of `concm bench --json`") from error
    if not whole:
        raise ConcmError(f"{path} is no table of `concm bench --json`, or of another version")
    return found


def comparable(path: Path, bank: Bank, draws: int) -> dict[str, Any]:
    """Such a table, if it is of the same scenario, cut and number of draws as the bank's will be."""
    found, scenario = read_json(path), bank.scenario
    cut = {name: getattr(scenario, name) for name in ("base", "way", "shot", "sessions")}
    if (found["scenario"], found["cut"], found["draws"]) != (scenario.name, cut, draws):
        raise ConcmError(f"{path} cannot stand beside this: it has another scenario, cut or number of draws")
    return found


def show(bank: Bank, rows: list[dict[str, Any]], draws: int) -> None:
    """The table, and how far each row lies above the control's trade-off."""
    scenario = bank.scenario
    backbone = bank.encoder["name"]
    later = f"{scenario.sessions} sessions of {scenario.way}-way {scenario.shot}-shot"
    say(f"\n{scenario.name}: {scenario.base} base classes, then {later}")
    say(f"measured: {backbone} features, mean ± standard deviation of {rows[0]['runs']} runs ({draws} draws)")
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    headings = ["method", "backbone", "base", *(str(at + 1) for at in range(scenario.sessions))]
    for heading in (*headings, "AHM", "FA", "PD", "NAcc", "BER"):
        table.add_column(heading, justify="left" if heading in ("method", "backbone") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["method"],
            backbone,
            f"{row['base_acc']:.2f}",
            *(f"{value:.1f}" for value in row["hm"]),
            f"[bold]{row['ahm']:.2f}[/bold] ±{row['ahm_std']:.2f}",
            f"[bold]{row['fa']:.2f}[/bold] ±{row['fa_std']:.2f}",
            *(f"{row[name]:.2f}" for name in ("pd", "nacc", "ber")),
        )
    printed = published.beside(scenario)
    if printed:
        table.add_section()
        table.add_row("[dim]published (one draw)[/dim]")
    for entry in printed:
        figures = (entry.base_acc, *entry.hm, entry.ahm, entry.fa)
        digits = (2, *(1 for _ in entry.hm), 2, 2)
        cells = ["" if value is None else f"{value:.{n}f}" for value, n in zip(figures, digits, strict=True)]
        table.add_row(f"{entry.method}{' *' if entry.note else ''}", entry.backbone or "", *cells)
    print_whole(table)
    say("columns 1 and on: harmonic mean of base and novel accuracy after that session; NAcc, BER: means over sessions")
    for entry in printed:
        if entry.note:
            say(f"* {entry.method}: {entry.note}")
    _explain(rows)


def show_remarks(results: list[Result]) -> None:
    """What methods had to say, once."""
    for remark in dict.fromkeys(remark for result in results for remark in result["remarks"]):
        say(f"note: {remark}")


def _explain(rows: list[dict[str, Any]]) -> None:
    """Where each row stands against nearest class mean with any constant on its novel scores."""
    for row in rows:
        if row["method"] != CONTROL and row["above_curve"] is not None:
            side = "above" if row["above_curve"] >= 0 else "below"
            say(
                f"{row['method']}: after the last session base {row['last_base']:.1f}, novel {row['last_novel']:.1f}: "
                f"{abs(row['above_curve']):.1f} points {side} the curve of nearest class mean at that base accuracy; "
                f"{row['seconds']:.1f} s a draw, memory {row['memory_bytes'] / 1e6:.1f} MB"
            )
