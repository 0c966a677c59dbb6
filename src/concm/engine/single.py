"""What is to be expected of a class with a single image, which cannot be left out of its own prototype.

Held-out images of base classes tell it: each plays the only shot of its class, is drawn to the neighbours that it has
among the *other* classes, and is asked for by the other held-out images of its class. An image that looks like other
classes looks more like its own, too: a typical bird is near all birds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.metric import softened
from concm.engine.neighbours import Pull
from concm.engine.operating import mean_likeness
from concm.engine.prior import cosine

MOST, AT_ONCE = 2000, 2 * 10**7
"""Held-out images that are asked at most, and numbers of their scores: fewer images where there are many classes."""

SAME = 1e-4
"""Squared distance up to which two images are one."""


@dataclass(frozen=True)
class Single:
    """How an image scores with the prototype of one other image of its class.

    `gain` is by how much the score lies above the cosine that is expected without neighbours and with pictures as they
    are, `slope` how it follows the image's best score with other classes, and `spread` its deviation around that.
    """

    gain: float = 0.0
    slope: float = 0.0
    spread: float = 0.1

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        asked: tuple[Tensor, Tensor],
        shots: tuple[Tensor, Tensor],
        prototypes: Tensor,
        names: tuple[Tensor, Tensor],
        pull: Pull,
        *,
        near: float,
        reach: float,
        gamma: float,
    ) -> Single:
        """By unit features (n, d) and labels (n,) of images `asked`, each of `shots`, and base prototypes (b, d).

        `names` are what those of the base classes say without them, (b, d), and how far that counts, (b,). Images of a
        class whose squared distance is at most `near` were taken together, and do not play with each other.
        """
        classes = torch.arange(len(prototypes), device=prototypes.device)
        (units, labels), (lone, kinds) = _some(asked, len(classes)), _some(shots, len(classes))
        pairs = (labels[:, None] == kinds) & (2 - 2 * units @ lone.T > max(near, SAME))
        if not pairs.any() or len(classes) < 2:
            return cls()
        known, (predicted, share) = F.normalize(prototypes), (part[kinds] for part in names)
        played = F.normalize((1 - share)[:, None] * lone + share[:, None] * predicted)
        shown = softened(units, reach)
        image, shot = pairs.nonzero().T
        found = (shown @ pull.apart(played, known, kinds[:, None] == classes, gamma).T)[pairs]
        alike, said = (units @ lone.T)[pairs].mean(), (lone * predicted).sum(1)[shot]
        plain = cosine(alike, said, predicted.square().sum(1)[shot], share[shot], torch.ones_like(said))
        beside = (shown @ known.T).masked_fill(labels[:, None] == classes, -torch.inf).amax(1)[image]
        gain, rise, beside = found.mean() - plain.mean(), found - found.mean(), beside - beside.mean()
        slope = (rise * beside).mean() / beside.square().mean().clamp(min=1e-9)
        return cls(float(gain), float(slope), float((rise - slope * beside).square().mean().sqrt()))


def _some(images: tuple[Tensor, Tensor], classes: int) -> tuple[Tensor, Tensor]:
    """All images of some classes."""
    units, labels = images
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(0)).to(labels.device)
    some = order[labels].argsort(stable=True)[: min(MOST, AT_ONCE // classes)]
    return units[some], labels[some]


def worth(held: Tensor, own: Tensor, labels: Tensor, classes: int) -> float:
    """By what factor held-out images would score better with their classes, were these made of all images (labels)."""
    if not len(held):
        return 1.0
    alike = mean_likeness(held, own, classes).clamp(0.01, 1)
    every, out = (torch.bincount(part, minlength=classes)[own] for part in (labels, own))
    whole, rest = (alike + (1 - alike) / count.clamp(min=1) for count in (every, every - out))
    return float((rest / whole).sqrt().mean())
