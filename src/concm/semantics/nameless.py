"""Meanings for nobody: one attribute that all classes share, to see what names are worth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Nameless:
    """A control for `Semantics`: the same calibration network is trained, and can tell no class by its name."""

    vectors: Tensor = torch.ones(1, 1)

    @property
    def senses(self) -> dict[str, str]:
        """None."""
        return {}

    def learn(self, names: Sequence[str]) -> Nameless:
        """Nothing, since no name means anything."""
        return self

    def classes(self, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The same vector (n, 1) for every class, and the one attribute (n, 1)."""
        return torch.ones(len(names), 1), torch.ones(len(names), 1, dtype=torch.bool)
