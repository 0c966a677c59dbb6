"""The metric: cosine after a whitening that was learned from the base classes.

In directions in which images of one class differ much, a difference says little about the class. Dividing by the
within-class spread makes few-shot prototypes better (docs/engine.md has the figures). The spread of a trained
backbone's own base images is too small to be trusted, so it is shrunk strongly towards a multiple of the identity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.memory import class_sums
from concm.engine.state import Growing
from concm.features.sessions import BaseSession, Session

AnySession = TypeVar("AnySession", bound=Session)


class Metric(Growing):
    """Features (…, d) → unit vectors (…, d) that are compared by cosine."""

    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix

    @classmethod
    def whitening(cls, base: BaseSession, shrinkage: float) -> Metric:
        """(W + shrinkage · mean variance · I)^(−1/2), W the covariance within the base classes."""
        unit = F.normalize(base.features.double(), dim=-1)
        counts = torch.bincount(base.labels, minlength=len(base.classes)).clamp(min=1)
        means = class_sums(unit, base.labels, len(base.classes)) / counts[:, None]
        within = unit - means[base.labels]
        covariance = within.T @ within / max(1, len(unit) - len(base.classes))
        level = covariance.diagonal().mean()
        values, vectors = torch.linalg.eigh(covariance)
        if level <= torch.finfo(torch.float32).eps ** 2:  # one image per class: there is no spread to learn from
            return cls(torch.eye(len(covariance), dtype=base.features.dtype, device=base.features.device))
        scale = (values.clamp(min=0) / level + shrinkage).clamp(min=torch.finfo(torch.float32).eps).rsqrt()
        return cls((vectors * scale @ vectors.T).to(base.features.dtype))

    def forward(self, features: Tensor) -> Tensor:
        """Unit vectors, in which differences count the same in all directions."""
        return F.normalize(F.normalize(features, dim=-1) @ self.matrix, dim=-1)

    def read(self, session: AnySession) -> AnySession:
        """The session with all features transformed by the metric; a base session's spreads are those of `features`."""
        features = self(session.features)
        views = None if session.views is None else self(session.views)
        if not isinstance(session, BaseSession):
            return replace(session, features=features, views=views)
        std = [features[session.labels == label].std(0, correction=0) for label in session.classes]
        pooled = torch.stack([own for own in std if own.isfinite().all()]).mean(0)
        spread = torch.stack([torch.where(own.isfinite(), own, pooled) for own in std])  # a class without an image
        return replace(session, features=features, views=views, mean=self(session.mean), std=spread)


def expected_cosine(likeness: Tensor, count: Tensor) -> Tensor:
    """Expected cosine of an image to the mean of `count` others of its class, if two have the cosine `likeness`."""
    return likeness / (likeness + (1 - likeness) / count).clamp(min=1e-12).sqrt()
