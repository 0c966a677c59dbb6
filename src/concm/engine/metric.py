"""The metric: cosine after a whitening that was learned from the base classes.

What all classes have in common says nothing of a class, so most of it is taken away first: features behind a ReLU have
much of it, and would all be alike. In directions in which images of one class differ much, a difference says little
about the class. Dividing by the within-class spread makes few-shot prototypes better (docs/engine.md has the figures).
The spread of a trained backbone's own base images is too small to be trusted, so it is shrunk strongly towards a
multiple of the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.memory import class_sums
from concm.engine.state import Growing
from concm.features.sessions import BaseSession, Session, rows_by_class

AnySession = TypeVar("AnySession", bound=Session)
COMMON = 0.35
"""Length of what is left of the part that all classes have in common, in mean distances from it (docs/engine.md)."""


class Metric(Growing):
    """Features (…, d) → unit vectors (…, d) that are compared by cosine.

    A feature is one reading, or several side by side; each has a `matrix` of its own, and counts by its weight. With
    (w + 1, w) features are multiplied, and the last row, which takes away what is common, is added; (w, w) leaves that
    in. Where few images were seen the matrix is a lower one, (k + 1, w): its last row is what is common, and the others
    are the directions in which differences count less, longer where they count still less.
    """

    weights: Tensor

    def __init__(self, matrices: Sequence[Tensor], weights: Tensor) -> None:
        super().__init__()
        for at, matrix in enumerate(matrices):
            setattr(self, f"matrix{at}", matrix)
        self.weights = weights

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """The matrix of each reading."""
        return tuple(getattr(self, f"matrix{at}") for at in range(len(self.weights)))

    @classmethod
    def whitening(cls, base: BaseSession, shrinkage: float, seen: Tensor | None = None) -> Metric:
        """(W + shrinkage · mean variance · I)^(−1/2) per reading, W the covariance within the base classes.

        `seen` marks the images from which it is learned, if not all of them are.
        """
        chosen = slice(None) if seen is None else seen
        features, labels, classes = base.features[chosen], base.labels[chosen], len(base.classes)
        readings = features.split_with_sizes(list(base.layout) or [features.shape[1]], -1)
        matrices, lengths = [], []
        for reading in readings:
            unit = F.normalize(reading.double(), dim=-1)
            centre = _centre(unit, labels, classes)
            left = unit - centre
            matrices.append(_whitening(left, centre, labels, classes, shrinkage).to(features.dtype))
            lengths.append(reading.norm(dim=-1).mean() * left.norm(dim=-1).mean())
        weights = torch.stack(lengths).to(features.dtype)
        return cls(matrices, weights / weights.norm().clamp(min=1e-12))

    def forward(self, features: Tensor) -> Tensor:
        """Unit vectors, in which differences count the same in all directions."""
        return measured(features, self.matrices, self.weights)

    def as_if_unseen(self, features: Tensor, honest: Metric, means: Tensor) -> Tensor:
        """Features (n, d) as vectors whose products with those of this metric are nearly the cosines of `honest`.

        A metric brings the images it was learned from nearer to their own classes than it does others. So `honest` is
        one that was learned without these. The class `means` tell how long vectors of either are in the other.
        """
        widths, found = [matrix.shape[1] for matrix in self.matrices], []
        parts = zip(features.split_with_sizes(widths, -1), means.split_with_sizes(widths, -1), strict=True)
        for weight, ours, theirs, (own, mean) in zip(self.weights, self.matrices, honest.matrices, parts, strict=True):
            left, centres = (F.normalize(part.double(), dim=-1) for part in (own, mean))
            seen = F.normalize(_transformed(left, theirs.double()), dim=-1)
            lengths = [_transformed(centres, matrix.double()).norm(dim=-1).sum() for matrix in (ours, theirs)]
            turned = _divided(_multiplied(seen, theirs.double()), ours.double())
            found.append(weight * lengths[0] / lengths[1].clamp(min=1e-12) * turned.to(features.dtype))
        return torch.cat(found, -1)

    def read(self, session: AnySession, seen: Tensor | None = None) -> AnySession:
        """The session with all features transformed by the metric; a base session's spreads are those of `features`.

        `seen` marks the images whose spread counts, if not that of all does.
        """
        features = self(session.features)
        views = None if session.views is None else self(session.views)
        if not isinstance(session, BaseSession):
            return replace(session, features=features, views=views)
        counted = torch.ones_like(session.labels, dtype=torch.bool) if seen is None else seen
        every = rows_by_class(session.labels[counted], len(session.classes))
        shown = features[counted]
        std = [shown[rows].std(0, correction=0) for rows in every]
        pooled = torch.stack([own for own in std if own.isfinite().all()]).mean(0)
        spread = torch.stack([torch.where(own.isfinite(), own, pooled) for own in std])  # a class without an image
        return replace(session, features=features, views=views, mean=self.means(session, features), std=spread)

    def means(self, base: BaseSession, features: Tensor) -> Tensor:
        """Means (classes, d) of all images as the metric sees them (`features`), as those of new classes are.

        Where a session knows the means of other images than it shows, these are transformed instead.
        """
        sums = class_sums(features, base.labels, len(base.classes)) if base.complete else None
        found: Tensor = self(base.mean) if sums is None else F.normalize(sums)
        return found


def measured(features: Tensor, matrices: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Each reading scaled to unit length, transformed by its matrix, scaled again, and weighted."""
    readings = features.split_with_sizes([matrix.shape[1] for matrix in matrices], -1)
    unit = [
        F.normalize(_transformed(F.normalize(own, dim=-1), matrix), dim=-1)
        for own, matrix in zip(readings, matrices, strict=True)
    ]
    if len(unit) == 1:  # whose weight says nothing
        return unit[0]
    return F.normalize(torch.cat([weight * own for weight, own in zip(weights, unit, strict=True)], -1), dim=-1)


