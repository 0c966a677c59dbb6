"""ConCM (Wang, Chen, Huang and others, "Consistency-Driven Calibration and Matching for Few-Shot Class Incremental
Learning", ICLR 2026) as its paper has it, beside this library's engine.

Prototypes of few shots are completed by a network that knows which attributes their classes share (MPC). At every
session the projected class means give the nearest simplex, and a projector is trained to match it on samples of all
classes: Gaussian ones around the prototypes, and ten views of every shot (DSM).

Here: features and views are those of the bank, which was extracted once, so every epoch has other views only where the
bank has more than ten of them, and base images have views only where it has those of base images too. Epochs, batches
and layers, which the paper leaves open, are those of the released code; there is no warm-up, and spreads are standard
deviations. The projector begins untrained, where the authors load one that was trained with the backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine import geometry, losses
from concm.engine.calibration import CalibrationSettings, Calibrator, attribute_features, few_of_each
from concm.engine.descent import SGD, Feed, descend, half_cosine, warmed_cosine
from concm.engine.memory import class_sums, spread
from concm.engine.projector import Projector
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.registry import EXEMPLARS, NAMES, VIEWS, method
from concm.records import Checked, setting
from concm.semantics.overrides import bundled
from concm.semantics.semantics import Semantics

OPTIMISER = SGD(momentum=0.9, dampening=0.9, weight_decay=1e-4)
"""Of both networks, in both forms."""


@dataclass(frozen=True)
class PublishedSettings(Checked):
    """The settings of the paper for CIFAR-100; what it leaves open is the released code's."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200", "short")

    alpha: float = setting(0.6, "Share of the few-shot prototype in the calibrated one (paper).", least=0, most=1)
    beta: float = setting(0.6, "Scale of the spread with the borrowed part (paper).", least=0)
    gamma: float = setting(16.0, "How similar a base class must be for its spread to count (paper).")
    temperature: float = setting(0.07, "Temperature of the contrast (paper).", above=0)
    calibrate: bool = setting(True, "Calibrate prototypes and borrow spreads: MPC (the paper's ablation has neither).")
    passes: int = setting(10, "Augmented passes over the shots in every epoch (paper).", least=1)
    per_base: int = setting(100, "Gaussian samples of each base class in an epoch (paper).", least=1)
    per_novel: int = setting(50, "Gaussian samples of each novel class in an epoch (paper).", least=1)
    width: int = setting(128, "Dimensions d_g of the structure (code); more classes widen it.", least=1)
    hidden: int = setting(2048, "Width of the projector's hidden layer (code).", least=1)
    batch: int = setting(32, "Samples in a step (code).", least=2)
    episodes: int = setting(10_000, "Episodes of the calibration network, each over all base classes (code).", least=0)
    shots: int = setting(5, "Images behind each prototype of an episode (paper).", least=1)
    episode_lr: float = setting(1.0, "Peak rate of the calibration network (paper).", above=0)
    align_epochs: int = setting(100, "Epochs over the base images in the base session (code).", least=0)
    align_lr: float = setting(1e-2, "Rate of the projector in the base session (code).", above=0)
    epochs: int = setting(20, "Epochs of each later session (code).", least=0)
    lr: float = setting(2e-2, "Rate of the projector in later sessions (paper).", above=0)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names where they calibrate, the views of the shots, and the shots themselves."""
        return (*((NAMES,) if self.calibrate else ()), VIEWS, f"{EXEMPLARS}: all shots, as views")

    def mini_imagenet(self) -> Self:
        """The settings for mini-ImageNet."""
        return replace(self, lr=1e-2, align_epochs=10, epochs=10)

    def cub200(self) -> Self:
        """The settings for CUB200."""
        return replace(self, alpha=0.75, lr=5e-3, width=256)

    def short(self) -> Self:
        """A form for checks on a CPU: fewer steps of larger batches and a smaller projector, so other figures."""
        return replace(self, episodes=100, epochs=10, batch=128, hidden=256)


@method(
    "concm:published",
    title="ConCM as its paper has it",
    paper="ICLR 2026",
    link="https://arxiv.org/abs/2506.19558",
    code="https://github.com/wire-wqz/ConCM",
)
class ConCMPublished(Learner):
    """Statistics of the base classes, views of the shots, the calibration network, the projector and its structure."""

    settings = PublishedSettings()
    values = (*Learner.values, "width", "names", "senses", "smr", "remarks")
    kept = ("mean", "std", "images", "labels", "words", "attributes", "structure")
    aggregation: ClassVar = CalibrationSettings(biased=False)
    "Of the calibration network: the paper adds the class's own code to those of its attributes."
    mean: Tensor
    std: Tensor
    images: Tensor
    labels: Tensor
    words: Tensor
    attributes: Tensor
    structure: Tensor

    def __init__(self, settings: Any = None, *, semantics: Semantics | None = None, **where: Any) -> None:
        super().__init__(settings, **where)
        self._given = semantics
        self.calibrator: Calibrator | None = None
        self.width = self.settings.width
        self.names: list[str] = []
        self.senses: dict[str, str] = {}
        self.smr: float | None = None
        self.remarks: list[str] = []

    def build(self) -> None:
        """Make the projector."""
        self.projector = Projector(self.dimension, self.width, self.settings.hidden)

    def rebuild(self, state: Mapping[str, Tensor]) -> None:
        """Make the calibration network of the state's sizes, and the projector."""
        if "calibrator.features" in state:
            pool = (state["calibrator.features"], state["calibrator.vectors"])
            self.calibrator = Calibrator(*pool, 1.0, self.aggregation).eval().requires_grad_(False)
        super().rebuild(state)

    def fit_base(self, base: BaseSession) -> None:
        """Take statistics, train the calibration network on episodes, and align the projector with its structure."""
        settings, base = self.settings, self.begin(base)
        images = (torch.ones_like(base.labels) if base.held is None else ~base.held).nonzero().flatten()
        versions = base.features[:, None] if base.views is None else base.views
        each = versions.shape[1]
        feed = Feed.of(versions.flatten(0, 1), base.labels.repeat_interleave(each), torch.empty_like(images))
        self.mean, self.std = base.mean, base.std
        if base.views is not None:
            self.mean, self.std = moments(base.views[images], base.labels[images], self.base)
        else:
            self.remarks.append("this bank has no views of base images, so they are seen as they are")
        self.images, self.labels = base.features[:0, None], base.labels[:0]
        self.words, self.attributes = self.mean.new_empty(0, 1), torch.empty(0, 1, dtype=torch.bool, device=self.device)
        self.names, self.senses = list(base.names), bundled(base.scenario.removesuffix("-validation"))

        def views_of(rows: Tensor) -> Tensor:
            """One view of each of these images, as rows of all views."""
            drawn = torch.rand(rows.shape, generator=self.generator, device=self.device)
            return rows * each + (drawn * each).long().clamp(max=each - 1)

        def renew() -> None:
            order = torch.randperm(len(images), generator=self.generator, device=self.device)
            feed.begin(views_of(images[order]))

        if settings.calibrate:
            self.calibrator = self._completing(
                base, lambda chosen: feed.features[views_of(images[chosen])], base.labels[images]
            )
        renew()
        self._match(feed)
        share = len(images) / int(base.counts.sum())  # a bank may hold a part of the base images
        self._descend(feed, renew, round(settings.align_epochs / share), settings.align_lr, floor=1e-5)

    def learn(self, session: Session) -> None:
        """Match the structure to all classes, and the projector to it, on samples that are renewed in every epoch."""
        self._remember(session.to(self.device))
        features, labels = self._samples()
        feed = Feed.of(features, labels, torch.arange(len(labels), device=self.device))

        def renew() -> None:
            feed.features.copy_(self._samples()[0])
            feed.begin(torch.randperm(len(labels), generator=self.generator, device=self.device))

        self._match(feed)
        self._descend(feed, renew, self.settings.epochs, self.settings.lr)

    def scores(self, features: Tensor) -> Tensor:
        """Cosine of the projected features to the structure."""
        with torch.no_grad():
            vectors: Tensor = self.projector(features.to(self.device))
        return vectors @ self.structure.T

    def loss(self, vectors: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
        """L_Match + L_Cont (Eq. 13 to 15), in which the structure vectors of the classes `anchors` take part."""
        matching = losses.matching(vectors, labels, self.structure)
        return matching + losses.anchored_contrast(vectors, labels, self.structure, anchors, self.settings.temperature)

    def drawn(self) -> Tensor:
        """How many Gaussian samples of each class (classes,) an epoch has."""
        counts = torch.full((len(self.names),), self.settings.per_novel, device=self.device)
        counts[: self.base] = self.settings.per_base
        return counts

    def _meanings(self) -> Semantics:
        """The meanings of all classes known, whose senses are settled one after the other and kept."""
        known = (self._given or Semantics.of_names(self.names[: self.base], overrides=self.senses)).learn(self.names)
        self.senses = known.senses
        return known

    def _completing(self, base: BaseSession, views: Callable[[Tensor], Tensor], labels: Tensor) -> Calibrator:
        """The calibration network, trained to complete prototypes of a few base images to their class's mean (Eq. 4).

        `views` gives features of images by their number, and `labels` (n,) are theirs. The rate is for features whose
        elements have a mean square of 1, which raw ones of ResNet-12 nearly have (0.97² on CIFAR-100), so all are
        measured in such units.
        """
        settings, known = self.settings, self._meanings()
        words, attributes = (part.to(self.device) for part in known.classes(base.names))
        words, pool = F.normalize(words), F.normalize(known.vectors).to(self.device)
        seen = attribute_features(self.mean, base.counts, attributes)
        scale = float(base.features.square().mean().sqrt())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = Calibrator(seen, pool, scale, self.aggregation).to(self.device)
        classes = torch.arange(self.base, device=self.device)

        def loss() -> Tensor:
            shots = views(few_of_each(labels, classes, settings.shots, self.generator))
            completed: Tensor = network(shots.mean(1), words, attributes)
            return F.mse_loss(completed / scale, self.mean / scale)

        descend(network.parameters(), loss, warmed_cosine(settings.episode_lr, settings.episodes, 10), OPTIMISER)
        return network.eval().requires_grad_(False)

    def _remember(self, session: Session) -> None:
        """Keep the views of the shots, or the shots where there are none, and what the names of the classes say."""
        versions = session.features[:, None] if session.views is None else session.views
        if not len(self.images):
            self.images = versions[:0]
            if versions.shape[1] < self.settings.passes:
                there, wanted = "no" if session.views is None else str(versions.shape[1]), self.settings.passes
                self.remarks.append(f"this bank has {there} views of a shot where {wanted} are asked for")
        each = torch.arange(self.images.shape[1], device=self.device) % versions.shape[1]
        self.images = torch.cat([self.images, versions[:, each]])
        self.labels = torch.cat([self.labels, session.labels])
        self.names += session.names
        if self.settings.calibrate:
            words, attributes = (part.to(self.device) for part in self._meanings().classes(session.names))
            both = ((self.words, F.normalize(words)), (self.attributes, attributes))
            self.words, self.attributes = (torch.cat([old, new]) if len(old) else new for old, new in both)

    @torch.no_grad()
    def _samples(self) -> tuple[Tensor, Tensor]:
        """Features and labels of an epoch: some views of each shot, and Gaussian samples of all classes (Eq. 18)."""
        count, each = self.images.shape[:2]
        random = torch.rand(count, each, generator=self.generator, device=self.device)
        some = random.argsort(1)[:, : self.settings.passes, None].expand(-1, -1, self.images.shape[2])
        views = self.images.gather(1, some)
        mean, std = moments_by_pass(views, self.labels - self.base, len(self.names) - self.base)
        if self.calibrator is not None:
            mean = self.calibrator.calibrate(mean, self.words, self.attributes, self.settings.alpha)
            std = spread(std, mean, self.mean, self.std, self.settings.beta, self.settings.gamma)
        labels = torch.arange(len(self.names), device=self.device).repeat_interleave(self.drawn())
        centres, spreads = torch.cat([self.mean, mean])[labels], torch.cat([self.std, std])[labels]
        noise = torch.randn(centres.shape, generator=self.generator, device=self.device)
        features = torch.cat([views.flatten(0, 1), torch.addcmul(centres, spreads, noise)])
        return features, torch.cat([self.labels.repeat_interleave(views.shape[1]), labels])

    @torch.no_grad()
    def _match(self, feed: Feed) -> None:
        """Match the structure to the projected means of all classes (Theorem 1); more classes widen the projector."""
        count = len(self.names)
        if count >= self.width:
            self.width = count + max(64, count // 4)
            self.projector.widen(self.width)
        sums = torch.zeros(count, self.width, device=self.device)
        for rows in torch.split(feed.order, 8192):
            sums += class_sums(self.projector(feed.features[rows]), feed.labels[rows], count)
        self.structure = geometry.nearest_simplex(sums)
        self.smr = geometry.matching_rate(sums, self.structure)

    def _descend(self, feed: Feed, renew: Callable[[], None], epochs: int, lr: float, floor: float = 0.0) -> None:
        """Train the projector at a rate that falls from epoch to epoch; all classes are anchors in the base session."""
        size = min(self.settings.batch, len(feed.order))
        steps = len(feed.order) // size
        anchors = torch.arange(self.base if len(self.labels) else 0, len(self.names), device=self.device)

        def loss() -> Tensor:
            features, labels = feed.batch(size)
            return self.loss(self.projector(features), labels, anchors)

        rates = [floor + (lr - floor) * half_cosine(epoch / epochs) for epoch in range(epochs) for _ in range(steps)]
        descend(self.projector.parameters(), loss, rates, OPTIMISER, random=self.generator, renew=renew, epoch=steps)


def moments(views: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation (classes, d) of all views (n, k, d) of each class's images."""
    found = [views[labels == label].flatten(0, 1) for label in range(classes)]
    return torch.stack([own.mean(0) for own in found]), torch.stack([own.std(0, correction=0) for own in found])


def moments_by_pass(views: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (classes, d) over each class's images (n, k, d), averaged over the k passes."""
    counts, flat, shape = torch.bincount(labels, minlength=classes)[:, None], views.flatten(1), (-1, *views.shape[1:])
    mean = class_sums(flat, labels, classes) / counts
    variance = class_sums((flat - mean[labels]).square(), labels, classes) / counts
    return mean.reshape(shape).mean(1), variance.sqrt().reshape(shape).mean(1)
