"""LCwoF (Kukleva, Kuehne and Schiele, "Generalized and Incremental Few-Shot Learning by Explicit Learning and
Calibration without Forgetting", ICCV 2021).

Learning the base classes, learning novel ones and keeping both ask for different weights, so each has its own phase.
Novel classes are learned from their shots alone, by a cross-entropy whose denominator holds the base classes too, while
the backbone is held near the base model by a penalty on the distance of its weights. Then all classes are calibrated
jointly, on pictures of base and novel classes in balance.

Here: the base phase leaves the shared backbone as it is and trains a cosine classifier on its features, where the
paper's is linear; new rows begin at their shots' mean, not at random; the backbone's steps are those of the implicit
method, since with the authors' penalty and rate explicit ones grow without end unless clipped; both phases are
shortened at larger rates. Batch statistics stay those of the base session, as in the authors' code, which has only one
session: how later ones go on is our choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.descent import descend, paced
from concm.features.sessions import BaseSession, Session
from concm.methods.imprint import BaseTraining, classifier, imprinted
from concm.methods.picture_base import PictureLearner
from concm.methods.registry import EXEMPLARS, PICTURES, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class Phase(Checked):
    """One phase of training by SGD with momentum 0.9: its steps, rates and loss."""

    steps: int = setting(40, "Number of steps in this phase.", least=0)
    lr: float = setting(0.04, "Rate of the rows in this phase.", least=0)
    backbone_lr: float = setting(0.004, "Rate of the backbone in this phase.", least=0)
    weight: float = setting(1.0, "Weight of the cross-entropy beside the penalty in this phase.", least=0)


@dataclass(frozen=True)
class LCwoFSettings(Checked):
    """The settings of LCwoF, with the authors' values for 5 shots of mini-ImageNet, the only ones released."""

    penalty: float = setting(
        5e3,
        "Weight of the squared distance between the backbone's weights and the base model's (authors' code).",
        least=0,
    )
    novel: Phase = setting(
        Phase(steps=40, lr=0.04, backbone_lr=0.004, weight=1.0),
        "Phase that trains the new rows, with all shots in each step (chosen: in place of some 150 epochs of the "
        "authors', at four times their rates).",
    )
    joint: Phase = setting(
        Phase(steps=40, lr=0.025, backbone_lr=0.0025, weight=0.1),
        "Phase that trains all rows (chosen: the authors' 200 epochs are some 1000 steps, at a 25th of these rates; "
        "weight: authors' code).",
    )
    batch: int = setting(64, "Pictures in a step of the joint phase (chosen: one of each of 64 classes).", least=1)
    exemplars: int = setting(5, "Pictures kept of each base class, the first ones (chosen: as many as shots).", least=1)
    scale: float = setting(
        16.0, "Initial value of the learned scale of the cosines (chosen: that of imprint).", above=0
    )
    base: BaseTraining = setting(BaseTraining(), "Training of the base classifier (chosen: that of imprint).")

    @property
    def needs(self) -> tuple[str, ...]:
        """Pictures, and exemplars of base and of novel classes."""
        return PICTURES, f"{EXEMPLARS}: {self.exemplars} pictures per base class, all shots of novel classes"


@method(
    "lcwof",
    title="LCwoF: novel learning near the base weights, then joint calibration",
    paper="ICCV 2021",
    link="https://arxiv.org/abs/2108.08165",
    code="https://github.com/Annusha/LCwoF",
    group="updates the backbone",
)
class LCwoF(PictureLearner):
    """The network, the base model it is held near, a unit row for each class, and exemplars."""

    settings = LCwoFSettings()
    values = (*PictureLearner.values, "scale")
    kept = ("exemplars", "labels")
    copies = ("anchor",)

    def __init__(self, settings: LCwoFSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(settings, seed=seed, device=device)
        self.scale = self.settings.scale

    def build(self) -> None:
        """Make the network and the base model."""
        super().build()
        self.anchor = self.another().requires_grad_(False)

    def fit_base(self, base: BaseSession) -> None:
        """Phase 1: train the base rows and the scale on features, and keep a few pictures."""
        base, count = self.begin(base), self.settings.exemplars
        assert base.pictures is not None
        self.anchor.load_state_dict(self.network.state_dict())
        self.rows, self.scale = classifier(base, self.settings.scale, self.settings.base, self.generator)
        first = torch.cat([(base.labels == label).nonzero().flatten()[:count] for label in base.classes])
        self.exemplars, self.labels = base.pictures[first], base.labels[first]

    def learn(self, session: Session) -> None:
        """Phase 2: train new rows on the shots alone; phase 3: train all rows on exemplars, balanced over classes."""
        session, settings = session.to(self.device), self.settings
        assert session.pictures is not None
        shots, labels = session.pictures, session.labels
        new = imprinted(replace(session, features=self.features(shots)))
        new = self._descend(settings.novel, lambda: (shots, labels), self.rows, new)
        self.exemplars, self.labels = torch.cat([self.exemplars, shots]), torch.cat([self.labels, labels])
        balance = 1 / self.labels.bincount()[self.labels].float()

        def balanced() -> tuple[Tensor, Tensor]:
            drawn = torch.multinomial(balance, settings.batch, replacement=True, generator=self.generator)
            return self.exemplars[drawn], self.labels[drawn]

        self.rows = self._descend(settings.joint, balanced, self.rows[:0], torch.cat([self.rows, new]))

    def _descend(self, phase: Phase, draw: Callable[[], tuple[Tensor, Tensor]], fixed: Tensor, rows: Tensor) -> Tensor:
        """Train the backbone and `rows`, which follow the `fixed` ones, on drawn batches; returns the unit rows."""
        rows, penalty = rows.clone().requires_grad_(), self.settings.penalty
        pace = implicit(phase.backbone_lr, penalty)
        weights, anchors = list(self.network.parameters()), list(self.anchor.parameters())

        def loss() -> Tensor:
            pictures, labels = draw()
            features = paced(self.network(self.views(pictures)), pace)
            every = F.normalize(torch.cat([fixed, paced(rows, phase.lr)]))
            entropy = F.cross_entropy(self.scale * F.normalize(features) @ every.T, labels)
            away = torch.stack([(w - a).square().sum() for w, a in zip(weights, anchors, strict=True)]).sum()
            return phase.weight * entropy + pace * penalty * away

        descend([rows, *weights], loss, repeat(1.0, phase.steps))
        return F.normalize(rows.detach())

    def scores(self, pictures: Tensor) -> Tensor:
        """Scaled cosine to every row."""
        return self.scale * F.normalize(self.features(pictures)) @ self.rows.T

    @property
    def parameter_count(self) -> int:
        """Number of weights in the network and the rows, and the scale."""
        return super().parameter_count + self.rows.numel() + 1


def implicit(lr: float, penalty: float) -> float:
    """The rate at which a step along the gradient is an implicit step for penalty·|x|², stable for any penalty.

    (x - lr·g) / (1 + 2·lr·penalty) = x - rate·(g + 2·penalty·x).
    """
    return lr / (1 + 2 * lr * penalty)
