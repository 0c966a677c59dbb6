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
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.descent import SGD, descend, warmed_cosine
from concm.features.sessions import BaseSession, Session, class_means
from concm.methods.base import Learner
from concm.methods.registry import method
from concm.records import Checked, setting

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A loss of cosines (n, classes), labels (n,) and unit rows (classes, d)."""


@dataclass(frozen=True)
class BaseTraining(Checked):
    """How a cosine classifier is trained on the base images: SGD with Nesterov momentum 0.9, cosine to zero."""

    epochs: int = setting(
        30,
        "Passes over the base images (chosen: 100 change base and novel accuracies on validation banks by about 2 "
        "points at most).",
        least=0,
    )
    lr: float = setting(
        0.1, "Initial rate of SGD (chosen: that of CEC and ADBS for classifier and backbone together).", above=0
    )
    batch: int = setting(64, "Images in a step (chosen: that of ADBS).", least=1)
    weight_decay: float = setting(5e-4, "Weight decay of SGD (chosen: that of CEC and ADBS).", least=0)


@dataclass(frozen=True)
class ImprintSettings(Checked):
    """The settings of imprinting; the paper only calls its scale "learnable" and gives its own backbone's schedule."""

    scale: float = setting(
        16.0, "Initial value of the learned scale of the cosines (chosen: CEC's fixed one).", above=0
    )
    base: BaseTraining = setting(BaseTraining(), "Training of the base classifier.")


@method("imprint", title="weight imprinting", paper="CVPR 2018", link="https://arxiv.org/abs/1712.07136")
class Imprint(Learner):
    """A cosine classifier with learned rows for the base classes and imprinted rows for the others."""

    settings = ImprintSettings()
    values = (*Learner.values, "scale")
    kept = ("weights",)

    def __init__(self, settings: ImprintSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(settings, seed=seed, device=device)
        self.scale = self.settings.scale

    def fit_base(self, base: BaseSession) -> None:
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
    def parameter_count(self) -> int:
        """Number of weights in the base rows, and the scale."""
        return self.base * self.dimension + 1


def imprinted(session: Session) -> Tensor:
    """Unit rows (classes, d): every shot counts the same, whatever the length of its feature."""
    return F.normalize(class_means(F.normalize(session.features), session.labels, session.classes))


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
    descend([rows, *others], value, rates, SGD(nesterov=True, weight_decay=settings.weight_decay))
    return F.normalize(rows.detach())
