"""Equal footing: what this library adds to its own engine, for any method that works on features.

The method sees features in the engine's metric, and the views of the shots as further shots, unless it has a use of its
own for them. A constant is added to its novel scores, by the engine's rule: the best one for base images that were held
out of everything, and for shots that were left out. What it would say of a shot that it has not learned cannot be
derived for any method, so it is tried: beside the method stand a few copies of it, each of which learns without some
of the shots. That costs as many times the memory and the seconds of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from concm.engine.concm import HELD_OUT
from concm.engine.metric import AnySession, Metric
from concm.engine.operating import held_out, operating_point, taken_together
from concm.engine.settings import Settings
from concm.engine.state import Stateful, count_bytes
from concm.features.sessions import BaseSession, Session, statistics
from concm.methods.base import Method

FOLDS = 5
"""Copies of the method; each learns without a part of the shots: with five shots, without one of each class."""
MARK = "#"
"""Stands between the name of a method's tensor and the number of the copy whose it is."""


class Footing(Stateful):
    """The metric, the images on which the constant is tried, and the constant.

    `held` are base images and `shots` novel ones, in the metric; `folds` says which copy has not learned each shot.
    """

    values = ("base", "constant", "remarks")
    metric: Metric
    held: Tensor
    held_labels: Tensor
    shots: Tensor
    labels: Tensor
    folds: Tensor

    def __init__(self, *, seed: int, device: str) -> None:
        super().__init__(seed=seed, device=device)
        self.base, self.constant, self.remarks = 0, 0.0, list[str]()

    def rebuild(self, state: Mapping[str, Tensor]) -> None:
        """Make a metric of the state's sizes."""
        matrices = sorted(name for name in state if name.startswith("metric.matrix"))
        self.metric = Metric([state[name] for name in matrices], state["metric.weights"]).to(self.device)

    def begin(self, base: BaseSession) -> BaseSession:
        """The base session in the metric, without the images that are held out."""
        settings, base = Settings(), base.to(self.device)
        held = held_out(base.features, base.labels, HELD_OUT, self.seed) if base.held is None else base.held
        kept, count = ~held, len(base.classes)
        if base.held is None:
            mean, std, counts = statistics(base.features[kept], base.labels[kept], count)
            base = replace(base, mean=mean, std=std, counts=counts).to(self.device)
        self.metric = Metric.whitening(base, settings.whitening or 0.0, kept)
        seen = self.metric.read(some_of(base, kept))
        self.base = count
        self.held, self.held_labels = self.metric(base.features[held]), base.labels[held]
        self.shots, self.labels, self.folds = seen.features[:0], seen.labels[:0], seen.labels[:0]
        return replace(seen, held=None)

    def remember(self, session: Session) -> Tensor:
        """Keep the shots of a session in the metric; the copy (n,) that is not to learn each, −1 where all may.

        Shots that were taken together are left out together, and a class keeps at least one in every copy.
        """
        groups = taken_together(session.features, session.labels)
        folds = torch.full_like(session.labels, -1)
        for label in session.classes:
            own = (session.labels == label).nonzero().flatten()
            place = torch.unique(groups[own], return_inverse=True)[1]
            if len(own) and place.max() > 0:
                folds[own] = place % FOLDS
        some = folds >= 0
        self.shots = torch.cat([self.shots, session.features[some]])
        self.labels = torch.cat([self.labels, session.labels[some]])
        self.folds = torch.cat([self.folds, folds[some]])
        return folds

    def operate(self, copies: list[Method]) -> None:
        """Find the constant with the best expected accuracy, on images that the copies have not learned."""
        if not len(self.shots) or not len(self.held):
            if not self.remarks:
                self.remarks.append("no shot can be left out, so nothing is added to novel scores")
            return
        turn = torch.arange(len(self.held), device=self.device) % len(copies)
        base, novel = (
            torch.cat([copy.scores(images[own == at]) for at, copy in enumerate(copies) if (own == at).any()])
            for images, own in ((self.held, turn), (self.shots, self.folds))
        )
        base_labels, novel_labels = (
            labels[own.argsort(stable=True)] for labels, own in ((self.held_labels, turn), (self.labels, self.folds))
        )
        point = operating_point((base, base_labels), (novel, novel_labels), self.base, Settings().lean)
        self.constant = point.constant


