"""The cheapest one-to-one assignment of rows to columns (the Hungarian method), in plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def assignment(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each row of (n, m), n ≤ m, its column in the cheapest one-to-one assignment (shortest augmenting paths)."""
    rows, columns = cost.shape
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    owner = np.full(columns, -1)
    for start in range(rows):
        distance = np.full(columns, np.inf)
        came_from = np.full(columns, -1)
        done = np.zeros(columns, dtype=bool)
        row, column, reached = start, -1, 0.0
        while row >= 0:
            through = reached + cost[row] - row_price[row] - column_price
            shorter = ~done & (through < distance)
            distance[shorter], came_from[shorter] = through[shorter], column
            column = int(np.where(done, np.inf, distance).argmin())
            reached = distance[column]
            done[column] = True
            row = owner[column]
        settled = done & (owner >= 0)
        row_price[owner[settled]] += reached - distance[settled]
        row_price[start] += reached
        column_price[done] -= reached - distance[done]
        while column >= 0:
            before = came_from[column]
            owner[column] = owner[before] if before >= 0 else start
            column = before
    result = np.empty(rows, dtype=np.int64)
    result[owner[owner >= 0]] = np.flatnonzero(owner >= 0)
    return result
