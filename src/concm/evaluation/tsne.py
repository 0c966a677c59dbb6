"""t-SNE (van der Maaten and Hinton, 2008), exact, for the few hundred points of a picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]


def embed(points: Points, *, perplexity: float = 20.0, steps: int = 400, seed: int = 0) -> Points:
    """(n, d) → (n, 2): neighbours stay neighbours. The same seed gives the same picture on one machine."""
    count = len(points)
    if count < 3:
        return np.zeros((count, 2))
    shares = _neighbours(points, min(perplexity, (count - 1) / 3))
    shares = (shares + shares.T) / (2 * count)
    place = np.random.default_rng(seed).normal(0, 1e-4, (count, 2))
    speed, gain = np.zeros_like(place), np.ones_like(place)
    for step in range(steps):
        apart = place[:, None] - place[None]
        near = 1 / (1 + (apart**2).sum(2))
        np.fill_diagonal(near, 0)
        # Attraction is exaggerated at first, so that clusters form before they settle.
        pull = (shares * (12 if step < steps // 4 else 1) - near / near.sum()) * near
        slope = 4 * (pull[:, :, None] * apart).sum(1)
        gain = np.maximum(np.where(np.sign(slope) == np.sign(speed), gain * 0.8, gain + 0.2), 0.01)
        speed = (0.5 if step < steps // 4 else 0.8) * speed - max(count / 12, 50) * gain * slope
        place = place + speed - (place + speed).mean(0)
    return np.asarray(place)


def _neighbours(points: Points, perplexity: float) -> Points:
    """Row by row, the share of each other point as a neighbour; the width of each row gives it this perplexity."""
    squared = (points**2).sum(1)
    distance = np.maximum(squared[:, None] + squared[None] - 2 * points @ points.T, 0)
    np.fill_diagonal(distance, np.inf)
    distance -= distance.min(1, keepdims=True)
    np.fill_diagonal(distance, np.inf)
    low, high = np.full(len(points), 0.0), np.full(len(points), np.inf)
    precision = np.ones(len(points))
    finite = np.where(np.isinf(distance), 0, distance)
    for _ in range(60):
        weight = np.exp(-distance * precision[:, None])
        total = weight.sum(1)
        entropy = np.log(total) + precision * (weight * finite).sum(1) / total
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, precision, low), np.where(wide, high, precision)
        precision = np.where(np.isinf(high), precision * 2, (low + high) / 2)
    weight = np.exp(-distance * precision[:, None])
    return np.asarray(weight / weight.sum(1, keepdims=True))
