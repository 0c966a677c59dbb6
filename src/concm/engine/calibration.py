"""MPC, memory-aware prototype calibration: a few-shot prototype completed by the attributes its class shares.

Encode – aggregate – decode (Section 3.2): the prototype and the visual prototypes of its class's attributes are
encoded, the attributes weighed by attention over words and features, and their sum decoded to a better prototype.
Meta-trained on episodes of the base classes, whose true means are known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.engine.descent import AdamW, descend, warmed_cosine
from concm.features.sessions import BaseSession, Session
from concm.records import Checked, setting
from concm.semantics.nameless import Nameless
from concm.semantics.semantics import Semantics


@dataclass(frozen=True)
class CalibrationSettings(Checked):
    """Defaults: the released code's layers and the paper's aggregation; steps by validation (docs/engine.md)."""

    shots: int = setting(5, "Images behind each prototype of an episode (paper, Section 3.2).", least=1, most=10_000)
    steps: int = setting(100, "Episodes, each over all base classes (released code: 10,000).", least=0, most=1_000_000)
    lr: float = setting(1e-3, "Rate of AdamW, which falls to zero as a cosine.", above=0)
    weight_decay: float = setting(1e-2, "Weight decay of AdamW, on all weights.", least=0)
    attention: int = setting(
        128, "Dimensions in which words and features are compared (released code).", least=1, most=65_536
    )
    hidden: int = setting(512, "Width of the decoder's hidden layer (released code).", least=1, most=65_536)
    own_logit: float | None = setting(
        None,
        "Logit with which the class's own code competes with its attributes (code: 1); none adds it to them (paper).",
    )
    biased: bool = setting(True, "Whether queries and keys of the attention have a bias (released code: no).")


class Calibrator(nn.Module):
    """The MPC network with the attribute pool it was trained for; features are measured in units of `scale`."""

    def __init__(self, features: Tensor, vectors: Tensor, scale: float, settings: CalibrationSettings) -> None:
        super().__init__()
        self.scale: Tensor
        self.features: Tensor
        self.vectors: Tensor
        dimension, words, attention = features.shape[1], vectors.shape[1], settings.attention
        self.settings = settings
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))
        self.register_buffer("features", features / scale)
        self.register_buffer("vectors", vectors)
        self.encoder = nn.Sequential(nn.Linear(dimension, dimension // 2), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.Linear(dimension // 2, settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, dimension)
        )
        widths, biased = (words, words, dimension, dimension), settings.biased
        layers = (nn.Linear(width, attention, bias=biased) for width in widths)
        self.word_keys, self.word_queries, self.feature_keys, self.feature_queries = layers

    def forward(self, prototypes: Tensor, vectors: Tensor, association: Tensor) -> Tensor:
        """Completed prototypes (n, d); classes without attributes pass through unchanged."""
        known = association.any(1, keepdim=True)
        own = prototypes / self.scale
        codes = self.encoder(self.features)
        weights = self._weights(own, vectors, association)
        if self.settings.own_logit is None:
            code = self.encoder(own) + weights @ codes
        else:
            code = weights[:, :1] * self.encoder(own) + weights[:, 1:] @ codes
        completed: Tensor = self.decoder(code) * self.scale
        return torch.where(known, completed, prototypes)

    def _weights(self, own: Tensor, vectors: Tensor, association: Tensor) -> Tensor:
        """Attention of each class over its own attributes (Eq. 3), with its own logit in front if that is set."""
        by_words = self.word_queries(vectors) @ self.word_keys(self.vectors).T
        by_features = self.feature_queries(own) @ self.feature_keys(self.features).T
        logits = (by_words + by_features) / (2 * self.settings.attention**0.5)
        logits = logits.masked_fill(~association, -torch.inf)
        if self.settings.own_logit is not None:
            logits = torch.cat([logits.new_full((len(own), 1), self.settings.own_logit), logits], 1)
        weights: Tensor = logits.softmax(1).nan_to_num()  # all weights of a class without attributes are zero
        return weights

    @torch.no_grad()
    def calibrate(self, prototypes: Tensor, vectors: Tensor, association: Tensor, alpha: float) -> Tensor:
        """α · prototype + (1 − α) · completed prototype (Eq. 5)."""
        completed: Tensor = self(prototypes, vectors, association)
        return alpha * prototypes + (1 - alpha) * completed


def attribute_features(mean: Tensor, counts: Tensor, association: Tensor) -> Tensor:
    """Visual prototype (A, d) of each attribute: the mean feature of all base images whose class has it (Eq. 1)."""
    images = association.T.to(mean.dtype) * counts.to(mean.dtype)
    return images @ mean / images.sum(1, keepdim=True).clamp(min=1)


def episode(session: Session, classes: Tensor, shots: int, generator: torch.Generator) -> Tensor:
    """Few-shot prototypes (n, d) of the given classes: the mean of `shots` of their images, with all their views."""
    chosen = few_of_each(session.labels, classes, shots, generator)
    features = session.features[chosen][:, :, None]
    if session.views is not None:
        features = torch.cat([features, session.views[chosen]], 2)
    return features.mean((1, 2))


def few_of_each(labels: Tensor, classes: Tensor, shots: int, generator: torch.Generator) -> Tensor:
    """Rows (n, shots) of random images of the given classes (n,); where a class has fewer, they are repeated."""
    device = labels.device
    rows = (labels + torch.rand(len(labels), generator=generator, device=device, dtype=torch.float64)).argsort()
    counts = torch.bincount(labels, minlength=int(classes.max()) + 1)
    starts = counts.cumsum(0) - counts
    return rows[starts[classes, None] + torch.arange(shots, device=device) % counts[classes, None].clamp(max=shots)]


def train(
    session: BaseSession,
    semantics: Semantics | Nameless,
    settings: CalibrationSettings,
    *,
    classes: Iterable[int] | None = None,
    seed: int = 0,
) -> Calibrator:
    """Meta-train on episodes of the base session's classes (or of some of them): MSE to their true means (Eq. 4)."""
    labels = sorted(session.classes if classes is None else classes)
    device = session.features.device
    chosen = torch.tensor(labels, device=device)
    vectors, association = (part.to(device) for part in semantics.classes([session.names[at] for at in labels]))
    mean = session.mean[chosen]
    scale = float(mean.norm(dim=1).mean())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Calibrator(
            attribute_features(mean, session.counts[chosen], association), semantics.vectors.to(device), scale, settings
        ).to(device)
    generator = torch.Generator(device).manual_seed(seed)

    def loss() -> Tensor:
        completed = network(episode(session, chosen, settings.shots, generator), vectors, association)
        return F.mse_loss(completed / scale, mean / scale, reduction="sum") / len(chosen)

    rates = warmed_cosine(settings.lr, settings.steps)
    descend(network.parameters(), loss, rates, AdamW(settings.weight_decay))
    return network.eval().requires_grad_(False)


def agreement(prototypes: Tensor, centres: Tensor) -> float:
    """Mean cosine of prototypes to the true class centres, which calibration should raise."""
    return float(F.cosine_similarity(prototypes, centres).mean())
