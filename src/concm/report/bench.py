"""The bench's table, to look at and to quote: in a terminal, as Markdown, LaTeX, CSV and JSON, and as a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from rich.table import Table as RichTable
from rich.text import Text

from concm.errors import at_least, at_most, no_gpu
from concm.evaluation.bench import run_in_memory
from concm.evaluation.results import Result
from concm.evaluation.statistics import CONTROL, Printed, Row, Table
from concm.features.bank import Bank
from concm.records import shortened, to_json
from concm.report.cells import heads_of_official, official
from concm.report.tables import print_whole, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bench(
    methods: Any,
    bank: Bank | None = None,
    *,
    draws: int = 5,
    seeds: int = 1,
    seed: int = 0,
    splits: str | Path | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
) -> BenchTable:
    """Run methods on a feature bank, session by session, on the same shots.

    Parameters
    ----------
    methods
        Methods by name (`"concm"`, `"concm:alpha=0.5"`, `"package.module:Class"`), as classes with the verbs
        `fit_base`, `learn` and `scores`, or as objects, which are copied for every run; one of them, or several in a
        list. Two objects of one class are told apart by their attribute `label`.
    bank
        A feature bank; the CIFAR-100 bank that ships with concm unless given.
    draws
        Draws of the shots; figures are means over them.
    seeds
        Runs of each draw, with other random weights and samples.
    seed
        Seed of the first draw, and of the methods.
    splits
        A folder of published index lists: their shots are one more run, in a column of its own.
    device
        Where the methods compute.

    Examples
    --------
    >>> import numpy, concm
    >>> X, y = numpy.random.default_rng(0).normal(size=(60, 8)), numpy.arange(60) % 6
    >>> bank = concm.Bank.from_arrays(train=(X, y), test=(X, y), base=4, way=2, shot=5)
    >>> table = concm.bench(["ncm"], bank, draws=2)
    >>> [row.method for row in table.rows]
    ['ncm']
    """
    at_least(1, draws=draws, seeds=seeds)
    at_least(0, seed=seed)
    at_most(10_000, draws=draws, seeds=seeds)
    if device == "cuda" and not torch.cuda.is_available():
        raise no_gpu()
    chosen = Bank.bundled() if bank is None else bank
    lists = None if splits is None else Path(splits)
    single = isinstance(methods, str | type) or hasattr(methods, "fit_base")
    asked = [methods] if single else list(methods)
    results = run_in_memory(asked, chosen, draws=draws, seeds=seeds, seed=seed, device=device, splits=lists)
    return BenchTable(Table.of(chosen, results, draws), results)


@dataclass(frozen=True)
class BenchTable:
    """What the bench measured, to print, to quote and to plot.

    Attributes
    ----------
    table
        Means over the runs, a row for each method, and the published rows beside them.
    results
        Every run by itself.

    Examples
    --------
    >>> import numpy, concm
    >>> X, y = numpy.random.default_rng(0).normal(size=(60, 8)), numpy.arange(60) % 6
    >>> bank = concm.Bank.from_arrays(train=(X, y), test=(X, y), base=4, way=2, shot=5)
    >>> print(concm.bench(["ncm"], bank, draws=2).to_markdown().splitlines()[0])
    | method | base | 1 | AHM | FA |
    """

    table: Table
    results: Sequence[Result]

    @property
    def rows(self) -> list[Row]:
        """A row for each method: means over the runs."""
        return self.table.rows

    def to_markdown(self) -> str:
        """A Markdown table of figures by session, their mean (AHM) and the last accuracy (FA)."""
        heads = self._heads()
        lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *map(self._cells, self.rows)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"

    def to_latex(self) -> str:
        """The same as a LaTeX table in the style of the papers (booktabs), below the published rows; best ones bold."""
        count = self.table.cut.sessions
        more = self._official
        begin = rf"\begin{{tabular}}{{l{'c' * (count + 3 + len(more))}}}"
        over = rf" & Base & \multicolumn{{{count}}}{{c}}{{HM in each session}} & &{' &' * len(more)} \\"
        heads = " & ".join(["Method", "Acc", *(str(at + 1) for at in range(count)), "AHM", "FA", *more])
        shown = [[*_shown(entry), *("" for _ in more)] for entry in self.table.published if len(entry.hm) == count]
        printed = [_latex(cells, set()) for cells in shown]
        own = [_latex([*_measured(row), *(official(row) for _ in more)], self._best(row)) for row in self.rows]
        lines = [begin, r"\toprule", over, rf"\cmidrule(lr){{3-{count + 2}}}", rf"{heads} \\", r"\midrule"]
        lines += [*printed, r"\midrule"] if printed else []
        return "\n".join([*lines, *own, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def _best(self, row: Row) -> set[int]:
        """The columns in which a row has the largest figure of the measured ones."""
        columns = list(zip(*(_figures(one) for one in self.rows), strict=True))
        return {at for at, value in enumerate(_figures(row)) if value == max(columns[at])}

    def to_csv(self) -> str:
        """Every run on a line of its own: method, draw, seed, HM, base and novel accuracy by session, AHM and FA."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        later = range(1, self.table.cut.sessions + 1)
        parts = [f"{what}_{at}" for what in ("hm", "base", "novel") for at in later]
        writer.writerow(["method", "draw", "seed", "base", *parts, "ahm", "fa"])
        for result in self.results:
            heading, summary, after = result.heading, result.summary, result.sessions[1:]
            by_session = [getattr(figures, what) for what in ("hm", "acc_base", "acc_novel") for figures in after]
            figures = [summary.base_acc, *by_session, summary.ahm, summary.fa]
            drawn = heading.draw if heading.shots is None else "official"
            writer.writerow([heading.label, drawn, heading.seed, *figures])
        return file.getvalue()

    def to_json(self) -> str:
        """The table as `concm bench --json` writes it."""
        return json.dumps(shortened(to_json(self.table), 6), indent=1) + "\n"

    def plot(self, path: str | Path | None = None) -> Figure:
        """Harmonic means by session beside published rows, and the trade-off of base and novel accuracy."""
        from concm.report import figures

        return figures.bench(self.table, None if path is None else Path(path))

    def _repr_markdown_(self) -> str:
        """How a notebook shows it."""
        return self.to_markdown()

    def __str__(self) -> str:
        return self.to_markdown()

    @property
    def _official(self) -> list[str]:
        """The heading of the column with the shots of published lists, if there is one."""
        return heads_of_official(self.rows)

    def _heads(self) -> list[str]:
        later = (str(at + 1) for at in range(self.table.cut.sessions))
        return ["method", "base", *later, "AHM", "FA", *self._official]

    def _cells(self, row: Row) -> list[str]:
        spread = [f"{row.ahm:.2f} ± {row.ahm_std:.2f}", f"{row.fa:.2f} ± {row.fa_std:.2f}"]
        shown = (official(row) for _ in self._official)
        return [row.method, f"{row.base_acc:.2f}", *(f"{value:.1f}" for value in row.hm), *spread, *shown]


