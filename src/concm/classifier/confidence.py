"""Confidence: calibrated probabilities, and a familiarity that tells photos of known classes from strange ones.

A photo is familiar if its best score is high, and if it stands out from the next ones: a near stranger looks a little
like several classes. Both are measured beside what is usual for the class that it is taken for, and in units of what is
usual for known photos, by a trial of what is known: base photos that were held out, and novel photos left out of their
own prototypes (docs/photos-choices.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from concm.engine.concm import Engine

NEXT = 9
"""With how many of the next best scores the best one is compared."""
STEPS = 100
SHRINKAGE = 5.0
"""Weight of what is usual for all classes beside a class's own photos, in photos."""
TEMPERATURE = 1 / 30
"""Where the temperature stays when there is little to learn it from."""
DOUBT = 0.03
"""Share of the photos tried that counts as if it were of the best other class: photos to come are less easy."""
EVERY, BEST, BEHIND = 4096, 64, 256
"""Classes up to which all count when the temperature is found; with more, the best, and some of those behind them."""
TEMPERED = 512
"""Photos by which the temperature is found at most where there are more classes than that."""
ENOUGH = 20
"""Photos below which nothing is called unknown: they would not tell what is usual."""
TOO_FEW = (
    "these photos are too few to recognise unknown ones: nothing will be called unknown until it is calibrated, or "
    "more classes are taught"
)
"""More photos of known classes would not do: base photos are held out by `fit`, and of a new class a few are tried."""


@dataclass(frozen=True)
class Confidence:
    """What is usual for photos of known classes.

    `offset` (classes, 2): what best score and lead usually are in each class, none in older stores; `centre` and
    `width` (2,): mean and spread of both beside that; `quantiles`: those of the familiarity of known photos, at equal
    steps from 0 to 1, none if there are too few photos; `temperature`: that of the probabilities; `adapted`: whether
    all but `offset` come from photos that the user gave for this purpose.
    """

    offset: Tensor
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
        photos = torch.where(base, 1.0, 1 / trial.copies)
        return cls.usual(scores.cpu(), labels.cpu(), weights.cpu(), photos.cpu())

    @classmethod
    def usual(
        cls, scores: Tensor, labels: Tensor, weights: Tensor | None = None, photos: Tensor | None = None
    ) -> Confidence:
        """From scores (n, classes) and labels (n,) of photos that were not learned from.

        `weights` (n,) say how much each row counts, and `photos` which part of a photo it stands for.
        """
        ones = torch.ones(len(labels))
        return cls._found(scores, labels, ones if weights is None else weights, ones if photos is None else photos)

    def adapt(self, scores: Tensor, labels: Tensor) -> Confidence:
        """From those of photos that the user gave for this purpose, and that are as easy as those to come."""
        ones = torch.ones(len(labels))
        return self._found(scores, labels, ones, ones, self.offset)

    def kept(self, engine: Engine) -> Confidence:
        """What holds after a change of the classes: what was adapted stays, but for what is usual in each class."""
        if not self.adapted:
            return Confidence.of(engine)
        return replace(self, offset=Confidence.of(engine).offset) if len(self.offset) else self

    @classmethod
    def _found(
        cls, scores: Tensor, labels: Tensor, weights: Tensor, photos: Tensor, offset: Tensor | None = None
    ) -> Confidence:
        """Of photos that were tried, or, beside the classes' `offset` that is known, of those that the user gave."""
        flat, adapted = torch.zeros(2), torch.tensor(offset is not None)
        if len(labels) < 2:
            offset = torch.zeros(scores.shape[1], 2) if offset is None else offset
            return cls(offset, flat, flat + 1, flat[:0], torch.tensor(TEMPERATURE), adapted)
        weights = weights.double() / weights.sum()
        best, taken = scores.topk(min(BEST, scores.shape[1]), 1).values, scores.argmax(1)
        both = _standing(best).double()
        if offset is None:
            offset, both = _offset(both, labels, taken, weights, photos, scores.shape[1])
        elif len(offset):
            both = both - offset[taken]
        centre = (weights[:, None] * both).sum(0)
        width = (weights[:, None] * (both - centre).square()).sum(0).sqrt().clamp(min=1e-4)
        familiar = ((both - centre) / width).sum(1)
        quantiles = _quantiles(familiar, weights) if len(labels) >= ENOUGH else flat[:0]
        temperature = _temperature(scores, best, labels, weights, 0.0 if adapted else DOUBT)
        return cls(offset.float(), centre.float(), width.float(), quantiles, temperature, adapted)

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor]) -> Confidence:
        """From the tensors of a store; those that tell of nothing usual are refused."""
        own = cls(**{"offset": torch.zeros(0, 2), **tensors})
        if own.offset.ndim != 2 or own.offset.shape[1] != 2 or not own.offset.is_floating_point():
            raise ValueError("what it says of what is usual in each class has the wrong form")
        if (own.centre.shape, own.width.shape) != ((2,), (2,)) or own.temperature.ndim or own.adapted.ndim:
            raise ValueError("what it says of confidence has the wrong form")
        if own.quantiles.ndim != 1 or not (own.quantiles.diff() >= 0).all():
            raise ValueError("what is usual for known photos is in no order")
        if not (own.width > 0).all() or not own.temperature > 0:
            raise ValueError("the spread or temperature of its scores is not above 0")
        if not ((own.centre + own.offset) / own.width).sum(1).isfinite().all():
            raise ValueError("what is usual in a class is beyond all numbers")
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
        return _familiar(best, scores.argmax(1), self.offset, self.centre, self.width)

    @property
    def enough(self) -> bool:
        """Whether there were photos enough to tell what is usual; else nothing is called unknown."""
        return bool(len(self.quantiles))

    def threshold(self, rate: float) -> float:
        """The familiarity that this share of known photos does not reach."""
        if rate <= 0 or not self.enough:
            return -torch.inf
        return float(self.quantiles.double().quantile(rate))


