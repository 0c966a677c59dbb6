"""The experiments of the ConCM paper as runs of the bench: what each needs, and how its table is made."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from concm.errors import Misuse, did_you_mean
from concm.evaluation import published
from concm.evaluation.bench import BankSource, finish, tasks_of
from concm.evaluation.controls import METHODS
from concm.evaluation.statistics import Table
from concm.evaluation.workers import Place
from concm.features.storage import ships


@dataclass(frozen=True)
class Line:
    """A row of an experiment: what it is called, and the runs in this library's form and in the paper's."""

    shown: str
    printed: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ours: str | None = None
    form: str | None = None


@dataclass(frozen=True)
class Experiment:
    """One table of runs; `table` is the label of the printed one, where the paper prints figures."""

    name: str
    title: str
    scenario: str
    lines: tuple[Line, ...]
    table: str | None = None
    way: int | None = None
    shot: int | None = None

    def methods(self, ours_only: bool = False) -> list[str]:
        """The runs that it needs, each once: those of both forms, or in this library's form alone."""
        words = [word for line in self.lines for word in (line.ours, None if ours_only else line.form) if word]
        return list(dict.fromkeys([*words, *METHODS]))

    @property
    def cut(self) -> str:
        """The options by which the scenario is cut otherwise."""
        return "".join(f" --{name} {value}" for name, value in (("way", self.way), ("shot", self.shot)) if value)

    def printed(self, line: Line) -> published.Row | None:
        """The paper's row beside a line."""
        if self.table is None or not line.printed:
            return None
        rows = [row for row in published.table(self.table).rows if row.scenario == self.scenario]
        return next((row for row in rows if _fits(row, line.printed)), None)

    def source(self, banks: Path | None) -> BankSource | None:
        """Its bank: a file of the scenario's name in `banks`, or the one that ships with concm; none if neither is."""
        file = None if banks is None else banks / f"{self.scenario}.safetensors"
        if file is not None and file.is_file():
            return BankSource(self.scenario, file, self.way, self.shot)
        return BankSource(self.scenario, None, self.way, self.shot) if ships(self.scenario) else None

    def run(self, source: BankSource, out: Path, where: Place, *, draws: int, seed: int, ours_only: bool) -> Table:
        """The table of all runs; those that are finished in `out` are not repeated."""
        bank, methods = source.bank(), self.methods(ours_only)
        tasks = tasks_of(methods, draws=draws, seeds=1, seed=seed, splits=None, device=where.device)
        results = finish(tasks, source, bank, out, where)
        return Table.of(bank, results, draws, where.at_once and min(len(tasks), where.at_once))


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by name, in the order in which they are shown."""
    data = tomllib.loads((files("concm.evaluation") / "paper.toml").read_text(encoding="utf-8"))
    found = {}
    for entry in data["experiment"]:
        lines = tuple(Line(**line) for line in entry.pop("lines"))
        found[entry["name"]] = Experiment(**entry, lines=lines)
    return found


def chosen(names: list[str]) -> list[Experiment]:
    """The experiments of these names, or all."""
    known = experiments()
    for name in names:
        if name not in known:
            raise Misuse(f"no experiment called {name!r}; {did_you_mean(name, known)}")
    return [known[name] for name in names] if names else list(known.values())


def looked_at() -> list[str]:
    """The runs that are looked into: our engine, as it is and with each loss."""
    return list(dict.fromkeys(["concm", *(line.ours for line in experiments()["losses"].lines if line.ours)]))


def _fits(row: published.Row, wanted: Mapping[str, Any]) -> bool:
    """Whether a printed row has these values; an empty one means that the row says nothing of it."""
    return all(getattr(row, name, row.other.get(name, "")) == value for name, value in wanted.items())