def _figures(row: Row) -> list[float]:
    return [row.base_acc, *row.hm, row.ahm, row.fa]


def _measured(row: Row) -> list[str]:
    spread = (f"{row.ahm:.2f} ± {row.ahm_std:.2f}", f"{row.fa:.2f} ± {row.fa_std:.2f}")
    return [row.method, f"{row.base_acc:.2f}", *(f"{value:.2f}" for value in row.hm), *spread]


def _shown(entry: Printed) -> list[str]:
    figures = (entry.base_acc, *entry.hm, entry.ahm, entry.fa)
    return [f"{entry.method} (published)", *("--" if value is None else f"{value:.2f}" for value in figures)]


def _latex(cells: list[str], bold: set[int]) -> str:
    """A line of a LaTeX table, with some of the figures behind the name in bold."""
    name, *rest = (cell.replace("_", r"\_").replace(" ± ", r" $\pm$ ") for cell in cells)
    marked = [rf"\textbf{{{cell}}}" if at in bold else cell for at, cell in enumerate(rest)]
    return rf"{' & '.join([name, *marked])} \\"


def show(found: Table) -> None:
    """The table in a terminal, and how far each row lies above the control's trade-off."""
    cut, backbone, rows = found.cut, found.backbone["name"], found.rows
    later = f"{cut.sessions} sessions of {cut.way}-way {cut.shot}-shot"
    say(f"\n{found.scenario}: {cut.base} base classes, then {later}")
    say(f"forward passes per picture: {found.passes}")
    runs = rows[0].runs
    spread = "one run" if runs == 1 else f"mean ± standard deviation of {runs} runs (draws: {found.draws})"
    say(f"measured: {backbone} features, {spread}")
    table = RichTable(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    headings = ["method", "backbone", "base", *(str(at + 1) for at in range(cut.sessions))]
    more = heads_of_official(rows)
    for heading in (*headings, "AHM", "FA", "PD", "NAcc", "BER", *more):
        table.add_column(heading, justify="left" if heading in ("method", "backbone") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.method,
            backbone,
            f"{row.base_acc:.2f}",
            *(f"{value:.1f}" for value in row.hm),
            Text.assemble((f"{row.ahm:.2f}", "bold"), f" ±{row.ahm_std:.2f}" if row.runs > 1 else ""),
            Text.assemble((f"{row.fa:.2f}", "bold"), f" ±{row.fa_std:.2f}" if row.runs > 1 else ""),
            *(f"{value:.2f}" for value in (row.pd, row.nacc, row.ber)),
            *(official(row) for _ in more),
        )
    if found.published:
        table.add_section()
        table.add_row(Text("published (one draw)", "dim"))
    for entry in found.published:
        figures = (entry.base_acc, *entry.hm, entry.ahm, entry.fa)
        digits = (2, *(1 for _ in entry.hm), 2, 2)
        cells = ["" if value is None else f"{value:.{n}f}" for value, n in zip(figures, digits, strict=True)]
        table.add_row(f"{entry.method}{' *' if entry.note else ''}", entry.backbone or "", *cells)
    print_whole(table)
    say("columns 1 and on: harmonic mean of base and novel accuracy after that session; NAcc, BER: means over sessions")
    for entry in found.published:
        if entry.note:
            say(f"* {entry.method}: {entry.note}")
    for row in rows:
        _explain(row)


def show_remarks(results: Sequence[Result]) -> None:
    """What methods had to say, once."""
    for remark in dict.fromkeys(remark for result in results for remark in result.remarks):
        say(f"note: {remark}")


def _explain(row: Row) -> None:
    """Where a row stands against the strong control with any constant on its novel scores."""
    if row.method == CONTROL or row.above_curve is None:
        return
    ends = row.above_interval
    interval = "" if ends is None else f" (95 % interval {ends[0]:+.2f} to {ends[1]:+.2f})"
    side = "above" if row.above_curve >= 0 else "below"
    memory = "" if row.memory_bytes is None else f", memory {row.memory_bytes / 1e6:.1f} MB"
    say(
        f"{row.method}: after the last session base {row.last_base:.1f}, novel {row.last_novel:.1f}: "
        f"{abs(row.above_curve):.2f} points {side} the curve of {CONTROL} at that base accuracy{interval}; "
        f"{row.seconds:.1f} s per draw{memory}"
    )
