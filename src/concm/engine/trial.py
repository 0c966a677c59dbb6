"""A trial of what the engine knows: scores of base images held out, and of novel shots left out of their prototypes.

No test image takes part, and none is needed: the operating point and the confidence are found on these scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.head import Head
from concm.engine.metric import softened
from concm.engine.operating import IMPUTED, Lean, leads, matched, operating_point, taken_together
from concm.engine.prior import cosine

if TYPE_CHECKING:
    from concm.engine.concm import Engine

MOST = 2000
"""Images of each kind that are tried at most, so that the cost of a trial is bounded."""
FEW = 4096
"""Classes up to which so many images are tried; beyond, their number falls with the root of that of the classes."""
LOST = 0.01
"""Share of the images tried that a class known by its name alone may cost."""


@dataclass(frozen=True)
class Trial:
    """Prototype scores and labels of held-out base images, of which their own classes' prototypes know nothing, and of
    left-out novel shots.

    `held` and `shots` are their features; `expected` (novel classes,) is the cosine to its prototype that a new image
    of each class is expected to have, by the number of its shots; `seen` marks the classes that have any; `copies` are
    the rows that stand for each shot.
    """

    held: Tensor
    shots: Tensor
    base_scores: Tensor
    base_labels: Tensor
    novel_scores: Tensor
    novel_labels: Tensor
    expected: Tensor
    seen: Tensor
    count: int
    copies: int

    @classmethod
    @torch.no_grad()
    def of(cls, engine: Engine) -> Trial:
        """Try what the engine knows now."""
        memory = engine.memory
        base = memory.base
        prototypes = F.normalize(memory.mean)
        some = _some(memory.held_labels, engine.seed, len(prototypes))
        held, held_labels = F.normalize(memory.held[some]), memory.held_labels[some]
        length = 1.0 if engine.metric is None else memory.held[some].norm(dim=1, keepdim=True)
        left = _left_out(engine, prototypes)
        seen = memory.counts[base:] > 0
        shown = length * softened(held, engine.reach)
        apart = engine.whole * (shown * F.normalize(memory.apart)[held_labels]).sum(1)
        plain = (shown @ prototypes.T).scatter(1, held_labels[:, None], apart[:, None])
        own = (left.scores, left.labels, left.expected)
        return cls(held, left.shots, plain, held_labels, *own, seen=seen, count=base, copies=left.copies)

    @torch.no_grad()
    def total(self, head: Head) -> tuple[Tensor, Tensor]:
        """Scores (n, classes) and labels (n,) of all images tried, with the structure's share and the bias.

        The structure has seen the shots: its score of a shot's own class is lowered as much as the prototype's is.
        """
        plain = torch.cat([self.base_scores, self.novel_scores])
        labels = torch.cat([self.base_labels, self.novel_labels])
        if not head.structured:
            return plain.add_(head.bias), labels
        features = torch.cat([self.held, self.shots])
        structural = head.structural(features)
        column = self.novel_labels[:, None]
        shown = softened(self.shots, head.reach)
        seen = (shown @ head.prototypes.T).gather(1, column).clamp(min=1e-6)
        lowered = structural[len(self.held) :].gather(1, column) * (self.novel_scores.gather(1, column) / seen)
        structural[len(self.held) :] = structural[len(self.held) :].scatter(1, column, lowered)
        return head.share * plain + (1 - head.share) * structural + head.bias, labels

    @torch.no_grad()
    def lift(self, head: Head, lean: Lean) -> tuple[Tensor, list[float]]:
        """What is added to the score of each novel class, and the constant behind it with the accuracies expected.

        The structure has seen the shots, so its own constant is the one that costs it as many held-out base images.
        Of a class without any image nothing can be tried: it is left out here, and lifted only so far that few
        others are lost to it.
        """
        count, seen = self.count, self.seen | ~self.seen.any()
        usual = self.expected[seen].mean()
        offset = usual - self.expected
        tried = torch.where(seen, offset, -torch.inf)
        base, novel = self.base_scores.clone(), self.novel_scores.clone()
        base[:, count:] += tried
        novel[:, count:] += tried
        if len(novel):
            point = operating_point((base, self.base_labels), (novel, self.novel_labels), count, lean)
            constant, accuracies = point.constant, [point.base, point.novel]
        else:  # no shot was kept: the expected scores are made level
            right = self.base_scores.gather(1, self.base_labels[:, None])
            constant, accuracies = float(right.mean() - usual) if len(right) else 0.0, []
        lift = constant + offset
        if head.structured:
            share, structural = float(head.share), head.structural(self.held)
            among = torch.cat([structural[:, :count], structural[:, count:].masked_fill(~seen, -torch.inf)], 1)
            other = matched(leads(base, count), constant, leads(among, count))
            lift = share * lift + (1 - share) * other
        if len(base) and not self.seen.all():
            lift = torch.where(self.seen, lift, lift.minimum(self._room(head, lift)))
        return lift, [constant, *accuracies]

    def _room(self, head: Head, lift: Tensor) -> Tensor:
        """How far each novel class (classes,) may be lifted if few images tried, of either kind, are lost to it."""
        found = []
        for features, plain in ((self.held, self.base_scores), (self.shots, self.novel_scores)):
            if len(features):
                total = plain
                if head.structured:
                    total = head.share * plain + (1 - head.share) * head.structural(features)
                base, novel = total[:, : self.count], total[:, self.count :]
                best = torch.cat([base, (novel + lift).masked_fill(~self.seen, -torch.inf)], 1).amax(1, keepdim=True)
                found.append((best - novel).quantile(LOST, 0))
        return torch.stack(found).amin(0)


def _some(labels: Tensor, seed: int, classes: int) -> Tensor:
    """Rows of at most `MOST` images, and fewer where there are very many classes."""
    most = round(MOST * min(1.0, FEW / classes) ** 0.5)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:most]
    return order.sort().values.to(labels.device)


@dataclass(frozen=True)
class _LeftOut:
    """Novel shots, each left out of its own prototype; the fields are those of a trial."""

    scores: Tensor
    labels: Tensor
    shots: Tensor
    expected: Tensor
    copies: int = 1


@dataclass(frozen=True)
class _Names:
    """What the names of the novel classes predict (classes, d), and how far each of them may miss (classes,)."""

    engine: Engine
    predicted: Tensor
    miss: Tensor

    @classmethod
    def of(cls, engine: Engine) -> _Names:
        """Of an engine; names that say nothing predict nothing, and may miss by any length."""
        if engine.prior is not None:
            return cls(engine, *engine.predicted())
        novel = engine.memory.mean[engine.memory.base :]
        return cls(engine, torch.zeros_like(novel), novel.new_full((len(novel),), torch.inf))

    def expected(self, rows: Tensor, count: Tensor, said: Tensor, likeness: Tensor) -> Tensor:
        """The cosine that a new image is expected to have to a prototype of `count` shots and the name."""
        share = self.engine.trusted(self.miss[rows], likeness, count)
        return cosine(likeness, said, self.predicted[rows].square().sum(1), share, count)


def _left_out(engine: Engine, prototypes: Tensor) -> _LeftOut:
    """Each shot's scores, its own class's as if it were new; at most so many shots as bound the cost.

    A shot is left out of its prototype with all shots that were taken together with it. A single shot cannot be left
    out: its own score is imputed, at several places of the distribution that held-out images of base classes have.
    """
    memory, base, names = engine.memory, engine.memory.base, _Names.of(engine)
    alike = engine.likeness()[base:]
    some = _some(memory.labels, engine.seed, len(prototypes))
    shots, labels = F.normalize(memory.exemplars[some]), memory.labels[some]
    said = (shots * names.predicted[labels - base]).sum(1)
    found = _LeftOut(softened(shots, engine.reach) @ prototypes.T, labels, shots, _by_class(names, said, alike))
    if not len(shots):
        return found
    own, alone = _own(names, found, some, said, alike)
    if not alone.any():
        return replace(found, scores=found.scores.scatter(1, labels[:, None], own[:, None]))
    own = torch.where(alone[:, None], _imputed(names, found, alone, said, alike), own[:, None]).flatten()
    scores, labels, shots = (part.repeat_interleave(IMPUTED, 0) for part in (found.scores, labels, shots))
    return _LeftOut(scores.scatter(1, labels[:, None], own[:, None]), labels, shots, found.expected, IMPUTED)


def _by_class(names: _Names, said: Tensor, alike: Tensor) -> Tensor:
    """The cosine (classes,) that a new image of each novel class is expected to have to its prototype.

    Classes differ by their number of shots alone: what a few shots say of their own class would be mostly noise.
    """
    engine, counts = names.engine, names.engine.memory.counts[names.engine.memory.base :]
    every, shots = torch.arange(len(counts), device=counts.device), counts.clamp(min=1)
    usual = said.mean() if len(said) else names.predicted.norm(dim=1).mean() / 2
    plain = names.expected(every, counts, usual.expand(len(counts)), alike.mean().expand(len(counts)))
    gain, strength = (engine.single.gain, engine.pull.strength) if engine.draws else (0.0, 0.0)
    return plain + torch.where(counts > 0, gain * (1 + strength) / (shots + strength), 0.0)


def _own(names: _Names, found: _LeftOut, some: Tensor, said: Tensor, alike: Tensor) -> tuple[Tensor, Tensor]:
    """Each shot's score (n,) with what is left of its class without it, and whether nothing is left (n,).

    What is left is drawn to its neighbours as a prototype of all shots is, and the score is raised by as much as such a
    one is expected to do better beside that.
    """
    engine, memory = names.engine, names.engine.memory
    at = found.labels - memory.base
    counts = memory.counts[memory.base :].clamp(min=1)[at]
    whole = torch.cat([memory.exemplars[some, None], memory.views[some]], 1).mean(1)
    groups = taken_together(found.shots, found.labels, 2 - 2 * alike.mean())
    same = groups[:, None] == groups
    nearly_all = (same.sum(1) >= counts)[:, None]
    same = torch.where(nearly_all, torch.eye(len(at), dtype=torch.bool, device=at.device), same).to(found.shots.dtype)
    left = counts - same.sum(1)
    rest = (counts[:, None] * memory.shown[found.labels] - same @ whole) / left.clamp(min=1)[:, None]
    kept = engine.drawn(engine.completed(rest, names.predicted[at], names.miss[at], alike[at], left), counts)
    own = (F.normalize(kept) * softened(found.shots, engine.reach)).sum(1)
    own = own + names.expected(at, counts, said, alike[at]) - names.expected(at, left.clamp(min=1), said, alike[at])
    return own, left < 1


def _imputed(names: _Names, found: _LeftOut, alone: Tensor, said: Tensor, alike: Tensor) -> Tensor:
    """What a single shot would score with its own class (n, places), by what held-out images of base classes do."""
    engine, base = names.engine, names.engine.memory.base
    at = found.labels - base
    gain = engine.single.gain if engine.draws else 0.0
    beside = found.scores[:, :base].amax(1) if base else torch.zeros_like(said)
    guess = names.expected(at, engine.memory.counts[base:].clamp(min=1)[at], said, alike[at])
    guess = guess + gain + engine.single.slope * (beside - beside[alone].mean())
    places = torch.special.ndtri((torch.arange(IMPUTED, device=at.device) + 0.5) / IMPUTED).to(found.shots.dtype)
    imputed: Tensor = guess[:, None] + engine.single.spread * places
    return imputed
