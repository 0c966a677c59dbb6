"""LIMIT: few-shot class-incremental learning by sampling multi-phase tasks (Zhou, Ye and others, TPAMI 2022).

Base data are cut into many fake incremental tasks: some base classes pretend to be new and are known by one shot, the
others by their classifier, and images of all have to be told apart. What is learned over these tasks is a calibration
that classifiers and query share: CEC's attention, with another sampler of tasks.

Here: only the attention is trained, the encoder stays as it is; base classifiers are class means, as at test time.
There are 100 tasks, one in each step, at a rate of 0.0094, where the authors have 20 epochs of 235 batches with 32
tasks each, at 0.0002.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from concm.features.sessions import Session
from concm.methods.cec import Evolving, draw_each
from concm.methods.registry import method
from concm.records import Checked, setting


@dataclass(frozen=True)
class LIMITSettings(Checked):
    """The settings of LIMIT; rates are the paper's, multiplied by its number of steps over ours."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200")

    way: int = setting(
        16,
        "Classes of a task that pretend to be new (authors' code); half of the base classes if there are fewer "
        "than 32.",
        least=1,
    )
    shot: int = setting(1, "Images of each class that pretends to be new (authors' code).", least=1)
    queries: int = setting(
        2, "Images of each base class to be recognised in a task: 120 of 60 classes (authors' code: 128).", least=1
    )
    scale: float = setting(16.0, "Scale of the cosines (authors' code: temperature 16).", above=0)
    steps: int = setting(
        100, "Number of tasks (chosen: for speed; authors' code: 20 epochs of 235 batches with 32 tasks each).", least=0
    )
    lr: float = setting(
        0.0094, "Rate of SGD (chosen: the authors' .0002, raised to get as far in fewer steps).", above=0
    )
    period: float = setting(
        0.1,
        "Share of the steps after which the rate falls (authors' code: milestones 2, 4 and 6 of 20 epochs).",
        above=0,
    )
    decay: float = setting(0.3, "Factor of the rate after each period (authors' code).")

    @classmethod
    def mini_imagenet(cls) -> LIMITSettings:
        """Milestones 3, 6, 9 and 12; T = 0.5 with only the classifier normalised, so 2·√512 after layer norm."""
        return cls(scale=45.0, period=0.15)

    @classmethod
    def cub200(cls) -> LIMITSettings:
        """40 epochs of 24 batches, with the rate halved after 20."""
        return cls(lr=0.0019, period=0.5, decay=0.5)


@method(
    "limit",
    title="LIMIT: sampled multi-phase tasks",
    paper="TPAMI 2022",
    link="https://arxiv.org/abs/2203.17030",
    code="https://github.com/zhoudw-zdw/TPAMI-Limit",
)
class LIMIT(Evolving):
    """Tasks of all base classes, some of them known by one shot only."""

    settings = LIMITSettings()

    def task(self, base: Session) -> tuple[Tensor, Tensor, Tensor]:
        """Classifiers (base, d), some of them prototypes of few shots, and queries of all classes with labels."""
        shot = self.settings.shot
        images = base.features[draw_each(base.labels, shot + self.settings.queries, self.generator)]
        way = min(self.settings.way, self.base // 2)
        new = torch.randperm(self.base, generator=self.generator, device=self.device)[:way]
        prototypes = self.prototypes.clone()
        prototypes[new] = images[new, :shot].mean(1)
        labels = torch.arange(self.base, device=self.device).repeat_interleave(self.settings.queries)
        return prototypes, images[:, shot:].flatten(0, 1), labels
