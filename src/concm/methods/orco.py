"""OrCo (Ahmed et al., "Towards better generalization via orthogonality and contrast", CVPR 2024).

Pseudo-targets, as orthogonal to each other as they can be, are made for all classes to come, and class means are
assigned to those they are nearest to. A projector is drawn to the targets by cross-entropy, by contrast in which
perturbed targets take part, so that those still free keep a margin, and by a loss that keeps class means and targets
orthogonal; each session begins again from the base session's projector.

Here: the backbone is the shared frozen one, also where the authors go on training it (CUB200), and the projector begins
untrained, where the paper trains both by contrast first; so the base session's first step is damped as all later ones
are, without which some seeds end with all classes in one place. A bank's features are unit vectors, and come in at
length √d. Targets are the simplex that the authors descend to, and are assigned by means of unit vectors; batches are
drawn anew at each step, and the base session ends with its last projector, where the authors keep the one that was best
on test images. Sessions give base classes no cross-entropy with the settings of CIFAR-100, so that in a small world
they are lost, where a share as on CUB200 keeps them. Views are those that the bank has stored. A bank without views of
base images gives one version of each image, and its shots are cut to one version too, so that no image has a second
view, though each target still has two; the run says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.engine import geometry
from concm.engine.assignment import assignment
from concm.engine.descent import SGD, descend, half_cosine
from concm.engine.losses import supervised_contrast
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner, steps_of
from concm.methods.registry import EXEMPLARS, TOTAL, VIEWS, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class OrCoSettings(Checked):
    """The settings of OrCo, with the authors' values for CIFAR-100."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200", "short")

    targets: int | None = setting(
        None,
        "Number of pseudo-targets; none means one for each class to come (authors' code: 100, and 256 for CUB200).",
        least=1,
    )
    width: int = setting(
        128, "Dimensions of the projector's output and its targets (authors' code); more if these need more.", least=1
    )
    hidden: int = setting(2048, "Hidden units of the projector (authors' code).", least=1)
    exemplars: int = setting(5, "Images kept of each base class, the first ones (authors' code).", least=1)
    perturbation: float = setting(
        9e-5, "Width of the noise in a target's coordinates, half of it to either side (authors' code).", least=0
    )
    temperature: float = setting(0.07, "Temperature of the contrast (authors' code).", above=0)
    novel_weight: float = setting(0.5, "Weight of the cross-entropy of novel samples in sessions (authors' code).")
    base_weight: float = setting(0.0, "Weight of the cross-entropy of base samples in sessions (authors' code).")
    base_epochs: float = setting(
        10.0,
        "Passes of the base session, counted over all base images, also where a bank holds a part of them (authors' "
        "code).",
        least=0,
    )
    least_steps: int = setting(235, "Steps that a base session of few images has at least (chosen).", least=0)
    base_batch: int = setting(128, "Images in a step of the base session (authors' code).", least=1)
    base_lr: float = setting(0.25, "Rate of the base session, or its peak (authors' code).")
    base_warm: float | None = setting(
        None,
        "Share of the base session in which its rate rises, to fall in the rest; none means that it stays as it is "
        "(authors' code, whose milestones come after the end; 0.03 for CUB200).",
        least=0,
        most=1,
    )
    base_decay: float = setting(5e-4, "Weight decay of SGD in the base session (authors' code).", least=0)
    epochs: float = setting(100.0, "Passes of each later session over the images kept (authors' code).", least=0)
    batch: int = setting(64, "Images in a step of a session (authors' code).", least=1)
    lr: float = setting(0.1, "Peak rate of the sessions (authors' code).")
    warm: float = setting(
        0.1, "Share of a session in which its rate rises, to fall in the rest (authors' code).", least=0, most=1
    )
    decay: float = setting(1e-4, "Weight decay of SGD in the sessions (authors' code).", least=0)
    momentum: float = setting(0.9, "Momentum of SGD, and its dampening (authors' code).")

    @property
    def needs(self) -> tuple[str, ...]:
        """Exemplars and views, and the number of classes to come unless the number of targets is set."""
        kept = f"{EXEMPLARS}: {self.exemplars} per base class, all shots of novel classes"
        return (kept, VIEWS) if self.targets else (kept, VIEWS, TOTAL)

    @classmethod
    def mini_imagenet(cls) -> OrCoSettings:
        """The authors' settings for mini-ImageNet."""
        return cls(perturbation=1e-2, base_lr=0.1, base_decay=1e-4)

    @classmethod
    def cub200(cls) -> OrCoSettings:
        """The authors' settings for CUB200."""
        base: dict[str, Any] = {"base_epochs": 100, "base_lr": 0.025, "base_warm": 0.03}
        sessions: dict[str, Any] = {"base_weight": 0.6, "batch": 32, "lr": 0.05, "decay": 1e-5}
        return cls(targets=256, width=256, perturbation=1e-2, **base, **sessions)

    @classmethod
    def short(cls) -> OrCoSettings:
        """For a CPU (chosen): a quarter of the width, a tenth of the base session and a fifth of the others.

        The rate rises in as many passes as the authors', since the first step, which is not damped, else goes too far.
        """
        return cls(hidden=512, base_epochs=1, epochs=20, warm=0.5)


