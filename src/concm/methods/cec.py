"""CEC: continually evolved classifiers (Zhang, Song, Lin, Zheng, Pan and Xu, CVPR 2021).

The classifiers of all sessions are nodes of a graph. One attention layer lets every class see all others and the query
before they are compared; it is learned in pseudo-incremental episodes, where copies of base classes play the new ones.
Later sessions add prototypes and train nothing.

Here: only the attention is trained, the encoder stays as it is. There are 150 episodes with 4 queries of each class, at
a rate of 0.0067, where the authors have 5,000 with 15, at 0.0002. The published copies are rotated pictures; features
cannot be rotated, so every image of a pseudo-new class is mixed half and half with one of any class. That makes it weak
and scattered, as this encoder's features are for classes that it was not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.engine.descent import SGD, descend, falling
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.registry import method
from concm.records import Checked, setting

DROPOUT = 0.5
"""Dropout of the attention's output (authors' code); drawn once per episode for all nodes."""


@dataclass(frozen=True)
class CECSettings(Checked):
    """The settings of CEC; for mini-ImageNet and CUB200 the paper changes only the encoder's rate and `queries`."""

    way: int = setting(
        15,
        "Base classes in an episode, with as many pseudo-new ones (authors' code); all if there are fewer.",
        least=1,
    )
    shot: int = setting(1, "Images behind each prototype of an episode (authors' code).", least=1)
    queries: int = setting(
        4,
        "Images of each class to be recognised in an episode (chosen: for speed; authors' code: 15, CUB200 10).",
        least=1,
    )
    scale: float = setting(16.0, "Scale of the cosines (authors' code: temperature 16).", above=0)
    steps: int = setting(150, "Number of episodes (chosen: for speed; authors' code: 100 × 50).", least=0)
    lr: float = setting(
        0.0067, "Rate of SGD (chosen: the authors' .0002, raised to get as far in fewer steps).", above=0
    )
    period: float = setting(
        0.2,
        "Share of the steps after which the rate falls, each time again (authors' code: 20 of 100 epochs).",
        above=0,
    )
    decay: float = setting(0.5, "Factor of the rate after each period (authors' code).")


class Lines(NamedTuple):
    """Refined prototypes before layer norm, centred: start + share · (end − moved) for each query and prototype.

    `start` and `moved` are (c, d), `end` is (n, d) and `share` (n, c).
    """

    start: Tensor
    end: Tensor
    moved: Tensor
    share: Tensor

    def products(self, directions: Tensor) -> Tensor:
        """Inner products (n, c) with one direction for each query (n, d)."""
        step = (directions * self.end).sum(1, keepdim=True) - directions @ self.moved.T
        return directions @ self.start.T + self.share * step

    def squares(self, weight: Tensor) -> Tensor:
        """Sums of squares (n, c) with a weight for each dimension (d,)."""
        start, end, moved, share = self
        first = (weight * start**2).sum(1)
        cross = end @ (weight * start).T - (weight * start * moved).sum(1)
        last = (end**2) @ weight[:, None] - 2 * end @ (weight * moved).T + (weight * moved**2).sum(1)
        return first + share * (2 * cross + share * last)


