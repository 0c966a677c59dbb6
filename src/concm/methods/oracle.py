"""The oracle: nearest class mean that knows every class's true mean, from all its training images.

The gap between a method and the oracle is what few shots cost; no few-shot learner may see so many images.
"""

from __future__ import annotations

from dataclasses import replace

from concm.features.sessions import Session
from concm.methods.ncm import NCM
from concm.methods.registry import POOL, method


@method("oracle", title="nearest class mean with true means", paper="reference", group="reference", needs=(POOL,))
class Oracle(NCM):
    """NCM, shown all images of each class instead of its shots."""

    def learn(self, session: Session) -> None:
        """Add the true means."""
        assert session.pool is not None
        features, labels = session.pool
        super().learn(replace(session, features=features, labels=labels))
