"""CUB-200-2011's attribute files: how often annotators saw each of 312 attributes on each of 200 birds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from concm.errors import ConcmError
from concm.semantics.overrides import plain
from concm.semantics.wordnet import key

_STRENGTHS = "class_attribute_labels_continuous.txt"


@dataclass(frozen=True)
class CubAttributes:
    """The strongest attribute of each group (bill shape, wing colour, …) for each class, as columns of `names`."""

    names: tuple[str, ...]
    strongest: dict[str, tuple[int, ...]]

    def of(self, name: str) -> tuple[int, ...] | None:
        """The columns of a class, however its name is spelled; None for a bird that CUB does not have."""
        return self.strongest.get(key(plain(name)))

    def pool(self, names: Iterable[str]) -> tuple[int, ...]:
        """The columns that any of these classes has, in the files' order."""
        return tuple(sorted({column for name in names for column in self.of(name) or ()}))


def read(folder: Path) -> CubAttributes:
    """Read the dataset's folder as it was unpacked, with `attributes.txt` beside it or in it."""
    names = _listed(_find(folder, "attributes.txt"))
    classes = _listed(_find(folder, "classes.txt"))
    path = _find(folder, _STRENGTHS)
    strengths = _strengths(path, (len(classes), len(names)))
    groups: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        groups.setdefault(name.split("::")[0], []).append(column)
    columns = [np.array(group) for group in groups.values()]
    strongest = {
        key(plain(name)): tuple(int(group[row[group].argmax()]) for group in columns if row[group].max() > 0)
        for name, row in zip(classes, strengths, strict=True)
    }
    return CubAttributes(names=tuple(names), strongest=strongest)


def words(attribute: str) -> str:
    """The words of `has_bill_shape::curved_(up_or_down)` that mean something."""
    return attribute.removeprefix("has_").replace("::", " ")


def _find(folder: Path, name: str) -> Path:
    places = [folder / name, folder / "attributes" / name, folder.parent / name]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConcmError(
            f"no {name} in {folder}, {folder / 'attributes'} or {folder.parent}; "
            "give the folder CUB_200_2011 as it was unpacked"
        )
    return found


def _listed(path: Path) -> list[str]:
    """The names of a file of lines `number name`, numbered from 1."""
    found = []
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split()
        if len(fields) != 2 or fields[0] != str(number):
            raise ConcmError(f"{path}, line {number} is {line[:60]!r}, not '{number} name'; get another copy of CUB")
        found.append(fields[1])
    return found


def _strengths(path: Path, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Percentages (classes, attributes)."""
    rows = [line.split() for line in _lines(path)]
    wrong = next((number for number, row in enumerate(rows, start=1) if len(row) != shape[1]), None)
    if wrong is not None:
        raise ConcmError(
            f"{path}, line {wrong} has {len(rows[wrong - 1])} values, but there are {shape[1]} attributes; "
            "get another copy of CUB"
        )
    if len(rows) != shape[0]:
        raise ConcmError(f"{path} has {len(rows)} lines, but there are {shape[0]} classes; get another copy of CUB")
    try:
        return np.array(rows, float).reshape(shape)
    except ValueError as error:
        raise ConcmError(f"{path} holds something that is no number ({error}); get another copy of CUB") from error


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConcmError(f"cannot read {path}: {error}") from error
