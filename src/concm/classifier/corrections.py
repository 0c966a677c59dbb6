"""Corrections: photos removed or moved to another class, classes renamed or merged.

A corrected class is learned again from the photos that it has now; it keeps its place, and a base class stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import torch
from torch import Tensor

from concm.classifier.change import Change
from concm.classifier.folders import Similar, refuse_similar
from concm.classifier.known import Known
from concm.classifier.photos import checked_name, spelling
from concm.classifier.rows import PhotoRow
from concm.classifier.store import Store
from concm.errors import Misuse
from concm.features.sessions import Session

Chosen = int | str | PhotoRow
"""A photo that is known: its number, its file name, `class/file` where several are called so, or its row."""


@dataclass
class Correction:
    """One version in the making: each method changes database and engine alike, and says what was done."""

    store: Store
    change: Change
    known: Known

    def remove(self, photos: Sequence[Chosen]) -> str:
        """Remove photos; a class keeps one at least."""
        chosen = self._chosen(photos)
        kept = {name: self._without(name, rows) for name, rows in chosen.items()}
        self.change.remove_photos(row.id for rows in chosen.values() for row in rows)
        self._learn(kept)
        return _counted(chosen)

    def move(self, photos: Sequence[Chosen], to: str, similar: Similar) -> str:
        """Move photos to a class, which is learned if it is new."""
        to = spelling(self.known.engine.names)(checked_name(to))
        refuse_similar([to], self.known.engine.names, similar)
        chosen = {name: rows for name, rows in self._chosen(photos).items() if name != to}
        if not chosen:
            raise Misuse(f"these photos are of {to!r} already")
        after = {name: self._without(name, rows) for name, rows in chosen.items()}
        moved = [row for rows in chosen.values() for row in rows]
        if to in self.known.engine.names:
            after[to] = self.store.photos(to) + moved
        else:
            self.change.add_class(to, base=False)
        self.change.move_photos([row.id for row in moved], to)
        self._learn(after)
        if to not in after:
            self._learn_new(to, moved)
        return f"{_counted(chosen)} to {to}"

    def rename(self, name: str, to: str, similar: Similar) -> str:
        """Give a class another name; its attributes are then those of the new one."""
        to, name = checked_name(to), self.store.called(name)
        label = self._label(name)
        if to in self.known.engine.names:
            raise Misuse(
                f"{name!r} is called that already" if to == name else f"there is a class {to!r} already: merge the two"
            )
        refuse_similar([to], [other for other in self.known.engine.names if other != name], similar)
        self.change.rename_class(name, to)
        self._call(label, to)
        return f"{name} to {to}"

    def merge(self, names: Sequence[str], into: str) -> str:
        """Make one class of several, under one of their names; if one of them is a base class, so is what they become.

        It takes the place of the class that it is called after, or of a base class if that is none.
        """
        into = self.store.called(into)
        others = [name for name in dict.fromkeys(map(self.store.called, names)) if name != into]
        labels = {name: self._label(name) for name in [into, *others]}
        if not others:
            raise Misuse(f"merging takes another class than {into!r} itself")
        if len(self.known.engine.names) - len(others) < 2:
            raise Misuse("a classifier has two classes at least, and this would leave one")
        base = self.known.engine.memory.base
        stays = next((name for name, label in labels.items() if label < base), into)
        after = {stays: [row for name in labels for row in self.store.photos(name)]}
        for name in labels.keys() - {stays}:
            self.change.merge_class(name, stays)
        self._learn(after)
        for name, label in sorted(labels.items(), key=lambda item: -item[1]):
            if name != stays:
                self._forget(label)
        if stays != into:
            self.change.rename_class(stays, into)
            self._call(self._label(stays), into)
        return f"{', '.join(others)} into {into}"

    def _chosen(self, photos: Sequence[Chosen]) -> dict[str, list[PhotoRow]]:
        """The photos that are meant, by class; each of them once."""
        if not photos:
            raise Misuse("no photo was named")
        every = {name: self.store.photos(name) for name in self.known.engine.names}
        found: dict[str, dict[int, PhotoRow]] = {}
        for one in photos:
            name, row = _found(one, every)
            found.setdefault(name, {})[row.id] = row
        return {name: list(rows.values()) for name, rows in found.items()}

    def _without(self, name: str, rows: Iterable[PhotoRow]) -> list[PhotoRow]:
        gone = {row.id for row in rows}
        left = [row for row in self.store.photos(name) if row.id not in gone]
        if not left:
            raise Misuse(f"that would leave no photo of {name!r}: forget or rename it, or merge it with another")
        return left

    def _label(self, name: str) -> int:
        return self.known.engine.names.index(name)

    def _learn(self, groups: dict[str, list[PhotoRow]]) -> None:
        """Learn known classes again from these photos."""
        names = self.known.engine.names
        self.known.engine.revise({names.index(name): (_features(rows), None) for name, rows in groups.items()})

    def _learn_new(self, name: str, rows: list[PhotoRow]) -> None:
        at = len(self.known.engine.names)
        labels = torch.full((len(rows),), at)
        index = len(self.store.history())
        self.known.engine.learn(Session(index, range(at, at + 1), (name,), _features(rows), labels, None))

    def _forget(self, label: int) -> None:
        self.known.engine.forget(label)

    def _call(self, label: int, name: str) -> None:
        """Rename a class of the engine; a novel one is learned again where its name has a meaning."""
        engine = self.known.engine
        photos = self.store.photos(engine.names[label])
        engine.names[label] = name
        if (engine.calibrator is not None or engine.prior is not None) and label >= engine.memory.base:
            engine.revise({label: (_features(photos), None)})


def _found(one: Chosen, every: dict[str, list[PhotoRow]]) -> tuple[str, PhotoRow]:
    """The one photo that is meant, and its class."""
    rows = [(name, row) for name, photos in every.items() for row in photos]
    if isinstance(one, PhotoRow):
        one = one.id
    path = PurePath(str(one))
    matching = [] if isinstance(one, int) else [(name, row) for name, row in rows if row.label == path.name]
    if len(matching) > 1:
        matching = [(name, row) for name, row in matching if name == path.parent.name] or matching
    if not matching and str(one).isdecimal():
        matching = [(name, row) for name, row in rows if row.id == int(one)]
    if not matching:
        raise Misuse(f"no class has a photo {one}; photos are named by their number or file name")
    if len(matching) > 1:
        which = ", ".join(f"number {row.id} of {name!r}" for name, row in matching[:4])
        raise Misuse(
            f"{len(matching)} photos are called {path.name}: {which}; give the number of the one that is meant"
        )
    return matching[0]


def _features(rows: Sequence[PhotoRow]) -> Tensor:
    return torch.stack([row.features[0] for row in rows])


def _counted(chosen: dict[str, list[PhotoRow]]) -> str:
    return ", ".join(f"{name} ({len(rows)})" for name, rows in chosen.items())
