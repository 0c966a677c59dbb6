"""Confidence: calibrated probabilities, and a familiarity that tells photos of known classes from strange ones.

The familiarity of a photo is how far its score lies above the usual score of the class it is taken for, in standard
deviations. Usual scores come from a rehearsal on the base classes; for a class of a few photos they follow from how
alike these are (`expected_cosine`). Sampled features turned out useless for this (docs/photos.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from concm.engine.memory import class_sums
from concm.engine.metric import expected_cosine

if TYPE_CHECKING:
    from concm.engine.concm import Engine

SHRINKAGE = 5.0
"""Weight of the average class beside a class's own photos, in photos: about variance within over variance between."""


@dataclass(frozen=True)
class Usual:
    """The usual scores, found on held-out photos of the base classes.

    `base` (classes,): the expected score of each base class; `likeness`: the cosine of two photos of one class; `shift`
    and `width` (2,): mean and spread of score minus expected score, for base and for novel classes; `quantiles`: those
    of known photos' familiarity, at equal steps from 0 to 1; `temperature`: that of the probabilities.
    """

    base: Tensor
    likeness: Tensor
    shift: Tensor
    width: Tensor
    quantiles: Tensor
    temperature: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The tensors for the store, from which the confidence can be made again with the engine."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class Confidence:
    """Usual scores (n,) of all known classes, and the probabilities and familiarity that follow from them."""

    usual: Usual
    centre: Tensor
    width: Tensor

    @classmethod
    def of(cls, engine: Engine, usual: Usual) -> Confidence:
        """The confidence for the classes that the engine knows now."""
        few_shot = expected_scores(*likeness(engine), engine.memory.counts.cpu(), usual.likeness)
        expected = torch.cat([usual.base, few_shot[engine.memory.base :]])
        group = (torch.arange(len(expected)) >= engine.memory.base).long()
        bias = engine.head.bias.cpu()
        return cls(usual, expected + usual.shift[group] + bias, usual.width[group])

    def without(self, label: int) -> Usual:
        """The usual scores without a class that is forgotten."""
        base = self.usual.base
        return replace(self.usual, base=torch.cat([base[:label], base[label + 1 :]]) if label < len(base) else base)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities (n, classes); each row adds up to 1."""
        return (scores / self.usual.temperature).softmax(1)

    def familiarity(self, scores: Tensor) -> Tensor:
        """How far the best score of each photo (n,) lies above the usual score of its class."""
        best = scores.max(1)
        return (best.values - self.centre[best.indices]) / self.width[best.indices]

    def threshold(self, rate: float) -> float:
        """The familiarity that this share of known photos does not reach."""
        if rate <= 0 or not len(self.usual.quantiles):
            return -torch.inf
        return float(self.usual.quantiles.double().quantile(rate))


def likeness(engine: Engine) -> tuple[Tensor, Tensor]:
    """Mean cosine (classes,) of two exemplars of each class, 0 if there are fewer, and the number of exemplars."""
    memory = engine.memory
    counts = torch.bincount(memory.labels, minlength=len(memory.mean)).cpu()
    unit = torch.nn.functional.normalize(memory.exemplars)
    length = class_sums(unit, memory.labels, len(memory.mean)).square().sum(1).cpu()
    pairs = counts * (counts - 1)
    return torch.where(pairs > 0, (length - counts) / pairs.clamp(min=1), 0.0), counts


def expected_scores(own: Tensor, exemplars: Tensor, counts: Tensor, common: Tensor) -> Tensor:
    """Expected cosine (classes,) of a photo to its class's prototype of `counts` shots, by how alike the shots are."""
    weight = torch.where(exemplars > 1, exemplars, 0)
    shared = (weight * own + SHRINKAGE * common) / (weight + SHRINKAGE)
    return expected_cosine(shared, counts.clamp(min=1))
