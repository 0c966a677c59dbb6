"""ConCM (ICLR 2026), Algorithm 1: calibrated prototypes, a structure re-matched at every session, a small projector.

CIFAR-100 from the bundled bank, 8 sessions: AHM 64.14, FA 62.33 (mean of 5 draws; docs/results/bench.json).

Nothing here depends on how many classes or sessions are still to come, except in variants that ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.engine import calibration, geometry
from concm.engine.calibration import Calibrator
from concm.engine.head import Head
from concm.engine.lexicon import NAMED, Lexicon
from concm.engine.matching import match
from concm.engine.memory import Memory, class_statistics, spread
from concm.engine.metric import AnySession, Metric
from concm.engine.neighbours import FEWEST, Pull
from concm.engine.operating import NEAR, held_out, likeness, mean_likeness
from concm.engine.prior import NamePrior, left_out, trust
from concm.engine.projector import Projector
from concm.engine.settings import Settings
from concm.engine.single import Single, worth
from concm.engine.state import Stateful, count_bytes
from concm.engine.trial import Trial
from concm.features.sessions import BaseSession, Session
from concm.semantics.nameless import Nameless
from concm.semantics.overrides import bundled
from concm.semantics.semantics import Semantics

HELD_OUT = 0.2
"""Share of each base class's images that is held out where the base session did not hold out any."""
ENOUGH = 0.5
"""Shrinkage from which on images can be compared as if the metric had not been learned from them."""
UNSEEN = 0.8
"""Likeness of images of a class the backbone was not trained on, as a share of base classes' (validation banks)."""
AKIN = 0.5
"""Kinship from which on a name alone says how a class looks, in units of what base classes have with their nearest.

Taken by looking at names, of animals among fruit and the like, and at no accuracy."""
SHRINKAGE = 5.0
"""Weight of the average class beside a class's own images, in images."""
STRUCTURED = 4096
"""Classes up to which structures are matched, which takes the cube of their number; more have prototypes alone, which
are not drawn to neighbours."""


