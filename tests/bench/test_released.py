"""What pages say of the authors' code beside ours is what the file of runs gives."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import numpy as np

from concm.evaluation.paired import deviation

ROOT = Path(__file__).parents[2]
WORDS = {9: "nine", 11: "eleven", 12: "twelve"}


def counted() -> tuple[int, int, int]:
    """How many figures there are, how many lie within two deviations of our draws, and how many of these above."""
    spec = importlib.util.spec_from_file_location("released", ROOT / "bench" / "released.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with (ROOT / "docs" / "results" / "released.csv").open(newline="") as file:
        runs = [run for run in csv.DictReader(file) if "episodes=1000" in run["method"]]
    figures = [
        (value, [float(run[f"{what}_{at}"]) for run in runs])
        for what in ("base", "novel")
        for at, value in enumerate(script.RELEASED[what], 1)
    ]
    near = [(value, own) for value, own in figures if abs(value - np.mean(own)) <= 2 * deviation(own)]
    return len(figures), len(near), sum(value > np.mean(own) for value, own in near)


def test_pages_count_the_figures_of_the_released_code_as_the_runs_do():
    every, near, above = (WORDS[count] for count in counted())
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Of the {every} figures of the released code's own run [{near} lie within two standard deviations]" in page
    assert f"of our five draws, {above} of these above our means" in page
    how_to = (ROOT / "docs" / "how-to" / "run-the-bench.md").read_text(encoding="utf-8")
    assert f"{near.capitalize()} of the {every} figures of the released code lie within two standard" in how_to
