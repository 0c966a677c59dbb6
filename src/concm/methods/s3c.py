"""S3C (Kalla and Biswas, "S3C: Self-Supervised Stochastic Classifiers for Few-Shot Class-Incremental Learning",
ECCV 2022).

A classifier's row is a distribution: a mean and a spread, from which a row is drawn at every step, so that rows of few
shots are not taken for certain. And every picture is learned in its four quarter turns, each with rows of its own, so
that features hold more than the base classes need. A session begins with class means for rows, and trains all rows and
spreads, on the shots and on one mean of each earlier class. A picture's scores are the mean over its turns.

Here: ResNet-12 as in the other rows, where the authors have ResNet-20; their attention, over one token and so a layer
with a residual, is left out; noise is read from a long table of random numbers, at a random place in every step; the
rate of the base session falls along a cosine; and its last epoch counts instead of the best on test images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.data import augment
from concm.engine.descent import SGD, descend
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.registry import method
from concm.methods.savc import mean_cosines
from concm.records import Checked, setting
from concm.training.distributed import gather
from concm.training.objective import Objective, Stage
from concm.training.recipe import Schedule

TURNS = 4
NOISE = 1 << 20
"""Numbers in the table of noise."""


@dataclass(frozen=True)
class S3CSettings(Checked):
    """The settings of S3C, with the authors' values for CIFAR-100."""

    scale: float = setting(16.0, "Scale of the cosines (authors' code).", above=0)
    narrow: float = setting(4.0, "Spreads are softplus(spread − this), so 0.02 at first (authors' code).")
    steps: int = setting(100, "Steps of a session, each over all that there is (authors' code).", least=0)
    lr: float = setting(0.01, "Rate of the sessions (authors' code).", above=0)
    kept: float = setting(5.0, "Weight of the loss on means of earlier classes (authors' code).", least=0)


class TurnedAndStochastic(Objective):
    """Cross-entropy over classes × turns, with rows that are drawn anew at every step."""

    schedule = Schedule(epochs=200, batch=128, lr=0.1, warmup=0, weight_decay=5e-4)
    later = ("steps", "lr", "kept")
    turns = tuple(range(TURNS))
    settings: S3CSettings
    noise: Tensor

    def __init__(self, stage: Stage, settings: S3CSettings) -> None:
        super().__init__(stage, settings)
        self.rows = nn.Parameter(0.01 * torch.randn(stage.classes * TURNS, stage.dimension))
        self.spreads = nn.Parameter(torch.zeros_like(self.rows))
        self.register_buffer("noise", torch.randn(NOISE))

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """The loss of one step."""
        views = augment.weak(pixels, random[:, 0], self.transform.size)
        turned = [augment.turn(views, torch.full_like(labels, turn)) for turn in self.turns]
        features = self.backbone(self.ready(torch.cat(turned))).float()
        wanted = torch.cat([TURNS * labels + turn for turn in self.turns])
        place = (gather(random[:, 0, -1])[0] * NOISE).long()
        steps = torch.arange(self.rows.numel(), device=labels.device)
        noise = self.noise[(place + steps) % NOISE].view_as(self.rows)
        with torch.autocast(features.device.type, enabled=False):
            rows = drawn(self.rows.float(), self.spreads.float(), noise, self.settings.narrow)
            scores = self.settings.scale * F.linear(F.normalize(features), F.normalize(rows))
        loss = F.cross_entropy(scores, wanted)
        return {"cross_entropy": loss, "loss": loss}

    def classify(self, features: Tensor) -> Tensor:
        """The mean over turns of the cosines to the rows' means."""
        return mean_cosines(features.view(len(features), TURNS, -1), self.rows.view(self.classes, TURNS, -1))

    def learned(self) -> dict[str, Tensor]:
        """The rows (classes · turns, d) and their spreads."""
        return {"rows": self.rows, "spreads": self.spreads}


def drawn(rows: Tensor, spreads: Tensor, noise: Tensor, narrow: float) -> Tensor:
    """Rows of which each number is drawn: its mean, and noise times its spread."""
    return rows + F.softplus(spreads - narrow) * noise


@method(
    "s3c",
    title="S3C: stochastic classifiers of pictures in four turns",
    paper="ECCV 2022",
    link="https://arxiv.org/abs/2307.02246",
    code="https://github.com/JAYATEJAK/S3C",
    group="own base session",
    objective=TurnedAndStochastic,
)
class S3C(Learner):
    """Rows and spreads for each class and turn, and one mean of each class."""

    settings = S3CSettings()
    kept = ("rows", "spreads", "means")

    def fit_base(self, base: BaseSession) -> None:
        """Take over the classifier of the base session, and the means of upright pictures."""
        if not {"rows", "spreads"} <= base.learned.keys():
            raise Misuse("s3c goes on with the classifier of its base session: train with `concm train --method s3c`")
        base = self.begin(base)
        self.rows, self.spreads = (base.learned[name].to(self.device) for name in ("rows", "spreads"))
        self.means = self._turns(base.mean)[:, 0].contiguous()

    def learn(self, session: Session) -> None:
        """Begin with the means of the shots, and train all rows and spreads."""
        session = session.to(self.device)
        means = self._turns(session.class_means())
        rows = torch.cat([self.rows, means.flatten(0, 1)])
        spreads = torch.cat([self.spreads, torch.zeros_like(means.flatten(0, 1))])
        shots = self._turns(session.features)
        turns = torch.arange(TURNS, device=self.device)
        earlier = TURNS * torch.arange(len(self.means), device=self.device)
        self._train(rows, spreads, shots.flatten(0, 1), (TURNS * session.labels[:, None] + turns).flatten(), earlier)
        self.means = torch.cat([self.means, means[:, 0]])

    def _train(self, rows: Tensor, spreads: Tensor, shots: Tensor, wanted: Tensor, earlier: Tensor) -> None:
        settings, seen = self.settings, F.normalize(torch.cat([self.means, shots]))
        trained = [rows.clone().requires_grad_(), spreads.clone().requires_grad_()]

        def loss() -> Tensor:
            noise = torch.randn(rows.shape, generator=self.generator, device=self.device)
            scores = settings.scale * seen @ F.normalize(drawn(trained[0], trained[1], noise, settings.narrow)).T
            old, new = scores[: len(earlier)], scores[len(earlier) :]
            return settings.kept * F.cross_entropy(old, earlier) + F.cross_entropy(new, wanted)

        descend(trained, loss, [settings.lr] * settings.steps, SGD(momentum=0.9, dampening=0.9))
        self.rows, self.spreads = (weight.detach() for weight in trained)

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """The mean over turns of the cosines to the rows' means."""
        return mean_cosines(self._turns(features.to(self.device)), self.rows.view(-1, TURNS, self.rows.shape[1]))

    def _turns(self, features: Tensor) -> Tensor:
        """(n, turns · d) → (n, turns, d)."""
        return features.reshape(len(features), TURNS, -1)
