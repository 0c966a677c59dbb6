"""Teach an image classifier new classes from five photos and a name, without retraining and without forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concm.classifier.classifier import Classifier, Prediction

__version__ = "0.1.0"
__all__ = ["Classifier", "Prediction", "__version__"]


def __getattr__(name: str) -> Any:
    """The classifier, imported when it is first asked for: `concm --help` must not wait for torch."""
    if name in ("Classifier", "Prediction"):
        from concm.classifier import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
