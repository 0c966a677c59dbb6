"""Small worlds in which the right answer is known, for checking methods: features, or pictures that a network sees."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.backbones import find_backbone
from concm.backbones.encoder import Encoder, Reading
from concm.data.augment import RANDOMS
from concm.data.transform import Transform
from concm.features.sessions import BaseSession, Session
from concm.methods import PICTURES, Choice
from concm.training.objective import Objective, Stage, TwoViews
from concm.training.recipe import Recipe

ANIMALS = ("bear", "cat", "dog", "eagle", "horse", "lizard", "okapi", "spider", "tiger", "trout", "whale", "zebra")
DIMENSION, BASE = 32, 6
SIDE = 16
"""Of the pictures, in pixels."""
STEPS, BATCH = 60, 60
"""Of the base session on pictures."""


class Balls:
    """Classes that are balls of features, far from each other."""

    def __init__(self, total: int) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.centres = F.normalize(torch.randn(total, DIMENSION, generator=self.random))

    def images(self, label: int, count: int) -> Tensor:
        """Features, which are all that there is of an image."""
        return (self.centres[label] + 0.05 * torch.randn(count, DIMENSION, generator=self.random)).relu() + 0.01

    def features(self, images: Tensor) -> Tensor:
        """The images themselves."""
        return images

    def views(self, features: Tensor) -> Tensor:
        """Two views per feature."""
        return features[:, None] + 0.01 * torch.rand(len(features), 2, DIMENSION, generator=self.random)

    def pictures(self, images: Tensor) -> Tensor | None:
        """None: there are no pictures in this world."""
        return None

    def beside(self) -> dict[str, Any]:
        """What the base session brings besides: nothing."""
        return {}


class Flags:
    """Classes that are pictures of two stripes in colours of their own, seen by a small network trained on the base.

    What trains it is the method's own base session, if it has one.
    """

    def __init__(self, total: int, choice: Choice) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.colours = far_apart(total, self.random)
        self.objective = deepcopy(trained(choice, total))
        network = Reading.of(self.objective.backbone, self.objective.turns, self.objective.maps)
        self.encoder = Encoder(NETWORK, network, TRANSFORM, {"dimension": DIMENSION}).to(torch.device("cpu"))

    def images(self, label: int, count: int) -> Tensor:
        """(count, side, side, 3) uint8."""
        return flags(self.colours[label], count, self.random)

    def features(self, images: Tensor) -> Tensor:
        """The features that the network gives."""
        return self.encoder(images).clone()

    def views(self, features: Tensor) -> Tensor:
        """Two views per feature, close to it."""
        spread = 0.02 * features.std()
        return features[:, None] + spread * torch.rand(len(features), 2, features.shape[1], generator=self.random)

    def pictures(self, images: Tensor) -> Tensor | None:
        """The images themselves, which are pictures here."""
        return images

    def beside(self) -> dict[str, Any]:
        """What the base session brings besides: the network, and what its training left for the method."""
        learned = {name: value.detach().clone() for name, value in self.objective.learned().items()}
        return {"backbone": self.encoder, "learned": learned}


def far_apart(count: int, random: torch.Generator) -> Tensor:
    """(count, 2, 3): pairs of colours, chosen one after the other so that each is far from those before it."""
    candidates = torch.rand(500, 2, 3, generator=random)
    chosen = candidates[:1]
    while len(chosen) < count:
        away = torch.cdist(candidates.flatten(1), chosen.flatten(1)).amin(1)
        chosen = torch.cat([chosen, candidates[away.argmax()][None]])
    return chosen


def flags(colours: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Pictures of two colours (2, 3), one above the other, somewhat noisy."""
    stripes = colours.repeat_interleave(SIDE // 2, 0)[:, None].expand(SIDE, SIDE, 3)
    noise = torch.randn(count, SIDE, SIDE, 3, generator=random)
    return (255 * (stripes + 0.04 * noise)).clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=4)
