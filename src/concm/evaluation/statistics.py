"""From results to tables: means and deviations over runs, and how far a method lies above the control's curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from concm.errors import ConcmError
from concm.evaluation import published
from concm.evaluation.results import ClassMeans, Curve, Cut, Result
from concm.features.bank import Bank
from concm.files import write_whole
from concm.metrics import novel_at
from concm.records import from_json, to_json

CONTROL = "ncm"
"""The method whose trade-off curve the others are measured against."""


@dataclass(frozen=True)
class Row:
    """One method's row: means over its runs, standard deviations of what is compared, and figures by session.

    `above_curve` are points of novel accuracy over the control's curve at the row's own base accuracy.
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

    @classmethod
    def of(cls, results: Sequence[Result]) -> Row:
        """Of all runs of one method."""
        summaries, sessions = [result.summary for result in results], [result.sessions for result in results]

        def mean(name: str) -> float:
            return float(np.mean([getattr(entry, name) for entry in summaries]))

        def size(name: str) -> float | None:
            return None if getattr(summaries[0], name) is None else mean(name)

        def spread(name: str) -> float:
            return float(np.std([getattr(entry, name) for entry in summaries]))

        def by_session(name: str) -> list[float]:
            return [float(np.mean([getattr(run[at], name) for run in sessions])) for at in range(len(sessions[0]))]

        matched = sessions[0][-1].smr is not None
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
            trade_off=_mean_curve([run[-1].trade_off for run in sessions]),
            runs=len(results),
            device=results[0].heading.environment["device"],
        )

    def above(self, control: Row) -> float | None:
        """Points of novel accuracy by which this exceeds the control's curve; none where that does not reach so far."""
        curve = control.trade_off
        if curve is None or not min(curve.base) <= self.last_base <= max(curve.base):
            return None
        return float(self.last_novel - novel_at(self.last_base, curve.base, curve.novel))


def _mean_curve(curves: Sequence[Curve | None]) -> Curve | None:
    known = [curve for curve in curves if curve is not None]
    if not known:
        return None
    names = ("bias", "base", "novel")
    return Curve(*(np.mean([getattr(curve, name) for curve in known], 0).tolist() for name in names))


def rows(results: Sequence[Result]) -> list[Row]:
    """A row for each method, in the order in which they were asked for."""
    by_label: dict[str, list[Result]] = {}
    for result in results:
        by_label.setdefault(result.heading.label, []).append(result)
    found = {label: Row.of(runs) for label, runs in by_label.items()}
    if CONTROL not in found:
        return list(found.values())
    return [replace(row, above_curve=row.above(found[CONTROL])) for row in found.values()]


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
    """What the bench measured on one bank, with the published rows of the scenario; as a file, `concm bench --json`."""

    scenario: str
    cut: Cut
    draws: int
    backbone: dict[str, Any]
    training: dict[str, Any] | None
    rows: list[Row]
    published: list[Printed] = field(default_factory=list)
    at_once: int | None = None

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

    def save(self, path: Path) -> None:
        """Write it whole."""
        write_whole(path, (json.dumps(to_json(self), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Table:
        """Read it back."""
        try:
            return from_json(cls, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ConcmError(
                f"{path} is no table of `concm bench --json`, or one of another version ({error})"
            ) from error

    def comparable(self, bank: Bank, draws: int) -> bool:
        """Whether it is of the same scenario, cut and number of draws as the bank's will be."""
        return (self.scenario, self.cut, self.draws) == (bank.scenario.name, Cut.of(bank.scenario), draws)
