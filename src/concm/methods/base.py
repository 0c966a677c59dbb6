"""The interface of a method, and a base class with what all methods share: device, generator, state and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from concm.engine.state import Stateful, count_bytes
from concm.features.sessions import BaseSession, Session

NORMS = ("running_mean", "running_var", "num_batches_tracked")
"""Names of the statistics of norms in networks, which count neither as memory nor as parameters."""


class Method(Protocol):
    """What the protocol asks of every method: three verbs, and a state that can be saved and loaded."""

    def fit_base(self, base: BaseSession) -> None:
        """Learn the base classes."""

    def learn(self, session: Session) -> None:
        """Learn a session's classes without forgetting the others."""

    def scores(self, features: Tensor) -> Tensor:
        """Scores (n, classes seen so far) of features (n, d)."""

    def state_dict(self) -> dict[str, Tensor]:
        """All that was learned, as tensors."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Inverse of `state_dict`, into a method of the same settings."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of data that are kept between sessions."""

    @property
    def parameter_count(self) -> int:
        """Number of trained weights; those of the backbone only if the method goes on training it."""


def teach(method: Method, session: Session) -> None:
    """Give a method its next session: `fit_base` for the base session, `learn` for any other."""
    if isinstance(session, BaseSession):
        method.fit_base(session)
    else:
        method.learn(session)


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Steps in which so many images are seen so many times."""
    return round(epochs * math.ceil(images / batch))


def scale_to(size: float, base: BaseSession) -> float:
    """The factor after which the root mean square of the numbers in a base feature is `size`."""
    length = (base.mean.square() + base.std.square()).mean().sqrt()
    return size / float(length.clamp_min(1e-12))


class Learner(Stateful):
    """Base class of the methods; each of them writes `fit_base`, `learn` and `scores`.

    What was learned is kept in attributes: tensors, networks that `build` makes, and the plain values that it names.
    """

    values: ClassVar[tuple[str, ...]] = ("dimension", "base", "layout")
    kept: ClassVar[tuple[str, ...]] = ()
    "Names of the tensors that hold data; `memory_bytes` counts them, beside buffers of networks."
    copies: ClassVar[tuple[str, ...]] = ()
    "Names of the networks that are the backbone as it was handed out; `parameter_count` leaves them out."

    settings: Any = None
    "The default settings, where the method has any; those that are given to the constructor replace them."

    def __init__(self, settings: Any = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(seed=seed, device=device)
        if settings is not None:
            self.settings = settings
        self.dimension = 0
        self.base = 0
        self.layout: list[int] = []

    def begin(self, base: BaseSession) -> BaseSession:
        """The base session on the device, with `dimension`, `base` and `layout` set and the networks built."""
        self.dimension, self.base = base.features.shape[1], len(base.classes)
        self.layout = list(base.layout)
        self.rebuild({})
        return base.to(self.device)

    def rebuild(self, state: Mapping[str, Tensor]) -> None:
        """Build the networks, with random numbers that come from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.build()
        self.to(self.device)

    def build(self) -> None:
        """Make the networks for features of `dimension`; random numbers come from the seed."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of data kept between sessions: what `kept` names, and buffers of networks that are no copies."""
        inner = [
            value
            for child, network in self.named_children()
            if child not in self.copies
            for name, value in network.named_buffers()
            if not name.endswith(NORMS)
        ]
        return count_bytes([*(getattr(self, name) for name in self.kept), *inner])

    @property
    def parameter_count(self) -> int:
        """Number of weights in the networks, without copies."""
        trained = [network for name, network in self.named_children() if name not in self.copies]
        return sum(weight.numel() for network in trained for weight in network.parameters())
