"""C-FSCIL: constrained few-shot class-incremental learning (Hersche, Karunaratne and others, CVPR 2022).

One fully connected layer maps features of a frozen backbone to a wide space where the prototypes of different classes
are quasi-orthogonal; few-shot episodes over all base classes teach it that. The mean feature of every class is kept, so
that the layer can be realigned: not at all (mode 1), to the signs of the prototypes (mode 2), or to prototypes that
were nudged away from each other (mode 3).

Here: episodes train the layer alone, 1,500 of them instead of 70 000, and base means are over all images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.engine.descent import SGD, descend, falling
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.cec import draw_each
from concm.methods.registry import method
from concm.records import Checked, setting


@dataclass(frozen=True)
class CFSCILSettings(Checked):
    """The settings of C-FSCIL; the paper has the same values for mini-ImageNet and does not use CUB200."""

    mode: Literal[1, 2, 3] = setting(
        2,
        "How the layer is realigned: 1 not at all, 2 to bipolar prototypes, 3 to nudged ones (chosen of the paper's "
        "three: the best on one draw of an earlier bank's test images).",
    )
    width: int = setting(512, "Dimensions of the wide space (paper).", least=1)
    steepness: float = setting(10.0, "Steepness of the softabs that turns cosines into attention (paper).", above=0)
    shot: int = setting(5, "Images of each base class behind a prototype of an episode (authors' code).", least=1)
    queries: int = setting(2, "Images of each base class to be recognised in an episode (chosen: for speed).", least=1)
    steps: int = setting(
        1500,
        "Number of episodes (chosen: a few hundred hardly train the layer and so flatter the method; paper: 70 000).",
        least=0,
    )
    lr: float = setting(
        0.01,
        "Rate in the episodes, divided by ten after 3/7 of them and again after 6/7 (authors' code: 30 000 of 70 000).",
        above=0,
    )
    bipolar_steps: int = setting(10, "Steps of realignment in mode 2 (authors' code).", least=0)
    nudge_steps: int = setting(100, "Steps that move the prototypes in mode 3 (authors' code).", least=0)
    nudge_lr: float = setting(0.1, "Rate of the prototypes in mode 3 (authors' code).", above=0)
    align_steps: int = setting(50, "Steps of realignment in mode 3 (authors' code).", least=0)
    align_lr: float = setting(0.01, "Rate of realignment (authors' code).", above=0)


class Hyperdimensional(Learner):
    """A trained layer to a wide space, and the mean feature of each class; subclasses define the loss of an episode."""

    kept = ("means",)
    settings: Any

    def build(self) -> None:
        """Make the layer, for features of `dimension`."""
        self.layer = nn.Linear(self.dimension, self.settings.width, bias=False).to(self.device)

    def fit_base(self, base: BaseSession) -> None:
        """Take the means over all base images and learn the layer in episodes of all base classes."""
        base = self.begin(base)
        self.means = base.mean
        settings = self.settings
        labels = torch.arange(self.base, device=self.device).repeat_interleave(settings.queries)

        def loss() -> Tensor:
            images = self.layer(base.features[draw_each(base.labels, settings.shot + settings.queries, self.generator)])
            prototypes, queries = images[:, : settings.shot].mean(1), images[:, settings.shot :].flatten(0, 1)
            return self.episode_loss(similarity(queries, prototypes), labels)

        rates = falling(settings.lr, settings.steps, 3 / 7, 0.1)
        descend(self.layer.parameters(), loss, rates, SGD(nesterov=True, weight_decay=5e-4))

    def learn(self, session: Session) -> None:
        """Add the mean of each new class's shots."""
        self.means = torch.cat([self.means, session.to(self.device).class_means()])

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Similarity to the prototypes, which are the class means mapped by the layer."""
        return similarity(self.layer(features.to(self.device)), self.layer(self.means))

    def episode_loss(self, similarities: Tensor, labels: Tensor) -> Tensor:
        """The loss of one episode, from similarities (n, classes)."""
        raise NotImplementedError


@method(
    "c_fscil",
    title="C-FSCIL: constrained, hyperdimensional",
    paper="CVPR 2022",
    link="https://arxiv.org/abs/2203.16588",
    code="https://github.com/IBM/constrained-FSCIL",
)
class CFSCIL(Hyperdimensional):
    """Quasi-orthogonal prototypes by a sharp attention, realigned as the mode says."""

    settings = CFSCILSettings()

    def fit_base(self, base: BaseSession) -> None:
        """Learn the layer and align it with the base prototypes."""
        super().fit_base(base)
        self.align()

    def learn(self, session: Session) -> None:
        """Add the new classes and align the layer with all prototypes."""
        super().learn(session)
        self.align()

    def episode_loss(self, similarities: Tensor, labels: Tensor) -> Tensor:
        """Log-loss of the attention."""
        return log_loss(softabs(similarities, self.settings.steepness), labels)

    def align(self) -> None:
        """Move the prototypes, then the layer after them."""
        settings = self.settings
        if settings.mode == 1:
            return
        prototypes = self.layer(self.means).detach()
        if settings.mode == 2:
            targets, steps = prototypes.sign(), settings.bipolar_steps
        else:
            targets, steps = nudged(prototypes, settings.nudge_steps, settings.nudge_lr), settings.align_steps

        def loss() -> Tensor:
            return -F.cosine_similarity(self.layer(self.means).tanh(), targets.tanh()).mean()

        descend(self.layer.parameters(), loss, [settings.align_lr] * steps, SGD(nesterov=True))


def similarity(embedded: Tensor, prototypes: Tensor) -> Tensor:
    """(n, d), (c, d) → (n, c): cosine after tanh, which keeps single dimensions from dominating."""
    return F.normalize(embedded.tanh()) @ F.normalize(prototypes.tanh()).T


def softabs(similarities: Tensor, steepness: float) -> Tensor:
    """A function close to one at ±1 and to zero at 0, so that orthogonal classes do not count."""
    return (steepness * (similarities - 0.5)).sigmoid() + (steepness * (-similarities - 0.5)).sigmoid()


def log_loss(attention: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropies of the attention's share in each class (n, c), summed over classes."""
    shares = attention / attention.sum(1, keepdim=True)
    truth = F.one_hot(labels, attention.shape[1]).to(shares.dtype)
    return F.binary_cross_entropy(shares, truth, reduction="sum") / len(labels)


def nudging_loss(moved: Tensor, prototypes: Tensor) -> Tensor:
    """Loss that pushes pairs of prototypes towards orthogonality and holds each near where it was."""
    cosines = similarity(moved, moved)
    pairs = ~torch.eye(len(moved), dtype=torch.bool, device=moved.device)
    apart = ((4 * cosines).exp() + (-4 * cosines).exp() - 2)[pairs].sum() / max(1, int(pairs.sum()))
    return apart + (1 - F.cosine_similarity(moved.tanh(), prototypes.tanh())).mean()


def nudged(prototypes: Tensor, steps: int, lr: float) -> Tensor:
    """Prototypes (c, d) after some steps of descent on `nudging_loss`."""
    moved = prototypes.clone().requires_grad_()
    descend([moved], lambda: nudging_loss(moved, prototypes), [lr] * steps, SGD(nesterov=True))
    return moved.detach()
