"""The operating point: how far the scores of novel classes must be lifted, from what is known and nothing else.

A prototype of a few shots has smaller cosines with its own class than one of many images, so base classes win too
often. By how much depends on the shots, on how alike images of a class are, and on how many classes compete. All of
that is in the scores themselves: of base images that count as if nothing had seen them, and of novel shots that
are left out of their own prototype. The constant with the best expected accuracy on both is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from concm.features.sessions import rows_by_class

Lean = Literal["base", "even", "novel"]
STEPS = 400
LEVEL = 1e-6
"""Expected accuracies as near as this are equal: the middle of all best constants is taken, as the safest."""
NEAR = 0.25
"""Images of a class whose squared distance is below this share of the usual one were taken together."""
TOGETHER = 10**7
"""Numbers in the features of images that are compared at a time."""
IMPUTED = 7
"""Places in the distribution of a class's own score at which a single shot is judged."""


@dataclass(frozen=True)
class Point:
    """The constant that is added to novel scores, and the accuracies of base and novel classes expected with it."""

    constant: float
    base: float
    novel: float


def operating_point(base: tuple[Tensor, Tensor], novel: tuple[Tensor, Tensor], count: int, lean: Lean) -> Point:
    """The best constant, by scores (n, classes) and labels (n,) of unseen images; the first `count` classes are base.

    Accuracy over all classes alone leans to the base classes, the harmonic mean (HM) of base and novel accuracy alone
    to the novel ones; `even` takes both, with HM counted twice (docs/engine.md). Each image counts as a small normal
    distribution (Silverman's rule) where constants are compared, because a few dozen shots would make the curves
    rugged; but spread out they are right too seldom, so the accuracies expected are those of the images as they are.
    """
    classes = base[0].shape[1]
    if count in (0, classes) or not len(base[0]) or not len(novel[0]):
        return Point(0.0, torch.nan, torch.nan)
    (gap, right), (gap_novel, right_novel) = _lead(*base, count), _lead(*novel, count)
    both = torch.cat([gap, gap_novel])
    constants = torch.linspace(float(both.min()), float(both.max()), STEPS, dtype=both.dtype, device=both.device)
    kept = (right[:, None] * _above(gap, constants)).mean(0)
    found = (right_novel[:, None] * (1 - _above(gap_novel, constants))).mean(0)
    share = count / classes
    accuracy = share * kept + (1 - share) * found
    harmonic = 2 * kept * found / (kept + found).clamp(min=1e-9)
    value = {"base": accuracy, "even": (accuracy + 2 * harmonic) / 3, "novel": harmonic}[lean]
    best = (value >= value.max() - LEVEL).nonzero().flatten()
    constant = constants[best[len(best) // 2]]
    expected = (right * (gap > constant)).mean(), (right_novel * (gap_novel <= constant)).mean()
    return Point(float(constant), *map(float, expected))


def _lead(scores: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """By how much the best base class leads the best novel one, and whether the best of the image's own kind is it."""
    base, novel = scores[:, :count].max(1), scores[:, count:].max(1)
    best = torch.where(labels < count, base.indices, novel.indices + count)
    return base.values - novel.values, (best == labels).to(scores.dtype)


def _above(gap: Tensor, constants: Tensor) -> Tensor:
    """How surely each gap lies above each constant."""
    width = (gap.std(correction=0) * (4 / (3 * len(gap))) ** 0.2).clamp(min=1e-6)
    sure: Tensor = torch.special.ndtr((gap[:, None] - constants) / width)
    return sure


def matched(gap: Tensor, constant: float, other: Tensor) -> float:
    """The constant for another score that costs as many of the same base images as `constant` does for the first."""
    if not len(gap):
        return 0.0
    lost = float((gap < constant).double().mean())
    return float(other.double().quantile(min(max(lost, 0.0), 1.0)))


def leads(scores: Tensor, count: int) -> Tensor:
    """By how much the best base class of each image leads the best novel one."""
    return scores[:, :count].amax(1) - scores[:, count:].amax(1)


def likeness(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean cosine (classes,) of two images of each class, 0 where there are fewer, and the number of images."""
    counts = torch.bincount(labels, minlength=classes)
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, labels, torch.nn.functional.normalize(features).double())
    pairs = counts * (counts - 1)
    mean = (sums.square().sum(1) - counts) / pairs.clamp(min=1)
    return torch.where(pairs > 0, mean, 0.0).to(features.dtype), counts


def mean_likeness(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean cosine of two images of one class, over the classes that have two."""
    own, counts = likeness(features, labels, classes)
    return own[counts > 1].mean() if (counts > 1).any() else torch.full((), 0.5, device=features.device)


def taken_together(features: Tensor, labels: Tensor, usual: Tensor | None = None) -> Tensor:
    """A group (n,) for each image: those of one class that were taken together have the same.

    Groups are chains of images that are near each other; `usual` is the squared distance of two images of a class.
    """
    unit = torch.nn.functional.normalize(features)
    group = torch.arange(len(labels), device=labels.device)
    if usual is None:
        usual = usual_distance(features, labels)
    alike, width = dict[int, list[Tensor]](), features.shape[1]
    for rows in rows_by_class(labels, 0):
        alike.setdefault(len(rows), []).append(rows)
    for count, classes in alike.items():  # classes of the same size are looked at together
        for own in torch.split(torch.stack(classes), max(1, TOGETHER // (count * width))) if count > 1 else ():
            near = 2 - 2 * unit[own] @ unit[own].mT < NEAR * usual
            near |= torch.eye(count, dtype=torch.bool, device=own.device)
            first = torch.arange(count, device=own.device).expand(len(own), -1)
            while True:
                joined = torch.where(near, first[:, None], count).amin(2)
                if torch.equal(joined, first):
                    break
                first = joined
            group[own] = own.gather(1, first)
    return group


def usual_distance(features: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance of two unit features of one class, over all pairs."""
    alike, counts = likeness(features, labels, int(labels.max()) + 1 if len(labels) else 0)
    pairs = (counts * (counts - 1)).to(features.dtype)
    return 2 - 2 * (alike * pairs).sum() / pairs.sum().clamp(min=1)


def held_out(features: Tensor, labels: Tensor, share: float, seed: int) -> Tensor:
    """Marks about a `share` of each class's images (n,), and with an image all that were taken together with it."""
    groups = taken_together(features, labels).cpu()
    marked = torch.zeros(len(labels), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for own in rows_by_class(labels.cpu(), 0):
        if not len(own):
            continue
        wanted = max(1, round(len(own) * share)) if len(own) > 1 else 0
        order = torch.unique(groups[own])
        for group in order[torch.randperm(len(order), generator=generator)].tolist():
            some = own[groups[own] == group]
            if len(some) > len(own) // 2:  # nearly all were taken together: there is nothing better than some of them
                some = some[torch.randperm(len(some), generator=generator)[:wanted]]
            taken = int(marked[own].sum())
            if taken >= wanted:
                break
            if not taken or taken + len(some) <= 1.5 * wanted:
                marked[some] = True
    return marked.to(labels.device)
