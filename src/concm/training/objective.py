"""What the base session minimises: cross-entropy, supervised contrast and SimCLR on two views of each picture."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.data import augment
from concm.data.transform import Transform
from concm.losses import supervised_contrast
from concm.training.distributed import gather
from concm.training.recipe import Recipe


class Head(nn.Module):
    """A classifier over class × rotation; the upright share of it classifies at test time."""

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


class Objective(nn.Module):
    """A backbone with the heads that train it; called with raw pixels, so that the whole step is one graph."""

    def __init__(self, backbone: nn.Module, dimension: int, classes: int, transform: Transform, recipe: Recipe) -> None:
        super().__init__()
        self.backbone = backbone
        self.classes = classes
        self.transform = transform
        self.recipe = recipe
        self.head = Head(dimension, classes * (4 if recipe.turned else 1), recipe.head)
        self.projection = nn.Sequential(nn.Linear(dimension, dimension), nn.ReLU(), nn.Linear(dimension, 128))

    def views(self, pixels: Tensor, labels: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
        """A weak and a strong view (2n, 3, s, s) and their labels (n,); random is (n, 2, RANDOMS)."""
        recipe, size = self.recipe, self.transform.size
        weak = augment.cut_out(augment.weak(pixels, random[:, 0], size), random[:, 0], recipe.cutout)
        strong = augment.strong(pixels, random[:, 1], size, recipe.scale_min, recipe.jitter, recipe.grey)
        images = torch.cat([weak, strong])
        if recipe.turned:
            quarters = (4 - (1 - random[:, 0, -1]) / recipe.turned * 3).clamp(0, 3).long()
            images = augment.turn(images, quarters.repeat(2))
            labels = labels + self.classes * quarters
        return self.transform.normalise(images).contiguous(memory_format=torch.channels_last), labels

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """Losses of one step; `first` is the position of this process's pictures in the global batch."""
        images, labels = self.views(pixels, labels, random)
        features = self.backbone(images).float()
        recipe = self.recipe
        loss = F.cross_entropy(self.head(features).float(), labels.repeat(2), label_smoothing=recipe.smoothing)
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
        temperature = self.recipe.temperature
        with torch.autocast(vectors.device.type, enabled=False):
            supervised = supervised_contrast(vectors, labels.repeat(2), others, other_labels, own, temperature)
            simclr = supervised_contrast(vectors, pictures.repeat(2), others, other_pictures, own, temperature)
        return supervised, simclr
