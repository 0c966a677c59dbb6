"""FACL (Nema and Kurmi, "Strategic Base Representation Learning via Feature Augmentations for Few-Shot Class
Incremental Learning", WACV 2025).

SAVC with a changed base session: the feature of each turned picture is averaged with that of another turned picture of
the batch and keeps its label. These averages are proxy classes between classes, and hold the space there for new ones.

The published figures are no target. The authors' code averages at test time too, and their test batches of a hundred
are sorted by class, so that on CIFAR-100 and mini-ImageNet each turned test picture is averaged with others of its own
true class: its answer depends on the labels of the other pictures in the batch. `facl:leak=true` does the same, to show
what that is worth; it breaks the contract of methods, and its figures are no result.

Here: features are averaged in training only, so each test picture is scored by itself; with four fantasies each is
averaged with one of the same turn; all else is as in our SAVC.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from concm.methods.registry import method
from concm.methods.savc import SAVC, Fantasies, SAVCSettings
from concm.records import setting
from concm.training.distributed import gather
from concm.training.recipe import Schedule


@dataclass(frozen=True)
class FACLSettings(SAVCSettings):
    """The settings of SAVC, and the switch for what the authors' code does at test time."""

    leak: bool = setting(
        False,
        "Average turned test pictures with others of their batch, as the authors' code does (chosen: not).",
    )


TEST_BATCH = 100
"""Pictures in a test batch of the authors' code, all of one class in CIFAR-100 and mini-ImageNet."""


class Proxies(Fantasies):
    """SAVC's losses, with the features of turned pictures averaged in pairs; keys are not averaged."""

    schedule = Schedule(epochs=600, batch=64, lr=0.1, warmup=0, weight_decay=5e-4)
    later = ("test_views", "leak")

    def read(self, crops: Tensor, chance: Tensor, first: int) -> Tensor:
        """Features (n, crops, fantasies, d), the turned ones averaged with those of another picture."""
        features = super().read(crops, chance, first)
        upright, turned = features[:, :, :1], features[:, :, 1:]
        others = gather(turned)[partners(gather(chance))[first : first + len(chance)]]
        return torch.cat([upright, (turned + others) / 2], 2)


def partners(chance: Tensor) -> Tensor:
    """A partner for each of n pictures: the next one in a random ring, ordered by uniform numbers (n,)."""
    ring = chance.argsort()
    return ring.roll(-1)[ring.argsort()]


@method(
    "facl",
    title="FACL: SAVC with turned features mixed in training",
    paper="WACV 2025",
    link="https://arxiv.org/abs/2501.09361",
    code="https://github.com/Parinitanema/FACL",
    group="own base session",
    objective=Proxies,
)
class FACL(SAVC):
    """SAVC's scores on the features of FACL's base session."""

    settings = FACLSettings()

    def scores(self, features: Tensor) -> Tensor:
        """SAVC's scores; with the leak, those of features that were averaged with others of the test batch."""
        if not self.settings.leak:
            return super().scores(features)
        random = torch.Generator(self.device).manual_seed(self.seed)
        return torch.cat(
            [super(FACL, self).scores(self._leaked(part, random)) for part in torch.split(features, TEST_BATCH)]
        )

    def _leaked(self, batch: Tensor, random: torch.Generator) -> Tensor:
        """A test batch (n, fantasies · d) with each turned feature averaged with another one's of the same turn."""
        views = batch.to(self.device).reshape(len(batch), self.chunks, -1)
        chance = torch.rand(len(batch), generator=random, device=self.device)
        turned = (views[:, 1:] + views[partners(chance), 1:]) / 2
        return torch.cat([views[:, :1], turned], 1).flatten(1)
