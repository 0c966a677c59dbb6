"""Finds the noun synset that a class name means, in the context of the other classes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from concm.semantics.overrides import identified, plain
from concm.semantics.plurals import singulars
from concm.semantics.wordnet import key, nouns

# Chosen on the 1,000 ImageNet names, whose ids give their senses, and checked on CIFAR-100's by eye (docs/concepts).
_LATER_SENSE = 0.2  # cost of a sense, times the logarithm of its number
_INVISIBLE = 1.0  # cost of a sense that photos do not show, or that is an individual
_COMPANY = 3.0  # classes under a hypernym beyond which more matter less; 3 % of all classes, from 10 to 100 classes
_SHARPNESS = 0.3  # spread of scores over which an undecided class divides its weight
_ROUNDS = 2


@dataclass(frozen=True)
class Sense:
    """The meaning found for a class name, and how it was found."""

    name: str
    synset: int | None
    how: str


class Company:
    """The classes whose sense is settled: how many there are, and how many of them are under each hypernym."""

    def __init__(self, senses: Iterable[Sense] = ()) -> None:
        self.classes = 0
        self.under: dict[int, float] = {}
        for sense in senses:
            self.add(sense)

    def add(self, sense: Sense) -> None:
        """Count one more class; a name without a synset is not counted."""
        if sense.synset is not None:
            self.classes += 1
            _count(self.under, {sense.synset: 1.0})


def resolve(
    names: Sequence[str], *, known: Company | None = None, overrides: Mapping[str, int | None] | None = None
) -> tuple[Sense, ...]:
    """The sense of each name that fits the other names and the `known` classes best; known senses do not change.

    A hypernym supports a sense by how specific it is and by how many other classes share it. Senses that WordNet lists
    first, and things that photos show, are preferred. `overrides` take precedence over all of this.
    """
    found = [_candidates(name, overrides or {}) for name in names]
    scores = [_prior(synsets) for synsets, _ in found]
    known = known or Company()
    enough = _COMPANY * min(max((known.classes + len(names)) / 100, 0.1), 1.0)
    for _ in range(_ROUNDS if any(len(synsets) > 1 for synsets, _ in found) else 0):
        shares = [_share(one) for one in scores]
        total = dict(known.under)
        for share in shares:
            _count(total, share)
        scores = [
            {synset: prior + _fit(synset, total, own, enough) for synset, prior in _prior(synsets).items()}
            for (synsets, _), own in zip(found, (_count({}, share) for share in shares), strict=True)
        ]
    return tuple(
        Sense(name, max(one, key=one.__getitem__, default=None), how)
        for name, one, (_, how) in zip(names, scores, found, strict=True)
    )


def _prior(synsets: Sequence[int]) -> dict[int, float]:
    table = nouns()
    return {
        synset: -_LATER_SENSE * math.log(number) - (0 if table.visible(synset) else _INVISIBLE)
        for number, synset in enumerate(synsets, start=1)
    }


def _share(scores: Mapping[int, float]) -> dict[int, float]:
    """A class's weight of 1, divided among its senses by a softmax."""
    highest = max(scores.values(), default=0.0)
    weights = {synset: math.exp((score - highest) / _SHARPNESS) for synset, score in scores.items()}
    return {synset: weight / sum(weights.values()) for synset, weight in weights.items()}


def _count(under: dict[int, float], share: Mapping[int, float]) -> dict[int, float]:
    """Count a class under its hypernyms, but not under itself, since classes are rarely kinds of each other."""
    table = nouns()
    for synset, weight in share.items():
        for above in table.ancestors(synset)[1:]:
            under[above] = under.get(above, 0.0) + weight
    return under


def _fit(synset: int, total: Mapping[int, float], own: Mapping[int, float], enough: float) -> float:
    table = nouns()
    score = 0.0
    for above in table.ancestors(synset):
        others = max(total.get(above, 0.0) - own.get(above, 0.0), 0.0)
        if others > 0:
            score += told(above) * math.log1p(others / enough)
    return score


@cache
def told(synset: int) -> float:
    """The information of a hypernym beyond that of its own hypernyms."""
    table = nouns()
    above = max((table.information(up) for up in table.hypernyms(synset)), default=0.0)
    return max(table.information(synset) - above, 0.0)


def _candidates(name: str, overrides: Mapping[str, int | None]) -> tuple[list[int], str]:
    """Synsets that a name may mean, in order of use, and how they were found."""
    table = nouns()
    name = plain(name)
    if key(name) in overrides:
        chosen = overrides[key(name)]
        return ([] if chosen is None else [chosen]), "set by hand"
    offset = identified(name)
    if offset is not None:
        return ([offset], "WordNet id") if offset in table else ([], "not in WordNet")
    words = re.split(r"[\s_-]+", name.lower())
    whole = _senses(words)
    if whole:
        return whole, "name"
    heads = next(((words[at:], found) for at in range(1, len(words)) if (found := _senses(words[at:]))), None)
    for end in range(len(words) - 1, 0, -1):
        first = _senses(words[:end])
        if heads is None and first:
            return first, f"first words: {' '.join(words[:end])}"
        kinds = [synset for synset in first if heads and set(table.ancestors(synset)[1:]) & set(heads[1])]
        if kinds:
            return kinds, f"first words: {' '.join(words[:end])}"
    return (heads[1], f"head word: {' '.join(heads[0])}") if heads else ([], "not in WordNet")


def _senses(words: Sequence[str]) -> list[int]:
    """Senses of a name as it is written, or else of its singular."""
    table = nouns()
    forms = [words[-1], *singulars(words[-1])]
    return next((found for form in forms if (found := table.senses("".join([*words[:-1], form])))), [])
