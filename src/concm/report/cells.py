"""Cells of Markdown tables: figures as people read them."""

from __future__ import annotations

from concm.evaluation.statistics import Row

MEASURED = ("AHM", "FA", "last base / novel", "above the curve")
COSTS = ("base", "PD", "s", "MB", "parameters", "runs", "device")


def cells(row: Row) -> tuple[str, ...]:
    """The measured figures of a row, under the headings `MEASURED`."""
    return (
        f"{row.ahm:.2f} ± {row.ahm_std:.2f}",
        f"{row.fa:.2f} ± {row.fa_std:.2f}",
        f"{row.last_base:.1f} / {row.last_novel:.1f}",
        above(row),
    )


def costs(row: Row) -> tuple[str, ...]:
    """What a row costs, under the headings `COSTS`."""
    return (
        f"{row.base_acc:.2f}",
        f"{row.pd:.2f}",
        f"{row.seconds:.1f}",
        "–" if row.memory_bytes is None else f"{row.memory_bytes / 1e6:.1f}",
        "–" if row.parameters is None else f"{row.parameters:,.0f}",
        str(row.runs),
        row.device,
    )


def by_session(row: Row) -> tuple[str, ...]:
    """Base accuracy, harmonic means by session, and their mean."""
    return (f"{row.base_acc:.2f}", *(f"{value:.2f}" for value in row.hm), f"{row.ahm:.2f}")


def above(row: Row) -> str:
    """Points above the control's curve, with their interval."""
    if row.above_curve is None:
        return "–"
    if row.above_interval is None:
        return signed(row.above_curve, 1)
    return f"{signed(row.above_curve, 2)} ({' to '.join(signed(end, 2) for end in row.above_interval)})"


def signed(value: float, digits: int) -> str:
    """A difference with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def mark(name: str) -> str:
    """A method's name, as code."""
    return f"`{name}`"


def link(words: str, address: str) -> str:
    """Words that lead to an address, if there is one."""
    return f"[{words}]({address})" if address else words


def line(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def ruled(*heads: str) -> list[str]:
    """The first two lines of a Markdown table."""
    return [line(*heads), "|---" * len(heads) + "|"]
