"""FACL (Nema and Kurmi, "Strategic Base Representation Learning via Feature Augmentations for Few-Shot Class
Incremental Learning", WACV 2025).

SAVC with a changed base session: the feature of each turned picture is averaged with that of another turned picture of
the batch and keeps its label. These averages are proxy classes between classes, and hold the space there for new ones.

The published figures are no target. The authors' code averages at test time too, and their test batches of a hundred
are sorted by class, so that on CIFAR-100 and mini-ImageNet each turned test picture is averaged with others of its own
true class: its answer depends on the labels of the other pictures in the batch.

Here: features are averaged in training only, so each test picture is scored by itself; with four fantasies each is
averaged with one of the same turn; all else is as in our SAVC.
"""

from __future__ import annotations

import torch
from torch import Tensor

from concm.methods.registry import method
from concm.methods.savc import SAVC, Fantasies
from concm.training.distributed import gather
from concm.training.recipe import Schedule


class Proxies(Fantasies):
    """SAVC's losses, with the features of turned pictures averaged in pairs; keys are not averaged."""

    schedule = Schedule(epochs=600, batch=64, lr=0.1, warmup=0, weight_decay=5e-4)

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
    group="own base session",
    objective=Proxies,
)
class FACL(SAVC):
    """SAVC's scores on the features of FACL's base session."""
