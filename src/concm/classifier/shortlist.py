"""Scores of a photo against very many classes: of all of them roughly, and of the best exactly.

Most of the time goes by while prototypes are read from memory. In half precision there is half as much to read, and
only the prototypes of the classes that come near are read in full.
"""

from __future__ import annotations

import torch
from torch import Tensor

from concm.engine.head import Head
from concm.engine.metric import softened

NEAR = 64
"""Classes of each photo whose scores are exact."""


class Shortlist:
    """The prototypes of a head in half precision, beside its own."""

    def __init__(self, head: Head) -> None:
        self._head, self._rough = head, head.prototypes.bfloat16()

    @staticmethod
    def helps(head: Head) -> bool:
        """Whether this processor multiplies such numbers, and all of the score comes from prototypes."""
        here = head.prototypes.device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return here and not head.structured

    def scores(self, features: Tensor) -> Tensor:
        """Scores (n, classes)."""
        head, unit = self._head, softened(self._head.read(features), self._head.reach)
        rough = (unit.bfloat16() @ self._rough.T).float() + head.bias
        near = rough.topk(min(NEAR, rough.shape[1]), 1).indices
        exact = torch.einsum("nd,nkd->nk", unit, head.prototypes[near]) + head.bias[near]
        return rough.scatter(1, near, exact)
