"""GKEAL (Zhuang, Weng, He, Lin and Zeng, "Gaussian Kernel Embedded Analytic Learning for Few-Shot Class Incremental
Task", CVPR 2023).

A feature is described by its likeness, in a Gaussian kernel, to some features of base images. Classes are then
separated by a ridge regression, which is solved and not trained, and whose sums grow from session to session: what it
knows after the last one is what it would know if all images had come at once. So that few shots are not outweighed by
the base classes, many augmented copies of each are added.

Here: the copies are the shot and its stored views, repeated; base classes count as many images as they have, also where
the bank holds a part of them; features come in at unit length, so that the kernel's width is in units of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.orco import versions
from concm.methods.registry import EXEMPLARS, VIEWS, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class GKEALSettings(Checked):
    """The settings of GKEAL; those that depend on the features were chosen by AHM + FA on two validation banks."""

    centres: int = setting(512, "Features of base images that the kernel compares with (authors' code).", least=1)
    width: float = setting(
        0.5,
        "Standard deviation σ of the kernel, for unit features (chosen of 0.3 to 4; authors: 5 to 15, for features of "
        "any length).",
        above=0,
    )
    ridge: float = setting(1e-6, "Ridge γ of the regression, for each image seen (chosen of 1e-9 to 1e-2).", above=0)
    copies: int = setting(500, "Images for which each shot stands, with its views (chosen of 30 to 800).", least=1)

    @property
    def needs(self) -> tuple[str, ...]:
        """Views, and the features that the kernel compares with."""
        return (f"{EXEMPLARS}: {self.centres} features of base images", VIEWS)


@method(
    "gkeal",
    title="GKEAL: recursive ridge regression on a Gaussian kernel",
    paper="CVPR 2023",
    link="https://openaccess.thecvf.com/content/CVPR2023/html/"
    "Zhuang_GKEAL_Gaussian_Kernel_Embedded_Analytic_Learning_for_Few-Shot_Class_Incremental_CVPR_2023_paper.html",
    code="https://github.com/ZHUANGHP/Analytic-continual-learning",
)
class GKEAL(Learner):
    """The kernel's centres, and the sums of the regression."""

    settings = GKEALSettings()
    total = 0.0
    values = (*Learner.values, "total")
    kept = ("points", "gram", "sums")

    def fit_base(self, base: BaseSession) -> None:
        """Choose the centres at random and regress the base images onto their classes."""
        base = self.begin(base)
        units = F.normalize(base.features)
        chosen = torch.randperm(len(units), generator=self.generator, device=self.device)[: self.settings.centres]
        self.points = units[chosen]
        held = torch.bincount(base.labels, minlength=self.base).clamp(min=1)
        each = (base.counts.to(self.device) / held)[base.labels]
        size = len(self.points)
        self.gram = units.new_zeros(size, size, dtype=torch.double)
        self.sums = units.new_zeros(size, 0, dtype=torch.double)
        self._add(units, base.labels, each, self.base)

    def learn(self, session: Session) -> None:
        """Add the shots and their views, as often as the settings say."""
        session = session.to(self.device)
        every = versions(session)
        units, labels = F.normalize(every.flatten(0, 1)), session.labels.repeat_interleave(every.shape[1])
        each = torch.full((len(units),), self.settings.copies / every.shape[1], device=self.device)
        self._add(units, labels, each, session.classes.stop)

    def _add(self, units: Tensor, labels: Tensor, each: Tensor, classes: int) -> None:
        """Add images, each counted so often, to the sums, and solve the regression anew."""
        hidden, counted = self._kernel(units).double(), each.double()
        self.gram = self.gram + (hidden * counted[:, None]).T @ hidden
        known = F.pad(self.sums, (0, classes - self.sums.shape[1]))
        self.sums = known + (hidden * counted[:, None]).T @ F.one_hot(labels, classes).double()
        self.total += float(counted.sum())
        identity = torch.eye(len(self.gram), device=self.device, dtype=torch.double)
        factor = torch.linalg.cholesky(self.gram + self.settings.ridge * self.total * identity)
        self.weights = torch.cholesky_solve(self.sums, factor).float().contiguous()

    def _kernel(self, units: Tensor) -> Tensor:
        """(n, d) → (n, centres): exp(−‖x − c‖² ∕ 2σ²)."""
        return ((units @ self.points.T - 1) / self.settings.width**2).exp()

    def scores(self, features: Tensor) -> Tensor:
        """The outputs of the regression."""
        return self._kernel(F.normalize(features.to(self.device))) @ self.weights

    @property
    def parameter_count(self) -> int:
        """Number of weights of the regression."""
        return self.weights.numel()
