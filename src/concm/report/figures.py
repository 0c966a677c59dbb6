"""Pictures for people who would rather look than read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from concm.data.scenarios import Scenario
from concm.errors import ConcmError
from concm.evaluation.results import Curve, Figures
from concm.evaluation.statistics import Row, Table
from concm.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = {
    "control": "#222222",
    "shared backbone": "#4477aa",
    "updates the backbone": "#228833",
    "own base session": "#aa3377",
    "reference": "#cc9911",
}
"""The colour of each group of methods."""
COLOURS = ("#cc3311", "#222222", "#4477aa", "#228833", "#aa3377", "#ccbb44", "#66ccee")


@contextmanager
def _picture(path: Path | None, columns: int, size: tuple[float, float]) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes to draw on, apart from pyplot and its global state; written at the end to the path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    try:
        yield figure, figure.subplots(1, columns)
        if path is not None:
            with replacing(path) as draft:
                kind = path.suffix[1:] or "png"
                figure.savefig(draft, dpi=150, format=kind)
                if kind == "png":  # a drawing has few colours, and is a third as large with a palette
                    Image.open(draft).convert("RGB").quantize(64).save(draft, "PNG", optimize=True)
    except ValueError as error:
        raise ConcmError(f"cannot write the picture {path}: {error}") from error


def by_session(scenario: Scenario, runs: list[list[Figures]], path: Path, title: str) -> None:
    """Accuracy over all, base and novel classes after each session: the mean of the draws, and their range."""
    seen = [scenario.seen(session) for session in range(scenario.sessions + 1)]
    with _picture(path, 1, (7, 3.6)) as (_, axes):
        for name, label, colour in (
            ("acc_base", "base", "#4477aa"),
            ("acc", "all", "#222222"),
            ("acc_novel", "novel", "#cc6677"),
        ):
            first = 1 if name == "acc_novel" else 0
            values = np.array([[getattr(figures, name) for figures in run[first:]] for run in runs])
            axes.plot(seen[first:], values.mean(0), "o-", color=colour, label=f"{label} classes", markersize=4)
            axes.fill_between(seen[first:], values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        axes.set(xlabel="classes known", ylabel="accuracy (%)", ylim=(0, 100), title=title, xticks=seen)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)


def bench(table: Table, path: Path | None = None) -> Figure:
    """HM by session beside published rows, and the base/novel trade-off with the control's whole curve."""
    cut, rows = table.cut, table.rows
    with _picture(path, 2, (11, 4.2)) as (figure, (left, right)):
        seen = [cut.base + at * cut.way for at in range(1, cut.sessions + 1)]
        for entry in sorted(table.published, key=lambda entry: entry.ahm or 0)[-3:]:
            left.plot(seen, entry.hm, "--", linewidth=1, alpha=0.7, label=f"{entry.method}, published")
        for at, row in enumerate(rows):
            colour = COLOURS[at % len(COLOURS)]
            left.plot(seen, row.hm, "o-", color=colour, markersize=4, label=row.method)
            if row.trade_off is not None:
                right.plot(row.trade_off.base, row.trade_off.novel, "-", color=colour, alpha=0.5, linewidth=1.2)
            right.plot(row.last_base, row.last_novel, "o", color=colour, label=row.method)
        left.set(xlabel="classes known", ylabel="harmonic mean (%)", xticks=seen, title="HM by session")
        lowest = min(row.last_base for row in rows) - 5, min(row.last_novel for row in rows) - 5
        right.set(xlabel="base accuracy (%)", ylabel="novel accuracy (%)")
        right.set(xlim=(min(45, lowest[0]), None), ylim=(min(15, lowest[1]), None))
        right.set_title("trade-off after the last session")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.legend(frameon=False, fontsize=8)
    return figure


@dataclass(frozen=True)
class Points:
    """Rows of one bank with their groups, and the control's curve on it; `shared` is the bank of most methods."""

    rows: list[tuple[Row, str]]
    curve: Curve | None
    control: str
    shared: bool


def trade_offs(banks: list[Points], path: Path) -> None:
    """Where all methods stand after the last session, coloured by group, each bank with the control's own curve."""
    every = [(row, group) for bank in banks for row, group in bank.rows]
    with _picture(path, 1, (9, 6.5)) as (_, axes):
        for bank in banks:
            if bank.curve is not None:
                colour = "#999999" if bank.shared else GROUPS.get(bank.rows[0][1], "#222222")
                thick, words = (2.0, f"{bank.control} with any bias") if bank.shared else (0.8, None)
                axes.plot(bank.curve.base, bank.curve.novel, "-", color=colour, linewidth=thick, alpha=0.6, label=words)
        for group, colour in GROUPS.items():
            if any(own == group for _, own in every):
                axes.plot([], [], "o", color=colour, label=group)
            for bank in banks:
                inside = "none" if bank.curve is None else colour  # without its own curve a point cannot be judged
                places = [(row.last_base, row.last_novel) for row, own in bank.rows if own == group]
                if places:
                    axes.plot(*zip(*places, strict=True), "o", color=colour, markerfacecolor=inside)
        lowest = min(row.last_base for row, _ in every) - 5, min(row.last_novel for row, _ in every) - 5
        axes.set(
            xlabel="base accuracy (%)", ylabel="novel accuracy (%)", xlim=(lowest[0], None), ylim=(lowest[1], None)
        )
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="best")
        _name(axes, [(row.last_base, row.last_novel, row.method, GROUPS[group]) for row, group in every])


def _name(axes: Any, points: list[tuple[float, float, str, str]]) -> None:
    """Write a name beside each point, where it covers no other point or name as far as that can be."""
    from matplotlib.transforms import Bbox

    centres = axes.transData.transform([point[:2] for point in points])
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in centres]
    for x, y, name, colour in points:
        for dx, dy in ((6, 3), (6, -10), (-6, 3), (-6, -10), (6, 12), (6, -19), (-6, 12), (-6, -19), (6, 3)):
            style = {"fontsize": 8, "color": colour, "ha": "left" if dx > 0 else "right"}
            text = axes.annotate(name, (x, y), textcoords="offset points", xytext=(dx, dy), **style)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
            text.set_visible(False)
        text.set_visible(True)
        taken.append(box)