class Attention(nn.Module):
    """Graph attention of prototypes and one query: one head, a residual connection and layer norm (authors' code)."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dimension, dimension, bias=False) for _ in range(3))
        self.out = nn.Linear(dimension, dimension)
        self.norm = nn.LayerNorm(dimension)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, prototypes: Tensor, queries: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cosines (n, c) after each query (n, d), one at a time, and the prototypes (c, d) have attended to each other.

        A query moves a prototype along a line, x = a + α (v − m), and layer norm and cosine on a line are functions of
        inner products, so the n·c·d numbers of the refined prototypes are never made. `mask` (d,) is for dropout.
        """
        among, seen, seeing, values, brought = self._parts(prototypes, queries)
        bias: Tensor = self.out.bias
        if mask is not None:
            values, brought, bias = values * mask, brought * mask, bias * mask
        share = (seen - among.logsumexp(1)).sigmoid()
        own = among.softmax(1) @ values
        rows = seeing.softmax(1)
        query = self.norm(queries + rows[:, :-1] @ values + rows[:, -1:] * brought + bias)
        start, end, moved = (v - v.mean(1, keepdim=True) for v in (prototypes + own + bias, brought, own))
        lines = Lines(start, end, moved, share)
        spread = self._spread(lines)
        product, square = self._products(query, lines, spread), self._squares(lines, spread)
        cosines: Tensor = product / (query.norm(dim=1, keepdim=True) * square.clamp_min(1e-12).sqrt())
        return cosines

    def _spread(self, lines: Lines) -> Tensor:
        """The standard deviation (n, c) of each refined prototype, by which layer norm divides it."""
        ones = torch.ones_like(self.norm.weight)
        return (lines.squares(ones) / len(ones) + self.norm.eps).sqrt()

    def _products(self, query: Tensor, lines: Lines, spread: Tensor) -> Tensor:
        """Inner products (n, c) of refined queries (n, d) with the refined prototypes after layer norm."""
        return lines.products(query * self.norm.weight) / spread + (query @ self.norm.bias)[:, None]

    def _squares(self, lines: Lines, spread: Tensor) -> Tensor:
        """Squared lengths (n, c) of the refined prototypes after layer norm."""
        gain, offset = self.norm.weight, self.norm.bias
        scaled = lines.squares(gain**2) / spread**2
        return scaled + 2 * lines.products((gain * offset).expand_as(lines.end)) / spread + offset.square().sum()

    def _parts(self, prototypes: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Logits among prototypes (c, c), of these for queries (n, c) and of queries (n, c + 1); values of both."""
        root = prototypes.shape[1] ** -0.5
        asks, asked = self.query(prototypes) * root, self.query(queries) * root
        keys, key = self.key(prototypes), self.key(queries)
        seeing = torch.cat([asked @ keys.T, (asked * key).sum(1, keepdim=True)], 1)
        values, brought = (F.linear(self.value(nodes), self.out.weight) for nodes in (prototypes, queries))
        return asks @ keys.T, key @ asks.T, seeing, values, brought


class Evolving(Learner):
    """Prototypes that an attention adapts to each other and to the query; subclasses define the tasks of training."""

    kept = ("prototypes",)
    prototypes: Tensor
    settings: Any

    def build(self) -> None:
        """Make the attention, for features of `dimension`."""
        self.attention = Attention(self.dimension).to(self.device)

    def task(self, base: Session) -> tuple[Tensor, Tensor, Tensor]:
        """Prototypes (c, d), queries (n, d) and their labels (n,)."""
        raise NotImplementedError

    def fit_base(self, base: BaseSession) -> None:
        """Take the means over all base images and learn the attention in many tasks."""
        base = self.begin(base)
        self.prototypes = base.mean
        settings = self.settings
        rates = falling(settings.lr, settings.steps, settings.period, settings.decay)

        def loss() -> Tensor:
            prototypes, queries, labels = self.task(base)
            return self.episode_loss(prototypes, queries, labels, settings.scale)

        descend(self.attention.parameters(), loss, rates, SGD(nesterov=True, weight_decay=5e-4))

    def learn(self, session: Session) -> None:
        """Add the mean of each new class's shots; the attention stays as it is."""
        self.prototypes = torch.cat([self.prototypes, session.to(self.device).class_means()])

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Cosine to every prototype after the attention."""
        scores: Tensor = self.attention(self.prototypes, features.to(self.device))
        return scores

    def episode_loss(self, prototypes: Tensor, queries: Tensor, labels: Tensor, scale: float) -> Tensor:
        """Cross-entropy of scaled cosines in one episode."""
        mask = (torch.rand(self.dimension, generator=self.generator, device=self.device) >= DROPOUT) / (1 - DROPOUT)
        return F.cross_entropy(scale * self.attention(prototypes, queries, mask), labels)


@method(
    "cec",
    title="CEC: continually evolved classifiers",
    paper="CVPR 2021",
    link="https://arxiv.org/abs/2104.03047",
    code="https://github.com/icoz69/CEC-CVPR2021",
)
class CEC(Evolving):
    """Episodes of some base classes and blurred copies of them."""

    settings = CECSettings()

    def task(self, base: Session) -> tuple[Tensor, Tensor, Tensor]:
        """An episode: prototypes of few shots (2 way, d), and queries with labels of the same classes."""
        shot, queries = self.settings.shot, self.settings.queries
        images = pseudo_incremental(base, self.settings.way, shot + queries, self.generator)
        labels = torch.arange(len(images), device=self.device).repeat_interleave(queries)
        return images[:, :shot].mean(1), images[:, shot:].flatten(0, 1), labels


def pseudo_incremental(base: Session, way: int, each: int, generator: torch.Generator) -> Tensor:
    """(2 way, each, d): images of some base classes, then others of the same, each mixed with an image of any class."""
    old, new = (base.features[draw_each(base.labels, each, generator)] for _ in range(2))
    some = torch.randperm(len(old), generator=generator, device=old.device)[:way]
    others = torch.randint(len(base.labels), (len(some), each), generator=generator, device=old.device)
    return torch.cat([old[some], (new[some] + base.features[others]) / 2])


def draw_each(labels: Tensor, each: int, generator: torch.Generator) -> Tensor:
    """(classes, each) rows of images drawn from every class; they repeat only if a class has fewer images."""
    shuffled = torch.randperm(len(labels), generator=generator, device=labels.device)
    order = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()[:, None]
    return order[counts.cumsum(0) - counts + torch.arange(each, device=labels.device) % counts]
