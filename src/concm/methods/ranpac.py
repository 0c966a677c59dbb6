"""Calibrated RanPAC (Goswami, Twardowski and van de Weijer, "Calibrating Higher-Order Statistics for Few-Shot
Class-Incremental Learning with Pre-trained Vision Transformers", CVPR Workshops 2024; RanPAC: NeurIPS 2023).

Features are projected at random to many more dimensions and rectified, where classes come apart by a linear map; its
ridge regression needs only two sums over all images seen, which grow from session to session. Five shots would hardly
count in them, so each new class is sampled: from a Gaussian whose mean and covariance are mixed with those of similar
base classes.

Here: only the read-out; the authors tune a pre-trained transformer with an adapter first. Features come in at unit
length, and the base classes are those images that the bank holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.fecam import class_moments, likeness
from concm.methods.registry import method
from concm.records import Checked, setting

RIDGES = tuple(10.0**power for power in range(9))
"""Candidates of the ridge (the authors try those from ten on)."""


@dataclass(frozen=True)
class RanPACSettings(Checked):
    """The settings of calibrated RanPAC, with the authors' values for CIFAR-100."""

    PRESETS: ClassVar = ("cub200", "short")

    width: int = setting(10_000, "Dimensions of the random projection (authors' code).", least=1)
    own: float = setting(
        0.75, "Share of a new class's own mean beside that of base means (authors' code).", least=0, most=1
    )
    tau: float = setting(16.0, "Sharpness of the weights of base classes (authors' code).", least=0)
    weight: float = setting(0.5, "Weight of both covariances, own and borrowed (authors' code).", least=0)
    samples: int = setting(800, "Samples of each new class (authors' code).", least=1)
    held: float = setting(
        0.2, "Share of the base images on which the ridge is chosen (authors' code).", above=0, below=1
    )

    @classmethod
    def cub200(cls) -> RanPACSettings:
        """The settings published for CUB200."""
        return cls(own=0.9)

    @classmethod
    def short(cls) -> RanPACSettings:
        """A fifth of the dimensions, for a CPU."""
        return cls(width=2000)


@method(
    "ranpac",
    title="calibrated RanPAC: ridge regression on random features of sampled classes",
    paper="CVPRW 2024",
    link="https://arxiv.org/abs/2404.06622",
    code="https://github.com/dipamgoswami/FSCIL-Calibration",
)
class RanPAC(Learner):
    """A random projection, the sums of the ridge regression, and mean and covariance of each base class."""

    settings = RanPACSettings()
    ridge = 0.0
    values = (*Learner.values, "ridge")
    kept = ("projection", "means", "covariances", "gram", "sums")

    def fit_base(self, base: BaseSession) -> None:
        """Draw the projection, choose the ridge, and regress the base images onto their classes."""
        base = self.begin(base)
        shape = self.dimension, self.settings.width
        self.projection = torch.randn(shape, generator=self.generator, device=self.device)
        units = F.normalize(base.features)
        self.means, self.covariances = class_moments(units, base.labels, base.classes)
        hidden, truth = self._hidden(units), F.one_hot(base.labels, self.base).to(units)
        order = torch.randperm(len(hidden), generator=self.generator, device=self.device)
        self.ridge = best_ridge(hidden[order], truth[order], self.settings.held)
        self.gram, self.sums = hidden.T @ hidden, hidden.T @ truth
        self._solve()

    def learn(self, session: Session) -> None:
        """Sample each new class and add the samples to the sums."""
        session, settings = session.to(self.device), self.settings
        means, own = class_moments(F.normalize(session.features), session.labels, session.classes)
        shares = likeness(means, self.means, settings.tau)
        centres = settings.own * means + (1 - settings.own) * shares @ self.means
        spread = settings.weight * (own + torch.einsum("nb,bij->nij", shares, self.covariances))
        added = []
        for centre, covariance in zip(centres, spread, strict=True):
            noise = torch.randn(
                settings.samples, self.dimension, generator=self.generator, device=self.device, dtype=centre.dtype
            )
            hidden = self._hidden(centre + noise @ root(covariance))
            self.gram = self.gram + hidden.T @ hidden
            added.append(hidden.sum(0))
        self.sums = torch.cat([self.sums, torch.stack(added, 1)], 1)
        self._solve()

    def _solve(self) -> None:
        self.weights = ridge_weights(self.gram, self.sums, self.ridge).to(self.sums).contiguous()

    def _hidden(self, units: Tensor) -> Tensor:
        return (units @ self.projection).relu()

    def scores(self, features: Tensor) -> Tensor:
        """The outputs of the regression."""
        return self._hidden(F.normalize(features.to(self.device))) @ self.weights

    @property
    def parameter_count(self) -> int:
        """Number of weights of the regression; the projection is random."""
        return self.weights.numel()


def best_ridge(hidden: Tensor, truth: Tensor, held: float) -> float:
    """The ridge whose regression on a part of the rows (n, width) has the least squared error on the others."""
    count = max(1, round(len(hidden) * (1 - held)))
    seen, wanted = hidden[:count].double(), truth[:count].double()
    gram, sums, rest = seen.T @ seen, seen.T @ wanted, hidden[count:].double()

    def error(ridge: float) -> float:
        return float((rest @ ridge_weights(gram, sums, ridge) - truth[count:]).square().sum())

    return min(RIDGES, key=error)


def ridge_weights(gram: Tensor, sums: Tensor, ridge: float) -> Tensor:
    """The weights (width, classes) of a ridge regression, in double precision, from its two sums."""
    lifted = gram.to(torch.double, copy=True)
    lifted.diagonal().add_(ridge)
    return torch.cholesky_solve(sums.double(), torch.linalg.cholesky(lifted))


def root(covariance: Tensor) -> Tensor:
    """The symmetric root (d, d) of a covariance, which may lack rank."""
    values, vectors = torch.linalg.eigh(covariance.double())
    found: Tensor = vectors * values.clamp(min=0).sqrt() @ vectors.T
    return found.to(covariance.dtype)
