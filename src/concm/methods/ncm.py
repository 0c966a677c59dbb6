"""Nearest class mean: the control that every other method has to beat.

A class is the mean of its features; a picture belongs to the class whose mean has the largest cosine with it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.data.sessions import Session
from concm.methods import method


@method("ncm", title="nearest class mean", paper="control")
class NCM:
    """Prototypes only: nothing is trained, nothing is forgotten."""

    def __init__(self, *, seed: int = 0, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.prototypes = torch.empty(0, 0)

    def fit_base(self, base: Session) -> None:
        """Take the means over all base images."""
        assert base.mean is not None
        self.prototypes = base.mean.to(self.device)

    def learn(self, session: Session) -> None:
        """Add the mean of each new class's shots."""
        means = [session.features[session.labels == label].mean(0) for label in session.classes]
        self.prototypes = torch.cat([self.prototypes, torch.stack(means).to(self.device)])

    def scores(self, features: Tensor) -> Tensor:
        """Cosine to every prototype."""
        return F.normalize(features.to(self.device)) @ F.normalize(self.prototypes).T

    @property
    def memory_bytes(self) -> int:
        """The prototypes."""
        return self.prototypes.numel() * self.prototypes.element_size()

    @property
    def parameters(self) -> int:
        """None are trained."""
        return 0
