"""What is remembered of a class once its pictures are gone: mean, spread, count, and a few exemplars.

Everything after the base session is trained on samples drawn from here, so no picture is needed again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.data.sessions import Session


@dataclass
class Memory:
    """Statistics (n, d) of all classes seen so far, and exemplar features (m, d) of the novel ones with their views."""

    mean: Tensor
    std: Tensor
    counts: Tensor
    exemplars: Tensor
    labels: Tensor
    views: Tensor
    base: int

    @classmethod
    def of_base(cls, session: Session) -> Memory:
        """The base classes: exact statistics, and no exemplar of any."""
        assert session.mean is not None
        assert session.std is not None
        assert session.counts is not None
        empty = session.features.new_empty(0, session.features.shape[1])
        views = session.views.shape[1] if session.views is not None else 0
        return cls(
            mean=session.mean,
            std=session.std,
            counts=session.counts,
            exemplars=empty,
            labels=session.labels.new_empty(0),
            views=empty.new_empty(0, views, empty.shape[1]),
            base=len(session.classes),
        )

    def add(self, session: Session, mean: Tensor, std: Tensor, *, replay: int) -> None:
        """Remember a session's classes by their (calibrated) means and spreads, with `replay` exemplars each."""
        first = session.classes.start
        counts = torch.bincount(session.labels - first, minlength=len(session.classes))
        kept = torch.cat([(session.labels == label).nonzero().flatten()[:replay] for label in session.classes])
        # A shot without views stands in for them.
        views = session.features[kept][:, None].expand(-1, self.views.shape[1], -1)
        views = views if session.views is None else session.views[kept]
        self.mean = torch.cat([self.mean, mean])
        self.std = torch.cat([self.std, std])
        self.counts = torch.cat([self.counts, counts])
        self.exemplars = torch.cat([self.exemplars, session.features[kept]])
        self.labels = torch.cat([self.labels, session.labels[kept]])
        self.views = torch.cat([self.views, views])

    def sample(self, per_class: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Gaussian features, `per_class` (n,) of each class (Eq. 18), and their labels, in the order of classes."""
        labels = torch.arange(len(self.mean), device=self.mean.device).repeat_interleave(per_class)
        noise = torch.randn(
            len(labels), self.mean.shape[1], generator=generator, device=self.mean.device, dtype=self.mean.dtype
        )
        return self.mean[labels] + self.std[labels] * noise, labels

    @property
    def bytes(self) -> int:
        """How much it takes."""
        tensors = (getattr(self, item.name) for item in fields(self) if item.name != "base")
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def spread(own: Tensor, prototypes: Tensor, base_mean: Tensor, base_std: Tensor, beta: float, gamma: float) -> Tensor:
    """Spread of novel classes (n, d): their own and that of similar base classes, β(σ_k + Σ_b ω_bk σ_b).

    Classes with similar means have similar spreads; `gamma` says how similar one must be to count. (The paper writes
    covariance, its code uses standard deviations; so do we.)
    """
    similarity = F.normalize(prototypes) @ F.normalize(base_mean).T
    borrowed = (gamma * similarity).softmax(1) @ base_std
    return beta * (own + borrowed)


def class_statistics(session: Session, *, with_views: bool) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation (classes, d) of a session's shots, or of the shots and all their views."""
    features = session.features[:, None]
    if with_views and session.views is not None:
        features = torch.cat([features, session.views], 1)
    mean, std = [], []
    for label in session.classes:
        own = features[session.labels == label].flatten(0, 1)
        mean.append(own.mean(0))
        std.append(own.std(0, correction=0))
    return torch.stack(mean), torch.stack(std)
