"""How many photos are enough: the accuracy that a class is expected to have with the photos it has, and with more.

A photo x of class c has the mean cosine a to the photos of c without itself, and r is the best score of another class,
less what is added to the score of c. A prototype is the mean of n photos made a unit vector. Its length before is about
√(ρ + (1 − ρ) / n), where ρ is the mean cosine of two photos of c, and a is the score of x times that. So with n photos

    score(x, n) = (ā + k · (a − ā)) / √(ρ + (1 − ρ) / n),    k² = (σ² + τ² / n) / (σ² + τ² / m),

where a was measured with m photos and ā is its mean over the class. The cosine of x to one photo of c varies by τ², so
a varies by σ² + τ² / m, of which only σ² comes from x itself: with more photos, the class's mean errs less. The
accuracy is the mean of Φ((score − r) / h) over the photos of c, with the width h that Silverman's rule gives a margin.

Photos that were taken together count as one: n = (Σ w)² / Σ w², where w are the sizes of these groups. Where a class
has one such group, a cannot be measured, and takes several places of a normal distribution around ρ with the variance
σ² + τ². A few photos say little: the mean over the base classes, or over the later ones, counts as much as five.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from concm.classifier.left_out import LeftOut
from concm.engine.operating import IMPUTED

SHRINKAGE = 5.0
"""Photos that what all classes have in common counts for, in what is said of one."""


@dataclass(frozen=True)
class Expectation:
    """What the formula needs: `separate` (n) and `alike` (ρ) of classes; a, ā, m and r of photos of classes `labels`.

    `within` is τ² and `between` σ².
    """

    left_out: LeftOut
    separate: Tensor
    alike: Tensor
    labels: Tensor
    cosine: Tensor
    mean: Tensor
    measured: Tensor
    rival: Tensor
    within: Tensor
    between: Tensor

    @classmethod
    def of(cls, left_out: LeftOut, usual: Tensor) -> Expectation:
        """From photos left out; `usual` (classes,) is the cosine of two photos where there are none to be compared."""
        album, classes = left_out.album, len(left_out.album.names)
        count, every = album.counts.double(), album.labels
        several = torch.bincount(every[torch.unique(left_out.groups)], minlength=classes) > 1
        squares = _sums(torch.bincount(left_out.groups, minlength=len(every)).square(), every, classes)
        rival = (left_out.rivals[0][:, 0] - left_out.bias[every]).double()

        rows = several[every].nonzero().flatten()
        labels = every[rows]
        measured = left_out.left[rows].square() / (squares[labels] - left_out.sizes[rows].square()).clamp(min=1)
        own = torch.where(several, _sums(left_out.cosine[rows], labels, classes) / count, torch.nan)
        alike = torch.where(several, shrunk(own, count, left_out.base), usual.double())
        cosine = (left_out.own - left_out.bias[every])[rows] * _length(alike[labels], measured)
        mean = (_sums(cosine, labels, classes) / count)[labels]
        within = left_out.variance[rows].double().nanmean().nan_to_num(0.0)
        spread = (cosine - mean).square() - within / measured
        between = spread.mean().clamp(min=0) if len(rows) else within

        single = (~several)[every].nonzero().flatten().repeat_interleave(IMPUTED)
        places = torch.special.ndtri((torch.arange(IMPUTED) + 0.5) / IMPUTED).double()
        centre = alike[every[single]]
        imputed = centre + (within + between).sqrt() * places.repeat(len(single) // IMPUTED)
        return cls(
            left_out=left_out,
            separate=count.square() / squares.clamp(min=1),
            alike=alike,
            labels=torch.cat([labels, every[single]]),
            cosine=torch.cat([cosine, imputed]),
            mean=torch.cat([mean, centre]),
            measured=torch.cat([measured, torch.ones(len(single))]),
            rival=torch.cat([rival[rows], rival[single]]),
            within=within,
            between=between,
        )

    def accuracy(self, more: float = 0.0) -> Tensor:
        """The share (classes,) of photos of each class that is expected to be right with so many more photos each.

        If one class alone had more, what is added to its score would fall, and its photos be found as often as before.
        """
        count = (self.separate + more)[self.labels]
        noise = (self.between + self.within / count) / (self.between + self.within / self.measured).clamp(min=1e-9)
        score = (self.mean + noise.sqrt() * (self.cosine - self.mean)) / _length(self.alike[self.labels], count)
        right = self.left_out.surely(score - self.rival)
        classes = len(self.separate)
        own = _sums(right, self.labels, classes) / torch.bincount(self.labels, minlength=classes)
        return shrunk(own, self.separate, self.left_out.base)


def _length(alike: Tensor, count: Tensor) -> Tensor:
    """The length to be expected of the mean of so many unit vectors."""
    return (alike + (1 - alike) / count).clamp(min=1e-6).sqrt()


def shrunk(values: Tensor, count: Tensor, base: int) -> Tensor:
    """The values of classes, moved the more to the mean over base or later classes the fewer photos they have."""
    first = torch.arange(len(values)) < base
    usual = torch.where(first, values[first].nanmean(), values[~first].nanmean())
    return (count * values + SHRINKAGE * usual) / (count + SHRINKAGE)


def _sums(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    return torch.zeros(classes, dtype=torch.float64).index_add(0, labels, values.double())
