"""What is kept of a class when its pictures are gone: mean, spread, count, and a few exemplars.

Everything after the base session is trained on samples drawn from here, so no picture is needed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.state import Growing, count_bytes
from concm.features.sessions import BaseSession, Session, rows_by_class

Around = Literal["exemplars", "prototype"]
PAIRS = 10**7
"""Pairs of classes that are compared at a time."""


class Memory(Growing):
    """Statistics (n, d) of all classes seen so far, and exemplar features (m, d) of the novel ones with their views.

    `mean` are the prototypes, calibrated where that is done, and `shown` the plain means of the images. `held` with
    `held_labels` are base images that were held out, as vectors whose products with unit vectors are those of an image
    that the metric has not seen (`Metric.as_if_unseen`), and `apart` are the base classes' means without them.
    """

    def __init__(
        self,
        mean: Tensor,
        std: Tensor,
        counts: Tensor,
        exemplars: Tensor,
        labels: Tensor,
        views: Tensor,
        held: Tensor,
        held_labels: Tensor,
        apart: Tensor,
        base: int,
    ) -> None:
        super().__init__()
        self.mean, self.shown, self.std, self.counts = mean, mean, std, counts
        self.exemplars, self.labels, self.views = exemplars, labels, views
        self.held, self.held_labels, self.apart = held, held_labels, apart
        self.base = base

    @classmethod
    def of_base(cls, session: BaseSession, held: Tensor | None = None) -> Memory:
        """A memory of the base classes: exact statistics, no exemplars, and the images that `held` (n,) marks."""
        held = torch.zeros_like(session.labels, dtype=torch.bool) if held is None else held
        empty = session.features.new_empty(0, session.features.shape[1])
        views = session.views.shape[1] if session.views is not None else 0
        apart = session.mean
        if session.held is None and held.any():
            count = torch.bincount(session.labels[~held], minlength=len(session.classes))
            apart = class_sums(session.features[~held], session.labels[~held], len(count)) / count.clamp(min=1)[:, None]
            apart = torch.where((count > 0)[:, None], F.normalize(apart), session.mean)
        return cls(
            mean=session.mean,
            std=session.std,
            counts=session.counts,
            exemplars=empty,
            labels=session.labels.new_empty(0),
            views=empty.new_empty(0, views, empty.shape[1]),
            held=session.features[held],
            held_labels=session.labels[held],
            apart=apart,
            base=len(session.classes),
        )

    @classmethod
    def empty(cls) -> Memory:
        """An empty memory, into which a state can be loaded."""
        nothing = torch.empty(0)
        return cls(nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, 0)

    def get_extra_state(self) -> Tensor:
        """The number of base classes."""
        return torch.tensor(self.base)

    def set_extra_state(self, state: Tensor) -> None:
        """Inverse of `get_extra_state`."""
        self.base = int(state)

    def add(self, session: Session, mean: Tensor, std: Tensor, *, replay: int) -> None:
        """Remember a session's classes by their means and spreads, with `replay` exemplars each."""
        first = session.classes.start
        counts = torch.bincount(session.labels - first, minlength=len(session.classes))
        kept = torch.cat([rows[:replay] for rows in rows_by_class(session.labels - first, len(session.classes))])
        if session.views is not None and not len(self.exemplars):
            self.views = session.views[:0]
        # Every exemplar has as many views as the first one; a shot takes the place of views that it lacks.
        views = session.features[:, None] if session.views is None else session.views
        views = views[kept][:, torch.arange(self.views.shape[1]) % views.shape[1]]
        self.mean = torch.cat([self.mean, mean])
        self.shown = torch.cat([self.shown, mean])
        self.std = torch.cat([self.std, std])
        self.counts = torch.cat([self.counts, counts])
        self.exemplars = torch.cat([self.exemplars, session.features[kept]])
        self.labels = torch.cat([self.labels, session.labels[kept]])
        self.views = torch.cat([self.views, views])

    def forget(self, label: int) -> None:
        """Drop a class; later classes move up by one."""
        kept = torch.arange(len(self.mean), device=self.mean.device) != label
        images = self.labels != label
        self.mean, self.shown = self.mean[kept], self.shown[kept]
        self.std, self.counts = self.std[kept], self.counts[kept]
        self.exemplars, self.views, labels = self.exemplars[images], self.views[images], self.labels[images]
        self.labels = labels - (labels > label).long()
        if label < self.base:
            held = self.held_labels != label
            self.held, labels = self.held[held], self.held_labels[held]
            self.held_labels = labels - (labels > label).long()
            self.apart = self.apart[kept[: self.base]]
            self.base -= 1

    def revise(self, session: Session, mean: Tensor, std: Tensor, *, replay: int) -> None:
        """Replace the statistics and exemplars of one known class."""
        label = session.classes.start
        before = (self.mean, self.shown, self.std, self.counts)
        others = self.labels != label
        self.exemplars, self.views, self.labels = self.exemplars[others], self.views[others], self.labels[others]
        self.add(session, mean, std, replay=0 if label < self.base else replay)
        for name, old in zip(("mean", "shown", "std", "counts"), before, strict=True):
            value = getattr(self, name)
            setattr(self, name, torch.cat([old[:label], value[-1:], old[label + 1 :]]))
        if label < self.base:  # what is left without images held out moves as the whole does
            moved = F.normalize(self.mean[label], dim=0) - F.normalize(before[0][label], dim=0)
            apart = self.apart[label]
            own = apart.norm() * F.normalize(F.normalize(apart, dim=0) + moved, dim=0)
            self.apart = torch.cat([self.apart[:label], own[None], self.apart[label + 1 :]])

    def sampler(self, per_base: int, per_novel: int, *, noise: float, around: Around) -> Sampler:
        """A sampler that draws so many features of each class: Gaussian, with the class's spread times `noise`.

        Base classes are drawn around their means (Eq. 18). Novel ones are drawn around their `exemplars` and views,
        moved along with the calibrated prototype; or, as in the paper, around the `prototype` itself, with as many
        exemplars and views added unchanged. Without exemplars there is only the prototype.
        """
        classes = len(self.mean)
        images = torch.cat([self.exemplars[:, None], self.views], 1)
        each = images.shape[1]
        order = self.labels.argsort(stable=True)
        counts = torch.bincount(self.labels, minlength=classes)
        starts = classes + each * (counts.cumsum(0) - counts)
        images = images[order]
        if around == "exemplars":
            centre = class_sums(images.mean(1), self.labels[order], classes) / counts.clamp(min=1)[:, None]
            moved = self.mean - centre
            images = images + moved[self.labels[order], None]
        centres = torch.cat([self.apart, self.mean[self.base :], images.flatten(0, 1)])
        every = torch.arange(classes, device=self.mean.device)
        has = counts > 0

        def around_means(chosen: Tensor, samples: int) -> tuple[Tensor, ...]:
            labels = chosen.repeat_interleave(samples)
            return labels, labels, torch.ones_like(labels), torch.full_like(self.mean[labels, 0], noise)

        def around_images(chosen: Tensor, samples: int, noise: float) -> tuple[Tensor, ...]:
            labels = chosen.repeat_interleave(samples)
            return labels, starts[labels], counts[labels] * each, torch.full_like(self.mean[labels, 0], noise)

        novel, replayed = every[self.base :], has[self.base :]
        if around == "exemplars":
            later = [around_images(novel[replayed], per_novel, noise), around_means(novel[~replayed], per_novel)]
        else:
            later = [around_means(novel, per_novel), around_images(novel[replayed], per_novel, 0.0)]
        groups = [around_means(every[: self.base], per_base), *later]
        labels, first, count, scale = (torch.cat(parts) for parts in zip(*groups, strict=True))
        return Sampler(centres, self.std, labels, first, count, scale[:, None])

    @property
    def bytes(self) -> int:
        """Bytes that the memory takes."""
        return count_bytes(self.buffers())


