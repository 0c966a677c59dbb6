"""What a classifier would say of its own photos, each left out of its class together with those taken with it.

The metric was learned from the base photos and makes each of them look like its class, also one that is of another. So
base photos are compared by metrics that were learned from others: each third of them by one of the other two thirds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.classifier.album import Album
from concm.classifier.known import Known
from concm.engine.metric import Metric, softened
from concm.engine.operating import taken_together
from concm.features.sessions import BaseSession, Session
from concm.progress import track

ROWS = 256
"""Photos that are compared with all others at a time."""
FOLDS = 3
ENOUGH = 2
"""So many base photos per dimension are too many for the metric to know each of them."""


@dataclass(frozen=True)
class View:
    """All photos (n, d) and prototypes (classes, d) in one metric, by which the photos `rows` are judged.

    `reach` is the head's, and `drawn` what becomes of the prototypes of so many photos of new classes.
    """

    rows: Tensor
    units: Tensor
    prototypes: Tensor
    reach: float = 0.0
    drawn: Callable[[Tensor, Tensor], Tensor] = lambda means, counts: means


@dataclass(frozen=True)
class LeftOut:
    """Photos, what is added to the scores of classes (classes,), and how many classes are base ones.

    What a photo's own class loses is the photo with its group (`groups`, `sizes`): the photos of the class that were
    taken together with it. Where that is all of the class, it is the photo alone. Of each photo (n,) there is the mean
    cosine to the photos that are left of its class and the variance of these; the scores of all classes (n, classes);
    and the cosine to the nearest photo of each. A class of one photo cannot be judged so, which is not a number.
    """

    album: Album
    bias: Tensor
    base: int
    groups: Tensor
    sizes: Tensor
    cosine: Tensor
    variance: Tensor
    scores: Tensor
    nearest: Tensor

    @classmethod
    def of(cls, album: Album, known: Known) -> LeftOut:
        """By what the classifier knows; what a name or the structure adds to the score of its class is left out."""
        groups = taken_together(album.features, album.labels)
        return cls.by(album, known.head.bias.cpu(), known.engine.memory.base, groups, _views(album, known, groups))

    @classmethod
    def by(cls, album: Album, bias: Tensor, base: int, groups: Tensor, views: Sequence[View]) -> LeftOut:
        """By views that judge each photo once."""
        size = torch.bincount(groups, minlength=len(groups))[groups]
        sizes = torch.where(size < album.counts[album.labels], size, 1)
        found = [part for view in views for part in _judged(view, album, bias, groups, sizes)]
        order = torch.cat([view.rows for view in views]).argsort()
        tables = (torch.cat(part)[order] for part in zip(*found, strict=True))
        return cls(album, bias, base, groups, sizes, *tables)

    @cached_property
    def left(self) -> Tensor:
        """How many photos (n,) are left of each photo's class."""
        return self.album.counts[self.album.labels] - self.sizes

    @cached_property
    def own(self) -> Tensor:
        """The score (n,) of the photo's own class."""
        return self.scores.gather(1, self.album.labels[:, None])[:, 0]

    @cached_property
    def rivals(self) -> tuple[Tensor, Tensor]:
        """The two best scores of other classes (n, 2) and which these are; there are two classes at least."""
        others = self.scores.scatter(1, self.album.labels[:, None], -torch.inf)
        best = others.topk(2, 1)
        return best.values, best.indices

    @cached_property
    def margin(self) -> Tensor:
        """By how much the own class leads the best other (n,); below 0 the photo is taken for that one."""
        return self.own - self.rivals[0][:, 0]

    @cached_property
    def width(self) -> Tensor:
        """How broad each margin is taken to be, by Silverman's rule, for a few photos make rugged curves."""
        margin = self.margin[~self.margin.isnan()]
        if not len(margin):
            return margin.new_tensor(torch.nan)
        width: Tensor = margin.std(correction=0) * (4 / (3 * len(margin))) ** 0.2
        return width.clamp(min=1e-6)

    def surely(self, margin: Tensor) -> Tensor:
        """How surely photos with these margins are right."""
        sure: Tensor = torch.special.ndtr(margin / self.width)
        return sure


def _judged(view: View, album: Album, bias: Tensor, groups: Tensor, sizes: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Mean cosine, variance of cosines, scores and nearest cosines of the view's photos, some at a time."""
    labels, counts, units = album.labels, album.counts, view.units
    sums = torch.zeros_like(view.prototypes).index_add(0, labels, units)
    together = torch.zeros_like(units).index_add(0, groups, units)
    for rows in track(torch.split(view.rows, ROWS), "comparing photos"):
        own, several = labels[rows], sizes[rows, None] > 1
        left = counts[own] - sizes[rows]
        cosines = units[rows] @ units.T
        gone = (groups[rows, None] == groups) & several | (rows[:, None] == torch.arange(len(groups)))
        alike = torch.where((own[:, None] == labels) & ~gone, cosines, 0.0)
        mean = alike.sum(1) / left
        variance = (alike.square().sum(1) / left - mean.square()) * left / (left - 1)
        rest = sums[own] - torch.where(several, together[groups[rows]], units[rows])
        shown = softened(units[rows], view.reach)
        kept = F.normalize(view.drawn(F.normalize(rest), left))
        score = torch.where(left > 0, (shown * kept).sum(1) + bias[own], torch.nan)
        scores = (shown @ view.prototypes.T + bias).scatter(1, own[:, None], score[:, None])
        table = torch.full_like(scores, -1.0)
        nearest = table.scatter_reduce(1, labels.expand(len(rows), -1), cosines.masked_fill(gone, -1.0), "amax")
        yield mean, torch.where(left > 1, variance, torch.nan), scores, nearest


def _views(album: Album, known: Known, groups: Tensor) -> list[View]:
    """The metric for photos that it was not learned from, and for each part of the others one of the other parts."""
    engine, reach = known.engine, known.head.reach
    whole = View(torch.arange(len(album.labels)), album.units, known.head.prototypes.cpu(), reach)
    base = album.labels < engine.memory.base
    layout = tuple(matrix.shape[1] for matrix in known.head.metric)
    shrinkage = engine.settings.whitening

    def drawn(means: Tensor, counts: Tensor) -> Tensor:
        return engine.drawn(means.to(engine.device), counts.to(engine.device)).cpu()

    views = [replace(whole, rows=(~base).nonzero().flatten(), drawn=drawn)]
    if not layout or shrinkage is None or int(base.sum()) > ENOUGH * max(layout):
        return [replace(whole, rows=base.nonzero().flatten()), *views]
    names, parts = tuple(engine.names[: engine.memory.base]), _parts(album.labels, groups)
    taught = Session(0, range(len(names)), names, album.features[base], album.labels[base], layout=layout)
    for part in track(range(FOLDS), "learning metrics"):
        metric = Metric.whitening(BaseSession.of(taught), shrinkage, parts[base] != part)
        units = metric(album.features)
        sums = torch.zeros_like(whole.prototypes).index_add(0, album.labels, units)
        views.append(View((base & (parts == part)).nonzero().flatten(), units, F.normalize(sums), reach))
    return views


def _parts(labels: Tensor, groups: Tensor) -> Tensor:
    """A part (n,) for each photo; those of a class are dealt out to all, groups as a whole."""
    first = torch.unique(groups)
    own = labels[first]
    order = own.argsort(stable=True)
    starts = torch.bincount(own).cumsum(0) - torch.bincount(own)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - starts[own[order]]
    return place[torch.searchsorted(first, groups)] % FOLDS
