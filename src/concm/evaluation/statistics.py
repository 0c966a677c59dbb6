"""From results to tables: means and deviations over runs, and how far a method lies above the control's curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from concm.errors import loading
from concm.evaluation import published
from concm.evaluation.curves import above_curve, mean_curve, rounded
from concm.evaluation.given import Given
from concm.evaluation.paired import Difference, by_draw, deviation, interval
from concm.evaluation.results import ClassMeans, Curve, Cut, Result
from concm.features.bank import Bank
from concm.files import write_whole
from concm.records import from_json, shortened, to_json

CONTROL = "ncm_metric"
"""The strong control, whose trade-off curve the others are measured against."""


@dataclass(frozen=True)
class Official:
    """AHM and FA with the shots of published lists: one draw, the one that papers report."""

    ahm: float
    fa: float

    @classmethod
    def of(cls, results: Sequence[Result]) -> Official:
        """The mean over seeds."""
        ahm, fa = (float(np.mean([getattr(one.summary, name) for one in results])) for name in ("ahm", "fa"))
        return cls(ahm, fa)


@dataclass(frozen=True)
class Row:
    """One method's row: means over its runs, deviations (of a sample) of what is compared, and figures by session.

    `above_curve` are points of novel accuracy over the control's curve on the same shots, at the row's own base
    accuracy, with the 95 % interval of their mean over the draws. `by_draw` has AHM, FA and those points draw by draw,
    and which draws they are; `by_session` what else is known of each session, the base session first. `official` has
    the figures with the shots of published lists, which are in none of the others.
    """

    method: str
    ahm: float
    ahm_std: float
    fa: float
    fa_std: float
    base_acc: float
    pd: float
    nacc: float
    ber: float
    seconds: float
    memory_bytes: float | None
    parameters: float | None
    hm: list[float]
    last_base: float
    last_novel: float
    smr: list[float] | None
    class_means: ClassMeans
    trade_off: Curve | None
    runs: int
    device: str
    above_curve: float | None = None
    above_interval: tuple[float, float] | None = None
    by_draw: dict[str, list[float]] = field(default_factory=dict)
    by_session: dict[str, list[float]] = field(default_factory=dict)
    official: Official | None = None

    @classmethod
    def of(cls, results: Sequence[Result], control: Sequence[Result] = (), listed: Sequence[Result] = ()) -> Row:
        """Of all runs of one method, against the control's on the same draws; `listed` had shots of published lists."""
        summaries, sessions = [result.summary for result in results], [result.sessions for result in results]
        draws = [result.heading.draw for result in results]

        def mean(name: str) -> float:
            return float(np.mean([getattr(entry, name) for entry in summaries]))

        def size(name: str) -> float | None:
            return None if getattr(summaries[0], name) is None else mean(name)

        def spread(name: str) -> float:
            return deviation(by_draw([getattr(entry, name) for entry in summaries], draws))

        def by_session(name: str) -> list[float]:
            return [float(np.mean([getattr(run[at], name) for run in sessions])) for at in range(len(sessions[0]))]

        matched, above = sessions[0][-1].smr is not None, above_curve(results, control)
        return cls(
            method=results[0].heading.label,
            **{name: mean(name) for name in ("ahm", "fa", "base_acc", "pd", "nacc", "ber", "seconds")},
            ahm_std=spread("ahm"),
            fa_std=spread("fa"),
            memory_bytes=size("memory_bytes"),
            parameters=size("parameters"),
            hm=by_session("hm")[1:],
            last_base=by_session("acc_base")[-1],
            last_novel=by_session("acc_novel")[-1],
            smr=by_session("smr")[1:] if matched else None,
            class_means=ClassMeans(
                float(np.mean([entry.class_means.ahm for entry in summaries])),
                float(np.mean([entry.class_means.fa for entry in summaries])),
            ),
            trade_off=rounded(mean_curve([run[-1].trade_off for run in sessions])),
            runs=len(results),
            device=results[0].heading.environment["device"],
            above_curve=float(np.mean(above)) if above else None,
            above_interval=interval(above),
            by_draw={
                "draw": [float(draw) for draw in dict.fromkeys(draws)],
                **{name: by_draw([getattr(entry, name) for entry in summaries], draws) for name in ("ahm", "fa")},
                **({"above_curve": above} if above else {}),
            },
            by_session={name: by_session(name) for name in ("acc", "acc_base", "acc_novel", "ber")},
            official=Official.of(listed) if listed else None,
        )


def difference(row: Row, other: Row, name: str) -> Difference | None:
    """How far a row's `name` (ahm, fa or above_curve) lies above another's, paired by draw; none where unknown.

    Draws that only one of them has are left out.
    """
    one, two = (_named_draws(each, name) for each in (row, other))
    shared = [draw for draw in one if draw in two]
    if not shared:
        return None
    values = [one[draw] - two[draw] for draw in shared]
    return Difference(float(np.mean(values)), interval(values))


