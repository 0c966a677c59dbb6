"""Controls that stand beside every figure."""

from __future__ import annotations

from collections.abc import Iterable

from concm.evaluation.protocol import run
from concm.evaluation.results import Figures
from concm.features.bank import Bank
from concm.features.sessions import Shots
from concm.methods.ncm import NCM

METHODS = ("ncm_metric", "ncm", "ncm_bias")
METRICS = ("acc", "acc_base", "acc_novel", "hm")


def nearest_mean(bank: Bank, draws: Iterable[Shots]) -> list[list[Figures]]:
    """Figures of nearest class mean: for each draw, those of all sessions."""
    return [list(run(NCM(), bank, shots)) for shots in draws]


def average(runs: list[list[Figures]]) -> list[dict[str, float]]:
    """The mean over draws, session by session."""
    return [
        {name: sum(getattr(figures, name) for figures in session) / len(session) for name in METRICS}
        for session in zip(*runs, strict=True)
    ]
