"""The metric: cosine after a whitening that was learned from the base classes.

What all classes have in common says nothing of a class, so most of it is taken away first: features behind a ReLU have
much of it, and would all be alike. In directions in which images of one class differ much, a difference says little
about the class. Dividing by the within-class spread makes few-shot prototypes better (docs/engine.md has the figures).
The spread of a trained backbone's own base images is too small to be trusted, so it is shrunk strongly towards a
multiple of the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    A feature is one reading, or several side by side: each has a `matrix` (w + 1, w) of its own, whose last row takes
    away what is common, and counts by its weight.
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
        found, weights = _whitenings(base, shrinkage, seen)
        return cls([own.matrix().to(base.features.dtype) for own in found], weights)

    def forward(self, features: Tensor) -> Tensor:
        """Unit vectors, in which differences count the same in all directions."""
        return measured(features, self.matrices, self.weights)

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
        return replace(session, features=features, views=views, mean=self(session.mean), std=spread)


def measured(features: Tensor, matrices: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Each reading scaled to unit length, multiplied by its matrix, scaled again, and weighted."""
    readings = features.split_with_sizes([matrix.shape[1] for matrix in matrices], -1)
    unit = [
        F.normalize(F.normalize(own, dim=-1) @ matrix[: matrix.shape[1]] + matrix[matrix.shape[1] :].sum(0), dim=-1)
        for own, matrix in zip(readings, matrices, strict=True)
    ]
    return _weighted(unit, weights)


def whitened(features: Tensor, base: BaseSession, shrinkage: float, seen: Tensor) -> Tensor:
    """Features as `Metric.whitening` of the images `seen` has them, for a single use."""
    found, weights = _whitenings(base, shrinkage, seen)
    readings = features.split_with_sizes([len(own.vectors) for own in found], -1)
    unit = [
        F.normalize(own(F.normalize(reading, dim=-1)), dim=-1) for reading, own in zip(readings, found, strict=True)
    ]
    return _weighted(unit, weights)


def _weighted(unit: Sequence[Tensor], weights: Tensor) -> Tensor:
    if len(unit) == 1:  # whose weight says nothing
        return unit[0]
    return F.normalize(torch.cat([weight * own for weight, own in zip(weights, unit, strict=True)], -1), dim=-1)


@dataclass(frozen=True)
class _Whitening:
    """What is done to one reading without its `centre` (w,): `scale` (k,) along the columns of `vectors` (w, k), and
    `rest` in all other directions.
    """

    centre: Tensor
    vectors: Tensor
    scale: Tensor
    rest: float

    def __call__(self, unit: Tensor) -> Tensor:
        """Of features (n, w), without a matrix where that takes less."""
        width, count = self.vectors.shape
        unit = unit - self.centre.to(unit.dtype)
        if 2 * count >= width:
            return unit @ self.matrix()[:-1].to(unit.dtype)
        vectors, scale = self.vectors.to(unit.dtype), (self.scale - self.rest).to(unit.dtype)
        return self.rest * unit + (unit @ vectors * scale) @ vectors.T

    def matrix(self) -> Tensor:
        """The same as a matrix (w + 1, w), whose last row is added to all."""
        found: Tensor = self.vectors * (self.scale - self.rest) @ self.vectors.T
        found.diagonal().add_(self.rest)
        return torch.cat([found, -(self.centre @ found)[None]])


def _whitenings(base: BaseSession, shrinkage: float, seen: Tensor | None) -> tuple[list[_Whitening], Tensor]:
    """That of each reading, and the readings' weights."""
    chosen = slice(None) if seen is None else seen
    features, labels = base.features[chosen], base.labels[chosen]
    readings = features.split_with_sizes(list(base.layout) or [features.shape[1]], -1)
    units = [F.normalize(reading.double(), dim=-1) for reading in readings]
    centres = [_centre(unit, labels, len(base.classes)) for unit in units]
    left = [unit - centre for unit, centre in zip(units, centres, strict=True)]
    length = [
        reading.norm(dim=-1).mean() * own.norm(dim=-1).mean() for reading, own in zip(readings, left, strict=True)
    ]
    weights = torch.stack(length).to(features.dtype)
    found = [_whitening(own, c, labels, len(base.classes), shrinkage) for own, c in zip(left, centres, strict=True)]
    return found, weights / weights.norm().clamp(min=1e-12)


def _centre(unit: Tensor, labels: Tensor, classes: int) -> Tensor:
    """What the class means (w,) of unit features have in common, but for a rest."""
    counts = torch.bincount(labels, minlength=classes)
    common = (class_sums(unit, labels, classes)[counts > 0] / counts[counts > 0, None]).mean(0)
    rest = COMMON * (unit - common).square().sum(-1).mean().sqrt()
    found: Tensor = common * (1 - rest / common.norm().clamp(min=1e-12)).clamp(min=0)
    return found


def _whitening(left: Tensor, centre: Tensor, labels: Tensor, classes: int, shrinkage: float) -> _Whitening:
    unit = F.normalize(left, dim=-1)
    counts = torch.bincount(labels, minlength=classes).clamp(min=1)
    within = unit - (class_sums(unit, labels, classes) / counts[:, None])[labels]
    within = within / max(1, len(unit) - classes) ** 0.5
    count, width = within.shape
    level = within.square().sum() / width
    if level <= torch.finfo(torch.float32).eps ** 2:  # one image per class: there is no spread to learn from
        return _Whitening(centre, unit.new_empty(width, 0), unit.new_empty(0), 1.0)
    least = torch.finfo(torch.float32).eps
    if count < width and shrinkage > least:  # all spread lies in the span of the images, which is found faster
        values, sides = torch.linalg.eigh(within @ within.T)
        some = values > least * values[-1]
        values, vectors = values[some], within.T @ sides[:, some] / values[some].sqrt()
        rest = shrinkage**-0.5
    else:
        values, vectors = torch.linalg.eigh(within.T @ within)
        rest = 0.0
    return _Whitening(centre, vectors, (values.clamp(min=0) / level + shrinkage).clamp(min=least).rsqrt(), rest)