class Engine(Stateful):
    """ConCM with the three verbs of a method; see `Settings` for what can be varied."""

    settings = Settings()
    values = (
        *("seed", "names", "pool", "smr", "remarks", "senses", "point"),
        *("reach", "neighbours", "alone", "whole", "complete"),
    )
    older: ClassVar = {"reach": 0.0, "neighbours": [0.0], "alone": [], "whole": 1.0, "complete": False}
    structure: Tensor
    free: Tensor
    lift: Tensor
    unseen: Tensor

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
        self._lexicon = Lexicon(semantics if self.settings.named else Nameless())
        self._tried: Trial | None = None
        self.metric: Metric | None = None
        self.calibrator: Calibrator | None = None
        self.prior: NamePrior | None = None
        self.structure = torch.empty(self.settings.heads, 0, self.settings.width, device=self.device)
        self.free = self.structure
        self.lift = torch.empty(0, device=self.device)
        self.unseen = torch.zeros((), device=self.device)
        self.smr: float | None = None
        self.point: list[float] | None = None
        self.reach, self.pull, self.single, self.whole = self.settings.reach, Pull(), Single(), 1.0
        self.complete = True
        self.names: list[str] = []
        self.remarks: list[str] = []

    def fit_base(self, base: BaseSession) -> None:
        """Learn the metric, what names say, and projectors that match the base classes to their structures."""
        settings = self.settings
        base = self._shown(base.to(self.device))
        self.complete = base.complete
        held, kin = self._held(base), None
        units, means = F.normalize(base.features), F.normalize(base.mean)
        if settings.whitening is not None:
            honest = Metric.whitening(base, settings.whitening, ~held)
            self.unseen = self._unseen_likeness(base, held, honest, settings.whitening)
            units = honest(base.features)
            means = honest.means(base, units)
            base = self._measured(base, held, honest)
            found = Pull.of(base.features[~held], base.labels[~held], base.mean, settings.gamma)
            self.pull = replace(found, strength=settings.pull * found.strength)
        self.memory = Memory.of_base(base, held)
        some = spaced(len(base.names), NAMED)
        self.names, self.pool = list(base.names), [base.names[at] for at in some]
        self.senses = bundled(base.scenario.removesuffix("-validation"))
        if settings.calibrate == "names":
            kin = self._lexicon.kinship(self.names, self.pool)
            self.prior = NamePrior.of(kin, base.mean[some])
        elif settings.calibrate == "network":
            views = None if base.views is None else base.views[~held]
            seen = replace(base, features=base.features[~held], labels=base.labels[~held], views=views)
            self.calibrator = calibration.train(seen, self.semantics, settings.calibration, seed=self.seed)
        self.single = self._single(units, base.labels, held, means, kin)
        if base.held is None:
            self.whole = worth(units[held], base.labels[held], base.labels, len(means))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            sizes = (base.features.shape[1], settings.width, settings.hidden)
            self.projectors = nn.ModuleList(Projector(*sizes) for _ in range(settings.heads)).to(self.device)
        self._match(settings.base_steps, session=0)

    def learn(self, session: Session) -> None:
        """Calibrate the new prototypes, remember them, and match structures and projectors to all classes."""
        session = self._shown(session.to(self.device))
        if self.metric is not None:
            session = self.metric.read(session)
        mean, std = class_statistics(session, with_views=True)
        self.memory.add(session, mean, std, replay=self.settings.replay)
        self.names += session.names
        self._calibrate()
        self._borrow(session.classes)
        self._remark(session.names)
        self._match(self.settings.steps, session=session.index)

    def forget(self, label: int) -> None:
        """Drop a class; later classes move up by one, and structures and projectors are matched to the rest."""
        self.memory.forget(label)
        self.names.pop(label)
        self.free = torch.cat([self.free[:, :label], self.free[:, label + 1 :]], 1)
        self._calibrate()
        self._match(self.settings.steps, session=1)

    def revise(self, known: Mapping[int, tuple[Tensor, Tensor | None]]) -> None:
        """Learn known classes again, each from all its images (n, d) and views (n, k, d); they keep their index."""
        for label, (features, views) in known.items():
            labels = torch.full((len(features),), label)
            session = Session(1, range(label, label + 1), (self.names[label],), features, labels, views)
            session = self._shown(session.to(self.device))
            average = session.features.mean(0, keepdim=True)
            if self.metric is not None:
                session, transformed = self.metric.read(session), self.metric(average)
                average = F.normalize(session.features.mean(0, keepdim=True)) if self.complete else transformed
            mean, std = class_statistics(session, with_views=True)
            self.memory.revise(session, average if label < self.memory.base else mean, std, replay=self.settings.replay)
        self._calibrate()
        for label in known:
            if label >= self.memory.base:
                self._borrow(range(label, label + 1))
        self._match(self.settings.steps, session=1)

    def kin(self, name: str) -> str | None:
        """The base class whose name is most akin to this one, if that says how such things look.

        Nearly all names share something; what counts is half of the kinship that a base class has with its nearest kin,
        in the middle of them.
        """
        if self.prior is None or not self.settings.trust:
            return None
        among = self._lexicon.kinship(self.names, self.pool).fill_diagonal_(0).amax(1).median()
        own = self._lexicon.kinship(self.names, [name])[0]
        return self.pool[int(own.argmax())] if own.max() > 0 and own.max() >= AKIN * among else None

    def _shown(self, session: AnySession) -> AnySession:
        """The session without its views, where they do not count."""
        return session if self.settings.views else replace(session, views=None)

    def _held(self, base: BaseSession) -> Tensor:
        """Marks the base images (n,) by which the operating point is found; they are compared as new ones would be."""
        if base.held is not None:
            return base.held
        if self.settings.novel_bias is not None:
            return torch.zeros(len(base.labels), dtype=torch.bool, device=self.device)
        return held_out(base.features, base.labels, HELD_OUT, self.seed)

    def _measured(self, base: BaseSession, held: Tensor, honest: Metric) -> BaseSession:
        """The base session in the metric, which is learned from all images but those that the bank holds out itself.

        Images that are held out are compared as the `honest` one does it, which did not see them. With little shrinkage
        the two are too different for that.
        """
        shrinkage = self.settings.whitening or 0.0
        if base.held is not None or not held.any() or shrinkage < ENOUGH:
            self.metric = honest
            return honest.read(base, ~held)
        self.metric = Metric.whitening(base, shrinkage)
        found = self.metric.read(base)
        features = found.features.clone()
        features[held] = self.metric.as_if_unseen(base.features[held], honest, base.mean)
        return replace(found, features=features)

    def _single(self, units: Tensor, labels: Tensor, held: Tensor, means: Tensor, kin: Tensor | None) -> Single:
        """What is to be expected of a single image, by held-out ones of base classes, whose names speak as new ones."""
        asked, predicted, share = (units[held], labels[held]), torch.zeros_like(means), means.new_zeros(len(means))
        alike = mean_likeness(*asked, len(means))
        if self.prior is not None and kin is not None:
            some, akin = spaced(len(means), NAMED), (kin - kin.diagonal().diag()).any(1).to(means.device)
            miss = torch.where(akin, self.prior.miss, self.prior.apart)
            predicted[some], share[some] = left_out(kin, means[some]), self.trusted(miss, alike, torch.ones_like(miss))
        names, pull = (predicted, share), self.pull if self.draws else Pull()
        near = NEAR * float(2 - 2 * (alike if self.metric is None else self.unseen))
        how = {"near": near, "reach": self.settings.reach, "gamma": self.settings.gamma}
        found = Single.of(asked, asked, means, names, pull, **how)
        if found != Single():
            return found
        return Single.of(asked, (units[~held], labels[~held]), means, names, pull, **how)  # one of each class is held

    def _unseen_likeness(self, base: BaseSession, held: Tensor, metric: Metric, shrinkage: float) -> Tensor:
        """The cosine to be expected of two images of a class that is still to come.

        Where the backbone was not trained on these images, each half of the classes is measured by the metric of the
        other. Where it was, classes that it has not seen are less alike by a factor that validation banks gave.
        """
        if base.held is not None and held.any():
            return UNSEEN * mean_likeness(metric(base.features[held]), base.labels[held], len(base.classes))
        found = []
        for half in range(2):
            inside = base.labels % 2 == half
            if len(torch.unique(base.labels[inside])) > 1:
                outside = Metric.whitening(base, shrinkage, inside)(base.features[~inside])
                found.append(mean_likeness(outside, base.labels[~inside], len(base.classes)))
        return torch.stack(found).mean() if found else torch.full((), 0.5, device=self.device)

    def _calibrate(self) -> None:
        """Complete the prototypes of all novel classes by what their names say (Section 3.2)."""
        memory, novel = self.memory, slice(self.memory.base, None)
        if self.prior is not None:
            predicted, miss = self.predicted()
            mean = self.completed(memory.shown[novel], predicted, miss, self.likeness()[novel], memory.counts[novel])
        else:
            mean = self.calibrated(tuple(self.names[novel]), memory.shown[novel])
        mean = self.drawn(mean, memory.counts[novel])
        memory.mean = torch.cat([memory.mean[: memory.base], mean])

    def drawn(self, mean: Tensor, counts: Tensor) -> Tensor:
        """Prototypes (n, d) of so many shots in the metric, drawn to their neighbours among the base classes."""
        if self.metric is None:
            return mean
        mean, memory = F.normalize(mean), self.memory
        if not self.draws:
            return mean
        return self.pull.drawn(mean, counts, memory.mean[: memory.base], self.settings.gamma)

    @property
    def draws(self) -> bool:
        """Whether prototypes are drawn to neighbours, if there are any; very many classes have none."""
        return self.pull.strength > 0 and self.memory.base >= FEWEST and len(self.memory.counts) <= STRUCTURED

    def calibrated(self, names: tuple[str, ...], prototypes: Tensor) -> Tensor:
        """Few-shot prototypes (n, d) completed by their classes' attributes (MPC), if they have any."""
        if self.calibrator is None or not names:
            return prototypes
        vectors, association = (part.to(self.device) for part in self.semantics.classes(names))
        return self.calibrator.calibrate(prototypes, vectors, association, self.settings.alpha)

    def predicted(self) -> tuple[Tensor, Tensor]:
        """Prototypes of all novel classes by their names alone, and how far they may miss."""
        assert self.prior is not None
        return self._lexicon.predicted(self.prior, self.names, self.names[self.memory.base :])

    def completed(self, means: Tensor, predicted: Tensor, miss: Tensor, likeness: Tensor, counts: Tensor) -> Tensor:
        """Prototypes (n, d): means of so many shots, completed by what names predict as far as these are trusted."""
        share = self.trusted(miss, likeness, counts)[:, None]
        return (1 - share) * means + share * predicted

    def trusted(self, miss: Tensor, likeness: Tensor, counts: Tensor) -> Tensor:
        """The share of a name in the prototype of its class; without a shot it is all there is."""
        share = self.settings.trust * trust(miss, likeness, counts.clamp(min=1))
        return torch.where(counts > 0, share, 1.0)

    def likeness(self) -> Tensor:
        """Cosine (classes,) of two images of each class, near the common one where there are few exemplars of it."""
        memory = self.memory
        own, counts = likeness(memory.exemplars, memory.labels, len(memory.mean))
        some = counts > 1
        common = own[some].mean() if some.any() else self.unseen
        weight = torch.where(some, counts, 0)
        return (weight * own + SHRINKAGE * common) / (weight + SHRINKAGE)

    def _borrow(self, classes: range) -> None:
        """Widen the spreads of few-shot classes by those of similar base classes."""
        settings, memory = self.settings, self.memory
        if settings.spread == "borrowed" and memory.base and settings.prototypes < 1:  # else nothing is drawn from them
            base, own = slice(memory.base), slice(classes.start, classes.stop)
            wide = spread(
                memory.std[own], memory.mean[own], memory.mean[base], memory.std[base], settings.beta, settings.gamma
            )
            memory.std = torch.cat([memory.std[: classes.start], wide, memory.std[classes.stop :]])

    def _remark(self, names: tuple[str, ...]) -> None:
        """Say of which classes the names mean nothing here."""
        if self.settings.calibrate == "none" or not self.settings.named:
            return
        self.remarks += self._lexicon.remarks(self.names, names, akin=self.prior is not None)

    @property
    def semantics(self) -> Semantics | Nameless:
        """The meanings of the class names."""
        return self._lexicon.meanings(self.names)

    @property
    def head(self) -> Head:
        """The plain tensors with which features are scored."""
        networks: list[Projector] = list(self.projectors)  # type: ignore[arg-type]
        return Head(
            metric=() if self.metric is None else self.metric.matrices,
            weights=self.structure.new_ones(1) if self.metric is None else self.metric.weights,
            inner_weight=torch.stack([network.inner.weight.detach() for network in networks]),
            inner_bias=torch.stack([network.inner.bias.detach() for network in networks]),
            outer_weight=torch.stack([network.outer.weight.detach() for network in networks]),
            outer_bias=torch.stack([network.outer.bias.detach() for network in networks]),
            structure=self.structure,
            prototypes=F.normalize(self.memory.mean),
            bias=self.lift,
            share=self.structure.new_tensor(self.settings.prototypes if self.structure.shape[1] else 1.0),
            reach=self.reach,
        )

    def scores(self, features: Tensor) -> Tensor:
        """Cosines to structures and prototypes, weighted by the setting `prototypes`, and the bias."""
        return self.head(features.to(self.device))

    @property
    def senses(self) -> dict[str, str]:
        """The synset chosen for each class name."""
        return self._lexicon.senses

    @senses.setter
    def senses(self, known: dict[str, str]) -> None:
        self._lexicon.senses = known

    @property
    def pool(self) -> list[str]:
        """The base classes from which names are learned."""
        return self._lexicon.pool

    @pool.setter
    def pool(self, names: list[str]) -> None:
        self._lexicon.pool = names

    @property
    def neighbours(self) -> list[float]:
        """How far prototypes are drawn, as plain numbers."""
        return [self.pull.strength, self.pull.usual]

    @neighbours.setter
    def neighbours(self, known: list[float]) -> None:
        self.pull = Pull(*known[:2])  # some older states have a third, which nothing needs any more

    @property
    def alone(self) -> list[float]:
        """What is expected of a single image, as plain numbers."""
        return [self.single.gain, self.single.slope, self.single.spread]

    @alone.setter
    def alone(self, known: list[float]) -> None:
        self.single = Single(*known)

    @property
    def memory_bytes(self) -> int:
        """Bytes of data that are kept: statistics, exemplars, the metric, and what names say."""
        kept = [] if self.metric is None else list(self.metric.buffers())
        kept += [] if self.prior is None else list(self.prior.buffers())
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
        self.memory, self._tried = Memory.empty(), None
        matrices = sorted(name for name in state if name.startswith("metric.matrix"))
        self.metric = Metric([state[name] for name in matrices], state["metric.weights"]) if matrices else None
        self.prior = NamePrior.empty() if "prior.centre" in state else None
        hidden, dimension = state["projectors.0.inner.weight"].shape
        sizes = (dimension, len(state["projectors.0.outer.bias"]), hidden)
        self.projectors = nn.ModuleList(Projector(*sizes) for _ in range(self.settings.heads))
        self.calibrator = None
        if "calibrator.features" in state:
            pool = (state["calibrator.features"], state["calibrator.vectors"])
            self.calibrator = Calibrator(*pool, 1.0, self.settings.calibration).eval().requires_grad_(False)
        self.to(self.device)

    def _match(self, steps: int, session: int) -> None:
        """Re-match the structures to all classes known, then the projectors to them (Theorem 1, Eq. 13–15)."""
        settings, memory = self.settings, self.memory
        networks: list[Projector] = list(self.projectors)  # type: ignore[arg-type]
        count = len(memory.mean)
        if settings.prototypes == 1 or count > STRUCTURED:  # nobody would look at the structure
            if settings.prototypes < 1 and (self.structure.shape[1] or not session):
                self.remarks.append(f"more than {STRUCTURED} classes have no structure: their scores are prototypes'")
            self.structure = self.free = self.structure[:, :0]
            self.smr = None
            self._operate()
            return
        room = max(count, settings.total or 0) if settings.structure == "fixed" else count
        if room >= networks[0].width:
            width = room + max(64, room // 4)
            for network in networks:
                network.widen(width)
            self.free = geometry.widen(self.free, width)
        found = match(
            networks,
            memory.sampler(settings.per_base, settings.per_novel, noise=settings.noise, around=settings.around),
            settings,
            free=self.free,
            first=memory.base if session else 0,
            steps=steps,
            seed=self.seed,
            random=self.generator,
        )
        self.structure, self.smr = found.structure, found.smr
        self.free = self.free if found.free is None else found.free
        self._operate()

    def _operate(self) -> None:
        """Find how far the scores of novel classes must be lifted: the operating point."""
        memory, settings = self.memory, self.settings
        self.lift, self.point = torch.zeros(len(memory.mean), device=self.device), None
        self._tried, self.reach = None, settings.reach
        if settings.novel_bias is not None:
            self.lift[memory.base :] = settings.novel_bias
        elif 0 < memory.base < len(memory.mean):
            self._tried = Trial.of(self)
            self.lift[memory.base :], self.point = self._tried.lift(self.head, settings.lean)

    def tried(self) -> Trial:
        """The trial by which the operating point was found, handed out once, or another one."""
        trial, self._tried = self._tried or Trial.of(self), None
        return trial


def spaced(count: int, most: int) -> list[int]:
    """At most so many of the numbers below `count`, evenly spaced."""
    return sorted({at * count // min(count, most) for at in range(min(count, most))})
