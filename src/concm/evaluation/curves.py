"""Trade-off curves of base and novel accuracy: their means, and how far runs lie above the control's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from concm.evaluation.paired import by_draw
from concm.evaluation.results import Curve, Result
from concm.metrics import novel_at


def above_curve(results: Sequence[Result], control: Sequence[Result]) -> list[float]:
    """Points of novel accuracy over the control's curve of the same draw, for every draw; none if one has no point."""
    curves = {
        draw: mean_curve([result.sessions[-1].trade_off for result in control if result.heading.draw == draw])
        for draw in {result.heading.draw for result in control}
    }
    found = []
    for result in results:
        curve, last = curves.get(result.heading.draw), result.sessions[-1]
        if curve is None or not min(curve.base) - 1e-9 <= last.acc_base <= max(curve.base) + 1e-9:
            return []
        found.append(last.acc_novel - novel_at(last.acc_base, curve.base, curve.novel))
    return by_draw(found, [result.heading.draw for result in results])


def mean_curve(curves: Sequence[Curve | None]) -> Curve | None:
    """The mean of curves, point by point."""
    known = [curve for curve in curves if curve is not None]
    if not known:
        return None
    names = ("bias", "base", "novel")
    return Curve(*(np.mean([getattr(curve, name) for curve in known], 0).tolist() for name in names))


def rounded(curve: Curve | None) -> Curve | None:
    """With as many digits as mean anything, as rows keep it, since files of tables are mostly such numbers."""
    if curve is None:
        return None
    return Curve(*([round(value, 4) for value in values] for values in (curve.bias, curve.base, curve.novel)))
