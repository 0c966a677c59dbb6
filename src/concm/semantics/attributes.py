"""Attributes of a class: the parts that WordNet gives to it and to everything it is a kind of."""

from __future__ import annotations

from collections.abc import Iterable

from concm.semantics.wordnet import nouns


def attributes(synset: int | None, least_information: float = 0.0) -> dict[int, int]:
    """Part meronyms on all hypernym paths, each with the nearest synset that has it; empty without a synset.

    Hypernyms with less than `least_information` (see `Nouns.information`) are left out: 0.15 drops the parts of `whole`
    and `organism` (part, section, cell, body part), which nearly every class has.
    """
    table = nouns()
    found: dict[int, int] = {}
    for above in () if synset is None else table.ancestors(synset):
        if table.information(above) >= least_information:
            for part in table.parts(above):
                found.setdefault(part, above)
    return found


def pool(synsets: Iterable[int | None], least_information: float = 0.0) -> tuple[int, ...]:
    """The attributes of any of these classes, in the order of their offsets."""
    table = nouns()
    every = {above for synset in synsets if synset is not None for above in table.ancestors(synset)}
    told = (above for above in every if table.information(above) >= least_information)
    return tuple(sorted({part for above in told for part in table.parts(above)}))
