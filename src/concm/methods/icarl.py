"""iCaRL (Rebuffi, Kolesnikov, Sperl and Lampert, "iCaRL: Incremental Classifier and Representation Learning",
CVPR 2017).

A few pictures of each class are kept, chosen one after the other so that their mean stays near the class's (herding).
Each session trains the whole network on new pictures and kept ones: new outputs by their labels, old outputs towards
what they were before (distillation), each output a sigmoid of its own. The trained outputs only shape the features: a
picture belongs to the class whose kept pictures have the nearest mean.

Here: the base session trains sigmoid outputs on the shared backbone's features and leaves the backbone as it is; batch
statistics stay those of the base session; the outputs see unit features, as the nearest mean does, and new ones begin
at zero; sessions are shorter, at a smaller rate than the paper's, which is for a network that begins at random. All
shots of a novel class are kept, since there are so few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.descent import SGD, descend, stepped
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session, class_means
from concm.methods.picture_base import PictureLearner
from concm.methods.registry import EXEMPLARS, PICTURES, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class ICaRLSettings(Checked):
    """The settings of iCaRL, with the paper's values for CIFAR-100 except for the schedule."""

    memory: int = setting(2000, "Pictures kept in all, equally many of each class seen so far (paper).", least=1)
    epochs: int = setting(
        20, "Passes over new and kept pictures in each session (chosen: about 300 steps; paper: 70).", least=0
    )
    base_epochs: int = setting(
        10,
        "Epochs of training the base classes' outputs on features (chosen: the backbone is trained already; paper: 70 "
        "with the backbone).",
        least=0,
    )
    batch: int = setting(128, "Pictures in a step (paper).", least=1)
    lr: float = setting(
        0.1,
        "Rate of SGD in sessions, for losses that are means over outputs (chosen: the paper's 2 breaks a trained "
        "backbone).",
        least=0,
    )
    base_lr: float = setting(2.0, "Rate of SGD for the base classes' outputs (paper).", least=0)
    weight_decay: float = setting(1e-5, "Weight decay of SGD (paper).", least=0)

    @property
    def needs(self) -> tuple[str, ...]:
        """Pictures, and the budget of exemplars for all classes together."""
        return PICTURES, f"{EXEMPLARS}: {self.memory} pictures in all"


@method(
    "icarl",
    title="iCaRL: herded exemplars, distillation, nearest mean",
    paper="CVPR 2017",
    link="https://arxiv.org/abs/1611.07725",
    group="updates the backbone",
)
class ICaRL(PictureLearner):
    """The network, one output (row) for each class, exemplars in the order they were chosen in, and their means."""

    settings = ICaRLSettings()
    kept = ("exemplars", "labels", "means")

    def fit_base(self, base: BaseSession) -> None:
        """Train the base classes' outputs on features, and choose their exemplars."""
        base, settings = self.begin(base), self.settings
        assert base.pictures is not None
        units = F.normalize(base.features)
        self.rows = torch.zeros(self.base, self.dimension, device=self.device)
        targets = F.one_hot(base.labels, self.base).float()
        self._descend([], lambda chosen: units[chosen], targets, settings.base_epochs, settings.base_lr)
        self.exemplars, self.labels = base.pictures[:0], base.labels[:0]
        self._keep(base.pictures, base.labels, units, self.base)

    def learn(self, session: Session) -> None:
        """Train everything on new and kept pictures, old outputs towards what they were; then choose exemplars."""
        session, settings = session.to(self.device), self.settings
        assert session.pictures is not None
        pictures = torch.cat([session.pictures, self.exemplars])
        labels = torch.cat([session.labels, self.labels])
        new = F.one_hot(labels, session.classes.stop)[:, session.classes.start :].float()
        targets = torch.cat([torch.sigmoid(F.normalize(self.features(pictures)) @ self.rows.T), new], 1)
        self.rows = F.pad(self.rows, (0, 0, 0, len(session.classes)))

        def units_of(chosen: Tensor) -> Tensor:
            return F.normalize(self.network(self.views(pictures[chosen])))

        self._descend(list(self.network.parameters()), units_of, targets, settings.epochs, settings.lr)
        units = F.normalize(self.features(session.pictures))
        self._keep(session.pictures, session.labels, units, session.classes.stop)

    def _descend(
        self, weights: list[Tensor], read: Callable[[Tensor], Tensor], targets: Tensor, epochs: int, lr: float
    ) -> None:
        """Train the rows, and the `weights` behind the unit features that `read` gives, to targets (n, classes).

        The rate falls to a fifth after 7/10 and 9/10 of the steps, as in the paper.
        """
        rows, drawn = self.rows.clone().requires_grad_(), self._batches(len(targets))

        def loss() -> Tensor:
            chosen = next(drawn)
            return F.binary_cross_entropy_with_logits(read(chosen) @ rows.T, targets[chosen])

        steps = epochs * math.ceil(len(targets) / self.settings.batch)
        descend(
            [rows, *weights], loss, stepped(lr, steps, 0.2, (0.7, 0.9)), SGD(weight_decay=self.settings.weight_decay)
        )
        self.rows = rows.detach()

    def _batches(self, count: int) -> Iterator[Tensor]:
        while True:
            order = torch.randperm(count, generator=self.generator, device=self.device)
            yield from torch.split(order, self.settings.batch)

    def _keep(self, pictures: Tensor, labels: Tensor, units: Tensor, seen: int) -> None:
        """Keep the first exemplars of old classes and herd those of new ones, within the budget; take their means."""
        each = self.settings.memory // seen
        if not each:
            raise Misuse(
                f"icarl keeps {self.settings.memory} pictures, which is less than one of each of {seen} classes"
            )
        old = [(self.labels == label).nonzero().flatten()[:each] for label in torch.unique(self.labels)]
        new = []
        for label in torch.unique(labels):
            own = (labels == label).nonzero().flatten()
            new.append(own[herded(units[own], each)])
        chosen, added = torch.cat([self.labels[:0], *old]), torch.cat(new)
        self.exemplars = torch.cat([self.exemplars[chosen], pictures[added]])
        self.labels = torch.cat([self.labels[chosen], labels[added]])
        units = F.normalize(self.features(self.exemplars))
        self.means = F.normalize(class_means(units, self.labels, range(seen)))

    def scores(self, pictures: Tensor) -> Tensor:
        """Cosine to the mean of each class's exemplars: among unit vectors, the nearest has the largest."""
        return F.normalize(self.features(pictures)) @ self.means.T

    @property
    def parameter_count(self) -> int:
        """Number of weights in the network and the outputs."""
        return super().parameter_count + self.rows.numel()


def herded(vectors: Tensor, count: int) -> Tensor:
    """Indices of the vectors (n, d) whose running mean stays nearest to the mean of all, in the order chosen."""
    mean, total = vectors.mean(0), torch.zeros_like(vectors[0])
    left = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    chosen = []
    for size in range(1, min(count, len(vectors)) + 1):
        away = (mean - (total + vectors) / size).square().sum(1)
        best = torch.where(left, away, torch.inf).argmin()
        left[best] = False
        total = total + vectors[best]
        chosen.append(best)
    return torch.stack(chosen)
