"""ADBS (Li, Tan, Yang, Cheng, Dong and Yang, "Adaptive Decision Boundary for Few-Shot Class-Incremental Learning",
AAAI 2025).

Classes need unequal room. Each has a margin that multiplies its cosine, so that the boundary between two classes is not
half-way between their prototypes. Margins of base classes are learned with the classifier, those of new classes from
their shots, starting from the mean of all before; a constraint keeps each prototype at least as far on its own side of
every boundary as it would be without margins.

Here: the backbone is shared and frozen, so base margins and rows are trained on cached features, and new margins on the
shots as they are instead of random crops of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.descent import SGD, descend
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.imprint import BaseTraining, learned_rows
from concm.methods.registry import method
from concm.records import Checked, setting


@dataclass(frozen=True)
class ADBSSettings(Checked):
    """The settings of ADBS, with the values for CIFAR-100."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200")

    scale: float = setting(16.0, "Scale of the cosines (authors' code).", above=0)
    constraint: float = setting(0.01, "Weight of the inter-class constraint (authors' code).", least=0)
    steps: int = setting(
        10, "Steps of each later session (authors' code for CIFAR-100; mini-ImageNet 6, CUB200 1).", least=0
    )
    lr: float = setting(
        0.01, "Rate of the new margins (authors' code for CIFAR-100 and CUB200; mini-ImageNet 0.1).", above=0
    )
    rows: Literal["learned", "means"] = setting(
        "means", "Base rows after the base session: class means (authors' code), or the rows that were learned."
    )
    base: BaseTraining = setting(
        BaseTraining(),
        "Training of base rows and margins; the authors train 100 epochs or more, together with the backbone.",
    )

    @classmethod
    def mini_imagenet(cls) -> ADBSSettings:
        """The settings published for mini-ImageNet."""
        return cls(steps=6, lr=0.1)

    @classmethod
    def cub200(cls) -> ADBSSettings:
        """The settings published for CUB200."""
        return cls(steps=1)


@method(
    "adbs",
    title="ADBS: adaptive decision boundaries",
    paper="AAAI 2025",
    link="https://arxiv.org/abs/2504.10976",
    code="https://github.com/Yongzhang-Tan/ADBS",
)
class ADBS(Learner):
    """A cosine classifier with a margin for each class; old rows and margins never change."""

    settings = ADBSSettings()
    kept = ("weights", "margins")

    def fit_base(self, base: BaseSession) -> None:
        """Train base rows and margins together."""
        base = self.begin(base)
        margins = torch.ones(self.base, device=self.device, requires_grad=True)

        def loss(cosines: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
            return self._loss(cosines, labels, rows, margins)

        rows = learned_rows(base, loss, [margins], self.settings.base, self.generator)
        self.weights = rows if self.settings.rows == "learned" else F.normalize(base.mean)
        self.margins = margins.detach()

    def learn(self, session: Session) -> None:
        """Add the mean of each new class's shots, and train only the new margins."""
        session = session.to(self.device)
        self.weights = torch.cat([self.weights, F.normalize(session.class_means())])
        cosines = F.normalize(session.features) @ self.weights.T
        new = self.margins.mean().repeat(len(session.classes)).requires_grad_()

        def loss() -> Tensor:
            return self._loss(cosines, session.labels, self.weights, torch.cat([self.margins, new]))

        descend([new], loss, [self.settings.lr] * self.settings.steps, SGD(dampening=0.9))
        self.margins = torch.cat([self.margins, new.detach()])

    def scores(self, features: Tensor) -> Tensor:
        """Scaled cosine to every row, times its margin."""
        cosines = F.normalize(features.to(self.device)) @ self.weights.T
        return self.settings.scale * self.margins.abs() * cosines

    @property
    def parameter_count(self) -> int:
        """The number of margins, and of weights in the base rows if these are the learned ones."""
        return len(self.margins) + (self.base * self.dimension if self.settings.rows == "learned" else 0)

    def _loss(self, cosines: Tensor, labels: Tensor, rows: Tensor, margins: Tensor) -> Tensor:
        entropy = F.cross_entropy(self.settings.scale * margins.abs() * cosines, labels)
        return entropy + self.settings.constraint * inter_class(rows, margins)


def inter_class(rows: Tensor, margins: Tensor) -> Tensor:
    """Mean over pairs (i, j) of how much nearer margins bring the prototype of j to its boundary with i."""
    cosines = rows @ rows.T
    return (1 - cosines - (margins[None] - margins[:, None] * cosines)).relu().mean()
