"""WordNet 3.0's nouns as a graph: lemmas, hypernyms and part meronyms, read from one compact table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What spellings differ in: sea lion, sea-lion, Sea_lion and sealion have one key.
_SEPARATORS = str.maketrans("", "", "_-'.")


def key(name: str) -> str:
    """A name without case and separators."""
    return name.lower().translate(_SEPARATORS).replace(" ", "")


class Nouns:
    """82,115 synsets, known by their offsets: the number in an ImageNet id such as n01532829."""

    def __init__(self, table: Mapping[str, NDArray[Any]]) -> None:
        text = table["lemmas"].tobytes().decode()
        self._lemmas = text.split("\n")
        self._offsets = np.cumsum(table["offset_step"])
        self._up_from, self._part_from = _bounds(table["hypernym_count"]), _bounds(table["part_count"])
        self._up = table["hypernym_step"] + np.repeat(np.arange(len(self._lemmas)), table["hypernym_count"])
        self._parts = table["part"]
        self._numbers = table["sense"]
        self._lemma_from = _bounds([line.count(" ") + 1 for line in self._lemmas])
        self._kinds = table["kinds"]
        self._irregular = table["irregular"].tobytes().decode()
        keys = text.lower().translate(_SEPARATORS).split()
        self._place = dict(zip(keys, range(len(keys)), strict=True))
        self._other_places: dict[str, list[int]] = {}
        for at, one in enumerate(keys):
            if self._place[one] != at:
                self._other_places.setdefault(one, []).append(at)
        self._ancestors: dict[int, dict[int, int]] = {}

    def __contains__(self, synset: int) -> bool:
        at = int(np.searchsorted(self._offsets, synset))
        return at < len(self._offsets) and int(self._offsets[at]) == synset

    def _row(self, synset: int) -> int:
        return int(np.searchsorted(self._offsets, synset))

    def lemmas(self, synset: int) -> tuple[str, ...]:
        """Its names, the usual one first, words joined by underscores."""
        return tuple(self._lemmas[self._row(synset)].split(" "))

    def label(self, synset: int) -> str:
        """Its name in words; with `#2` where the name's first sense is another one."""
        row = self._row(synset)
        number = self._numbers[self._lemma_from[row]]
        name = self._lemmas[row].split(" ", 1)[0].replace("_", " ")
        return name if number == 1 else f"{name}#{number}"

    def hypernyms(self, synset: int) -> list[int]:
        """What it is a kind or an instance of."""
        row = self._row(synset)
        up = self._up[self._up_from[row] : self._up_from[row + 1]]
        return [int(offset) for offset in self._offsets[up]]

    def parts(self, synset: int) -> list[int]:
        """Its own part meronyms, none inherited."""
        row = self._row(synset)
        parts = self._parts[self._part_from[row] : self._part_from[row + 1]]
        return [int(offset) for offset in self._offsets[parts]]

    def ancestors(self, synset: int) -> dict[int, int]:
        """Every synset on its hypernym paths, itself first, with the shortest number of steps to it."""
        if synset not in self._ancestors:
            steps = {synset: 0}
            queue = [synset]
            for one in queue:
                for up in self.hypernyms(one):
                    if up not in steps:
                        steps[up] = steps[one] + 1
                        queue.append(up)
            self._ancestors[synset] = steps
        return self._ancestors[synset]

    def senses(self, lemma: str) -> list[int]:
        """Synsets that carry this name, however it is spelled, in WordNet's order of use."""
        one = key(lemma)
        if one not in self._place:
            return []
        places = [self._place[one], *self._other_places.get(one, [])]
        places.sort(key=lambda at: (int(self._numbers[at]), at))
        rows = np.searchsorted(self._lemma_from, places, side="right") - 1
        return list(dict.fromkeys(int(offset) for offset in self._offsets[rows]))

    def numbered(self, lemma: str, number: int) -> int | None:
        """The synset that WordNet calls `lemma#number`."""
        wanted = lemma.lower().replace(" ", "_")
        for synset in self.senses(lemma):
            row = self._row(synset)
            for at, name in enumerate(self._lemmas[row].split(" "), start=self._lemma_from[row]):
                if name.lower() == wanted and self._numbers[at] == number:
                    return synset
        return None

    @cached_property
    def irregular(self) -> dict[str, str]:
        """Plurals that no rule explains: mice, wolves."""
        return dict(line.split(" ") for line in self._irregular.split("\n"))  # type: ignore[misc]

    def information(self, synset: int) -> float:
        """How much it tells: 0 for `entity`, 1 for what has no kinds."""
        return 1 - math.log(self._kinds[self._row(synset)]) / math.log(len(self._lemmas))


@cache
def nouns() -> Nouns:
    """The bundled table, read at first use."""
    with files("concm.assets").joinpath("wordnet.npz").open("rb") as file, np.load(file, allow_pickle=False) as table:
        return Nouns(table)


def _bounds(counts: Any) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
