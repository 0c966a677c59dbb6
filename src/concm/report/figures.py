"""Pictures for people who would rather look than read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from concm.data.scenarios import Scenario
from concm.errors import ConcmError


def by_session(scenario: Scenario, rows: list[list[dict[str, float]]], path: Path, title: str) -> None:
    """Accuracy over all, base and novel classes after each session: the mean of the draws, and their range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seen = [scenario.seen(session) for session in range(scenario.sessions + 1)]
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for name, label, colour in (
        ("acc_base", "base", "#4477aa"),
        ("acc", "all", "#222222"),
        ("acc_novel", "novel", "#cc6677"),
    ):
        first = 1 if name == "acc_novel" else 0
        values = np.array([[session[name] for session in row[first:]] for row in rows])
        axes.plot(seen[first:], values.mean(0), "o-", color=colour, label=f"{label} classes", markersize=4)
        axes.fill_between(seen[first:], values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="classes known", ylabel="accuracy (%)", ylim=(0, 100), title=title, xticks=seen)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConcmError(f"cannot write the picture {path}: {error}") from error
    finally:
        pyplot.close(figure)