def familiarity(scores: Tensor, offset: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    """The sum (n,) of best score and lead, each in units of what is usual; an exported network computes it too."""
    return _familiar(scores.sort(1, descending=True).values, scores.argmax(1), offset, centre, width)


def _familiar(ordered: Tensor, taken: Tensor, offset: Tensor, centre: Tensor, width: Tensor) -> Tensor:
    usual = centre + offset[taken] if offset.shape[0] else centre
    return ((_standing(ordered) - usual) / width).sum(1)


def _standing(ordered: Tensor) -> Tensor:
    """The best score of each photo (n, 2), and its lead over the mean of the next ones."""
    return torch.stack([ordered[:, 0], ordered[:, 0] - ordered[:, 1 : 1 + NEXT].mean(1)], 1)


def _offset(
    both: Tensor, labels: Tensor, taken: Tensor, weights: Tensor, photos: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """What is usual for photos of each class (classes, 2), and `both` of each photo beside that.

    A photo's own part in what is usual is left out of the latter: a new photo will have none.
    """
    mean = (weights[:, None] * both).sum(0)
    above, photos = both - mean, photos.to(both)[:, None]
    sums = torch.zeros(classes, 2, dtype=both.dtype).index_add(0, labels, photos * above)
    count = torch.zeros(classes, 1, dtype=both.dtype).index_add(0, labels, photos)
    own = (labels == taken)[:, None]
    left = (sums[taken] - torch.where(own, above, 0)) / (count[taken] - own.to(both) + SHRINKAGE)
    return mean + sums / (count + SHRINKAGE), above - left


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


def _temperature(scores: Tensor, best: Tensor, labels: Tensor, weights: Tensor, doubt: float) -> Tensor:
    """The temperature that makes the labels most likely if a share of them is in doubt; usual where photos are few."""
    candidates = torch.logspace(math.log10(1 / 200), math.log10(0.3), 60)
    count, stands_for = len(labels), torch.zeros(1)
    if scores.shape[1] > EVERY:  # of those behind the best, every so many stand for the others
        some, step = slice(None, None, -(-count // TEMPERED)), scores.shape[1] // BEHIND
        scores, best, labels, weights = scores[some], best[some], labels[some], weights[some] / weights[some].sum()
        behind = scores[:, ::step].masked_fill(scores[:, ::step] >= best[:, -1:], -torch.inf)
        every = torch.cat([best, behind], 1)
        stands_for = torch.cat([torch.zeros(best.shape[1]), torch.full((behind.shape[1],), math.log(step))])
    else:
        every = scores.double()
    own = scores.gather(1, labels[:, None])[:, 0].double()
    rival = torch.where(own < best[:, 0], best[:, 0], best[:, min(1, best.shape[1] - 1)])
    aim = (1 - doubt) * own + doubt * rival
    costs = [
        float((weights * (torch.logsumexp(every / value + stands_for, 1) - aim / value)).sum()) * count
        + 10 * math.log(float(value) / TEMPERATURE) ** 2
        for value in candidates
    ]
    return candidates[int(torch.tensor(costs).argmin())]
