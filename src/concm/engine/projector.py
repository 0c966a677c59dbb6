"""The projector: from the hypersphere of features to the one in which the structure lies."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Projector(nn.Module):
    """Two layers with unit length before and after (paper, "Model architecture"); `width` is d_g and may grow."""

    def __init__(self, dimension: int, width: int = 128, hidden: int = 2048) -> None:
        super().__init__()
        self.inner = nn.Linear(dimension, hidden)
        self.outer = nn.Linear(hidden, width)

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) → (n, width), unit vectors."""
        return F.normalize(self.outer(self.inner(F.normalize(features)).relu()), dim=1)

    @property
    def width(self) -> int:
        """Dimensions of the output."""
        return self.outer.out_features

    @torch.no_grad()
    def widen(self, width: int) -> None:
        """Add output dimensions without changing the function: the new ones are zero until they are trained."""
        old = self.outer
        like = {"device": old.weight.device, "dtype": old.weight.dtype}
        self.outer = nn.utils.skip_init(nn.Linear, old.in_features, width, **like)  # type: ignore[no-untyped-call]
        self.outer.weight.zero_()[: old.out_features] = old.weight
        self.outer.bias.zero_()[: old.out_features] = old.bias
