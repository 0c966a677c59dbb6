"""The head: everything that turns features into scores, as plain tensors, shared by torch and an exported model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Head:
    """What the engine knows at one version: projector, structure (n, d_g), prototypes (n, d) and a bias per class."""

    metric: Tensor | None
    inner_weight: Tensor
    inner_bias: Tensor
    outer_weight: Tensor
    outer_bias: Tensor
    structure: Tensor
    prototypes: Tensor
    bias: Tensor
    share: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Cosines (n, classes) to structure and prototypes, the latter with their `share`, and the bias."""
        unit = F.normalize(features)
        if self.metric is not None:
            unit = F.normalize(unit @ self.metric)
        hidden = F.linear(unit, self.inner_weight, self.inner_bias).relu()
        projected = F.normalize(F.linear(hidden, self.outer_weight, self.outer_bias))
        scores = (1 - self.share) * (projected @ self.structure.T)
        return torch.add(scores + self.share * (unit @ self.prototypes.T), self.bias)
