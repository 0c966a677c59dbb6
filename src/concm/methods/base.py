"""What a method is, and what every method would otherwise write again: a device, a generator, state, memory counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from concm.engine.state import Stateful, count_bytes
from concm.features.sessions import BaseSession, Session


class Method(Protocol):
    """What the protocol asks of every method: three verbs, and a state that goes through disk."""

    def fit_base(self, base: BaseSession) -> None:
        """Learn the base classes."""

    def learn(self, session: Session) -> None:
        """Learn a session's classes without forgetting the others."""

    def scores(self, features: Tensor) -> Tensor:
        """(n, d) → (n, classes seen so far)."""

    def state_dict(self) -> dict[str, Tensor]:
        """All that was learned, as tensors."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Inverse of `state_dict`, into a method of the same settings."""

    @property
    def memory_bytes(self) -> int:
        """What is kept of the data between sessions."""

    @property
    def parameter_count(self) -> int:
        """Trained weights; the backbone's only where the method goes on training it."""


def teach(method: Method, session: Session) -> None:
    """Show a method its next session, by the verb that is meant for it."""
    if isinstance(session, BaseSession):
        method.fit_base(session)
    else:
        method.learn(session)


class Learner(Stateful):
    """Base of the methods; `fit_base`, `learn` and `scores` are theirs to write.

    A method keeps what it learned in attributes: tensors, networks that `build` makes, and the plain values it names.
    """

    values: ClassVar[tuple[str, ...]] = ("dimension", "base")
    kept: ClassVar[tuple[str, ...]] = ()
    "Names of the tensors that are kept of the data: what `memory_bytes` counts."
    copies: ClassVar[tuple[str, ...]] = ()
    "Names of the networks that are copies of others, which `parameter_count` leaves out."

    def __init__(self, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(seed=seed, device=device)
        self.dimension = 0
        self.base = 0

    def begin(self, base: BaseSession) -> BaseSession:
        """The base session on the device, with `dimension` and `base` set and the networks built."""
        self.dimension, self.base = base.features.shape[1], len(base.classes)
        self.rebuild({})
        return base.to(self.device)

    def rebuild(self, state: Mapping[str, Tensor]) -> None:
        """Build the networks with random numbers of the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.build()
        self.to(self.device)

    def build(self) -> None:
        """Make the networks, for features of `dimension`; random numbers are the seed's."""

    @property
    def memory_bytes(self) -> int:
        """What is kept of the data between sessions."""
        return count_bytes(getattr(self, name) for name in self.kept)

    @property
    def parameter_count(self) -> int:
        """Trained weights: the networks'."""
        trained = [network for name, network in self.named_children() if name not in self.copies]
        return sum(weight.numel() for network in trained for weight in network.parameters())
