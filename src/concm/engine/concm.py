"""ConCM (ICLR 2026), Algorithm 1: calibrated prototypes, a structure re-matched at every session, a small projector.

CIFAR-100 from the bundled bank, 8 sessions: AHM 61.76, FA 60.25 in 7 seconds on one CPU core (mean of 5 draws;
docs/results/bench.json).

Nothing here depends on how many classes or sessions are still to come, except in variants that ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine import calibration, geometry, losses
from concm.engine.calibration import Calibrator
from concm.engine.descent import AdamW, descend, warmed_cosine
from concm.engine.head import Head
from concm.engine.memory import Memory, Sampler, class_statistics, class_sums, spread
from concm.engine.metric import Metric, expected_cosine
from concm.engine.projector import Projector
from concm.engine.settings import Settings
from concm.engine.state import Stateful, count_bytes
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.semantics.nameless import Nameless
from concm.semantics.overrides import bundled
from concm.semantics.semantics import Semantics


class Engine(Stateful):
    """ConCM with the three verbs of a method; see `Settings` for what can be varied."""

    settings = Settings()
    values = ("names", "pool", "smr", "remarks", "senses")
    structure: Tensor
    free: Tensor

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        semantics: Semantics | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(seed=seed, device=device)
        if settings is not None:
            self.settings = settings
        self._semantics: Semantics | Nameless | None = semantics if self.settings.named else Nameless()
        self._senses: dict[str, str] = {}
        self.metric: Metric | None = None
        self.calibrator: Calibrator | None = None
        self.structure = torch.empty(0, self.settings.width, device=self.device)
        self.free = self.structure
        self.smr: float | None = None
        self.names: list[str] = []
        self.pool: list[str] = []
        self.remarks: list[str] = []

    def fit_base(self, base: BaseSession) -> None:
        """Learn the metric, the MPC network, and a projector that matches the base classes to their structure."""
        settings = self.settings
        base = base.to(self.device)
        if settings.whitening is not None:
            self.metric = Metric.whitening(base, settings.whitening)
            base = self.metric.read(base)
        self.memory = Memory.of_base(base)
        self.names, self.pool = list(base.names), list(base.names)
        if settings.calibrate:
            self._senses = bundled(base.scenario.removesuffix("-validation"))
            shown = base if settings.views else replace(base, views=None)  # so that episodes are like later sessions
            self.calibrator = calibration.train(shown, self.semantics, settings.calibration, seed=self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.projector = Projector(base.features.shape[1], settings.width, settings.hidden).to(self.device)
        self._match(settings.base_steps, session=0)

    def learn(self, session: Session) -> None:
        """Calibrate the new prototypes, remember them, and match structure and projector to all classes."""
        session = session.to(self.device)
        if self.metric is not None:
            session = self.metric.read(session)
        self.memory.add(session, *self._statistics(session), replay=self.settings.replay)
        self.names += session.names
        self._match(self.settings.steps, session=session.index)

    def forget(self, label: int) -> None:
        """Drop a class; later classes move up by one, and structure and projector are matched to the rest."""
        self.memory.forget(label)
        self.names.pop(label)
        self.free = torch.cat([self.free[:label], self.free[label + 1 :]])
        self._match(self.settings.steps, session=1)

    def revise(self, known: Mapping[int, tuple[Tensor, Tensor | None]]) -> None:
        """Learn known classes again, each from all its images (n, d) and views (n, k, d); they keep their index."""
        for label, (features, views) in known.items():
            labels = torch.full((len(features),), label)
            session = Session(1, range(label, label + 1), (self.names[label],), features, labels, views).to(self.device)
            average = session.features.mean(0, keepdim=True)
            if self.metric is not None:
                session, average = self.metric.read(session), self.metric(average)
            if label < self.memory.base:
                mean, std = average, class_statistics(session, with_views=False)[1]
            else:
                mean, std = self._statistics(session)
            self.memory.revise(session, mean, std, replay=self.settings.replay)
        self._match(self.settings.steps, session=1)

    def _statistics(self, session: Session) -> tuple[Tensor, Tensor]:
        """Calibrated prototypes and spreads (classes, d) of few-shot classes."""
        settings, memory = self.settings, self.memory
        mean, own = class_statistics(session, with_views=settings.views)
        mean = self.calibrated(session.names, mean)
        if settings.spread == "borrowed" and memory.base:
            base = slice(memory.base)
            own = spread(own, mean, memory.mean[base], memory.std[base], settings.beta, settings.gamma)
        return mean, own

    def calibrated(self, names: tuple[str, ...], prototypes: Tensor) -> Tensor:
        """Few-shot prototypes (n, d) completed by their classes' attributes, if they have any."""
        if self.calibrator is not None:
            self._semantics = known = self.semantics.learn(names)
            vectors, association = (part.to(self.device) for part in known.classes(names))
            prototypes = self.calibrator.calibrate(prototypes, vectors, association, self.settings.alpha)
            strange = [name for name, known in zip(names, association.any(1).tolist(), strict=True) if not known]
            self.remarks += [f"{name!r} has no attributes here: its prototype is not calibrated" for name in strange]
        return prototypes if self.metric is None else F.normalize(prototypes)

    @property
    def semantics(self) -> Semantics | Nameless:
        """The meanings of the class names, looked up when they are first needed."""
        if self._semantics is None:
            self._semantics = Semantics.of_names(self.pool, overrides=self._senses).learn(self.names)
            self._senses = self._semantics.senses
        return self._semantics

    @property
    def head(self) -> Head:
        """The plain tensors with which features are scored."""
        structure, network = self.structure, self.projector
        return Head(
            metric=None if self.metric is None else self.metric.matrix,
            inner_weight=network.inner.weight.detach(),
            inner_bias=network.inner.bias.detach(),
            outer_weight=network.outer.weight.detach(),
            outer_bias=network.outer.bias.detach(),
            structure=structure,
            prototypes=F.normalize(self.memory.mean),
            bias=self._bias(),
            share=structure.new_tensor(self.settings.prototypes),
        )

    def _bias(self) -> Tensor:
        """The bias (n,) of novel classes, whose prototypes come from fewer images and so have smaller cosines.

        `novel_bias` is meant for five shots beside base classes of any number of images; for other numbers of shots,
        the bias makes up for the change in the expected cosine to a prototype.
        """
        settings, memory = self.settings, self.memory
        if not memory.base:  # all base classes were forgotten
            return torch.zeros_like(self.structure[:, 0])
        likeness = self.structure.new_tensor(settings.likeness)
        expected = expected_cosine(likeness, memory.counts.clamp(min=1))
        published = likeness.sqrt() - expected_cosine(likeness, torch.tensor(5, device=self.device))
        bias = settings.novel_bias + settings.prototypes * (expected[: memory.base].mean() - expected - published)
        bias[: memory.base] = 0
        return bias

    def scores(self, features: Tensor) -> Tensor:
        """Cosines to structure and prototypes, weighted by the setting `prototypes`, and the bias."""
        return self.head(features.to(self.device))

    @property
    def senses(self) -> dict[str, str]:
        """The synset chosen for each class name, so that a loaded engine reads names as this one does."""
        return self._senses if self._semantics is None else self._semantics.senses

    @senses.setter
    def senses(self, known: dict[str, str]) -> None:
        self._senses = known
        self._semantics = self._semantics and self._semantics.learn(self.names)

    @property
    def memory_bytes(self) -> int:
        """Bytes of data that are kept: statistics, exemplars, the metric, and the attributes' prototypes."""
        kept = [] if self.metric is None else [self.metric.matrix]
        kept += [] if self.calibrator is None else [self.calibrator.get_buffer("features")]
        return self.memory.bytes + count_bytes(kept)

    @property
    def parameter_count(self) -> int:
        """Number of trained weights."""
        return sum(weight.numel() for weight in self.parameters()) + self.free.numel()

    def rebuild(self, state: Mapping[str, Tensor]) -> None:
        """Make metric, memory and networks of the state's sizes.

        Attributes that do not come from WordNet must be given to the constructor again.
        """
        self.memory = Memory.empty()
        self.metric = Metric(state["metric.matrix"]) if "metric.matrix" in state else None
        hidden, dimension = state["projector.inner.weight"].shape
        self.projector = Projector(dimension, len(state["projector.outer.bias"]), hidden)
        self.calibrator = None
        if "calibrator.features" in state:
            pool = (state["calibrator.features"], state["calibrator.vectors"])
            self.calibrator = Calibrator(*pool, 1.0, self.settings.calibration).eval().requires_grad_(False)
        self.to(self.device)

    def _match(self, steps: int, session: int) -> None:
        """Re-match the structure to all classes known, then the projector to the structure (Theorem 1, Eq. 13–15)."""
        settings, memory = self.settings, self.memory
        count = len(memory.mean)
        room = max(count, settings.total or 0) if settings.structure == "fixed" else count
        if room >= self.projector.width:
            width = room + max(64, room // 4)
            self.projector.widen(width)
            self.free = geometry.widen(self.free, width)
        sampler = memory.sampler(settings.per_base, settings.per_novel, noise=settings.noise, around=settings.around)
        initial = self._projected_means(sampler)
        free = settings.structure == "learned"
        if free:
            structure = torch.cat([self.free, initial[len(self.free) :]]).requires_grad_()
        else:
            structure = self._target(initial)
            self.smr = geometry.matching_rate(initial, structure)
        anchors = torch.arange(memory.base if session else 0, count, device=self.device)
        weights = self._weights(session)
        contrast = settings.loss != "match"

        def loss() -> Tensor:
            features, labels = sampler.batch(settings.batch, self.generator)
            vectors = self.projector(features)
            targets = F.normalize(structure) if free else structure
            value = losses.matching(vectors, labels, targets, scale=settings.scale, weights=weights)
            if contrast:
                pull = anchors if settings.loss == "match+contrast" else anchors[:0]
                value += losses.anchored_contrast(vectors, labels, targets, pull, settings.temperature)
            return value

        parameters = [*self.projector.parameters(), *([structure] if free else [])]
        rates = warmed_cosine(settings.lr, steps, max(1, steps // 10) - 1)
        descend(parameters, loss, rates, AdamW(settings.weight_decay), random=self.generator)
        if free:  # free vectors are no target, so features are compared with the projected class means
            self.free = structure.detach()
            structure = self._projected_means(sampler)
        self.structure = structure

    @torch.no_grad()
    def _projected_means(self, sampler: Sampler) -> Tensor:
        """The initial structure: the mean projection of each class's samples, before the projector is trained."""
        total = torch.zeros(len(self.memory.mean), self.projector.width, device=self.device)
        for _ in range(min(8, 1 + 16_384 // len(sampler.labels))):
            total += class_sums(self.projector(sampler(self.generator)), sampler.labels, len(total))
        return F.normalize(total)

    def _target(self, initial: Tensor) -> Tensor:
        """The structure that the projector is to be matched to."""
        kind, (count, width) = self.settings.structure, initial.shape
        if kind == "matched":
            return geometry.nearest_simplex(initial)
        if kind == "fixed":  # the same structure at every session
            room = self.settings.total or count
            if count > room:
                raise Misuse(f"structure=fixed has room for total={room} classes, and this is the {count}th")
            same = torch.Generator(self.device).manual_seed(self.seed)
            return geometry.random_simplex(room, width, same)[:count].to(initial.dtype)
        drawn = geometry.random_simplex(count, width, self.generator).to(initial.dtype)
        return geometry.assigned(initial, drawn) if kind == "greedy" else drawn

    def _weights(self, session: int) -> Tensor | None:
        """Class weights of the matching loss."""
        if self.settings.schedule == "equal" or session == 0:
            return None
        weights = torch.full((len(self.memory.mean),), 2.0, device=self.device)
        weights[: self.memory.base] = 0.05 if 2 * session <= (self.settings.sessions or 0) else 0.5
        return weights