@dataclass(frozen=True)
class Sampler:
    """Draws features with the same `labels` (n,) at every call, without waiting for the host.

    Row i is drawn around one of `count[i]` centres from `first[i]` on, with its class's spread times `scale[i]`.
    """

    centres: Tensor
    std: Tensor
    labels: Tensor
    first: Tensor
    count: Tensor
    scale: Tensor

    def __call__(self, generator: torch.Generator) -> Tensor:
        """Features (n, d)."""
        like: dict[str, Any] = {"generator": generator, "device": self.centres.device, "dtype": self.centres.dtype}
        pick = self.first + (torch.rand(len(self.labels), **like) * self.count).long()
        noise = torch.randn(len(self.labels), self.centres.shape[1], **like)
        return torch.addcmul(self.centres[pick], self.scale * self.std[self.labels], noise)

    def batch(self, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features and labels of all rows, or of `most` random rows, so that the cost of a step is bounded."""
        if len(self.labels) <= most:
            return self(generator), self.labels
        rows = torch.randint(len(self.labels), (most,), generator=generator, device=self.labels.device)
        parts = (self.labels, self.first, self.count, self.scale)
        some = Sampler(self.centres, self.std, *(part[rows] for part in parts))
        return some(generator), some.labels


def class_sums(values: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Sum (classes, d) of each class's rows, added in the same order on any device, so that results are repeatable."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels, minlength=classes)
    place = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels[order]]
    table = values.new_zeros(classes, max(1, int(counts.max())), values.shape[1])
    table[labels[order], place] = values[order]
    return table.sum(1)


def spread(own: Tensor, prototypes: Tensor, base_mean: Tensor, base_std: Tensor, beta: float, gamma: float) -> Tensor:
    """Spread of novel classes (n, d): their own and that of similar base classes, β(σ_k + Σ_b ω_bk σ_b).

    Classes with similar means have similar spreads. (The paper writes covariance, but its code uses standard
    deviations, as we do.)
    """
    return beta * (own + borrowed(prototypes, base_mean, base_std, gamma))


def borrowed(prototypes: Tensor, base_mean: Tensor, values: Tensor, gamma: float) -> Tensor:
    """Values (n, d) that prototypes take over from base classes; `gamma` says how similar one must be to count."""
    known = F.normalize(base_mean)
    some = torch.split(F.normalize(prototypes), max(1, PAIRS // len(known)))  # so that memory is bounded
    return torch.cat([(gamma * (few @ known.T)).softmax(1) @ values for few in some])


def class_statistics(session: Session, *, with_views: bool) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation (classes, d) of a session's shots, or of the shots and all their views."""
    features = session.features[:, None]
    if with_views and session.views is not None:
        features = torch.cat([features, session.views], 1)
    mean, std = [], []
    for rows in rows_by_class(session.labels - session.classes.start, len(session.classes)):
        own = features[rows].flatten(0, 1)
        own = own if len(own) else torch.zeros_like(own.new_empty(1, features.shape[-1]))  # known by its name alone
        mean.append(own.mean(0))
        std.append(own.std(0, correction=0))
    return torch.stack(mean), torch.stack(std)
