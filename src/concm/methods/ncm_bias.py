"""Nearest class mean with one number added to all novel scores: how far a trade-off of base against novel goes.

The number is chosen on pseudo-incremental episodes of the base classes. A backbone that was trained on those classes
separates them far better than novel ones, so the choice says little there; every figure shows the whole curve.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.features.sessions import BaseSession
from concm.methods.ncm import NCM
from concm.methods.registry import method
from concm.metrics import trade_off

EPISODES = 20
SHOTS = 5  # in every scenario, since the number of shots is not known before the first session


@method("ncm_bias", title="nearest class mean, novel scores raised by a constant", paper="control", group="control")
class NCMBias(NCM):
    """The same prototypes as NCM, and one number that is added to novel scores."""

    values = (*NCM.values, "bias")
    bias = 0.0

    def fit_base(self, base: BaseSession) -> None:
        """Choose the bias that maximises the harmonic mean in episodes where a third of the base classes are novel."""
        super().fit_base(base)
        generator = np.random.default_rng(self.seed)
        biases = np.linspace(0, 0.3, 61)
        hm = np.mean([_harmonic_means(base, generator, biases) for _ in range(EPISODES)], 0)
        self.bias = float(biases[hm.argmax()])

    def scores(self, features: Tensor) -> Tensor:
        """Cosine to every prototype, novel ones raised."""
        scores = super().scores(features)
        scores[:, self.base :] += self.bias
        return scores

    @property
    def parameter_count(self) -> int:
        """One: the bias."""
        return 1


def _harmonic_means(base: BaseSession, generator: np.random.Generator, biases: np.ndarray) -> np.ndarray:
    """HM for each bias in one episode: 5 shots of each pseudo-novel class, and all its other images as test images."""
    novel = generator.permutation(len(base.classes))[: max(1, len(base.classes) // 3)]
    means, tested = base.mean.clone(), torch.ones(len(base.labels), dtype=torch.bool)
    for label in novel.tolist():
        rows = generator.permutation((base.labels == label).nonzero().flatten().numpy())[:SHOTS]
        means[label] = base.features[rows].mean(0)
        tested[rows] = False
    place = np.argsort(np.concatenate([np.setdiff1d(np.arange(len(base.classes)), novel), novel]))
    scores = F.normalize(base.features[tested]) @ F.normalize(means[place.argsort()]).T
    old, new = trade_off(scores, torch.from_numpy(place)[base.labels[tested]], len(base.classes) - len(novel), biases)
    return np.asarray(2 * old * new / np.maximum(old + new, 1e-9))
