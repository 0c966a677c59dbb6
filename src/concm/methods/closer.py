"""CLOSER (Oh, Baik and Lee, "Towards Better Representation Learning for Few-Shot Class-Incremental Learning",
ECCV 2024).

Features that spread within a class carry more than the base classes need, and so transfer to new ones; features of
different classes that lie closer to each other can be told apart with what is left. So the base session adds to the
cross-entropy a contrast without labels, which spreads, and a reward for cosines between classes. Sessions add class
means and train nothing.

Here: views are the authors': on CIFAR-100 half of them are shifts and half scaled crops, and half of all go through
AutoAugment; but shifts reflect the border where the authors' have black, moved pixels leave grey, and the rate falls
along a cosine instead of in two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.data import augment, policy
from concm.engine.losses import supervised_contrast
from concm.methods.ncm import NCM
from concm.methods.registry import method
from concm.records import Checked, setting
from concm.training.distributed import gather
from concm.training.objective import Objective, Stage
from concm.training.recipe import Schedule


@dataclass(frozen=True)
class CLOSERSettings(Checked):
    """The settings of CLOSER's base session, with the authors' values for CIFAR-100."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200")

    scale: float = setting(
        32.0, "Scale of the cosines in the cross-entropy and in the contrast (authors' code).", above=0
    )
    spread: float = setting(0.1, "Weight of the contrast without labels (authors' code).", least=0)
    closeness: float = setting(1.0, "Weight of the mean cosine between classes (authors' code).", least=0)
    scale_min: float = setting(0.25, "Smallest area of a view's crop (authors' code).", above=0, most=1)
    shifted: float = setting(
        0.5, "Share of views that are shifts instead of crops (authors' code for CIFAR-100).", least=0, most=1
    )
    policy: Literal["cifar", "imagenet", "none"] = setting("cifar", "Policy of AutoAugment (authors' code).")
    augmented: float = setting(0.5, "Share of views that go through AutoAugment (authors' code).", least=0, most=1)

    @classmethod
    def mini_imagenet(cls) -> CLOSERSettings:
        """The settings published for mini-ImageNet."""
        return cls(closeness=0.5, scale_min=0.08, shifted=0.0, policy="imagenet")

    @classmethod
    def cub200(cls) -> CLOSERSettings:
        """The settings published for CUB200."""
        return cls(spread=0.01, closeness=1.5, shifted=0.0, policy="none")


class View:
    """Columns of the random numbers that a view uses beside those of a shift and a crop, which changes no colours."""

    POLICY = slice(5, 10)
    AUGMENTED, KIND = 10, 11


class SpreadAndCloseness(Objective):
    """Cross-entropy, a contrast that spreads features, and closeness of classes, on three views of each picture."""

    schedule = Schedule(epochs=200, batch=128, lr=0.1, warmup=0, weight_decay=5e-4)
    draws = 3

    def __init__(self, stage: Stage, settings: CLOSERSettings) -> None:
        super().__init__(stage, settings)
        self.head = nn.Linear(stage.dimension, stage.classes, bias=False)

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """Losses of one step."""
        settings = self.settings
        crops = [self.view(pixels, random[:, at]) for at in range(self.draws)]
        units = F.normalize(self.backbone(self.ready(torch.cat(crops))).float())
        scores = settings.scale * F.linear(units, F.normalize(self.head.weight)).float()
        recognised = F.cross_entropy(scores, labels.repeat(self.draws))
        everything = torch.cat([gather(view) for view in units.chunk(self.draws)])
        spread = self._spread(units, everything, first + torch.arange(len(labels), device=labels.device))
        close = closeness(units, labels.repeat(self.draws), everything, gather(labels).repeat(self.draws))
        loss = recognised + settings.spread * spread - settings.closeness * close
        return {"cross_entropy": recognised, "spread": spread, "closeness": close, "loss": loss}

    def view(self, pixels: Tensor, random: Tensor) -> Tensor:
        """One view (n, 3, s, s) of each picture: a shift or a crop, with AutoAugment for some; random: (n, RANDOMS)."""
        settings, size = self.settings, self.transform.size
        crops = augment.strong(pixels, random, size, settings.scale_min, 0.0, 0.0)
        shifted = (random[:, View.KIND] < settings.shifted).view(-1, 1, 1, 1)
        images = torch.where(shifted, augment.weak(pixels, random, size), crops)
        if settings.policy == "none":
            return images
        chosen = (random[:, View.AUGMENTED] < settings.augmented).view(-1, 1, 1, 1)
        augmented = policy.auto(images, random[:, View.POLICY], policy.POLICIES[settings.policy])
        return torch.where(chosen, augmented, images)

    def _spread(self, units: Tensor, others: Tensor, pictures: Tensor) -> Tensor:
        """Contrast of each view with the others of its picture, against all of the global batch."""
        every = gather(pictures)
        own = torch.cat([pictures + at * len(every) for at in range(self.draws)])
        with torch.autocast(units.device.type, enabled=False):
            return supervised_contrast(
                units, pictures.repeat(self.draws), others, every.repeat(self.draws), own, 1 / self.settings.scale
            )

    def classify(self, features: Tensor) -> Tensor:
        """Scores of the cosine classifier."""
        return F.linear(F.normalize(features), F.normalize(self.head.weight))


def closeness(units: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> Tensor:
    """Mean cosine of units (n, d) to those `others` (m, d) that are of another class; zero if there are none.

    The mean is over the pairs of all processes, since their shares of the batch differ in how many pairs they have.
    """
    different = labels[:, None] != other_labels
    count = gather(different.sum()[None].float()).mean()
    return (units @ others.T * different).sum() / count.clamp_min(1)


@method(
    "closer",
    title="CLOSER: a base session that spreads features and draws classes together",
    paper="ECCV 2024",
    link="https://arxiv.org/abs/2410.05627",
    code="https://github.com/JungHunOh/CLOSER_ECCV2024",
    group="own base session",
    objective=SpreadAndCloseness,
)
class CLOSER(NCM):
    """Nearest class mean on the features of CLOSER's base session."""

    settings = CLOSERSettings()
