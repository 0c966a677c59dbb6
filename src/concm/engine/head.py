"""The head: everything that turns features into scores, as plain tensors, shared by torch and an exported model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.metric import measured, softened


@dataclass(frozen=True)
class Head:
    """What the engine knows at one version: projectors, their structures, prototypes (n, d) and a bias per class.

    Of h projectors, `inner_weight` is (h, hidden, d), `outer_weight` (h, d_g, hidden) and `structure` (h, n, d_g).
    `reach` says from where on coordinates of a picture count less.
    """

    metric: tuple[Tensor, ...]
    weights: Tensor
    inner_weight: Tensor
    inner_bias: Tensor
    outer_weight: Tensor
    outer_bias: Tensor
    structure: Tensor
    prototypes: Tensor
    bias: Tensor
    share: Tensor
    reach: float

    def __call__(self, features: Tensor) -> Tensor:
        """Cosines (n, classes) to structure and prototypes, the latter with their `share`, and the bias."""
        unit = self.read(features)
        scores = softened(unit, self.reach) @ self.prototypes.T
        if self.structured:
            scores = (1 - self.share) * self.structural(unit) + self.share * scores
        return torch.add(scores, self.bias)

    @property
    def structured(self) -> bool:
        """Whether there is a structure; without it, prototypes have all of the share."""
        return self.structure.shape[1] > 0

    def read(self, features: Tensor) -> Tensor:
        """Unit vectors (n, d) in the metric."""
        return measured(features, self.metric, self.weights) if self.metric else F.normalize(features)

    def structural(self, unit: Tensor) -> Tensor:
        """Mean over the projectors of the cosines (n, classes) to their structures."""
        hidden = (unit @ self.inner_weight.transpose(1, 2) + self.inner_bias[:, None]).relu()
        projected = F.normalize(hidden @ self.outer_weight.transpose(1, 2) + self.outer_bias[:, None], dim=-1)
        return (projected @ self.structure.transpose(1, 2)).mean(0)
