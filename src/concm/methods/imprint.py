"""Weight imprinting (Qi, Brown and Lowe, "Low-Shot Learning with Imprinted Weights", CVPR 2018).

A cosine classifier is trained on the base classes. The weights of a new class are then not trained but imprinted: the
mean of its shots' unit embeddings, made unit length again, is what training would be steered towards. Unlike nearest
class mean, base classes keep the weights that were learned.

Here: the backbone is shared and frozen, so the classifier alone is trained, on cached features; the optional
fine-tuning of the whole network after imprinting is left out. Cross-entropy takes the direction that all features share
out of the learned rows, and imprinted rows keep it: with non-negative features that favours new classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.descent import descend, warmed_cosine
from concm.errors import Misuse
from concm.features.sessions import Session
from concm.methods import method
from concm.methods.base import Learner

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of cosines (n, classes), labels (n,) and unit rows (classes, d)."""


@dataclass(frozen=True)
class BaseTraining:
    """How a cosine classifier is trained on the base images: SGD with Nesterov momentum 0.9, cosine to zero."""

    epochs: int = 30
    "chosen: 100 change base and novel accuracies on validation banks by about 2 points at most."
    lr: float = 0.1
    "chosen: that of CEC and ADBS for classifier and backbone together."
    batch: int = 64
    "chosen: that of ADBS."
    weight_decay: float = 5e-4
    "chosen: that of CEC and ADBS."

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch < 1 or self.lr <= 0 or self.weight_decay < 0:
            raise Misuse("base.batch and base.lr must be positive, base.epochs and base.weight_decay at least 0")


@dataclass(frozen=True)
class ImprintSettings:
    """The paper names its scale "learnable" and gives the schedule of its own backbone only."""

    scale: float = 16.0
    "chosen: what the learned scale of the cosines starts from (CEC's fixed one)."
    base: BaseTraining = field(default_factory=BaseTraining)
    "Of the base classifier."

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise Misuse("setting scale must be positive")


@method("imprint", title="weight imprinting", paper="CVPR 2018", settings=ImprintSettings)
class Imprint(Learner):
    """Learned rows for the base classes, imprinted ones for the others."""

    kept = ("weights",)

    def __init__(self, settings: ImprintSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(seed=seed, device=device)
        self.settings = settings or ImprintSettings()
        self.scale = self.settings.scale

    def fit_base(self, base: Session) -> None:
        """Train the base rows and the scale by cross-entropy."""
        base = self.begin(base)
        self.weights, self.scale = classifier(base, self.settings.scale, self.settings.base, self.generator)

    def learn(self, session: Session) -> None:
        """Imprint each new class; nothing else changes."""
        self.weights = torch.cat([self.weights, imprinted(session.to(self.device))])

    def scores(self, features: Tensor) -> Tensor:
        """Scaled cosine to every row."""
        return self.scale * F.normalize(features.to(self.device)) @ self.weights.T

    @property
    def parameters(self) -> int:
        """The base rows and the scale."""
        return self.base * self.dimension + 1


def imprinted(session: Session) -> Tensor:
    """Unit rows (classes, d): every shot has the same vote, however long its feature."""
    units = F.normalize(session.features)
    return F.normalize(torch.stack([units[session.labels == label].mean(0) for label in session.classes]))


def classifier(base: Session, scale: float, settings: BaseTraining, generator: torch.Generator) -> tuple[Tensor, float]:
    """Unit rows (classes, d) of a cosine classifier and its scale, trained together by cross-entropy."""
    learned = torch.tensor(scale, device=base.features.device, requires_grad=True)

    def loss(cosines: Tensor, labels: Tensor, _: Tensor) -> Tensor:
        return F.cross_entropy(learned * cosines, labels)

    rows = learned_rows(base, loss, [learned], settings, generator)
    return rows, float(learned.detach())


def learned_rows(
    base: Session, loss: Loss, others: list[Tensor], settings: BaseTraining, generator: torch.Generator
) -> Tensor:
    """Unit rows (classes, d) of a cosine classifier, trained from random ones; `others` are trained with them."""
    units, shape = F.normalize(base.features), (len(base.classes), base.features.shape[1])
    rows = F.normalize(torch.randn(shape, generator=generator, device=units.device)).requires_grad_()
    each = math.ceil(len(units) / settings.batch)

    def batches() -> Iterator[Tensor]:
        while True:
            order = torch.randperm(len(units), generator=generator, device=units.device)
            yield from torch.split(order, settings.batch)

    drawn = batches()

    def value() -> Tensor:
        chosen, unit_rows = next(drawn), F.normalize(rows)
        return loss(units[chosen] @ unit_rows.T, base.labels[chosen], unit_rows)

    rates = (rate for rate in warmed_cosine(settings.lr, settings.epochs) for _ in range(each))
    descend([rows, *others], value, rates, nesterov=True, weight_decay=settings.weight_decay)
    return F.normalize(rows.detach())
