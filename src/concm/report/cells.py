"""Cells of Markdown tables: figures as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from concm.evaluation.paired import Difference
from concm.evaluation.statistics import Row, Table
from concm.methods import EXEMPLARS
from concm.methods.choice import known

MEASURED = ("AHM", "FA", "last base / novel", "above the curve")
COSTS = ("base", "PD", "s", "MB", "parameters", "exemplars", "base images", "passes", "runs", "device")


def cells(row: Row) -> tuple[str, ...]:
    """The measured figures of a row, under the headings `MEASURED`."""
    return (
        f"{row.ahm:.2f} ± {row.ahm_std:.2f}",
        f"{row.fa:.2f} ± {row.fa_std:.2f}",
        f"{row.last_base:.1f} / {row.last_novel:.1f}",
        above(row),
    )


def heads_of_official(rows: Sequence[Row]) -> list[str]:
    """The heading of the column with the shots of published lists, where any row has it."""
    return ["official AHM / FA"] if any(row.official for row in rows) else []


def official(row: Row) -> str:
    """AHM and FA with the shots of published lists."""
    return "–" if row.official is None else f"{row.official.ahm:.2f} / {row.official.fa:.2f}"


def costs(row: Row, found: Table) -> tuple[str, ...]:
    """What a row of a table costs, and what it saw, under the headings `COSTS`."""
    given, choice = found.given, known(row.method)
    kept = [need for need in (choice.needs if choice else ()) if need.startswith(EXEMPLARS)]
    return (
        f"{row.base_acc:.2f}",
        f"{row.pd:.2f}",
        f"{row.seconds:.1f}",
        "–" if row.memory_bytes is None else f"{row.memory_bytes / 1e6:.1f}",
        "–" if row.parameters is None else f"{row.parameters:,.0f}",
        "; ".join(need.removeprefix(EXEMPLARS).removeprefix(": ") or "some" for need in kept) or "none",
        *(("–", "–") if given is None else (f"{given.base} of {given.on}", str(found.passes))),
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
    return apart(Difference(row.above_curve, row.above_interval))


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


def apart(found: Difference) -> str:
    """A paired difference, with its interval."""
    ends = "" if found.interval is None else f" ({' to '.join(signed(end, 2) for end in found.interval)})"
    return f"{signed(found.mean, 2)}{ends}"