def trained(choice: Choice, total: int) -> Objective:
    """A small network after some steps of the method's base session, or of plain cross-entropy."""
    with torch.random.fork_rng(devices=[]):
        backbone = find_backbone(NETWORK)
        torch.manual_seed(0)
        stage = Stage(backbone.build(), DIMENSION, BASE, total, TRANSFORM, ANIMALS[:BASE])
        kind = choice.entry.objective
        plain = Recipe(head="cosine", turned=0, contrast=0, jitter=0, grey=0, scale_min=0.8)
        objective = TwoViews(stage, plain) if kind is None else kind(stage, choice.settings)
    random = torch.Generator().manual_seed(0)
    pictures = torch.cat([flags(colours, 20, random) for colours in far_apart(total, random)[:BASE]])
    labels = torch.arange(BASE).repeat_interleave(20)
    weights = [weight for weight in objective.train().parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        rows = torch.randperm(len(labels), generator=random)[:BATCH]
        numbers = torch.rand(len(rows), objective.draws, RANDOMS, generator=random)
        optimizer.zero_grad()
        objective(pictures[rows], labels[rows], numbers, 0)["loss"].backward()
        optimizer.step()
    return objective.eval()


class Small(nn.Module):
    """Two convolutions that halve, open to methods that look inside."""

    dimension = DIMENSION

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.last = nn.Sequential(nn.Conv2d(16, DIMENSION, 3, 2, 1), nn.BatchNorm2d(DIMENSION), nn.ReLU())

    def front(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 16, h/4, w/4)."""
        out: Tensor = self.first(images)
        return out

    def back(self, maps: Tensor) -> Tensor:
        """(n, 16, h/4, w/4) → (n, 32, h/8, w/8)."""
        out: Tensor = self.last(maps)
        return out

    def maps(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 32, h/8, w/8)."""
        return self.back(self.front(images))

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 32)."""
        return self.maps(images).mean((2, 3))


NETWORK = f"{__name__}:Small"
TRANSFORM = Transform(SIDE, SIDE, (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))


@dataclass(frozen=True)
class World:
    """A base session, sessions of given shots per class, and test images: pictures for a method that needs them."""

    sessions: tuple[Session, ...]
    test: Tensor
    labels: Tensor

    @classmethod
    def of(
        cls, shots: Sequence[Sequence[int]] = ((5, 5), (5, 5)), *, base: int = 20, choice: Choice | None = None
    ) -> World:
        """`shots` has a list for each session with the shots of its classes, and there are `base` images of a base one.

        It is made for the method `choice`.
        """
        total = BASE + sum(map(len, shots))
        pictured = choice is not None and PICTURES in choice.needs
        seen = choice is not None and (pictured or choice.entry.objective is not None)
        make = Flags(total, choice) if choice is not None and seen else Balls(total)

        def session(index: int, first: int, counts: Sequence[int]) -> Session:
            images = torch.cat([make.images(first + at, count) for at, count in enumerate(counts)])
            features = make.features(images)
            labels = torch.tensor([first + at for at, count in enumerate(counts) for _ in range(count)])
            views = make.views(features)
            more = torch.cat([make.images(first + at, 10) for at in range(len(counts))])
            every = torch.cat([labels, torch.arange(first, first + len(counts)).repeat_interleave(10)])
            classes = range(first, first + len(counts))
            about: dict[str, Any] = {"scenario": "conformance", "total": total, "pictures": make.pictures(images)}
            about["pool"] = (torch.cat([features, make.features(more)]), every)
            return Session(index, classes, ANIMALS[first : classes.stop], features, labels, views, **about)

        start = BaseSession.of(session(0, 0, [base] * BASE))
        found: list[Session] = [replace(start, pool=(start.features, start.labels), **make.beside())]
        first = BASE
        for index, sizes in enumerate(shots, 1):
            found.append(session(index, first, sizes))
            first += len(sizes)
        labels = torch.arange(total).repeat_interleave(10)
        test = torch.cat([make.images(label, 10) for label in range(total)])
        return cls(tuple(found), test if pictured else make.features(test), labels)

    @property
    def base(self) -> BaseSession:
        """The first session."""
        first = self.sessions[0]
        assert isinstance(first, BaseSession)
        return first

    def known(self, seen: int) -> tuple[Tensor, Tensor]:
        """Test images and labels of the first classes."""
        chosen = self.labels < seen
        return self.test[chosen], self.labels[chosen]
