"""Rehearsing on the base classes what is to come: some of them play new ones, some of their photos are held out.

So a store learns, before anything depends on it, whether attributes help with its kind of classes, how far to trust a
score, and what is usual for photos that it has not seen. Nothing of it is worth much where the backbone was trained on
these very photos: then figures from validation banks take its place (docs/photos.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.classifier.confidence import SHRINKAGE, Usual, expected_scores, likeness
from concm.engine.concm import Engine
from concm.engine.memory import class_sums
from concm.engine.settings import Settings
from concm.features.sessions import BaseSession, Session
from concm.metrics import accuracies, confusion
from concm.progress import track

SHOTS = 5
ENOUGH_CLASSES = 20
"""From how many base classes on their rehearsal decides whether attributes are used; with fewer they are not."""
STEPS = 100
TEMPERATURE = 1 / 30
"""Where the temperature stays when there is little to learn it from (CUB's base classes: 1/33, 1/25 with few)."""


@dataclass(frozen=True)
class Plan:
    """What the rehearsal came to."""

    settings: Settings
    usual: Usual
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Scene:
    """Scores of held-out photos by an engine that was taught part of the classes; `classes` are its columns."""

    scores: Tensor
    truth: Tensor
    base: int
    classes: Tensor
    bias: Tensor
    likeness: Tensor
    exemplars: Tensor
    counts: Tensor

    @property
    def taken(self) -> Tensor:
        """What each photo was taken for, as a column."""
        return self.scores.argmax(1)

    @property
    def old(self) -> Tensor:
        """Whether each photo is of a base class."""
        return self.truth < self.base

    @property
    def raw(self) -> Tensor:
        """The scores without what is added to those of novel classes."""
        return self.scores - self.bias

    @property
    def own(self) -> Tensor:
        """The raw score of each photo's own class."""
        return self.raw.gather(1, self.truth[:, None])[:, 0]

    def harmonic_mean(self) -> float:
        """Of accuracy on base and on new classes."""
        return accuracies(confusion(self.truth, self.taken, len(self.classes)), self.base).hm

    def excess(self, expected: Tensor, seen: Tensor, common: Tensor) -> Tensor:
        """By how much each photo's best raw score exceeds what is expected of the class it was taken for.

        A photo that helped to say what is usual for its class is not judged by that: its share is taken out.
        """
        taken, old = self.taken, self.old
        novel = expected_scores(self.likeness, self.exemplars, self.counts, common)[self.base :]
        usual = torch.cat([expected[self.classes[: self.base]], novel])[taken]
        right = old & (taken == self.truth)
        helpers = seen[self.classes[self.truth[right]]]
        usual[right] = ((helpers + SHRINKAGE) * usual[right] - self.own[right]) / (helpers + SHRINKAGE - 1)
        return self.raw.gather(1, taken[:, None])[:, 0] - usual


def rehearse(base: BaseSession, settings: Settings | None, *, unseen: bool, seed: int = 0, device: str = "cpu") -> Plan:
    """Settings, where none are given, and what is usual; `unseen` says that the backbone has not seen these photos."""
    counts = torch.bincount(base.labels, minlength=len(base.classes))
    if not unseen:
        chosen = settings or Settings()
        engine = Engine(chosen, seed=seed, device=device)
        engine.fit_base(base)
        return Plan(chosen, _assumed(engine, base))
    if int(counts.max()) < 2:
        remark = "one photo a class does not tell what is usual: nothing will be called unknown"
        chosen = settings or Settings(calibrate=False)
        flat = torch.zeros(2)
        usual = Usual(
            torch.zeros(len(counts)), torch.tensor(chosen.likeness), flat, flat + 1, flat[:0], _temperature([])
        )
        return Plan(chosen, usual, [remark])
    candidates = [settings or Settings(calibrate=False)]
    if settings is None and len(base.classes) >= ENOUGH_CLASSES:
        candidates.append(Settings())
    splits = 5 if len(base.labels) < 1000 else 3
    work = [(candidate, split) for candidate in candidates for split in range(splits)]
    played = [_scene(base, candidate, split, splits, seed, device) for candidate, split in track(work, "rehearsing")]
    scenes = [played[at * splits : (at + 1) * splits] for at in range(len(candidates))]
    best = max(range(len(candidates)), key=lambda at: np.mean([scene.harmonic_mean() for scene in scenes[at]]))
    return Plan(candidates[best], _usual(scenes[best], len(base.classes), candidates[best]))


def _scene(base: Session, settings: Settings, split: int, splits: int, seed: int, device: str) -> _Scene:
    """One class in `splits` plays a new one of a few shots; of the others, one photo in `splits` is held out."""
    random = np.random.default_rng(seed)
    total = len(base.classes)
    part = torch.from_numpy(random.permutation(total) % splits) if total >= 4 else torch.full((total,), -1)
    old, new, train, test, shots, others = [], [], [], [], [], []
    for label in range(total):
        rows = (base.labels == label).nonzero().flatten()
        rows = rows[torch.from_numpy(random.permutation(len(rows)))]
        taught = min(SHOTS, len(rows) // 2)
        if part[label] != split:
            held = torch.arange(len(rows)) % splits == split if len(rows) > 1 else torch.zeros(1, dtype=torch.bool)
            old.append(label)
            train.append(rows[~held])
            test.append(rows[held])
        elif taught:
            new.append(label)
            shots.append(rows[:taught])
            others.append(rows[taught:])
    engine = Engine(settings, seed=seed, device=device)
    engine.fit_base(BaseSession.of(_session(base, 0, old, train, 0)))
    if new:
        engine.learn(_session(base, 1, new, shots, len(old)))
    groups = test + others
    truth = torch.cat([torch.full((len(rows),), at) for at, rows in enumerate(groups)])
    own, exemplars = likeness(engine)
    return _Scene(
        scores=engine.scores(base.features[torch.cat(groups)]).cpu(),
        truth=truth,
        base=len(old),
        classes=torch.tensor(old + new),
        bias=engine.head.bias.cpu(),
        likeness=own,
        exemplars=exemplars,
        counts=engine.memory.counts.cpu(),
    )


def _session(base: Session, index: int, classes: list[int], rows: list[Tensor], first: int) -> Session:
    labels = torch.cat([torch.full((len(own),), first + at) for at, own in enumerate(rows)])
    names = tuple(base.names[label] for label in classes)
    return Session(index, range(first, first + len(classes)), names, base.features[torch.cat(rows)], labels, None)


def _usual(scenes: list[_Scene], classes: int, settings: Settings) -> Usual:
    """Expected scores of the base classes, and how far known photos' scores lie from what is expected."""
    alike = torch.cat([scene.likeness[scene.exemplars > 1] for scene in scenes])
    common = alike.mean() if len(alike) else torch.tensor(settings.likeness)
    expected, seen = _expected(scenes, classes)
    excess = [scene.excess(expected, seen, common) for scene in scenes]
    shift, width, familiar = _fit(
        torch.cat([beyond[scene.taken < scene.base] for scene, beyond in zip(scenes, excess, strict=True)]),
        torch.cat([beyond[scene.taken >= scene.base] for scene, beyond in zip(scenes, excess, strict=True)]),
    )
    return Usual(expected, common, shift, width, _quantiles(familiar), _temperature(scenes))


def _expected(scenes: list[_Scene], classes: int) -> tuple[Tensor, Tensor]:
    """The usual score (classes,) of held-out photos of each base class, near the common one where there are few."""
    values = torch.cat([scene.own[scene.old] for scene in scenes])
    labels = torch.cat([scene.classes[scene.truth[scene.old]] for scene in scenes])
    seen = torch.bincount(labels, minlength=classes)
    sums = class_sums(values[:, None], labels, classes)[:, 0]
    return (sums + SHRINKAGE * values.mean()) / (seen + SHRINKAGE), seen


def _fit(base: Tensor, novel: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and spread (2,) of the excess of base and novel classes, and all photos' familiarity by them.

    Where too few photos were taken for novel classes, both groups share one mean and spread.
    """
    apart = len(novel) >= 10 and len(base) > 0
    both = [base, novel] if apart else [torch.cat([base, novel])] * 2
    shift = torch.stack([part.mean() for part in both])
    width = torch.stack([_spread(part) for part in both]).clamp(min=1e-3)
    familiar = torch.cat([(part - shift[at]) / width[at] for at, part in enumerate(both[: 1 + apart])])
    return shift, width, familiar


def _spread(values: Tensor) -> Tensor:
    """The standard deviation that the next value has from the mean of these."""
    return values.std(correction=min(1, len(values) - 1)) * math.sqrt(1 + 1 / len(values))


def _quantiles(familiar: Tensor) -> Tensor:
    """Of known photos' familiarity at equal steps: as found where five photos or more lie beyond, else as if normal."""
    steps = torch.linspace(0, 1, STEPS + 1, dtype=torch.float64)
    found = familiar.double().quantile(steps)
    normal = torch.special.ndtri(steps.clamp(1e-4, 1 - 1e-4))
    enough = len(familiar) * torch.minimum(steps, 1 - steps) >= 5
    return torch.where(enough, found, normal).cummax(0).values.float()


def _temperature(scenes: list[_Scene]) -> Tensor:
    """That makes the held-out labels most likely, held near a common value where there are few."""
    candidates = torch.logspace(math.log10(1 / 200), math.log10(0.3), 60)
    costs = [
        sum(float(F.cross_entropy(scene.scores / value, scene.truth, reduction="sum")) for scene in scenes)
        + 10 * math.log(float(value) / TEMPERATURE) ** 2
        for value in candidates
    ]
    return candidates[int(np.argmin(costs))]


def _assumed(engine: Engine, base: BaseSession) -> Usual:
    """For a backbone that was trained on these photos: they lie closer to their class than new ones will."""
    scores = engine.scores(base.features).cpu()
    own = scores.gather(1, base.labels[:, None])
    counts = torch.bincount(base.labels, minlength=len(base.classes)).clamp(min=1)
    expected = class_sums(own, base.labels, len(base.classes))[:, 0] / counts
    normal = torch.special.ndtri(torch.linspace(0, 1, STEPS + 1).clamp(1e-4, 1 - 1e-4))
    return Usual(
        base=expected,
        likeness=torch.tensor(SEEN["likeness"]),
        shift=torch.tensor([SEEN["base_shift"], SEEN["novel_shift"]]),
        width=torch.tensor([SEEN["base_width"], SEEN["novel_width"]]),
        quantiles=normal,
        temperature=torch.tensor(SEEN["temperature"]),
    )


SEEN = {
    "likeness": 0.3,
    "base_shift": -0.075,
    "base_width": 0.125,
    "novel_shift": 0.03,
    "novel_width": 0.098,
    "temperature": 1 / 16,
}
"""Of a ResNet-12 and classes that it was trained on, beside others, on two validation banks (bench/unknown.py)."""
