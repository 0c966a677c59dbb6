"""The pictures of the paper's page, as PNG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from concm.evaluation.paper import Experiment
from concm.evaluation.probe import Points, Probe
from concm.evaluation.statistics import Table
from concm.report.figures import COLOURS

MARKS = {"sample": ".", "true centre": "*", "few-shot prototype": "X", "calibrated prototype": "D"}


def lines(experiment: Experiment, table: Table) -> bytes:
    """AHM of each line where its name is a number, otherwise HM by session; printed ones are dashed."""
    numbers = _numbers([line.shown for line in experiment.lines])
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.subplots()
    if numbers:
        for form, label, colour in (("ours", "ours", COLOURS[0]), ("form", "paper's form", COLOURS[2])):
            rows = [table.row(getattr(line, form) or "") for line in experiment.lines]
            known = [(x, row) for x, row in zip(numbers, rows, strict=True) if row is not None]
            if known:
                heights, spreads = [row.ahm for _, row in known], [row.ahm_std for _, row in known]
                axes.errorbar([x for x, _ in known], heights, spreads, fmt="o-", color=colour, label=label, capsize=3)
        both = zip(numbers, map(experiment.printed, experiment.lines), strict=True)
        printed = [(x, row.ahm) for x, row in both if row is not None and row.ahm is not None]
        if printed:
            axes.plot(*zip(*printed, strict=True), "s--", color="#999999", label="printed")
        axes.set(ylabel="AHM", xlabel=experiment.title)
    else:
        for at, line in enumerate(experiment.lines):
            colour = COLOURS[at % len(COLOURS)]
            printed_row = experiment.printed(line)
            if printed_row is not None and printed_row.hm:
                axes.plot(printed_row.sessions, printed_row.hm, "--", color=colour, linewidth=1, alpha=0.6)
            for form, style in (("ours", "o-"), ("form", "x:")):
                row = table.row(getattr(line, form) or "")
                if row is not None:
                    shown = f"{line.shown}, {'ours' if form == 'ours' else 'paper’s form'}"
                    axes.plot(range(1, len(row.hm) + 1), row.hm, style, color=colour, markersize=4, label=shown)
        axes.set(xlabel="session (printed figures dashed)", ylabel="HM")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7, ncols=2)
    return _png(figure)


def insides(look: Probe) -> Iterator[tuple[str, bytes]]:
    """Prototype truth against accuracy, confusion, features with their prototypes, and embeddings by session."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    own = look.prototypes
    axes.plot(own.biased, own.accuracy, "x", color="#999999", label="few-shot prototype")
    axes.plot(own.calibrated, own.accuracy, "o", color=COLOURS[0], label="calibrated prototype", markersize=4)
    axes.set(xlabel="cosine to the true centre", ylabel="accuracy of the class (%)")
    axes.set_title(f"{look.method}: correlation {own.correlation:+.2f}", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    yield "prototypes", _png(figure)

    figure = Figure(figsize=(4.6, 4), layout="constrained")
    axes = figure.subplots()
    matrix = np.array(look.confusion, dtype=float)
    shares = matrix / matrix.sum(1, keepdims=True).clip(1)
    figure.colorbar(axes.imshow(shares**0.5, cmap="magma", interpolation="nearest"), ax=axes, shrink=0.8)
    axes.set(xlabel="called", ylabel="class")
    axes.set_title(f"{look.method}: root of the shares", fontsize=9)
    yield "confusion", _png(figure)

    figure = Figure(figsize=(6, 4.2), layout="constrained")
    _scatter(figure.subplots(), look.space, marks=True)
    yield "space", _png(figure)

    figure = Figure(figsize=(3.4 * len(look.embeddings), 3.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(look.embeddings)))
    for axes, points in zip(panels, look.embeddings, strict=True):
        _scatter(axes, points, marks=False)
    yield "embeddings", _png(figure)


def _scatter(axes: Any, points: Points, *, marks: bool) -> None:
    """One colour for a class; with `marks`, one mark for a kind of point, otherwise novel classes are crosses."""
    names = list(dict.fromkeys(points.name))
    x, y = np.array(points.x), np.array(points.y)
    for at, name in enumerate(names):
        for kind in dict.fromkeys(points.kind):
            here = np.array([own == name and of == kind for own, of in zip(points.name, points.kind, strict=True)])
            mark = MARKS.get(kind, ".") if marks else {"base": "o", "novel": "x"}[kind]
            size = 90 if marks and kind != "sample" else 14
            edge = {"edgecolors": "#222222"} if marks and kind != "sample" else {}
            colour = f"C{at}"
            axes.scatter(x[here], y[here], s=size, marker=mark, color=colour, linewidths=0.8, label=name, **edge)
    axes.set(xticks=[], yticks=[])
    axes.set_title(points.title, fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    first = {label: handle for handle, label in zip(handles, labels, strict=True)}
    axes.legend(first.values(), first.keys(), fontsize=6, frameon=False)


def _numbers(words: list[str]) -> list[float]:
    """The words as numbers; empty if one is none."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return []


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(file, dpi=110, format="png")
    small = io.BytesIO()
    Image.open(file).convert("RGB").quantize(64).save(small, "PNG", optimize=True)  # a third of the size, and no less
    return small.getvalue()
