"""All photos that a version was taught, as the classifier sees them: which are near, confused, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.classifier.prediction import Known
from concm.classifier.store import Store
from concm.engine.memory import class_sums

ENOUGH = 5
"""Photos from which on a class is not asked for more for their number alone."""
GOOD = 0.8
"""The share of a class's photos that should be recognised without themselves."""


@dataclass(frozen=True)
class Album:
    """Photos by number, file name and class (an index into `names`), with unit features (n, d) in the metric."""

    version: int
    names: list[str]
    numbers: list[int]
    files: list[str]
    labels: Tensor
    units: Tensor

    @classmethod
    def of(cls, store: Store, known: Known) -> Album:
        """The photos of a version."""
        names = known.engine.names
        place = {name: at for at, name in enumerate(names)}
        rows = [row for row in store.every_photo() if row[1] in place]
        labels = torch.tensor([place[name] for _, name, _, _ in rows], dtype=torch.long)
        units = in_metric(known, torch.stack([features for *_, features in rows]))
        return cls(known.version, names, [row[0] for row in rows], [row[2] for row in rows], labels, units)

    def nearest(self, features: Tensor, count: int) -> list[dict[str, Any]]:
        """The taught photos most like one with unit features (d,) in the metric."""
        best = (self.units @ features).topk(min(count, len(self.units)))
        return [{**self.photo(at), "likeness": round(float(value), 3)} for value, at in zip(*best, strict=True)]

    def photo(self, at: int | Tensor) -> dict[str, Any]:
        """A photo as JSON has it."""
        at = int(at)
        return {"number": self.numbers[at], "photo": self.files[at], "class": self.names[int(self.labels[at])]}

    def without_themselves(self) -> tuple[Tensor, Tensor]:
        """For each photo its likeness to its class's other photos, and to all classes (its own left out)."""
        count = len(self.names)
        sums, sizes = class_sums(self.units, self.labels, count), torch.bincount(self.labels, minlength=count)
        others = F.normalize(sums[self.labels] - self.units)
        own = (self.units * others).sum(1)
        own[sizes[self.labels] < 2] = torch.nan
        scores = self.units @ F.normalize(sums).T
        scores[torch.arange(len(self.labels)), self.labels] = -torch.inf
        return own, scores

    def health(self, most: int = 24) -> dict[str, Any]:
        """Which classes need more photos, which are confused, and by which photos."""
        own, scores = self.without_themselves()
        rival = scores.max(1)
        gap = rival.values - own
        wrong = gap > 0
        classes = []
        for at, name in enumerate(self.names):
            rows = (self.labels == at).nonzero().flatten()
            judged = rows[~own[rows].isnan()]
            share = float((~wrong[judged]).double().mean()) if len(judged) else None
            few, poor = len(rows) < ENOUGH, share is not None and share < GOOD
            classes.append({"class": name, "photos": len(rows), "recognised": share, "needs_more": few or poor})
        order = [int(at) for at in gap.nan_to_num(-1).argsort(descending=True)[:most] if wrong[at]]
        doubtful = [{**self.photo(at), "more_like": self.names[int(rival.indices[at])]} for at in order]
        pairs: dict[tuple[str, str], list[int]] = {}
        for at in wrong.nonzero().flatten().tolist():
            pair = self.names[int(self.labels[at])], self.names[int(rival.indices[at])]
            pairs.setdefault(pair, []).append(self.numbers[at])
        confused = [{"class": one, "taken_for": other, "photos": found} for (one, other), found in pairs.items()]
        confused.sort(key=lambda pair: -len(pair["photos"]))
        return {"version": self.version, "classes": classes, "confused": confused[:most], "doubtful": doubtful}

    def map(self) -> dict[str, Any]:
        """Every photo and class as a point in [0, 1]², along the two directions in which classes differ most."""
        means = class_sums(self.units, self.labels, len(self.names))
        means = means / torch.bincount(self.labels, minlength=len(self.names))[:, None]
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
