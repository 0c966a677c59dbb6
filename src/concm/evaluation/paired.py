"""What draws that all methods share say about a difference: deviations of a sample, and intervals of a mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)
"""Of Student's distribution at 97.5 %, for 1 to 15 degrees of freedom."""


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of paired differences (Student's t); none for a single one."""
    if len(values) < 2:
        return None
    freedom = len(values) - 1
    quantile = T_QUANTILES[freedom - 1] if freedom <= len(T_QUANTILES) else 1.96 + 2.5 / freedom
    half = quantile * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample (n − 1); zero for a single value, of which nothing is known."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def by_draw(values: Sequence[float], draws: Sequence[int]) -> list[float]:
    """The mean of each draw's values, over its seeds: seeds repeat a draw and are no further ones."""
    return [
        float(np.mean([value for value, own in zip(values, draws, strict=True) if own == draw]))
        for draw in dict.fromkeys(draws)
    ]


@dataclass(frozen=True)
class Difference:
    """By how much one row lies above another on the same draws: the mean, and its 95 % interval over the draws."""

    mean: float
    interval: tuple[float, float] | None

    @property
    def tie(self) -> bool:
        """Whether the interval contains no difference at all, or none is known because there is a single draw."""
        return self.interval is None or self.interval[0] <= 0 <= self.interval[1]