def _named_draws(row: Row, name: str) -> dict[float, float]:
    """The values of each draw; older files do not say which draws they are, and began with the first."""
    values = row.by_draw.get(name, [])
    draws = row.by_draw.get("draw", []) if values else []
    return dict(zip(draws or list(map(float, range(len(values)))), values, strict=True))


def shared_draws(rows: Sequence[Row], name: str) -> list[float]:
    """The draws of `name` that all rows have; those of a single draw do not narrow it, unless there are no others."""
    known = [draws for row in rows if (draws := _named_draws(row, name))]
    several = [draws for draws in known if len(draws) > 1] or known
    return [draw for draw in several[0] if all(draw in draws for draws in several)] if several else []


def mean_over(row: Row, name: str, draws: Sequence[float]) -> float:
    """A row's mean of `name` over these draws, by which rows are ordered; its own where it does not have them all."""
    values = _named_draws(row, name)
    if not draws or not values.keys() >= set(draws):
        return float(getattr(row, name))
    return float(np.mean([values[draw] for draw in draws]))


def ranks(rows: Sequence[Row], name: str) -> dict[str, int]:
    """The rank of each method by its mean over the shared draws, 1 for the best.

    One shares the rank of the first of a rank unless that is above it by a paired difference, over all draws that both
    have, whose interval does not reach zero. Rows without values by draw share no rank.
    """
    draws = shared_draws(rows, name)
    found: dict[str, int] = {}
    first: Row | None = None
    for place, row in enumerate(sorted(rows, key=lambda row: -mean_over(row, name, draws)), 1):
        apart = difference(first, row, name) if first is not None else None
        if first is None or apart is None or (apart.mean > 0 and not apart.tie):
            first, found[row.method] = row, place
        else:
            found[row.method] = found[first.method]
    return found


def rows(results: Sequence[Result]) -> list[Row]:
    """A row for each method, in the order in which they were asked for."""
    drawn, listed = dict[str, list[Result]](), dict[str, list[Result]]()
    for result in results:
        (drawn if result.heading.shots is None else listed).setdefault(result.heading.label, []).append(result)
    control = drawn.get(CONTROL, [])
    return [Row.of(runs, control, listed.get(label, [])) for label, runs in drawn.items()]


@dataclass(frozen=True)
class Printed:
    """A published row beside the measured ones."""

    method: str
    backbone: str | None
    base_acc: float | None
    ahm: float | None
    fa: float | None
    hm: list[float]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """What the bench measured on one bank, with the published rows of the scenario; as a file, `concm bench --json`.

    `control` is the method whose curve the rows are measured against, `passes` how often the backbone saw each picture,
    `given` what the bank holds, and `bank` its digest; older files do not say these two.
    """

    scenario: str
    cut: Cut
    draws: int
    backbone: dict[str, Any]
    training: dict[str, Any] | None
    rows: list[Row]
    published: list[Printed] = field(default_factory=list)
    at_once: int | None = None
    control: str = "ncm"
    passes: int = 1
    given: Given | None = None
    bank: str = ""

    @classmethod
    def of(cls, bank: Bank, results: Sequence[Result], draws: int, at_once: int | None = None) -> Table:
        """Of the results on a bank; so many runs went at a time."""
        return cls(
            scenario=bank.scenario.name,
            cut=Cut.of(bank.scenario),
            draws=draws,
            backbone=to_json(bank.encoder),
            training=bank.card.training,
            rows=rows(results),
            published=[
                Printed(row.method, row.backbone, row.base_acc, row.ahm, row.fa, list(row.hm), row.note)
                for row in published.beside(bank.scenario)
            ],
            at_once=at_once,
            control=CONTROL,
            passes=bank.passes,
            given=Given.of(bank),
            bank=bank.digest,
        )

    @property
    def base_session(self) -> str | None:
        """The method whose base session trained the backbone, if it was one's."""
        name: str | None = self.recipe.get("method")
        return name

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings of the base session that trained the backbone; empty where none of ours did."""
        return (self.training or {}).get("recipe") or {}

    def row(self, method: str) -> Row | None:
        """The row of a method, if it was run."""
        return next((row for row in self.rows if row.method == method), None)

    def joined(self, others: list[Table]) -> tuple[Table, list[Table]]:
        """With further rows of tables of the very same bank, perhaps of fewer draws; and the other tables."""
        same = [other for other in others if other.bank and other.bank == self.bank]
        rows = {row.method: row for table in (*reversed(same), self) for row in table.rows}
        own = [row.method for row in self.rows]
        more = [row for name, row in rows.items() if name not in own]
        return replace(self, rows=[*self.rows, *more]), [other for other in others if other not in same]

    def save(self, path: Path) -> None:
        """Write it whole, with six digits in each figure."""
        write_whole(path, (json.dumps(shortened(to_json(self), 6), separators=(",", ":")) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Table:
        """Read it back."""
        with loading(path, "table of `concm bench --json`", "make it again with this version"):
            return from_json(cls, json.loads(path.read_text(encoding="utf-8")))