def softened(unit: Tensor, reach: float) -> Tensor:
    """Unit vectors (…, d) in which coordinates beyond `reach` mean ones count less; 0 leaves them as they are.

    In a single image the largest coordinates are mostly its own; in the mean of a class they are the class's.
    """
    if not reach:
        return unit
    return F.normalize((unit * (unit.shape[-1] ** 0.5 / reach)).asinh(), dim=-1)


def _transformed(unit: Tensor, matrix: Tensor) -> Tensor:
    """Unit features (…, w), up to a factor, as one of the two kinds of matrix says."""
    height, width = matrix.shape
    if height >= width:
        return unit @ matrix[:width] + matrix[width:].sum(0)
    left, directions = unit - matrix[-1], matrix[:-1]
    return left - left @ directions.T @ directions


def _multiplied(vectors: Tensor, matrix: Tensor) -> Tensor:
    """Vectors (n, w) times a matrix of either kind, without what it takes away or adds."""
    height, width = matrix.shape
    if height >= width:
        return vectors @ matrix[:width]
    return vectors - vectors @ matrix[:-1].T @ matrix[:-1]


def _divided(vectors: Tensor, matrix: Tensor) -> Tensor:
    """The inverse of that; of the lower kind by an equation of its height alone (Woodbury)."""
    height, width = matrix.shape
    if height >= width:
        whole: Tensor = torch.linalg.solve(matrix[:width].T, vectors.T)
        return whole.T
    directions = matrix[:-1]
    inner = torch.eye(height - 1, dtype=matrix.dtype, device=matrix.device) - directions @ directions.T
    lower: Tensor = torch.linalg.solve(inner, directions @ vectors.T)
    return vectors + lower.T @ directions


def _centre(unit: Tensor, labels: Tensor, classes: int) -> Tensor:
    """What the class means (w,) of unit features have in common, but for a rest."""
    counts = torch.bincount(labels, minlength=classes)
    common = (class_sums(unit, labels, classes)[counts > 0] / counts[counts > 0, None]).mean(0)
    rest = COMMON * (unit - common).square().sum(-1).mean().sqrt()
    found: Tensor = common * (1 - rest / common.norm().clamp(min=1e-12)).clamp(min=0)
    return found


def _whitening(left: Tensor, centre: Tensor, labels: Tensor, classes: int, shrinkage: float) -> Tensor:
    """The matrix for one reading, of which `left` is what is left without its centre."""
    unit = F.normalize(left, dim=-1)
    counts = torch.bincount(labels, minlength=classes).clamp(min=1)
    within = unit - (class_sums(unit, labels, classes) / counts[:, None])[labels]
    within = within / max(1, len(unit) - classes) ** 0.5
    count, width = within.shape
    level = within.square().sum() / width
    if level <= torch.finfo(torch.float32).eps ** 2:  # one image per class: there is no spread to learn from
        return _matrix(centre, unit.new_empty(width, 0), unit.new_empty(0), 1.0)
    least = torch.finfo(torch.float32).eps
    if count < width and shrinkage > least:  # all spread lies in the span of the images, which is found faster
        values, sides = torch.linalg.eigh(within @ within.T)
        some = values > least * values[-1]
        values, vectors = values[some], within.T @ sides[:, some] / values[some].sqrt()
        rest = shrinkage**-0.5
    else:
        values, vectors = torch.linalg.eigh(within.T @ within)
        rest = 0.0
    return _matrix(centre, vectors, (values.clamp(min=0) / level + shrinkage).clamp(min=least).rsqrt(), rest)


def _matrix(centre: Tensor, vectors: Tensor, scale: Tensor, rest: float) -> Tensor:
    """The matrix of `scale` (k,) along the columns of `vectors` (w, k) and `rest` in all other directions.

    The lower one is what it comes to when all is divided by `rest`: what it gives is scaled to unit length anyway.
    """
    width, count = vectors.shape
    if 2 * (count + 1) < width:
        return torch.cat([(vectors * (1 - scale / rest).clamp(min=0).sqrt()).T, centre[None]])
    found: Tensor = vectors * (scale - rest) @ vectors.T
    found.diagonal().add_(rest)
    return torch.cat([found, -(centre @ found)[None]])
