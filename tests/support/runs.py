"""Runs made by hand, whose figures are easy to calculate."""

from __future__ import annotations

from typing import Any

from concm.evaluation.results import Curve, Cut, Figures, Heading, Result, Summary
from concm.metrics import Accuracies


def figures(
    index: int, acc: float, base: float, novel: float, hm: float, *, seconds: float = 1.0, **more: Any
) -> Figures:
    """Figures of one session; by class means the harmonic mean is half of that by images."""
    by_images = {"acc": acc, "acc_base": base, "acc_novel": novel, "ber": novel / 2, "fpr": 0.0, "fnr": 0.0}
    means = Accuracies(**by_images, hm=hm / 2)
    return Figures(**by_images, hm=hm, index=index, classes=0, class_means=means, seconds=seconds, confusion=[], **more)


RUN = [
    figures(0, 80.0, 80.0, 0.0, 0.0, seconds=4.0),
    figures(1, 70.0, 75.0, 40.0, 50.0),
    figures(2, 66.0, 71.0, 20.0, 30.0, seconds=2.0),
]
CURVE = Curve([0.0, 0.1, 0.2], [80.0, 70.0, 60.0], [10.0, 40.0, 50.0])


def made(label: str, *sessions: Figures, draw: int = 0) -> Result:
    """A result of these sessions."""
    heading = Heading(
        scenario="folder",
        cut=Cut(2, 1, 1, len(sessions) - 1),
        bank={},
        method=label,
        label=label,
        settings={},
        needs=[],
        draw=draw,
        seed=draw,
        environment={"device": "cpu"},
    )

    class Sized:
        memory_bytes, parameter_count = 100, 10

    return Result(heading, list(sessions), Summary.of(list(sessions), Sized()))
