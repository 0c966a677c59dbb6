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
from concm.engine.prior import cosine

MOST, AT_ONCE = 2000, 2 * 10**7
"""Held-out images that are asked at most, and numbers of their scores: fewer images where there are many classes."""


@dataclass(frozen=True)
class Single:
    """How an image scores with the prototype of one other image of its class.

    `gain` is what neighbours and softened pictures add to the cosine of the two, `slope` how the score follows the
    image's best one with other classes, and `spread` its deviation around that.
    """

    gain: float = 0.0
    slope: float = 0.0
    spread: float = 0.1

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        images: tuple[Tensor, Tensor],
        prototypes: Tensor,
        names: tuple[Tensor, Tensor],
        pull: Pull,
        *,
        reach: float,
        gamma: float,
    ) -> Single:
        """By unit features (n, d) and labels (n,) of images that the metric has not seen, and base prototypes (b, d).

        `names` are what those of the base classes say without them, (b, d), and how far that counts, (b,).
        """
        units, labels = images
        classes = torch.arange(len(prototypes), device=labels.device)
        order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0)).to(labels.device)
        some = order[labels].argsort(stable=True)[: min(MOST, AT_ONCE // len(classes))]  # all images of some classes
        units, labels, known = units[some], labels[some], F.normalize(prototypes)
        pairs = (labels[:, None] == labels).fill_diagonal_(False)
        if not pairs.any() or len(classes) < 2:
            return cls()
        own = labels[:, None] == classes
        predicted, share = (part[labels] for part in names)
        played = F.normalize((1 - share)[:, None] * units + share[:, None] * predicted)
        shown = softened(units, reach)
        asked, shots = pairs.nonzero().T
        found = (shown @ pull.apart(played, known, own, gamma).T)[pairs]
        alike, said = (units @ units.T)[pairs].mean(), (units * predicted).sum(1)[shots]
        plain = cosine(alike, said, predicted.square().sum(1)[shots], share[shots], torch.ones_like(said))
        beside = (shown @ known.T).masked_fill(own, -torch.inf).amax(1)[asked]
        gain, rise, beside = found.mean() - plain.mean(), found - found.mean(), beside - beside.mean()
        slope = (rise * beside).mean() / beside.square().mean().clamp(min=1e-9)
        return cls(float(gain), float(slope), float((rise - slope * beside).square().mean().sqrt()))
