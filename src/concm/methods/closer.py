"""CLOSER (Oh, Baik and Lee, "Towards Better Representation Learning for Few-Shot Class-Incremental Learning",
ECCV 2024).

Features that spread within a class carry more than the base classes need, and so transfer to new ones; features of
different classes that lie closer to each other can be told apart with what is left. So the base session adds to the
cross-entropy a contrast without labels, which spreads, and a reward for cosines between classes. Sessions add class
means and train nothing.

Here: every view is a scaled crop, where half of the authors' are shifts on CIFAR-100; colour shaking and grey stand for
AutoAugment; and the rate falls along a cosine instead of in two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.data import augment
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
    jitter: float = setting(
        0.4,
        "Strength of changes in brightness, contrast and saturation of the views (chosen: ours; authors' code: "
        "AutoAugment of half the views).",
        least=0,
    )
    grey: float = setting(0.2, "Share of views without colour (chosen: ours).", least=0, most=1)

    @classmethod
    def mini_imagenet(cls) -> CLOSERSettings:
        """The settings published for mini-ImageNet."""
        return cls(closeness=0.5, scale_min=0.08)

    @classmethod
    def cub200(cls) -> CLOSERSettings:
        """The settings published for CUB200."""
        return cls(spread=0.01, closeness=1.5)


class SpreadAndCloseness(Objective):
    """Cross-entropy, a contrast that spreads features, and closeness of classes, on three views of each picture."""

    schedule = Schedule(epochs=200, batch=128, lr=0.1, warmup=0, weight_decay=5e-4)
    draws = 3

    def __init__(self, stage: Stage, settings: CLOSERSettings) -> None:
        super().__init__(stage, settings)
        self.head = nn.Linear(stage.dimension, stage.classes, bias=False)

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """Losses of one step."""
        settings, size = self.settings, self.transform.size
        crops = [
            augment.strong(pixels, random[:, at], size, settings.scale_min, settings.jitter, settings.grey)
            for at in range(self.draws)
        ]
        units = F.normalize(self.backbone(self.ready(torch.cat(crops))).float())
        scores = settings.scale * F.linear(units, F.normalize(self.head.weight)).float()
        recognised = F.cross_entropy(scores, labels.repeat(self.draws))
        everything = torch.cat([gather(view) for view in units.chunk(self.draws)])
        spread = self._spread(units, everything, first + torch.arange(len(labels), device=labels.device))
        close = closeness(units, labels.repeat(self.draws), everything, gather(labels).repeat(self.draws))
        loss = recognised + settings.spread * spread - settings.closeness * close
        return {"cross_entropy": recognised, "spread": spread, "closeness": close, "loss": loss}

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
    code="https://github.com/JungHunOh/CLOSER_ECCV2024",
    group="own base session",
    objective=SpreadAndCloseness,
)
class CLOSER(NCM):
    """Nearest class mean on the features of CLOSER's base session."""

    settings = CLOSERSettings()
