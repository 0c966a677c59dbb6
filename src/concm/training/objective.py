"""What a base session minimises: the interface of objectives, and our own, cross-entropy and contrast on two views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.data import augment
from concm.data.transform import Transform
from concm.engine.losses import supervised_contrast
from concm.errors import Misuse
from concm.training.distributed import gather
from concm.training.recipe import Recipe, Schedule


class Head(nn.Module):
    """A classifier over class × rotation; at test time only its outputs for upright pictures are used."""

    def __init__(self, dimension: int, outputs: int, kind: str) -> None:
        super().__init__()
        self.cosine = kind == "cosine"
        self.linear = nn.Linear(dimension, outputs, bias=not self.cosine)

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) → (n, outputs)."""
        if self.cosine:
            return 16 * F.linear(F.normalize(features), F.normalize(self.linear.weight))
        out: Tensor = self.linear(features)
        return out


@dataclass(frozen=True)
class Stage:
    """What an objective is given: a backbone, the number of base `classes` and of all classes (`total`), a transform.

    `names` are those of the base classes, for methods that declare that they read them.
    """

    backbone: nn.Module
    dimension: int
    classes: int
    total: int
    transform: Transform
    names: tuple[str, ...] = ()


class Objective(nn.Module):
    """A backbone with the losses that train it; it takes raw pixels, so that the whole step is one graph.

    A method with its own base session has a subclass, made from a stage and its settings. After training, the frozen
    backbone reads every picture in each of `turns` quarter turns, one feature after the other, or keeps its last `maps`
    flat instead of their mean; and what `learned` returns goes with the features to the method.
    """

    schedule: ClassVar[Schedule] = Schedule()
    "The published schedule, or the one that stands for it."
    draws: ClassVar[int] = 1
    "Rows of random numbers that a step takes for each picture."
    later: ClassVar[tuple[str, ...]] = ()
    "Settings that the method reads only after the base session, so that they may be varied on its bank."
    turns: tuple[int, ...] = (0,)
    maps: bool = False

    def __init__(self, stage: Stage, settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.backbone = stage.backbone
        self.classes = stage.classes
        self.transform = stage.transform

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """Losses of one step, with their sum as `loss`; pixels are (n, h, w, 3) and random (n, draws, RANDOMS).

        `first` is the position of this process's pictures in the global batch.
        """
        raise NotImplementedError

    def advance(self, share: float) -> None:
        """Called before each epoch with the share of the session that is done, for views that change on the way."""

    def classify(self, features: Tensor) -> Tensor:
        """Scores (n, classes) of features as they are read after training."""
        raise NotImplementedError

    def learned(self) -> dict[str, Tensor]:
        """The tensors that the method needs beside the backbone."""
        return {}

    def ready(self, images: Tensor) -> Tensor:
        """Images of 0..1, normalised as the backbone takes them."""
        return self.transform.normalise(images).contiguous(memory_format=torch.channels_last)


class TwoViews(Objective):
    """Cross-entropy, supervised contrast and SimCLR on a weak and a strong view of each picture."""

    draws = 2

    def __init__(self, stage: Stage, recipe: Recipe) -> None:
        super().__init__(stage, recipe)
        if recipe.views == 1 and recipe.contrast:
            raise Misuse("`contrast` compares two views of a picture; `views=1` goes with `contrast=0`")
        dimension = stage.dimension
        self.head = Head(dimension, stage.classes * (4 if recipe.turned else 1), recipe.head)
        self.projection = nn.Sequential(nn.Linear(dimension, dimension), nn.ReLU(), nn.Linear(dimension, 128))
        self.side = round(recipe.side * self.transform.size)
        self.advance(0.0)

    def advance(self, share: float) -> None:
        """Let views grow: small for half of the session, full for its last quarter."""
        first = self.settings.side_first
        self.size = round(self.side * (first if share < 1 / 2 else (1 + first) / 2 if share < 3 / 4 else 1))

    def classify(self, features: Tensor) -> Tensor:
        """Scores of the head's outputs for upright pictures."""
        scores: Tensor = self.head(features)[:, : self.classes]
        return scores

    def views(self, pixels: Tensor, labels: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
        """A weak and a strong view (2n, 3, s, s), or the strong one, and labels (n,); random is (n, 2, RANDOMS)."""
        recipe = self.settings
        images = augment.strong(pixels, random[:, 1], self.size, recipe.scale_min, recipe.jitter, recipe.grey)
        if recipe.views == 2:
            images = torch.cat([self._weak(pixels, random[:, 0]), images])
        if recipe.turned:
            chance = random[:, 0, -1]
            quarters = (4 - (1 - chance) / recipe.turned * 3).clamp(0, 3).long()
            images = augment.turn(images, quarters.repeat(recipe.views))
            labels = labels + self.classes * quarters
        return self.ready(images), labels

    def _weak(self, pixels: Tensor, random: Tensor) -> Tensor:
        """The weak view (n, 3, s, s): shifted or cropped, then with a square cut out."""
        recipe, size = self.settings, self.size
        if recipe.weak_min == 1:
            return augment.cut_out(augment.weak(pixels, random, size, self.side), random, recipe.cutout)
        images = augment.strong(pixels, random, size, recipe.weak_min, jitter=0, grey=0)
        return augment.cut_out(images, random.roll(6, 1), recipe.cutout)  # a crop has used the first columns

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """Losses of one step."""
        recipe = self.settings
        images, labels = self.views(pixels, labels, random)
        features = self.backbone(images).float()
        scores = self.head(features).float()
        loss = F.cross_entropy(scores, labels.repeat(recipe.views), label_smoothing=recipe.smoothing)
        losses = {"cross_entropy": loss}
        if recipe.contrast:
            vectors = F.normalize(self.projection(features).float())
            pictures = first + torch.arange(len(labels), device=labels.device)
            supervised, simclr = self._contrast(vectors, labels, pictures)
            losses |= {"supervised": supervised, "simclr": simclr}
            loss = loss + recipe.contrast * ((1 - recipe.self_share) * supervised + recipe.self_share * simclr)
        return losses | {"loss": loss}

    def _contrast(self, vectors: Tensor, labels: Tensor, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Both contrasts of the local pictures against the global batch; vectors are (2n, 128)."""
        weak, strong = vectors.chunk(2)
        others = torch.cat([gather(weak), gather(strong)])
        other_labels, other_pictures = gather(labels).repeat(2), gather(pictures).repeat(2)
        half = len(others) // 2
        own = torch.cat([pictures, pictures + half])
        temperature = self.settings.temperature
        with torch.autocast(vectors.device.type, enabled=False):
            supervised = supervised_contrast(vectors, labels.repeat(2), others, other_labels, own, temperature)
            simclr = supervised_contrast(vectors, pictures.repeat(2), others, other_pictures, own, temperature)
        return supervised, simclr
