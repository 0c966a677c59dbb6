"""Scenarios as data: which classes, in which order, how many at once and from how many shots."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources import files

from concm.data.transform import Transform
from concm.errors import Misuse, did_you_mean
from concm.records import from_json

_FOLDER = files("concm.data") / "scenarios"
_NATURAL = Transform(size=224, resize=256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Scenario:
    """A class order, cut into a base session and incremental sessions.

    Parameters
    ----------
    name, title
        What it is called, and what it is in words.
    keys, names
        All classes in the order in which they come: their folders, and what they are called.
    base
        How many classes the base session has.
    way, shot
        How many classes come at a time afterwards, and from how many images each.
    transform
        How its pictures enter a network.
    parts
        The data sets that the classes come from, where there are several: name, first class and last.

    Examples
    --------
    >>> import concm
    >>> bank = concm.Bank.bundled()
    >>> bank.scenario.classes_of(1), bank.scenario.seen(8)
    (range(60, 65), 100)
    """

    name: str
    title: str
    keys: tuple[str, ...]
    names: tuple[str, ...]
    base: int
    way: int
    shot: int
    transform: Transform
    parts: tuple[tuple[str, int, int], ...] = ()

    def __post_init__(self) -> None:
        for what, value, least in (("base", self.base, 2), ("way", self.way, 1), ("shot", self.shot, 1)):
            if value < least:
                raise Misuse(f"scenario {self.name}: `{what}` must be at least {least}, not {value}")
        for what, values in (("class", self.keys), ("class name", self.names)):
            twice = sorted(value for value, count in Counter(values).items() if count > 1)
            if twice:
                raise Misuse(f"scenario {self.name}: {what} given twice: {', '.join(twice[:5])}")
        if self.base > len(self.keys):
            raise Misuse(f"scenario {self.name}: `base` is {self.base}, but there are only {len(self.keys)} classes")

    @property
    def sessions(self) -> int:
        """Incremental sessions; the last one may be smaller than `way`."""
        return -(-(len(self.keys) - self.base) // self.way)

    def classes_of(self, session: int) -> range:
        """Class indices that session brings; session 0 is the base session."""
        if session == 0:
            return range(self.base)
        start = self.base + (session - 1) * self.way
        return range(start, min(start + self.way, len(self.keys)))

    def seen(self, session: int) -> int:
        """Number of classes known after that session."""
        return self.classes_of(session).stop

    def vary(self, *, way: int | None = None, shot: int | None = None, sessions: int | None = None) -> Scenario:
        """The same class order with other ways, shots or a smaller number of sessions."""
        varied = replace(self, way=self.way if way is None else way, shot=self.shot if shot is None else shot)
        if sessions is None:
            return varied
        if not 0 <= sessions <= varied.sessions:
            raise Misuse(
                f"scenario {self.name}: {len(self.keys) - self.base} novel classes make "
                f"{varied.sessions} sessions of {varied.way}-way, not {sessions}"
            )
        count = varied.seen(sessions)
        return replace(varied, keys=self.keys[:count], names=self.names[:count])


def names() -> list[str]:
    """The bundled scenarios."""
    return sorted(entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml"))


def load_scenario(name: str) -> Scenario:
    """A bundled scenario by name."""
    if name not in names():
        raise Misuse(f"no scenario called {name!r}; {did_you_mean(name, names())}")
    data = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    keys: list[str] = []
    labels: list[str] = []
    parts = []
    for part in data["parts"]:
        table = (_FOLDER / f"{part['classes']}.txt").read_text(encoding="utf-8").splitlines()
        rows = [row.split("\t") for row in table][part.get("first", 0) : part.get("last")]
        parts.append((part["classes"], len(keys), len(keys) + len(rows)))
        keys += [row[0] for row in rows]
        labels += [row[1] for row in rows]
    return Scenario(
        name=name,
        title=data["title"],
        keys=tuple(keys),
        names=tuple(labels),
        base=data["base"],
        way=data["way"],
        shot=data["shot"],
        transform=from_json(Transform, data["images"]),
        parts=tuple(parts),
    )


def natural(size: int) -> Transform:
    """The transform for a user's own photos; small pictures are taken whole."""
    return replace(_NATURAL, size=size, resize=size if size <= 64 else round(size * 256 / 224))


def of_folder(keys: Iterable[str], *, base: int, way: int, shot: int, size: int = 224) -> Scenario:
    """A scenario over a user's own class folders, in alphabetical order."""
    ordered = tuple(sorted(keys))
    return Scenario(
        name="folder",
        title=f"class folders: {base} base classes, then {way}-way {shot}-shot sessions",
        keys=ordered,
        names=tuple(key.replace("_", " ") for key in ordered),
        base=base,
        way=way,
        shot=shot,
        transform=natural(size),
    )
