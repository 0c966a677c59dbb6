"""ConCM (ICLR 2026), Algorithm 1: calibrated prototypes, a structure re-matched at every session, a small projector.

Nothing here depends on how many classes or sessions are still to come, unless a compared variant asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from concm import calibration, geometry, losses, projector
from concm.calibration import CalibrationSettings, Calibrator
from concm.data.sessions import Session
from concm.errors import Misuse
from concm.memory import Around, Memory, Sampler, class_statistics, class_sums, spread
from concm.methods import method
from concm.metric import Metric
from concm.projector import Projector
from concm.semantics.overrides import bundled
from concm.semantics.semantics import Semantics


@dataclass(frozen=True)
class Settings:
    """Defaults: chosen by validation on base classes (docs/engine.md); `published()` is the paper's form."""

    PRESETS: ClassVar = ("published", "full")

    whitening: float | None = 10.0
    "Shrinkage of the metric's whitening, in mean variances; none compares plain features (paper)."
    calibrate: bool = True
    "Complete prototypes by the attributes of their class (MPC)."
    alpha: float = 0.7
    "Share of the few-shot prototype in the calibrated one (paper: 0.6; Eq. 5)."
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    "Of the MPC network."
    views: bool = True
    "Count the shots' augmented views into prototypes and spreads, where the bank has them (paper: no)."
    spread: Literal["borrowed", "own"] = "borrowed"
    'Novel spreads: their own and that of similar base classes, or their own alone (paper\'s "standard").'
    beta: float = 0.6
    "Scale of the borrowed spread (paper, appendix)."
    gamma: float = 16.0
    "How similar a base class must be for its spread to count (paper, appendix)."
    noise: float = 3.0
    "Spread of all samples, in standard deviations (paper: 1)."
    around: Around = "exemplars"
    "What novel samples are drawn around (paper: prototype)."
    replay: int = 5
    "Exemplars kept of each novel class (paper: 5, and 0 and 1 studied)."
    structure: Literal["matched", "greedy", "random", "fixed", "learned"] = "matched"
    "Nearest simplex (DSM); a random one, assigned (GM) or not (RM); one for `total` classes (FS); or free vectors."
    total: int | None = None
    "Classes that a fixed structure reserves room for; nothing else needs it."
    loss: Literal["match", "match+scl", "match+contrast"] = "match"
    "Cross-entropy over the structure, with supervised contrast, or with contrast anchored in the structure (paper)."
    scale: float = 16.0
    "Of the cosines in the matching loss (paper: 1)."
    temperature: float = 0.07
    "Of the contrast (paper, appendix)."
    schedule: Literal["equal", "released"] = "equal"
    "Weights of base and novel samples: equal, or the released code's, which must know the number of `sessions`."
    sessions: int | None = None
    "Sessions to come, for the released schedule; nothing else needs it."
    width: int = 128
    "d_g to start with (paper: 128); it grows when classes outgrow it."
    hidden: int = 512
    "Of the projector (released code: 2048)."
    per_base: int = 8
    "Samples of a base class in a step."
    per_novel: int = 8
    "Samples of a novel class in a step."
    batch: int = 1024
    "Samples in a step at most; with more classes than that allows, each step takes some of them."
    base_steps: int = 30
    "Of the base session."
    steps: int = 20
    "Of each later session."
    lr: float = 1e-3
    "Peak rate of AdamW."
    weight_decay: float = 1e-2
    "Of AdamW."
    prototypes: float = 0.75
    "Share of the prototypes' cosines in the score; the rest is the structure's (paper: 0)."
    novel_bias: float = 0.07
    "Added to the scores of novel classes (paper: 0)."

    def __post_init__(self) -> None:
        least = {"replay": 0, "width": 1, "hidden": 1, "per_base": 1, "per_novel": 1, "batch": 1, "base_steps": 0}
        least |= {"steps": 0, "noise": 0, "beta": 0, "whitening": 0, "weight_decay": 0, "total": 2, "sessions": 1}
        for name, value in least.items():
            if getattr(self, name) is not None and getattr(self, name) < value:
                raise Misuse(f"setting {name} must be at least {value}, not {getattr(self, name)}")
        if not (0 <= self.alpha <= 1 and 0 <= self.prototypes <= 1):
            raise Misuse("settings alpha and prototypes are shares between 0 and 1")
        if not (self.temperature > 0 and self.lr > 0 and self.scale > 0):
            raise Misuse("settings temperature, lr and scale must be positive")
        if self.structure == "fixed" and self.total is None:
            raise Misuse("structure=fixed reserves room for all classes to come, so it needs total=N")
        if self.schedule == "released" and self.sessions is None:
            raise Misuse("schedule=released switches half-way, so it needs sessions=N")

    @property
    def needs(self) -> tuple[str, ...]:
        """What a run uses beyond features and labels."""
        needs = {
            "class names": self.calibrate,
            "views of the shots": self.views,
            f"exemplars: {self.replay} a novel class": self.replay > 0,
            "number of classes to come": self.structure == "fixed",
            "number of sessions to come": self.schedule == "released",
        }
        return tuple(name for name, needed in needs.items() if needed)

    @classmethod
    def published(cls) -> Settings:
        """The paper's algorithm on banked features; steps and batches are ours."""
        return cls(
            whitening=None,
            alpha=0.6,
            views=False,
            noise=1.0,
            around="prototype",
            loss="match+contrast",
            scale=1.0,
            hidden=2048,
            batch=10_000,
            base_steps=200,
            steps=100,
            prototypes=0.0,
            novel_bias=0.0,
        )

    @classmethod
    def full(cls) -> Settings:
        """The paper's samples a step and hidden units, and five times the steps: for a GPU, to see what haste costs."""
        return cls(hidden=2048, per_base=100, per_novel=50, batch=10_000, base_steps=150, steps=100)


