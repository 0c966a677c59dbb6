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


class Family:
    """Names whose kinship with many others is asked for, looked up once.

    Kinship is an inner product of what is known of either name: ancestors, and the direction of the word vector from
    the middle of the family. So a product with it needs no matrix of all pairs.
    """

    def __init__(self, meanings: Semantics, members: Sequence[str]) -> None:
        self._columns: dict[int, int] = {}
        self._ancestors = self._profiles(meanings, members, grow=True)
        vectors = F.normalize(meanings.embedded(members).double())
        self._middle = vectors.mean(0)
        self._vectors = self._directions(vectors)

    def times(self, meanings: Semantics, names: Sequence[str], values: Tensor) -> tuple[Tensor, Tensor]:
        """The kinship (names, members) of names times `values` (members, d), and which names are akin to any."""
        own, vectors = self._profiles(meanings, names), self._directions(F.normalize(meanings.embedded(names).double()))
        values = torch.cat([values.double(), values.new_ones(len(values), 1).double()], 1)
        by_ancestors = torch.sparse.mm(own, torch.sparse.mm(self._ancestors.T, values))
        by_words = vectors @ (self._vectors.T @ values)
        akin = (by_ancestors[:, -1] > 0) | (vectors.any(1) & self._vectors.any())
        return ((1 - WORDS) * by_ancestors + WORDS * by_words)[:, :-1], akin

    def _profiles(self, meanings: Semantics, names: Sequence[str], *, grow: bool = False) -> Tensor:
        """Ancestors (names, columns) of unit length, sparse; those that no member has count in the length alone."""
        rows, places, values = [], [], []
        for row, name in enumerate(names):
            profile = meanings.source.profile(name)
            length = sum(profile.values()) ** 0.5
            for synset, told in profile.items():
                at = self._columns.setdefault(synset, len(self._columns)) if grow else self._columns.get(synset)
                if at is not None and told > 0:
                    rows.append(row)
                    places.append(at)
                    values.append(told**0.5 / length)
        shape, index = (len(names), max(1, len(self._columns))), torch.tensor([rows, places], dtype=torch.long)
        return torch.sparse_coo_tensor(index, values, shape, dtype=torch.float64, check_invariants=True)

    def _directions(self, vectors: Tensor) -> Tensor:
        """Unit vectors (names, s) as directions from the middle; those of unknown words are zero."""
        return F.normalize(vectors - self._middle) * vectors.any(1, keepdim=True)