class OrCoProjector(nn.Module):
    """Two layers, for features that come in at length √d."""

    def __init__(self, dimension: int, hidden: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dimension, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) → (n, width), unit vectors."""
        return F.normalize(self.layers(math.sqrt(features.shape[1]) * F.normalize(features)))


@method(
    "orco",
    title="OrCo: orthogonal targets, contrast with perturbed ones",
    paper="CVPR 2024",
    link="https://arxiv.org/abs/2403.18550",
    code="https://github.com/noorahmedds/OrCo",
)
class OrCo(Learner):
    """A projector to pseudo-targets; those of the classes seen come first, in the order of the classes."""

    settings = OrCoSettings()
    values = (*Learner.values, "count", "seen", "remarks")
    kept = ("images", "labels", "targets")

    def __init__(self, settings: OrCoSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(settings, seed=seed, device=device)
        self.count, self.seen, self.remarks = 0, 0, list[str]()

    def build(self) -> None:
        """Make the projector, and the base session's one, from which each session begins."""
        width = max(self.settings.width, self.count - 1)
        self.aligned = OrCoProjector(self.dimension, self.settings.hidden, width).to(self.device)
        self.projector = OrCoProjector(self.dimension, self.settings.hidden, width).to(self.device)

    def fit_base(self, base: BaseSession) -> None:
        """Make the targets, assign the base classes to theirs, align the projector, and keep a few images."""
        settings = self.settings
        if settings.targets is None and base.total is None:
            raise Misuse("orco makes a target for every class to come: the base session or targets=N must say how many")
        self.count, self.seen = settings.targets or base.total or 0, 0
        self._find_room(base)
        if base.views is None:
            self.remarks.append("this bank has no views of base images, so no image or shot has a second view")
        base = self.begin(base)
        width = max(settings.width, self.count - 1)
        self.targets = geometry.random_simplex(self.count, width, self.generator).float()
        self.images, self.labels = versions(base), base.labels
        with torch.no_grad():
            self._assign(class_directions(self.projector(base.features), base.labels))
        batch, lr, warm = min(settings.base_batch, len(self.labels)), settings.base_lr, settings.base_warm
        steps = max(steps_of(settings.base_epochs, int(base.counts.sum()), batch), settings.least_steps)
        rates = [lr] * steps if warm is None else rates_of_passes(lr, steps, settings.base_epochs, warm)
        self._align(rates, batch, settings.base_decay, (1.0, 0.0))
        self.aligned.load_state_dict(self.projector.state_dict())
        first = torch.cat([(base.labels == label).nonzero().flatten()[: settings.exemplars] for label in base.classes])
        self.images, self.labels = self.images[first], base.labels[first]

    def learn(self, session: Session) -> None:
        """Assign the new classes to free targets, and align the base session's projector to all images kept."""
        self._find_room(session)
        session, settings = session.to(self.device), self.settings
        self.projector.load_state_dict(self.aligned.state_dict())
        with torch.no_grad():
            self._assign(class_directions(self.projector(session.features), session.labels - self.seen))
        self.images = torch.cat([self.images, versions(session, self.images.shape[1])])
        self.labels = torch.cat([self.labels, session.labels])
        weights = settings.base_weight, settings.novel_weight
        steps = steps_of(settings.epochs, len(self.labels), settings.batch)
        rates = rates_of_passes(settings.lr, steps, settings.epochs, settings.warm)
        self._align(rates, settings.batch, settings.decay, weights)

    def _find_room(self, session: Session) -> None:
        if session.classes.stop > self.count:
            raise Misuse(f"orco has {self.count} targets and cannot learn {session.classes.stop} classes")

    def _assign(self, directions: Tensor) -> None:
        """Move the free targets that together match new class means (n, width) best behind those of known classes."""
        free = self.targets[self.seen :]
        chosen = torch.from_numpy(assignment(-(directions @ free.T).double().cpu().numpy())).to(self.device)
        left = torch.ones(len(free), dtype=torch.bool, device=self.device).index_fill_(0, chosen, False)
        self.targets = torch.cat([self.targets[: self.seen], free[chosen], free[left]])
        self.seen += len(directions)

    def _align(self, rates: list[float], batch: int, decay: float, weights: tuple[float, float]) -> None:
        """Draw images to their targets; `weights` are those of base and novel cross-entropy.

        Targets of all classes but the base ones are perturbed, and in sessions novel images alone are kept orthogonal.
        """
        settings, targets = self.settings, self.targets
        later = self.seen > self.base

        def random(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=self.generator, device=self.device)

        def loss() -> Tensor:
            rows = random(len(self.labels)).argsort()[:batch]
            order = random(len(rows), self.images.shape[1]).argsort(1)[:, :2]
            vectors: Tensor = self.projector(self.images[rows[:, None], order].transpose(0, 1).flatten(0, 1))
            once, labels = self.labels[rows], self.labels[rows].repeat(order.shape[1])
            others, near = perturbed(targets[self.base :], len(rows), settings.perturbation, self.generator)
            pull = contrast(
                torch.cat([vectors, near.flatten(0, 1)]),
                torch.cat([labels, (self.base + others).repeat(2)]),
                settings.temperature,
            )
            entropy = F.cross_entropy(vectors @ targets[: self.seen].T, labels, reduction="none")
            groups = zip(weights, (labels < self.base, labels >= self.base), strict=True)
            matching = sum(weight * (entropy * group).sum() / group.sum().clamp(min=1) for weight, group in groups)
            new = once >= (self.base if later else 0)
            return pull + matching + orthogonality(occupied(vectors[: len(rows)][new], once[new], targets))

        momentum = settings.momentum
        optimiser = SGD(momentum=momentum, dampening=momentum, weight_decay=decay, from_rest=not later)
        descend(self.projector.parameters(), loss, rates, optimiser)

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Cosine to the target of every class seen."""
        vectors: Tensor = self.projector(features.to(self.device))
        return vectors @ self.targets[: self.seen].T


def versions(session: Session, count: int | None = None) -> Tensor:
    """Each image's features and those of its views (n, count, d); if there are too few, some are repeated."""
    found = session.features[:, None]
    if session.views is not None:
        found = torch.cat([found, session.views], 1)
    return found if count is None else found[:, torch.arange(count, device=found.device) % found.shape[1]]


