"""ConCM (ICLR 2026) as its authors' released code runs it, which is not quite as its paper has it.

Novel and base classes have separate means in the matching loss, with weights of their own, and the weight of the base
classes is ten times as large after half of the known number of sessions; structure vectors are queries of the contrast
too, and whoever has no partner does not count; the code of a class competes with those of its attributes; the first
novel class has as many Gaussian samples as a base class.

Here: features and views are those of the bank, as in `concm:published`. The code's views are shifts, mirror images,
AutoAugment and a square cut out (`concm features --augment cifar`), and its base statistics are of one such view of
each image. The last images of an epoch that do not fill a batch are left out. The projector begins untrained, where the
authors load one that was trained with the backbone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.calibration import CalibrationSettings
from concm.features.sessions import BaseSession
from concm.methods.concm_published import ConCMPublished, PublishedSettings
from concm.methods.registry import TOTAL, method
from concm.records import setting


@dataclass(frozen=True)
class ReleasedSettings(PublishedSettings):
    """The settings of the released code for CIFAR-100."""

    novel_weight: float = setting(2.0, "Weight of the novel classes' mean in the matching loss (code).", least=0)
    base_weight: float = setting(0.05, "Weight of the base classes' mean (code).", least=0)
    late_base_weight: float = setting(0.5, "The same after half of the sessions (code).", least=0)

    @property
    def needs(self) -> tuple[str, ...]:
        """What the paper's form needs, and when half of the sessions are over."""
        return (*super().needs, TOTAL)

    def mini_imagenet(self) -> Self:
        """The settings for mini-ImageNet."""
        return replace(super().mini_imagenet(), late_base_weight=0.05)

    def cub200(self) -> Self:
        """The settings for CUB200, whose rate is not the paper's."""
        same = super().cub200()
        return replace(same, align_lr=1e-3, lr=1e-3, novel_weight=0.5, base_weight=0.5, late_base_weight=0.5)


@method(
    "concm:released",
    title="ConCM as its released code runs it",
    paper="ICLR 2026",
    link="https://arxiv.org/abs/2506.19558",
    code="https://github.com/wire-wqz/ConCM",
)
class ConCMReleased(ConCMPublished):
    """The paper's form with the losses, weights and samples of the code."""

    settings = ReleasedSettings()
    values = (*ConCMPublished.values, "total")
    aggregation: ClassVar = CalibrationSettings(biased=False, own_logit=1.0)
    total: int | None = None

    def fit_base(self, base: BaseSession) -> None:
        """Learn how many classes there will be, and the base classes as the paper's form does."""
        self.total = base.total
        super().fit_base(base)

    def loss(self, vectors: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
        """Weighted means of the novel and of the base classes' cross-entropies, and the contrast."""
        settings, structure = self.settings, self.structure
        entropy = F.cross_entropy(vectors @ structure.T, labels, reduction="none")
        queries, classes = torch.cat([vectors, structure[anchors]]), torch.cat([labels, anchors])
        contrast = mutual_contrast(queries, classes, settings.temperature)
        if not len(self.labels):
            return entropy.mean() + contrast
        novel = labels >= self.base
        late = self.total is not None and 2 * (len(self.names) - self.base) > self.total - self.base
        weight = settings.late_base_weight if late else settings.base_weight
        return settings.novel_weight * mean_of(entropy, novel) + weight * mean_of(entropy, ~novel) + contrast

    def drawn(self) -> Tensor:
        """How many Gaussian samples of each class an epoch has; the first novel class counts as a base class."""
        counts = super().drawn()
        counts[self.base] = self.settings.per_base
        return counts


def mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the values (n,) that are chosen, zero if none is."""
    return (values * chosen).sum() / chosen.sum().clamp(min=1)


def mutual_contrast(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrast among unit vectors (n, d): the mean over all that share their label with another one."""
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    logits = vectors @ vectors.T / temperature
    log_share = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (labels[:, None] == labels) & ~itself
    count = positive.sum(1)
    return -mean_of((log_share * positive).sum(1) / count.clamp(min=1), count > 0)