@method(
    "concm",
    title="ConCM: consistency-driven calibration and matching",
    paper="ICLR 2026",
    settings=Settings,
    needs=("class names", "exemplars: 5 a novel class"),
)
class ConCM:
    """The three verbs; see `Settings` for what can be varied."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        semantics: Semantics | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.settings = settings or Settings()
        self.semantics = semantics
        self.seed = seed
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.metric: Metric | None = None
        self.calibrator: Calibrator | None = None
        self.structure = torch.empty(0, self.settings.width, device=self.device)
        self.free = self.structure
        self.smr: float | None = None
        self.remarks: list[str] = []

    def fit_base(self, base: Session) -> None:
        """Learn the metric, the MPC network, and a projector that matches the base classes to their structure."""
        settings = self.settings
        base = base.to(self.device)
        if settings.whitening is not None:
            self.metric = Metric.whitening(base, settings.whitening)
            base = self.metric.apply(base)
        self.memory = Memory.of_base(base)
        if settings.calibrate:
            by_hand = bundled(base.scenario.removesuffix("-validation"))
            self.semantics = self.semantics or Semantics.of_names(base.names, overrides=by_hand)
            shown = base if settings.views else replace(base, views=None)  # episodes as sessions will be
            self.calibrator = calibration.train(shown, self.semantics, settings.calibration, seed=self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.projector = Projector(base.features.shape[1], settings.width, settings.hidden).to(self.device)
        self._match(settings.base_steps, session=0)

    def learn(self, session: Session) -> None:
        """Calibrate the new prototypes, remember them, match structure and projector to all classes."""
        settings, memory = self.settings, self.memory
        session = session.to(self.device)
        if self.metric is not None:
            session = self.metric.apply(session)
        mean, own = class_statistics(session, with_views=settings.views)
        mean = self.calibrated(session.names, mean)
        if settings.spread == "borrowed":
            base = slice(memory.base)
            own = spread(own, mean, memory.mean[base], memory.std[base], settings.beta, settings.gamma)
        memory.add(session, mean, own, replay=settings.replay)
        self._match(settings.steps, session=session.index)

    def calibrated(self, names: tuple[str, ...], prototypes: Tensor) -> Tensor:
        """Few-shot prototypes (n, d) completed by their classes' attributes, where they have any."""
        if self.calibrator is not None:
            assert self.semantics is not None
            self.semantics = self.semantics.learn(names)
            vectors, association = (part.to(self.device) for part in self.semantics.classes(names))
            prototypes = self.calibrator.calibrate(prototypes, vectors, association, self.settings.alpha)
            strange = [name for name, known in zip(names, association.any(1).tolist(), strict=True) if not known]
            self.remarks += [f"{name!r} has no attributes here: its prototype is not calibrated" for name in strange]
        return prototypes if self.metric is None else F.normalize(prototypes)

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Cosines to structure and prototypes, in the shares that `prototypes` says."""
        features = features.to(self.device)
        if self.metric is not None:
            features = self.metric(features)
        share = self.settings.prototypes
        scores: Tensor = (1 - share) * (self.projector(features) @ self.structure.T)
        if share:
            scores += share * (F.normalize(features) @ F.normalize(self.memory.mean).T)
        scores[:, self.memory.base :] += self.settings.novel_bias
        return scores

    @property
    def memory_bytes(self) -> int:
        """What is kept of the data: statistics, exemplars, the metric, and the attributes' prototypes."""
        kept = [] if self.metric is None else [self.metric.matrix]
        kept += [] if self.calibrator is None else [self.calibrator.get_buffer("features")]
        return self.memory.bytes + sum(tensor.numel() * tensor.element_size() for tensor in kept)

    @property
    def parameters(self) -> int:
        """Trained weights."""
        trained = [self.projector] if self.calibrator is None else [self.projector, self.calibrator]
        return sum(weight.numel() for network in trained for weight in network.parameters()) + self.free.numel()

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
        projector.train(
            parameters, loss, self.generator, steps=steps, lr=settings.lr, weight_decay=settings.weight_decay
        )
        if free:  # nothing to compare with but the means themselves, as nearest class mean does
            self.free = structure.detach()
            structure = self._projected_means(sampler)
        self.structure = structure

    @torch.no_grad()
    def _projected_means(self, sampler: Sampler) -> Tensor:
        """The initial structure: where the projector puts the classes' samples on average, before it is trained."""
        total = torch.zeros(len(self.memory.mean), self.projector.width, device=self.device)
        for _ in range(min(8, 1 + 16_384 // len(sampler.labels))):
            total += class_sums(self.projector(sampler(self.generator)), sampler.labels, len(total))
        return F.normalize(total)

    def _target(self, initial: Tensor) -> Tensor:
        """The structure that the projector is to be matched to."""
        kind, (count, width) = self.settings.structure, initial.shape
        if kind == "matched":
            return geometry.nearest(initial)
        if kind == "fixed":  # the same one at every session
            assert self.settings.total is not None
            if count > self.settings.total:
                raise Misuse(
                    f"structure=fixed has room for total={self.settings.total} classes, and this is the {count}th"
                )
            same = torch.Generator(self.device).manual_seed(self.seed)
            return geometry.random(self.settings.total, width, same)[:count].to(initial.dtype)
        drawn = geometry.random(count, width, self.generator).to(initial.dtype)
        return geometry.assigned(initial, drawn) if kind == "greedy" else drawn

    def _weights(self, session: int) -> Tensor | None:
        """Class weights of the matching loss."""
        if self.settings.schedule == "equal" or session == 0:
            return None
        assert self.settings.sessions is not None
        weights = torch.full((len(self.memory.mean),), 2.0, device=self.device)
        weights[: self.memory.base] = 0.05 if session <= self.settings.sessions / 2 else 0.5
        return weights
