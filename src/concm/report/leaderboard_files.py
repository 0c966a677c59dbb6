"""The leaderboard as files for papers and programs: a LaTeX table by session, and a line per row as CSV."""

from __future__ import annotations

import csv
import io

from concm.evaluation.statistics import Row, Table
from concm.report.bench import BenchTable
from concm.report.leaderboard_tables import own

HEADS = (
    "features",
    "bank",
    "method",
    "draws",
    "ahm",
    "ahm_std",
    "fa",
    "fa_std",
    "above_curve",
    "above_low",
    "above_high",
)


def to_latex(found: Table, others: list[Table]) -> str:
    """All rows of the shared bank by session, below the published ones, as the papers print it (booktabs)."""
    joined, _ = found.joined(others)
    return BenchTable(joined, ()).to_latex()


def to_csv(found: Table, others: list[Table]) -> str:
    """Every measured row: what its features are, its means, and harmonic mean, base and novel accuracy by session."""
    found, others = found.joined(others)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    later = range(1, found.cut.sessions + 1)
    writer.writerow([*HEADS, "base", *(f"{what}_{at}" for what in ("hm", "base", "novel") for at in later)])
    for table in (found, *others):
        for row in (own(table) or table.rows) if table.base_session else table.rows:
            writer.writerow([_features(table), table.bank or table.backbone["weights"], *_figures(row, len(later))])
    return file.getvalue()


def _features(table: Table) -> str:
    """Which bank a row is of, in words that tell the banks of a page apart."""
    trained = f"base session of {table.base_session}" if table.base_session else "base session of ours"
    given = table.given
    part = "" if given is None else f", {given.base} of {given.on} images per base class, {given.views} views of shots"
    return f"{table.backbone['name']} ({table.backbone['weights']}), {trained}{part}"


def _figures(row: Row, sessions: int) -> list[str | float | None]:
    low, high = row.above_interval or (None, None)
    means = [row.ahm, row.ahm_std, row.fa, row.fa_std, row.above_curve, low, high]
    unknown = [None] * (sessions + 1)
    base, novel = (row.by_session.get(name, unknown)[1:] for name in ("acc_base", "acc_novel"))
    return [row.method, len(row.by_draw.get("draw", ())) or row.runs, *means, row.base_acc, *row.hm, *base, *novel]
