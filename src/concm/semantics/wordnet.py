"""WordNet 3.0's nouns as a graph: lemmas, hypernyms and part meronyms, read from one compact table."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Separators in which spellings differ: sea lion, sea-lion, Sea_lion and sealion have the same key.
_SEPARATORS = str.maketrans("", "", "_-'.")
# WordNet's topics of things that photos show: animal, artifact, body, food, natural object, person, plant.
_VISIBLE = (5, 6, 8, 13, 17, 18, 20)


def key(name: str) -> str:
    """A name without case and separators."""
    return name.lower().translate(_SEPARATORS).replace(" ", "")


def identifier(synset: int) -> str:
    """A synset's offset as ImageNet writes it."""
    return f"n{synset:08}"


class Nouns:
    """The 82,115 noun synsets, by offset: the number in an ImageNet id such as n01532829."""

    def __init__(self, table: Mapping[str, NDArray[Any]]) -> None:
        text = table["lemmas"].tobytes().decode()
        self._lemmas = text.split("\n")
        self._lemma_from = _bounds([line.count(" ") + 1 for line in self._lemmas])
        self._numbers = table["sense"]
        self._offsets = np.cumsum(table["offset_step"]).tolist()  # lists: they are asked for one value at a time
        hypernym_count = table["hypernym_count"]
        self._up = (table["hypernym_step"] + np.repeat(np.arange(len(self._lemmas)), hypernym_count)).tolist()
        self._up_from = _bounds(hypernym_count).tolist()
        self._parts = table["part"]
        self._part_from = _bounds(table["part_count"])
        self._kinds = table["kinds"]
        self._visible = np.isin(table["topic"], _VISIBLE) & (table["instance"] == 0)
        self._irregular = table["irregular"].tobytes().decode()
        keys = text.lower().translate(_SEPARATORS).split()
        self._last: dict[str, int] = {}  # the last position of each key
        self._before: list[int] = []  # for each position, the one before it that has the same key
        for at, one in enumerate(keys):
            self._before.append(self._last.get(one, -1))
            self._last[one] = at
        self._ancestors: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._lemmas)

    def __contains__(self, synset: int) -> bool:
        row = self._row(synset)
        return row < len(self) and self._offsets[row] == synset

    def _row(self, synset: int) -> int:
        return bisect_left(self._offsets, synset)

    def lemmas(self, synset: int) -> tuple[str, ...]:
        """The names of a synset, the most usual one first, with words joined by underscores."""
        return tuple(self._lemmas[self._row(synset)].split(" "))

    def label(self, synset: int) -> str:
        """The first name of a synset, with the number of the sense (`#2`) if it is not that name's first sense."""
        row = self._row(synset)
        name = self._lemmas[row].split(" ", 1)[0].replace("_", " ")
        number = int(self._numbers[self._lemma_from[row]])
        return name if number == 1 else f"{name}#{number}"

    def hypernyms(self, synset: int) -> list[int]:
        """The synsets of which this one is a kind or an instance."""
        row = self._row(synset)
        return [self._offsets[up] for up in self._up[self._up_from[row] : self._up_from[row + 1]]]

    def parts(self, synset: int) -> list[int]:
        """The part meronyms of a synset itself, without inherited ones."""
        row = self._row(synset)
        return [self._offsets[part] for part in self._parts[self._part_from[row] : self._part_from[row + 1]]]

    def ancestors(self, synset: int) -> tuple[int, ...]:
        """All synsets on the hypernym paths of a synset: itself first, then by distance."""
        if synset not in self._ancestors:
            seen = {synset: None}
            queue = [synset]
            for one in queue:
                new = [up for up in self.hypernyms(one) if up not in seen]
                seen.update(dict.fromkeys(new))
                queue += new
            self._ancestors[synset] = tuple(queue)
        return self._ancestors[synset]

    def information(self, synset: int) -> float:
        """How specific a synset is: 0 for `entity`, 1 for a synset that has no kinds."""
        return 1 - math.log(self._kinds[self._row(synset)]) / math.log(len(self))

    def visible(self, synset: int) -> bool:
        """Whether photos show such things: not substances, acts or ideas, and no single person or place."""
        return bool(self._visible[self._row(synset)])

    def senses(self, lemma: str) -> list[int]:
        """Synsets that carry this name, however it is spelled, in WordNet's order of use."""
        at = self._last.get(key(lemma), -1)
        places = []
        while at >= 0:
            places.append(at)
            at = self._before[at]
        places.sort(key=lambda at: (int(self._numbers[at]), at))
        rows = np.searchsorted(self._lemma_from, places, side="right") - 1
        return list(dict.fromkeys(self._offsets[row] for row in rows))

    def numbered(self, lemma: str, number: int) -> int | None:
        """The synset that WordNet calls `lemma#number`."""
        wanted = lemma.lower().replace(" ", "_")
        for synset in self.senses(lemma):
            first = self._lemma_from[self._row(synset)]
            for at, name in enumerate(self.lemmas(synset), start=first):
                if name.lower() == wanted and int(self._numbers[at]) == number:
                    return synset
        return None

    @cached_property
    def irregular(self) -> dict[str, str]:
        """Irregular plurals such as mice and wolves, with their singulars."""
        words = self._irregular.split()
        return dict(zip(words[::2], words[1::2], strict=True))


@cache
def nouns() -> Nouns:
    """The bundled table, read at first use."""
    path = files("concm") / "assets" / "wordnet.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as table:
        return Nouns(table)


def _bounds(counts: Any) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
