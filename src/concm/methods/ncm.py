"""Nearest class mean: the control that every other method has to beat.

A class is the mean of its features; a picture belongs to the class whose mean has the largest cosine with it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.registry import method


@method("ncm", title="nearest class mean", paper="control", group="control")
class NCM(Learner):
    """Prototypes only: nothing is trained, nothing is forgotten."""

    kept: ClassVar[tuple[str, ...]] = ("prototypes",)

    def fit_base(self, base: BaseSession) -> None:
        """Take the means over all base images."""
        base = self.begin(base)
        self.prototypes = base.mean

    def learn(self, session: Session) -> None:
        """Add the mean of each new class's shots."""
        self.prototypes = torch.cat([self.prototypes, session.to(self.device).class_means()])

    def scores(self, features: Tensor) -> Tensor:
        """Cosine to every prototype."""
        return F.normalize(features.to(self.device)) @ F.normalize(self.prototypes).T
