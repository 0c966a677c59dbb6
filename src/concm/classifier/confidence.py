"""How sure to be: probabilities that keep their word, and a familiarity that tells known photos from strange ones.

A photo is as familiar as its score exceeds what photos of the class it is taken for usually have, in standard
deviations. What is usual comes from a rehearsal on the base classes; for a class of a few photos it follows from how
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
"""Photos that the average class counts for beside a class's own: of the order of variance within over between."""


@dataclass(frozen=True)
class Usual:
    """What was found on held-out photos of the base classes.

    `base` (classes,): the expected score of each base class; `likeness`: of two photos of one class; `shift` and
    `width` (2,): mean and spread of what scores exceed the expected by, for base and for novel classes; `quantiles`:
    of known photos' familiarity, at equal steps from 0 to 1; `temperature`: of the probabilities.
    """

    base: Tensor
    likeness: Tensor
    shift: Tensor
    width: Tensor
    quantiles: Tensor
    temperature: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """For the store: a confidence follows from these and the engine."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class Confidence:
    """Usual scores (n,) of all classes known, and how to judge by them."""

    usual: Usual
    centre: Tensor
    width: Tensor

    @classmethod
    def of(cls, engine: Engine, usual: Usual) -> Confidence:
        """For what the engine knows now."""
        few_shot = expected_scores(*likeness(engine), engine.memory.counts.cpu(), usual.likeness)
        expected = torch.cat([usual.base, few_shot[engine.memory.base :]])
        group = (torch.arange(len(expected)) >= engine.memory.base).long()
        bias = engine.head.bias.cpu()
        return cls(usual, expected + usual.shift[group] + bias, usual.width[group])

    def without(self, label: int) -> Usual:
        """What remains usual if a class is forgotten."""
        base = self.usual.base
        return replace(self.usual, base=torch.cat([base[:label], base[label + 1 :]]) if label < len(base) else base)

    def probabilities(self, scores: Tensor) -> Tensor:
        """(n, classes), each row adds up to 1."""
        return (scores / self.usual.temperature).softmax(1)

    def familiarity(self, scores: Tensor) -> Tensor:
        """(n,): how far the best score lies above what is usual for its class."""
        best = scores.max(1)
        return (best.values - self.centre[best.indices]) / self.width[best.indices]

    def threshold(self, rate: float) -> float:
        """The familiarity that this share of known photos does not reach."""
        if rate <= 0 or not len(self.usual.quantiles):
            return -torch.inf
        return float(self.usual.quantiles.double().quantile(rate))


def likeness(engine: Engine) -> tuple[Tensor, Tensor]:
    """Mean cosine (classes,) of two exemplars of each class, 0 where there are less, and how many there are."""
    memory = engine.memory
    counts = torch.bincount(memory.labels, minlength=len(memory.mean)).cpu()
    unit = torch.nn.functional.normalize(memory.exemplars)
    length = class_sums(unit, memory.labels, len(memory.mean)).square().sum(1).cpu()
    pairs = counts * (counts - 1)
    return torch.where(pairs > 0, (length - counts) / pairs.clamp(min=1), 0.0), counts


def expected_scores(own: Tensor, exemplars: Tensor, counts: Tensor, common: Tensor) -> Tensor:
    """Expected cosine (classes,) of a photo to its prototype of `counts` shots, by how alike those of its class are."""
    weight = torch.where(exemplars > 1, exemplars, 0)
    shared = (weight * own + SHRINKAGE * common) / (weight + SHRINKAGE)
    return expected_cosine(shared, counts.clamp(min=1))
