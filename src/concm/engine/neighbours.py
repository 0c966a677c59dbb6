"""Few-shot prototypes are drawn to the base classes that they look like (after TEEN, NeurIPS 2023).

Classes that look alike have means that are near each other, and those of base classes are known well. How much that
helps is asked of the base classes: each of their images is drawn to the *other* classes that it looks like, and what
brings it nearest to the other images of its own class is the strength, in shots. Where base classes have nothing in
common it is 0, and a new class that is unlike all of them is hardly drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.memory import borrowed, class_sums

MOST = 4096
"""Images of base classes that are asked at most."""
FEWEST = 3
"""Base classes that there must be: a neighbour is one of several."""


@dataclass(frozen=True)
class Pull:
    """How many shots the neighbours of a class are worth, and the cosine that the image has that chose them."""

    strength: float = 0.0
    usual: float = 1.0

    @classmethod
    @torch.no_grad()
    def of(cls, units: Tensor, labels: Tensor, prototypes: Tensor, gamma: float) -> Pull:
        """By unit features (n, d) of base classes and their prototypes (classes, d).

        Of two images x and y of a class and the neighbours t of x, the sum (1 − w)·x + w·t has the largest cosine with
        y where w / (1 − w) is (y·t − x·y x·t) / (x·y − y·t x·t), each of these products a mean.
        """
        classes = len(prototypes)
        some = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:MOST].to(labels.device)
        units, labels = units[some], labels[some]
        counts = torch.bincount(labels, minlength=classes)
        pairs = float((counts * (counts - 1)).sum())
        if classes < FEWEST or not pairs:
            return cls()
        known = F.normalize(prototypes)
        near = _others(units, known, F.one_hot(labels, classes).bool(), gamma)
        sums, towards = class_sums(units, labels, classes), class_sums(near, labels, classes)
        both = float((units * near).sum())
        alike, seen = (float(sums.square().sum()) - len(units)) / pairs, both / len(units)
        met = (float((sums * towards).sum()) - both) / pairs
        return cls(max(0.0, met - alike * seen) / max(alike - met * seen, 1e-3), max(seen, 1e-3))

    def drawn(self, means: Tensor, counts: Tensor, base: Tensor, gamma: float) -> Tensor:
        """Unit prototypes (n, d) of `counts` shots, drawn to the base classes (b, d) that they look like.

        One without a shot stays where its name put it.
        """
        near = _near(means, base, gamma)
        share = self._share(counts, (means * near).sum(1))[:, None]
        return F.normalize((1 - share) * means + share * near)

    def apart(self, units: Tensor, base: Tensor, own: Tensor, gamma: float) -> Tensor:
        """Images of base classes, each drawn to the others as the only shot of its class; `own` (n, b) marks that."""
        near = _others(units, base, own, gamma)
        share = self._share(units.new_ones(len(units)), (units * near).sum(1))[:, None]
        return F.normalize((1 - share) * units + share * near)

    def _share(self, counts: Tensor, cosine: Tensor) -> Tensor:
        """The share of the neighbours in a prototype, smaller where they are less like it than is usual."""
        strength = self.strength * (cosine / self.usual).clamp(0, 1).square()
        return torch.where(counts > 0, strength / (strength + counts).clamp(min=1e-12), 0.0)


def _near(means: Tensor, base: Tensor, gamma: float) -> Tensor:
    """Unit vectors (n, d) between the base classes that means look like."""
    return F.normalize(borrowed(means, base, F.normalize(base), gamma))


def _others(units: Tensor, known: Tensor, own: Tensor, gamma: float) -> Tensor:
    """Unit vectors (n, d) between the classes, other than its `own`, that each image looks like."""
    return F.normalize((gamma * units @ known.T).masked_fill(own, -torch.inf).softmax(1) @ known)