class EqualFooting:
    """A method on the engine's footing; `copies` of it find the constant."""

    def __init__(self, make: Callable[[], Method], *, takes_views: bool, seed: int = 0, device: str = "cpu") -> None:
        self.make, self.takes_views = make, takes_views
        self.footing = Footing(seed=seed, device=device)
        self.methods = [make()]

    def fit_base(self, base: BaseSession) -> None:
        """Learn the metric, and the base classes in it."""
        self.methods[0].fit_base(self.footing.begin(base))
        self.methods += [deepcopy(self.methods[0]) for _ in range(FOLDS)]

    def learn(self, session: Session) -> None:
        """Learn the classes in the metric, in the copies without some shots, and find the constant anew."""
        seen = self.footing.metric.read(session.to(self.footing.device))
        folds = self.footing.remember(seen)
        for at, method in enumerate(self.methods):
            method.learn(self._shown(some_of(seen, folds != at - 1) if at else seen))
        self.footing.operate(self.methods[1:])

    def scores(self, features: Tensor) -> Tensor:
        """The method's scores in the metric, with the constant on those of novel classes."""
        footing = self.footing
        found = self.methods[0].scores(footing.metric(features.to(footing.device)))
        lift = torch.zeros(found.shape[1], dtype=found.dtype, device=found.device)
        lift[footing.base :] = footing.constant
        return found + lift

    def _shown(self, session: Session) -> Session:
        """The session with the views as further shots, if the method does not take views."""
        if self.takes_views or session.views is None:
            return session
        features = torch.cat([session.features, session.views.flatten(0, 1)])
        labels = torch.cat([session.labels, session.labels.repeat_interleave(session.views.shape[1])])
        return replace(session, features=features, labels=labels, views=None)

    def state_dict(self) -> dict[str, Tensor]:
        """The footing's state, and that of the method and each copy."""
        states = [method.state_dict() for method in self.methods]
        inner = {f"{name}{MARK}{at}": value for at, state in enumerate(states) for name, value in state.items()}
        return {**self.footing.state_dict(), **inner}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Inverse of `state_dict`."""
        self.footing.load_state_dict({name: value for name, value in state.items() if MARK not in name})
        self.methods = [self.make() for _ in range(1 + FOLDS)]
        for at, method in enumerate(self.methods):
            end = f"{MARK}{at}"
            method.load_state_dict(
                {name.removesuffix(end): value for name, value in state.items() if name.endswith(end)}
            )

    @property
    def memory_bytes(self) -> int:
        """What the method and its copies keep, the metric, and the images on which the constant is tried."""
        return count_bytes(self.footing.buffers()) + sum(method.memory_bytes for method in self.methods)

    @property
    def parameter_count(self) -> int:
        """Trained weights of the method and its copies."""
        return sum(method.parameter_count for method in self.methods)

    @property
    def copies(self) -> tuple[str, ...]:
        """What the method calls copies of its networks."""
        return tuple(getattr(self.methods[0], "copies", ()))

    @property
    def smr(self) -> float | None:
        """The matching rate of the method's structure, where it has one."""
        return getattr(self.methods[0], "smr", None)

    @property
    def remarks(self) -> list[str]:
        """What the method had to say, and the footing."""
        return [*getattr(self.methods[0], "remarks", []), *self.footing.remarks]


def some_of(session: AnySession, chosen: Tensor) -> AnySession:
    """The session with some of its images (n,)."""
    views = None if session.views is None else session.views[chosen]
    return replace(session, features=session.features[chosen], labels=session.labels[chosen], views=views)
