"""Families of classes: taxonomic ones of CUB's birds, the published superclasses of CIFAR-100."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

from concm.semantics.overrides import plain
from concm.semantics.wordnet import key


@cache
def tables() -> dict[str, dict[str, tuple[str, ...]]]:
    """For each scenario that has them, the class names of every family."""
    read = tomllib.loads((files("concm.semantics") / "families.toml").read_text(encoding="utf-8"))
    return {scenario: {family: tuple(names) for family, names in table.items()} for scenario, table in read.items()}


@cache
def _families() -> dict[str, frozenset[str]]:
    """The families of each class name in all tables, by the name's key."""
    found: dict[str, frozenset[str]] = {}
    for scenario, table in tables().items():
        for family, names in table.items():
            for name in names:
                found[key(name)] = found.get(key(name), frozenset()) | {f"{scenario}: {family}"}
    return found


def family(name: str) -> str | None:
    """The family of a class, however its name is spelled, with the scenario whose table has it; None if unknown.

    All tables are searched, since the scenario may not be known; a name that two tables have gets None.
    """
    found = _families().get(key(plain(name)), frozenset())
    return next(iter(found)) if len(found) == 1 else None
