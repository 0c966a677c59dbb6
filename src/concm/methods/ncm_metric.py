"""Nearest class mean in the engine's metric, with the views of the shots: the strong control.

Whitening and views are open to every method, and a constant on novel scores is too. So what a method is worth is what
it adds to this one, at the same base accuracy, over every constant; the bench draws that curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.memory import class_statistics
from concm.engine.metric import Metric
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.registry import VIEWS, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class NCMMetricSettings(Checked):
    """The settings of the strong control, with the engine's values."""

    whitening: float = setting(3.0, "Shrinkage of the whitening, in mean variances (the engine's).", least=0)
    views: bool = setting(True, "Count the views of the shots into the prototypes (as the engine does).")

    @property
    def needs(self) -> tuple[str, ...]:
        """Views, where they count."""
        return (VIEWS,) if self.views else ()


@method("ncm_metric", title="nearest class mean in a whitened metric, with views", paper="control", group="control")
class NCMMetric(Learner):
    """Unit prototypes in a metric that was learned from the base classes."""

    settings = NCMMetricSettings()
    kept = ("prototypes",)
    metric: Metric

    def build(self) -> None:
        """Make room for the metric."""
        widths = self.layout or [self.dimension]
        self.metric = Metric([torch.eye(width) for width in widths], torch.ones(len(widths)))

    def fit_base(self, base: BaseSession) -> None:
        """Learn the metric, and take the means over all base images in it."""
        base = self.begin(base)
        self.metric = Metric.whitening(base, self.settings.whitening)
        self.prototypes = F.normalize(self.metric.means(base, self.metric(base.features)))

    def learn(self, session: Session) -> None:
        """Add the unit mean of each new class's shots and their views."""
        seen = self.metric.read(session.to(self.device))
        mean, _ = class_statistics(seen, with_views=self.settings.views)
        self.prototypes = torch.cat([self.prototypes, F.normalize(mean)])

    def scores(self, features: Tensor) -> Tensor:
        """Cosine to every prototype in the metric."""
        found: Tensor = self.metric(features.to(self.device)) @ self.prototypes.T
        return found
