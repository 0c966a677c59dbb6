"""Published figures: the tables of the ConCM paper (ICLR 2026) as printed, with notes where the print slips."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from concm.data.scenarios import Scenario, load_scenario, names
from concm.errors import Misuse, did_you_mean


@dataclass(frozen=True)
class Row:
    """A printed row, accuracies in per cent; `sessions` are those of `hm` and of every other list.

    `other` holds what only some tables have, such as `nacc`, `ber`, `smr`, `mpc` or `shot`.
    """

    scenario: str = ""
    method: str = ""
    backbone: str | None = None
    base_acc: float | None = None
    hm: tuple[float, ...] = ()
    ahm: float | None = None
    fa: float | None = None
    sessions: tuple[int, ...] = ()
    comparison: bool = False
    note: str = ""
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Table:
    """A table under its LaTeX label; `gain` is the printed lead of ConCM over the second, in points."""

    label: str
    title: str
    scenario: str
    rows: tuple[Row, ...]
    gain: Row | None
    note: str


@dataclass(frozen=True)
class Elsewhere:
    """Accuracy after the base session and after the last one, as another paper prints it; apart if `pretrained`."""

    method: str
    paper: str
    first: float | None
    last: float
    source: str
    checked: str
    backbone: str = ""
    pretrained: bool = False
    note: str = ""


def elsewhere(scenario: str) -> list[Elsewhere]:
    """Published figures of methods that the ConCM paper does not compare with, and where they were read."""
    data = tomllib.loads((files("concm.evaluation") / "elsewhere.toml").read_text(encoding="utf-8"))
    known = {item.name for item in fields(Elsewhere)}
    found = []
    for row in data["row"]:
        if scenario in row:
            about = {key: value for key, value in row.items() if key in known}
            found.append(Elsewhere(**about, first=row[scenario].get("first"), last=row[scenario]["last"]))
    return found


@cache
def tables() -> tuple[Table, ...]:
    """All tables, in the order of the paper."""
    data = tomllib.loads((files("concm.evaluation") / "published.toml").read_text(encoding="utf-8"))
    return tuple(_table(entry) for entry in data["table"])


def table(label: str) -> Table:
    """One table by its label."""
    found = {table.label: table for table in tables()}
    if label not in found:
        raise Misuse(f"no published table called {label!r}; {did_you_mean(label, found)}")
    return found[label]


def rows(scenario: str) -> list[Row]:
    """The methods that the paper compares on a scenario, as ordered there; none where it has no such table."""
    return [row for table in tables() for row in table.rows if row.comparison and row.scenario == scenario]


def beside(scenario: Scenario) -> list[Row]:
    """The rows that a run of this scenario may be compared with: none where classes, ways or shots were varied."""
    if scenario.name not in names():
        return []
    printed = load_scenario(scenario.name)
    same = all(getattr(scenario, name) == getattr(printed, name) for name in ("keys", "base", "way", "shot"))
    return rows(scenario.name) if same else []


def implied(hm: float, fa: float, share: float) -> tuple[float, float] | None:
    """Base and novel accuracy that give this harmonic mean and this accuracy, if a `share` of test images is of base
    classes; of two solutions the one with the higher base accuracy, and none where there is no solution.
    """
    # novel = (fa − share·base) / (1 − share), put into hm·(base + novel) = 2·base·novel
    square, linear, constant = 2 * share, hm * (1 - 2 * share) - 2 * fa, hm * fa
    under = linear**2 - 4 * square * constant
    if under < 0 or share in (0, 1):
        return None
    base = (-linear + math.sqrt(under)) / (2 * square)
    return base, (fa - share * base) / (1 - share)


def distance(hm: Sequence[float], printed: Sequence[float]) -> float | None:
    """Root mean square of the differences session by session; none where sessions are not the same."""
    if not hm or len(hm) != len(printed):
        return None
    return math.sqrt(sum((one - other) ** 2 for one, other in zip(hm, printed, strict=True)) / len(hm))


def _table(data: dict[str, Any]) -> Table:
    common = {key: data[key] for key in ("scenario", "sessions", "comparison") if key in data}
    return Table(
        label=data["label"],
        title=data["title"],
        scenario=data.get("scenario", ""),
        rows=tuple(_row(common | row) for row in data["rows"]),
        gain=_row(common | data["gain"]) if "gain" in data else None,
        note=data.get("note", ""),
    )


def _row(data: dict[str, Any]) -> Row:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    longest = max((len(value) for value in values.values() if isinstance(value, tuple)), default=0)
    values.setdefault("sessions", tuple(range(1, longest + 1)))
    known = {entry.name for entry in fields(Row)}
    other = {key: values.pop(key) for key in data if key not in known}
    return Row(**values, other=MappingProxyType(other))
