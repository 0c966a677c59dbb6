"""Joint training: a classifier trained from scratch at every session on all images seen so far, classes counting alike.

It is the usual upper reference of incremental learning, on the same frozen features; no few-shot learner may keep so
many images. (Balanced joint training is argued for in "Does Prior Data Matter?", arXiv 2503.10003.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.features.sessions import BaseSession, Session, rows_by_class
from concm.methods.base import Learner
from concm.methods.imprint import BaseTraining, learned_rows
from concm.methods.registry import POOL, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class JointSettings(Checked):
    """The settings of joint training, all of them ours, since there is no paper."""

    scale: float = setting(16.0, "Scale of the cosines (chosen: that of CEC's cosine classifier).", above=0)
    training: BaseTraining = setting(BaseTraining(), "Training of the classifier at every session.")


@method(
    "joint",
    title="joint training on all images seen",
    paper="reference",
    link="https://arxiv.org/abs/2503.10003",
    code="https://github.com/shiwonkim/Joint_FSCIL",
    group="reference",
    needs=(POOL, "exemplars: all images"),
)
class Joint(Learner):
    """A cosine classifier trained on all images of all classes seen."""

    settings = JointSettings()
    kept = ("images", "labels")

    def fit_base(self, base: BaseSession) -> None:
        """Keep the base images and train on them."""
        base = self.begin(base)
        self.images, self.labels = base.features, base.labels
        self._train(base)

    def learn(self, session: Session) -> None:
        """Keep all images of the new classes and train on everything."""
        assert session.pool is not None
        images, labels = (part.to(self.device) for part in session.pool)
        self.images, self.labels = torch.cat([self.images, images]), torch.cat([self.labels, labels])
        self._train(session.to(self.device))

    def _train(self, session: Session) -> None:
        """Train from scratch, on all images, those of smaller classes as often as makes all classes count alike."""
        classes = range(session.classes.stop)
        own = rows_by_class(self.labels, len(classes))
        most = torch.arange(max(map(len, own)), device=self.device)
        rows = torch.cat([each[most % len(each)] for each in own])
        balanced = replace(session, classes=classes, features=self.images[rows], labels=self.labels[rows])

        def loss(cosines: Tensor, labels: Tensor, _: Tensor) -> Tensor:
            return F.cross_entropy(self.settings.scale * cosines, labels)

        self.weights = learned_rows(balanced, loss, [], self.settings.training, self.generator)

    def scores(self, features: Tensor) -> Tensor:
        """Cosine to every row."""
        return F.normalize(features.to(self.device)) @ self.weights.T

    @property
    def parameter_count(self) -> int:
        """Number of weights in the rows."""
        return self.weights.numel()
