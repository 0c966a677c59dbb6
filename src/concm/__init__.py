"""Teach an image classifier new classes from five photos and a name, without retraining and without forgetting.

For photos: `Classifier`. For features: `ConCM`, an estimator. For research: `Bank`, `bench` and `method`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concm.classifier.answers import Prediction
    from concm.classifier.classifier import Classifier
    from concm.data.scenarios import Scenario
    from concm.engine.estimator import ConCM
    from concm.engine.settings import Settings
    from concm.errors import ConcmError, Misuse
    from concm.features.bank import Bank
    from concm.methods.registry import method
    from concm.report.bench import BenchTable, bench

__version__ = "0.2.0"
__all__ = [
    "Bank",
    "BenchTable",
    "Classifier",
    "ConCM",
    "ConcmError",
    "Misuse",
    "Prediction",
    "Scenario",
    "Settings",
    "__version__",
    "bench",
    "method",
]

_HOMES = {
    "Bank": "concm.features.bank",
    "BenchTable": "concm.report.bench",
    "Classifier": "concm.classifier.classifier",
    "ConCM": "concm.engine.estimator",
    "ConcmError": "concm.errors",
    "Misuse": "concm.errors",
    "Prediction": "concm.classifier.answers",
    "Scenario": "concm.data.scenarios",
    "Settings": "concm.engine.settings",
    "bench": "concm.report.bench",
    "method": "concm.methods.registry",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for: `concm --help` must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
