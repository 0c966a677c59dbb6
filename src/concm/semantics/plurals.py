"""Finds the possible singulars of a plural."""

from __future__ import annotations

from concm.semantics.wordnet import nouns

_SUFFIXES = (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("ses", "s"), ("zes", "z"), ("men", "man"))


def singulars(word: str) -> list[str]:
    """Possible singulars of a word, the likeliest first: mice, berries, boxes, trees; none for grass."""
    if word in nouns().irregular:
        return [nouns().irregular[word]]
    found = [word.removesuffix(plural) + singular for plural, singular in _SUFFIXES if word.endswith(plural)]
    return [*found, word.removesuffix("s")] if word.endswith("s") and not word.endswith("ss") else found
