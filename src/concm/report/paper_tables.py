"""The tables of the paper's page: what is printed and what was measured, side by side."""

from __future__ import annotations

from itertools import combinations

from concm.evaluation import published
from concm.evaluation.paper import Experiment, Line
from concm.evaluation.statistics import Row, Table, difference
from concm.report.cells import signed

Cells = tuple[tuple[str, ...], ...]
"""A table: its head, then its rows."""


def order(experiment: Experiment, table: Table) -> str:
    """Where the order of the lines is not the paper's, by more than the draws explain; in each form by itself."""
    said, compared = [], 0
    for form in ("ours", "form"):
        known = [
            (line, printed, row)
            for line in experiment.lines
            if (printed := _ahm(experiment.printed(line))) is not None and (row := _row(table, line, form)) is not None
        ]
        for (one, high, upper), (other, low, lower) in combinations(sorted(known, key=lambda entry: -entry[1]), 2):
            apart = difference(upper, lower, "ahm") if high > low and upper.method != lower.method else None
            compared += apart is not None
            if apart is not None and not apart.tie and apart.mean < 0:
                said.append(
                    f"The paper has {one.shown} {high - low:.2f} points above {other.shown}; here, "
                    f"{_WORDS[form]}, it is {signed(apart.mean, 2)}."
                )
    if not compared:
        return ""
    return " ".join(said) or "The order is the paper's, as far as these draws can tell."


_WORDS = {"ours": "in our form", "form": "in the paper's form"}


def _row(table: Table, line: Line, form: str) -> Row | None:
    method = getattr(line, form)
    return None if method is None else table.row(method)


def figures(experiment: Experiment, table: Table) -> Cells:
    """AHM and FA, printed and measured."""
    rows: list[tuple[str, ...]] = [
        ("", "AHM printed", "ours", "paper's form", "FA printed", "ours", "paper's form", "base printed", "here")
    ]
    for line in experiment.lines:
        printed, ours, form = experiment.printed(line), _row(table, line, "ours"), _row(table, line, "form")
        first = ours or form
        rows.append(
            (
                line.shown,
                number(_ahm(printed)),
                *("–" if row is None else f"{row.ahm:.2f} ± {row.ahm_std:.2f}" for row in (ours, form)),
                "–" if printed is None else number(printed.fa),
                *("–" if row is None else f"{row.fa:.2f} ± {row.fa_std:.2f}" for row in (ours, form)),
                "–" if printed is None else number(printed.base_acc),
                "–" if first is None else number(first.base_acc),
            )
        )
    return tuple(rows)


def sessions(experiment: Experiment, table: Table) -> Cells:
    """Harmonic means by session."""
    rows: list[tuple[str, ...]] = [("HM by session", *map(str, range(1, table.cut.sessions + 1)))]
    for line in experiment.lines:
        printed = experiment.printed(line)
        if printed is not None and printed.hm:
            by = dict(zip(printed.sessions, printed.hm, strict=True))
            cells = [number(by.get(at)) for at in range(1, table.cut.sessions + 1)]
            rows.append((f"{line.shown}, printed", *cells))
        for form in ("ours", "form"):
            if (row := _row(table, line, form)) is not None:
                rows.append((f"{line.shown}, {_WORDS[form]}", *(f"{value:.2f}" for value in row.hm)))
    return tuple(rows)


def conflict(experiment: Experiment, table: Table) -> Cells:
    """Novel accuracy and balanced error rate by session (the paper's Tab_conflict)."""
    rows: list[tuple[str, ...]] = [("NAcc / BER by session", *map(str, range(1, table.cut.sessions + 1)))]
    for printed in published.table("Tab_conflict").rows:
        pairs = zip(printed.other["nacc"], printed.other["ber"], strict=True)
        rows.append((f"{printed.method}, printed", *(f"{novel:.1f} / {error:.1f}" for novel, error in pairs)))
    for line in experiment.lines:
        for form in ("ours", "form"):
            row = _row(table, line, form)
            if row is not None and row.by_session:
                pairs = zip(row.by_session["acc_novel"][1:], row.by_session["ber"][1:], strict=True)
                cells = [f"{novel:.1f} / {error:.1f}" for novel, error in pairs]
                rows.append((f"{line.shown}, {_WORDS[form]}", *cells))
    return tuple(rows)


def matching(experiment: Experiment, table: Table) -> Cells:
    """The structure's matching rate by session, where the paper prints it."""
    if not any((printed := experiment.printed(line)) and printed.other.get("smr") for line in experiment.lines):
        return ()
    rows: list[tuple[str, ...]] = [("SMR by session", *map(str, range(1, table.cut.sessions + 1)))]
    for line in experiment.lines:
        printed = experiment.printed(line)
        if printed is not None:
            rows.append((f"{line.shown}, printed", *(f"{value:.2f}" for value in printed.other["smr"])))
        for form in ("ours", "form"):
            row = _row(table, line, form)
            if row is not None and row.smr:
                rows.append((f"{line.shown}, {_WORDS[form]}", *(f"{value:.2f}" for value in row.smr)))
    return tuple(rows)


def _ahm(printed: published.Row | None) -> float | None:
    """The printed mean of harmonic means, or that of the printed sessions."""
    if printed is None:
        return None
    if printed.ahm is not None:
        return printed.ahm
    return sum(printed.hm) / len(printed.hm) if printed.hm else None


def number(value: float | None) -> str:
    """A figure, or a dash for one that is not there."""
    return "–" if value is None else f"{value:.2f}"
