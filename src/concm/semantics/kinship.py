"""Kinship of class names: how alike two classes are expected to look, by what their names mean.

Two names are akin if they share ancestors in WordNet, the more the more these ancestors tell, and if their word
vectors point the same way. What names are worth by this is in docs/engine.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.semantics.nameless import Nameless
from concm.semantics.semantics import Semantics

WORDS = 0.4
"""Share of the word vectors beside the ancestors; 0.3 to 0.5 did alike on validation banks."""


def kinship(meanings: Semantics | Nameless, names: Sequence[str], others: Sequence[str]) -> Tensor:
    """Kinship (names, others) of `names` with `others`, at most 1; a name that means nothing has 0 with all."""
    if isinstance(meanings, Nameless):
        return torch.zeros(len(names), len(others), dtype=torch.float64)
    every = [*others, *names]
    profiles = [meanings.source.profile(name) for name in every]
    columns = {synset: at for at, synset in enumerate(sorted({synset for own in profiles for synset in own}))}
    table = torch.zeros(len(every), max(1, len(columns)), dtype=torch.float64)
    for row, own in enumerate(profiles):
        for synset, told in own.items():
            table[row, columns[synset]] = told**0.5
    table = F.normalize(table)
    vectors = F.normalize(meanings.embedded(every).double())
    vectors = F.normalize(vectors - vectors[: len(others)].mean(0)) * vectors.any(1, keepdim=True)
    known = len(others)
    return (1 - WORDS) * table[known:] @ table[:known].T + WORDS * vectors[known:] @ vectors[:known].T
