"""The base class of methods that go on training the backbone: a copy of it, and pictures instead of features."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from concm import backbones
from concm.data import augment
from concm.data.transform import Transform
from concm.errors import Misuse
from concm.features.sessions import BaseSession
from concm.methods.base import Learner
from concm.records import from_json


class PictureLearner(Learner):
    """A learner with its own copy of the backbone, `network`, always in eval mode, so that batch statistics stay."""

    values = (*Learner.values, "backbone", "transform")
    network: nn.Module

    def __init__(self, settings: Any = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(settings, seed=seed, device=device)
        self.backbone = ""
        self.transform: dict[str, object] = {}

    def begin(self, base: BaseSession) -> BaseSession:
        """Begin as `Learner.begin` does, and copy the backbone."""
        if base.backbone is None or base.pictures is None:
            raise Misuse(
                "this method trains the backbone on pictures: make the bank with `concm features --keep-pictures`"
            )
        self.backbone, self.transform = base.backbone.name, asdict(base.backbone.transform)
        moved = super().begin(base)
        self.network.load_state_dict(base.backbone.backbone.state_dict())
        return moved

    def build(self) -> None:
        """Make the network, of the backbone's form; subclasses add heads."""
        self.network = self.another()

    def another(self) -> nn.Module:
        """A network of the backbone's form, with weights still to be loaded."""
        return backbones.registered(self.backbone).build().to(self.device).eval()

    @torch.no_grad()
    def features(self, pictures: Tensor) -> Tensor:
        """Features (n, d) of pictures (n, h, w, 3) as at test time, without gradients."""
        return torch.cat([self.network(self.how.centre(part.to(self.device))) for part in torch.split(pictures, 256)])

    def views(self, pictures: Tensor) -> Tensor:
        """Images (n, 3, s, s) for a network, each shifted and mirrored at random."""
        random = torch.rand(len(pictures), augment.RANDOMS, generator=self.generator, device=self.device)
        return self.how.normalise(augment.weak(pictures, random, self.how.size))

    @property
    def how(self) -> Transform:
        """The transform of pictures for the network."""
        return from_json(Transform, self.transform)
