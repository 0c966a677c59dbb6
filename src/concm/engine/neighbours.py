"""Few-shot prototypes are drawn to the base classes that they look like (after TEEN, NeurIPS 2023).

Classes that look alike have means that are near each other, and those of base classes are known well. How much that
helps is asked of the base classes: each of their images is drawn to the *other* classes that it looks like, and what
brings it nearest to the other images of its own class is the strength, in shots. Where base classes have nothing in
common it is 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.memory import borrowed, class_sums

MOST = 4096
"""Images of base classes that are asked at most."""


@torch.no_grad()
def strength(units: Tensor, labels: Tensor, prototypes: Tensor, gamma: float) -> float:
    """How many shots the neighbours of a class are worth, by unit features (n, d) of base classes.

    Of two images x and y of a class and the neighbours t of x, the sum (1 − w)·x + w·t has the largest cosine with y
    where w / (1 − w) is (y·t − x·y x·t) / (x·y − y·t x·t), each of these products a mean.
    """
    classes = len(prototypes)
    units, labels = (part[:: -(-len(part) // MOST)] for part in (units, labels))
    counts = torch.bincount(labels, minlength=classes)
    pairs = float((counts * (counts - 1)).sum())
    if classes < 3 or not pairs:  # a neighbour is one of several
        return 0.0
    own = F.one_hot(labels, classes).to(units.dtype) * torch.finfo(units.dtype).max
    near = F.normalize((gamma * units @ F.normalize(prototypes).T - own).softmax(1) @ F.normalize(prototypes))
    sums, towards = class_sums(units, labels, classes), class_sums(near, labels, classes)
    both = float((units * near).sum())
    alike, seen = (float(sums.square().sum()) - len(units)) / pairs, both / len(units)
    met = (float((sums * towards).sum()) - both) / pairs
    return max(0.0, met - alike * seen) / max(alike - met * seen, 1e-3)


def drawn(means: Tensor, counts: Tensor, base: Tensor, strength: float, gamma: float) -> Tensor:
    """Unit prototypes (n, d) of `counts` shots, drawn to the base classes (b, d) that they look like.

    One without a shot stays where its name put it.
    """
    share = _share(counts, strength)[:, None]
    return F.normalize((1 - share) * means + share * _near(means, base, gamma))


def nearness(prototypes: Tensor, base: Tensor, gamma: float) -> Tensor:
    """The mean cosine of unit prototypes with the base classes that they look like."""
    return (prototypes * _near(prototypes, base, gamma)).sum(1).mean()


def gain(counts: Tensor, strength: float, cosine: Tensor) -> Tensor:
    """By what factor a new image's cosine with a prototype grows as this is drawn to neighbours at that `cosine`.

    An image is about as like the neighbours of its class as it is like a prototype of few shots.
    """
    share = _share(counts, strength)
    return (1 - 2 * share * (1 - share) * (1 - cosine)).rsqrt()


def _share(counts: Tensor, strength: float) -> Tensor:
    """The share of the neighbours in a prototype."""
    return torch.where(counts > 0, strength / (strength + counts), 0.0)


def _near(means: Tensor, base: Tensor, gamma: float) -> Tensor:
    """Unit vectors (n, d) between the base classes that means look like."""
    return F.normalize(borrowed(means, base, F.normalize(base), gamma))
