"""Methods: three verbs, features in, scores out; they never see test data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from concm.data.sessions import Session


class Method(Protocol):
    """What the protocol asks of every method."""

    def fit_base(self, base: Session) -> None:
        """Learn the base classes."""

    def learn(self, session: Session) -> None:
        """Learn a session's classes without forgetting the others."""

    def scores(self, features: Tensor) -> Tensor:
        """(n, d) → (n, classes seen so far)."""
