"""Confidence: calibrated probabilities, and a familiarity that tells photos of known classes from strange ones.

A photo is familiar if its best score is high, and if it stands out from the next ones: a near stranger looks a little
like several classes. Both are measured in units of what is usual for known photos, by a trial of what is known: base
photos that were held out, and novel photos left out of their own prototypes (docs/photos.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from concm.engine.concm import Engine

NEXT = 9
"""With how many of the next best scores the best one is compared."""
STEPS = 100
TEMPERATURE = 1 / 30
"""Where the temperature stays when there is little to learn it from."""
EVERY, BEST, BEHIND = 4096, 64, 256
"""Classes up to which all count when the temperature is found; with more, the best, and some of those behind them."""
TEMPERED = 512
"""Photos by which the temperature is found at most where there are more classes than that."""
ENOUGH = 20
"""Photos below which nothing is called unknown: they would not tell what is usual."""


@dataclass(frozen=True)
class Confidence:
    """What is usual for photos of known classes.

    `centre` and `width` (2,): mean and spread of the best score and of its lead; `quantiles`: those of the familiarity
    of known photos, at equal steps from 0 to 1, none if there are too few photos; `temperature`: that of the
    probabilities; `adapted`: whether they come from photos that the user gave for this purpose.
    """

    centre: Tensor
    width: Tensor
    quantiles: Tensor
    temperature: Tensor
    adapted: Tensor

    @classmethod
    def of(cls, engine: Engine) -> Confidence:
        """From a trial of what the engine knows now."""
        trial = engine.tried()
        scores, labels = trial.total(engine.head)
        base = labels < engine.memory.base
        # Classes count alike, however many photos of them there are.
        share = engine.memory.base / max(1, len(engine.names))
        weights = torch.where(base, share / base.sum().clamp(min=1), (1 - share) / (~base).sum().clamp(min=1)).double()
        return cls.usual(scores.cpu(), labels.cpu(), weights.cpu())

    @classmethod
    def usual(cls, scores: Tensor, labels: Tensor, weights: Tensor | None = None, adapted: bool = False) -> Confidence:
        """From scores (n, classes) and labels (n,) of photos that were not learned from."""
        flat = torch.zeros(2)
        if len(labels) < 2:
            return cls(flat, flat + 1, flat[:0], torch.tensor(TEMPERATURE), torch.tensor(adapted))
        weights = torch.ones(len(labels), dtype=torch.float64) if weights is None else weights
        weights = weights / weights.sum()
        best = scores.topk(min(BEST, scores.shape[1]), 1).values
        both = _standing(best).double()
        centre = (weights[:, None] * both).sum(0)
        width = (weights[:, None] * (both - centre).square()).sum(0).sqrt().clamp(min=1e-4)
        familiar = ((both - centre) / width).sum(1)
        quantiles = _quantiles(familiar, weights) if len(labels) >= ENOUGH else flat[:0]
        temperature = _temperature(scores, best, labels, weights)
        return cls(centre.float(), width.float(), quantiles, temperature, torch.tensor(adapted))

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor]) -> Confidence:
        """From the tensors of a store; those that tell of nothing usual are refused."""
        own = cls(**tensors)
        if (own.centre.shape, own.width.shape) != ((2,), (2,)) or own.temperature.ndim or own.adapted.ndim:
            raise ValueError("what it says of confidence has the wrong form")
        if own.quantiles.ndim != 1 or not (own.quantiles.diff() >= 0).all():
            raise ValueError("what is usual for known photos is in no order")
        if not (own.width > 0).all() or not own.temperature > 0:
            raise ValueError("the spread or temperature of its scores is not above 0")
        return own

    def tensors(self) -> dict[str, Tensor]:
        """The tensors for the store."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities (n, classes); each row adds up to 1."""
        return (scores / self.temperature).softmax(1)

    def familiarity(self, scores: Tensor) -> Tensor:
        """How high the best score of each photo (n,) is and how far it leads, in units of what is usual."""
        best = scores.topk(min(1 + NEXT, scores.shape[1]), 1).values
        return familiarity(best, self.centre, self.width)

    def threshold(self, rate: float) -> float:
        """The familiarity that this share of known photos does not reach."""
        if rate <= 0 or not len(self.quantiles):
            return -torch.inf
        return float(self.quantiles.double().quantile(rate))


def familiarity(scores: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    """The sum (n,) of best score and lead, each in units of what is usual; an exported network computes it too."""
    return ((_standing(scores) - centre) / width).sum(1)


def _standing(scores: Tensor) -> Tensor:
    """The best score of each photo (n, 2), and its lead over the mean of the next ones."""
    ordered = scores.sort(1, descending=True).values[:, : 1 + NEXT]
    return torch.stack([ordered[:, 0], ordered[:, 0] - ordered[:, 1:].mean(1)], 1)


def _quantiles(familiar: Tensor, weights: Tensor) -> Tensor:
    """Of known photos' familiarity at equal steps: as found where a photo or more lies beyond, else as if normal."""
    steps = torch.linspace(0, 1, STEPS + 1, dtype=torch.float64)
    order = familiar.argsort()
    reached = weights[order].cumsum(0) - weights[order] / 2
    found = familiar[order][torch.searchsorted(reached, steps).clamp(max=len(order) - 1)]
    spread = (weights * familiar.square()).sum().sqrt()
    normal = spread * torch.special.ndtri(steps.clamp(1e-4, 1 - 1e-4))
    enough = len(familiar) * torch.minimum(steps, 1 - steps) >= 1
    return torch.where(enough, found, normal).cummax(0).values.float()


def _temperature(scores: Tensor, best: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """That makes the labels most likely, held near a common value where there are few."""
    candidates = torch.logspace(math.log10(1 / 200), math.log10(0.3), 60)
    if scores.shape[1] <= EVERY:
        unlikely = _unlikely(scores, labels)
    else:
        some = slice(None, None, -(-len(labels) // TEMPERED))
        unlikely, weights = _nearly(scores[some], best[some], labels[some]), weights[some] / weights[some].sum()
    costs = [
        float((weights * unlikely(value)).sum()) * len(labels) + 10 * math.log(float(value) / TEMPERATURE) ** 2
        for value in candidates
    ]
    return candidates[int(torch.tensor(costs).argmin())]


def _unlikely(scores: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """How unlikely each label (n,) is at a temperature: its cross-entropy."""
    return lambda value: F.cross_entropy(scores.double() / value, labels, reduction="none")


def _nearly(scores: Tensor, best: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """The same for very many classes: of those behind the best, every so many stand for the others."""
    step = scores.shape[1] // BEHIND
    behind = scores[:, ::step].masked_fill(scores[:, ::step] >= best[:, -1:], -torch.inf)
    every, own = torch.cat([best, behind], 1), scores.gather(1, labels[:, None])[:, 0]
    stands_for = torch.cat([torch.zeros(best.shape[1]), torch.full((behind.shape[1],), math.log(step))])
    return lambda value: torch.logsumexp(every / value + stands_for, 1) - own / value
