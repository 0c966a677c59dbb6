"""All photos that a version was taught, as the classifier sees them: which are near, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.classifier.known import Known
from concm.classifier.store import Store


@dataclass(frozen=True)
class Album:
    """Photos by number, file name and class (an index into `names`), with their features (n, d).

    `units` are unit vectors in the metric, as the classifier compares them.
    """

    version: int
    names: list[str]
    numbers: list[int]
    files: list[str]
    labels: Tensor
    features: Tensor
    units: Tensor

    @classmethod
    def of(cls, store: Store, known: Known) -> Album:
        """The photos of a version."""
        names = known.engine.names
        place = {name: at for at, name in enumerate(names)}
        rows = [row for row in store.every_photo() if row[1] in place]
        labels = torch.tensor([place[name] for _, name, _, _ in rows], dtype=torch.long)
        features = torch.stack([own for *_, own in rows])
        numbers, files = [row[0] for row in rows], [row[2] for row in rows]
        return cls(known.version, names, numbers, files, labels, features, in_metric(known, features))

    @cached_property
    def counts(self) -> Tensor:
        """The number of photos of each class (classes,)."""
        return torch.bincount(self.labels, minlength=len(self.names))

    @cached_property
    def sums(self) -> Tensor:
        """The sum of the photos of each class (classes, d)."""
        return torch.zeros(len(self.names), self.units.shape[1]).index_add(0, self.labels, self.units)

    def nearest(self, features: Tensor, count: int) -> list[dict[str, Any]]:
        """The taught photos most like one with unit features (d,) in the metric."""
        best = (self.units @ features).topk(min(count, len(self.units)))
        return [{**self.photo(at), "likeness": round(float(value), 3)} for value, at in zip(*best, strict=True)]

    def photo(self, at: int | Tensor) -> dict[str, Any]:
        """A photo as JSON has it."""
        at = int(at)
        return {"number": self.numbers[at], "photo": self.files[at], "class": self.names[int(self.labels[at])]}

    def map(self) -> dict[str, Any]:
        """Every photo and class as a point in [0, 1]², along the two directions in which classes differ most."""
        means = self.sums / self.counts.clamp(min=1)[:, None]
        centre = means.mean(0)
        axes = torch.linalg.svd((means - centre).double(), full_matrices=False).Vh[:2].float()
        points, places = (self.units - centre) @ axes.T, (means - centre) @ axes.T
        low, high = points.min(0).values, points.max(0).values
        points, places = ((some - low) / (high - low).clamp(min=1e-6) for some in (points, places))
        return {
            "version": self.version,
            "classes": [{"class": name, "at": _rounded(at)} for name, at in zip(self.names, places, strict=True)],
            "photos": [{**self.photo(row), "at": _rounded(at)} for row, at in enumerate(points)],
        }


def in_metric(known: Known, features: Tensor) -> Tensor:
    """Unit features (n, d) as the classifier compares them."""
    return known.head.read(features.to(known.engine.device)).cpu()


def grouped(units: Tensor, likeness: float) -> list[int]:
    """A group for each photo (n, d): the most similar one so far, if they are as alike as photos of one class."""
    sums: list[Tensor] = []
    groups: list[int] = []
    for unit in units:
        close = F.normalize(torch.stack(sums)) @ unit if sums else unit.new_empty(0)
        best = int(close.argmax()) if len(close) else -1
        if best < 0 or float(close[best]) < likeness:
            best = len(sums)
            sums.append(torch.zeros_like(unit))
        sums[best] = sums[best] + unit
        groups.append(best)
    return groups


def _rounded(point: Tensor) -> list[float]:
    return [round(float(value), 4) for value in point]
