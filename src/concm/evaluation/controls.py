"""Controls that stand beside every figure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from concm.evaluation.protocol import run
from concm.features.bank import Bank
from concm.features.sessions import Shots
from concm.methods.ncm import NCM

METHODS = ("ncm", "ncm_bias")
METRICS = ("acc", "acc_base", "acc_novel", "hm")


def nearest_mean(bank: Bank, draws: Iterable[Shots]) -> list[list[dict[str, Any]]]:
    """Figures of nearest class mean: for each draw, a row a session."""
    return [list(run(NCM(), bank, shots)) for shots in draws]


def average(rows: list[list[dict[str, Any]]]) -> list[dict[str, float]]:
    """The mean over draws, session by session."""
    return [
        {name: sum(row[name] for row in session) / len(session) for name in METRICS}
        for session in zip(*rows, strict=True)
    ]
