"""Calibrated FeCAM (Goswami, Twardowski and van de Weijer, "Calibrating Higher-Order Statistics for Few-Shot
Class-Incremental Learning with Pre-trained Vision Transformers", CVPR Workshops 2024; FeCAM: NeurIPS 2023).

Classes differ in how their features spread, so a picture belongs to the class to which its Mahalanobis distance is
smallest, each class with a covariance of its own. Few shots say little about a covariance, but classes with similar
means have similar ones: means and covariances of new classes are mixed with those of the base classes, weighted by the
likeness of the means. Nothing is trained.

Here: only the statistics; the authors tune a pre-trained transformer with an adapter first. Features are raised to a
power, as FeCAM does for convolutional networks, and base covariances are those of the features that the bank holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.registry import method
from concm.records import Checked, setting


@dataclass(frozen=True)
class FeCAMSettings(Checked):
    """The settings of calibrated FeCAM, with the authors' values for CIFAR-100."""

    PRESETS: ClassVar = ("cub200",)

    power: float = setting(
        0.5, "Power to which features are raised, where they are positive (FeCAM's for ResNets).", above=0, most=1
    )
    own: float = setting(
        0.75, "Share of a new class's own mean beside that of base means (authors' code).", least=0, most=1
    )
    tau: float = setting(16.0, "Sharpness of the weights of base classes (authors' code).", least=0)
    weight: float = setting(1.0, "Weight of both covariances, own and borrowed (authors' code).", above=0)
    shrinkage: float = setting(
        100.0, "Shrinkage of covariances, in means of their diagonal and of the rest (authors' code).", above=0
    )

    @classmethod
    def cub200(cls) -> FeCAMSettings:
        """The settings published for CUB200."""
        return cls(own=0.9)


@method(
    "fecam",
    title="calibrated FeCAM: a covariance for each class, borrowed for new ones",
    paper="CVPRW 2024",
    link="https://arxiv.org/abs/2404.06622",
    code="https://github.com/dipamgoswami/FSCIL-Calibration",
)
class FeCAM(Learner):
    """A unit mean, a covariance and a whitening matrix for each class."""

    settings = FeCAMSettings()
    kept = ("prototypes", "covariances", "whitening")

    def fit_base(self, base: BaseSession) -> None:
        """Take mean and covariance of each base class, from the images that there are."""
        base = self.begin(base)
        units = self._read(base.features)
        self.prototypes, self.covariances = class_moments(units, base.labels, base.classes)
        self.prototypes = F.normalize(self.prototypes)
        self.whitening = torch.stack([whitening(own, self.settings.shrinkage) for own in self.covariances])

    def learn(self, session: Session) -> None:
        """Add the calibrated mean and covariance of each new class."""
        session, settings = session.to(self.device), self.settings
        means, own = class_moments(self._read(session.features), session.labels, session.classes)
        base = self.prototypes[: self.base]
        shares = likeness(means, base, settings.tau)
        towards = F.normalize(shares @ base)
        calibrated = settings.own * F.normalize(means) + (1 - settings.own) * towards
        borrowed = torch.einsum("nb,bij->nij", shares, self.covariances)
        spread = settings.weight * (own + borrowed)
        added = torch.stack([whitening(one, settings.shrinkage) for one in spread])
        self.prototypes = torch.cat([self.prototypes, F.normalize(calibrated)])
        self.whitening = torch.cat([self.whitening, added])

    def scores(self, features: Tensor) -> Tensor:
        """The negative squared Mahalanobis distance to every class."""
        units = self._read(features.to(self.device))
        pairs = zip(self.prototypes, self.whitening, strict=True)
        return torch.stack([-((units - mean) @ matrix).square().sum(1) for mean, matrix in pairs], 1)

    def _read(self, features: Tensor) -> Tensor:
        """Unit vectors of powers of the features, whose signs stay."""
        return F.normalize(features.sign() * features.abs().pow(self.settings.power))


def class_moments(features: Tensor, labels: Tensor, classes: range) -> tuple[Tensor, Tensor]:
    """Mean (classes, d) and covariance (classes, d, d) of each class; that of a single image is zero."""
    means, covariances = [], []
    for label in classes:
        own = features[labels == label]
        means.append(own.mean(0))
        within = own - means[-1]
        covariances.append(within.T @ within / max(1, len(own) - 1))
    return torch.stack(means), torch.stack(covariances)


def likeness(means: Tensor, base: Tensor, tau: float) -> Tensor:
    """Weights (n, base) of the base classes for means (n, d): softmax of their scaled cosines."""
    return (tau * F.normalize(means) @ F.normalize(base).T).softmax(1)


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """A covariance (d, d) with multiples of its mean variance, and of the mean of all others, added to the entries."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    variance = covariance.diagonal().mean()
    others = (covariance.sum() - covariance.diagonal().sum()) / max(1, covariance.numel() - len(covariance))
    return covariance + shrinkage * (variance * identity + others * (1 - identity))


def whitening(covariance: Tensor, shrinkage: float) -> Tensor:
    """A matrix W (d, d) with W·Wᵀ the inverse of the correlations of the shrunk covariance."""
    moved = shrunk(covariance.double(), shrinkage)
    scale = moved.diagonal().clamp(min=torch.finfo(torch.float32).tiny).rsqrt()
    values, vectors = torch.linalg.eigh(scale[:, None] * moved * scale)
    found: Tensor = vectors * values.clamp(min=1e-6).rsqrt()
    return found.to(covariance.dtype)
