"""What the names of classes mean to one engine: their senses, what they predict, and which of them mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from concm.engine.prior import NamePrior
from concm.semantics.kinship import Family, kinship
from concm.semantics.nameless import Nameless
from concm.semantics.semantics import Semantics

NAMED = 2048
"""Base classes from which names are learned at most: the prior over names takes the cube of their number."""
AT_ONCE = 10**6
"""Kinships up to which their matrix is made."""


class Lexicon:
    """The meanings of class names, looked up when they are first needed, beside those of the base classes in `pool`."""

    def __init__(self, meanings: Semantics | Nameless | None = None) -> None:
        self._meanings, self._senses = meanings, dict[str, str]()
        self.pool = []

    @property
    def pool(self) -> list[str]:
        """The base classes from which names are learned."""
        return self._pool

    @pool.setter
    def pool(self, names: list[str]) -> None:
        self._pool = names
        self._family: Family | None = None
        self._said: tuple[list[str], Tensor, Tensor] | None = None

    @property
    def senses(self) -> dict[str, str]:
        """The synset chosen for each class name, so that a loaded engine reads names as this one does."""
        return self._senses if self._meanings is None else self._meanings.senses

    @senses.setter
    def senses(self, known: dict[str, str]) -> None:
        self._senses = known

    def meanings(self, names: Sequence[str]) -> Semantics | Nameless:
        """The meanings of all names, which are known from now on."""
        if self._meanings is None:
            self._meanings = Semantics.of_names(self.pool, overrides=self._senses)
        self._meanings = self._meanings.learn(names)
        return self._meanings

    def kinship(self, names: Sequence[str], others: Sequence[str]) -> Tensor:
        """Kinship (others, pool) of some names with the pool, where `names` are known; they need not be among them."""
        return kinship(self.meanings(names).learn(others), others, self.pool)

    def predicted(self, prior: NamePrior, names: Sequence[str], novel: list[str]) -> tuple[Tensor, Tensor]:
        """Prototypes of novel classes by their names alone, and how far they may miss."""
        if isinstance(self.meanings(names), Nameless) or len(novel) * len(self.pool) <= AT_ONCE:
            return prior.predict(self.kinship(names, novel))
        if self._said is None or self._said[0] != novel:  # what many names say is looked up once
            self._said = (novel, *self._products(names, novel, prior.weights.cpu()))
        return prior.said(*self._said[1:])

    def remarks(self, names: Sequence[str], new: Sequence[str], *, akin: bool) -> list[str]:
        """Which new names mean nothing: they are `akin` to none of the pool, or have no attributes."""
        known = self.meanings(names)
        if not akin:
            strange = ~known.classes(new)[1].any(1)
        elif self._family is not None and isinstance(known, Semantics):
            strange = ~self._products(names, new, torch.empty(len(self.pool), 0))[1]
        else:
            strange = ~self.kinship(names, new).any(1)
        said = ("means nothing", "mean nothing") if akin else ("has no attributes", "have none")
        found = [repr(name) for name, nothing in zip(new, strange.tolist(), strict=True) if nothing]
        if not found:
            return []
        if len(found) == 1:
            return [f"{found[0]} {said[0]} here: its prototype comes from its images"]
        some = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
        return [f"{len(found)} names {said[1]} here ({some}): their prototypes come from their images"]

    def _products(self, names: Sequence[str], others: Sequence[str], values: Tensor) -> tuple[Tensor, Tensor]:
        """The kinship of many names with the pool times `values`, and which of them are akin to any."""
        known = self.meanings(names)
        assert isinstance(known, Semantics)
        if self._family is None:
            self._family = Family(known, self.pool)
        return self._family.times(known, others, values)
