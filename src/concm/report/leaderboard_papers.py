"""The leaderboard's parts about papers: verdicts on measured rows, figures of other papers, and what each method is."""

from __future__ import annotations

from concm.evaluation import published
from concm.evaluation.statistics import Row, Table
from concm.methods.choice import known
from concm.report.cells import line, link, mark, ruled, signed
from concm.report.remarks import remarks
from concm.report.reproduction import NEAR, Verdict, printed

OURS, PLAIN = "concm", "ncm"
"""This library's engine, and the plainest control."""


def beside(found: Table, rows: list[Row]) -> list[str]:
    """How far each row lies from its paper's, the verdict, and what there is to say about it."""
    lines = [
        "## Beside their papers",
        "",
        f"On the shared features nearest class mean alone has an AHM of {ahm(found, PLAIN)}. A method that is far "
        "above its paper there owes that to the backbone first. RMS is the root mean square of the differences in "
        "harmonic mean session by session. The other columns are differences, here minus there; the paper's last base "
        "and novel accuracy are solved from its last harmonic mean and accuracy. A row is called reproduced if RMS and "
        f"the differences in these two are at most {NEAR:g} points.",
        "",
        *ruled("method", "RMS", "AHM", "FA", "last base", "last novel", "verdict"),
    ]
    said, silent = list[str](), list[str]()
    for row in sorted(rows, key=lambda row: row.method):
        entry = printed(found, row)
        if words := remarks(found.scenario).get(row.method):
            said.append(f"- `{row.method}`: {words}.")
        if entry is None:
            choice = known(row.method)
            if choice is not None and choice.entry.group not in ("control", "reference") and ":" not in row.method:
                silent.append(mark(row.method))
            continue
        verdict = Verdict.of(row, entry, found.cut)
        values = (verdict.ahm, verdict.fa, verdict.last_base, verdict.last_novel)
        rms = "–" if verdict.rms is None else f"{verdict.rms:.2f}"
        away = ("–" if value is None else signed(value, 1) for value in values)
        said_of_it = "not the published form" if row.method == OURS else verdict.words
        lines.append(line(mark(row.method), rms, *away, said_of_it))
    none = [f"That table prints no row of {', '.join(silent)}, so there is no verdict on these.", ""] if silent else []
    return [*lines, "", *none, *([*said, ""] if said else [])]


def elsewhere(found: Table) -> list[str]:
    """Figures that the ConCM paper does not print; apart those whose backbone knows other data."""
    lines = list[str]()
    for pretrained, title in ((False, "Published elsewhere"), (True, "Published with a pre-trained backbone")):
        rows = [row for row in published.elsewhere(found.scenario) if row.pretrained == pretrained]
        if not rows:
            continue
        about = (
            "Accuracy over all classes, one draw, as the source in the last column has it; most give no harmonic mean."
        )
        apart = " These backbones were trained on far more data, so the figures stand apart." if pretrained else ""
        lines += [f"## {title}", "", about + apart, ""]
        lines += ruled("method", "paper", "backbone", "first", "last", "where it was read")
        for row in sorted(rows, key=lambda row: -row.last):
            first = "–" if row.first is None else f"{row.first:.2f}"
            read = row.checked + (f"; {row.note}" if row.note else "")
            lines.append(
                line(
                    row.method, link(row.paper, row.source), row.backbone or "not said", first, f"{row.last:.2f}", read
                )
            )
        lines.append("")
    return lines


def explained(rows: list[Row]) -> list[str]:
    """Papers, code, needs and departures of every method."""
    lines = ["## What each method is, needs and leaves out", ""]
    lines += ruled("method", "paper", "code", "group", "needs")
    said = dict[str, str]()
    for row in sorted(rows, key=lambda row: row.method):
        choice = known(row.method)
        if choice is None:
            lines.append(line(mark(row.method), "–", "–", "not registered here", "–"))
            continue
        entry, needs = choice.entry, ", ".join(choice.needs) or "nothing more"
        code = link("code", entry.code) if entry.code else "–"
        lines.append(line(mark(row.method), link(entry.paper, entry.link), code, entry.group, needs))
        if entry.departures:
            said[entry.name] = entry.departures
    departures = [f"- `{name}`: {words}" for name, words in said.items()]
    return [*lines, "", "Where each departs from its paper:", "", *departures] if departures else lines


def ahm(found: Table, method: str) -> str:
    """The AHM of a method in a table, if it was run there."""
    row = found.row(method)
    return "not run" if row is None else f"{row.ahm:.2f}"