def perturbed(targets: Tensor, count: int, width: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which of the targets (m, d) are taken (count,), each about as often as another, and two noisy views of them.

    The views (2, count, d) are unit vectors; the noise is even over ±width∕2 in each coordinate.
    """
    device = targets.device
    order = torch.randperm(len(targets), generator=generator, device=device)
    chosen = order.repeat(math.ceil(count / max(1, len(order))))[:count]
    noise = width * (torch.rand(2, len(chosen), targets.shape[1], generator=generator, device=device) - 0.5)
    return chosen, F.normalize(targets[chosen] + noise, dim=-1)


def contrast(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrast of unit vectors (n, d) with each other, a mean over those that share their label."""
    own = torch.arange(len(labels), device=labels.device)
    sharing = (torch.bincount(labels)[labels] > 1).sum().clamp(min=1)
    return supervised_contrast(vectors, labels, vectors, labels, own, temperature) * len(labels) / sharing


def rates_of_passes(lr: float, steps: int, passes: float, warm: float) -> list[float]:
    """A rate for each pass, repeated at all of its steps: up from next to nothing, and down as half a cosine.

    It rises over the share `warm` of the passes, as in the authors' code.
    """
    rise = round(warm * passes)

    def rate(at: int) -> float:
        if at < rise:
            return SLOWEST + (lr - SLOWEST) * at / max(1, rise - 1)
        return lr * half_cosine((at - rise) / max(1, passes - rise))

    return [rate(int(step / steps * passes + 1e-9)) for step in range(steps)]


SLOWEST = 3e-5
"""The rate of the first pass, where rates rise (authors' code)."""


def class_directions(vectors: Tensor, labels: Tensor) -> Tensor:
    """Unit mean of the vectors (n, d) of each label 0, 1, …: (classes, d)."""
    sums = vectors.new_zeros(int(labels.max()) + 1, vectors.shape[1])
    return F.normalize(sums.index_add(0, labels, vectors))


def occupied(vectors: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The targets (m, d), with the classes' unit means in place of those whose classes are in the batch."""
    present = torch.bincount(labels, minlength=len(targets)) > 0
    sums = torch.zeros_like(targets).index_add(0, labels, vectors)
    return torch.where(present[:, None], F.normalize(sums), targets)


def orthogonality(vectors: Tensor) -> Tensor:
    """L_ORTH: mean log-sum-exp of each unit vector's cosines (m, d) to all; least where they form a simplex."""
    return (vectors @ vectors.T).logsumexp(1).mean()
