"""NC-FSCIL (Yang et al., "Neural collapse inspired feature-classifier alignment for FSCIL", ICLR 2023).

At the end of training, class means and classifier collapse to a simplex; so the simplex is fixed from the start, with a
vertex for every class to come, and a neck is regressed onto it: no vertex ever moves, only the neck is trained in
sessions, on the shots and on one mean feature of each earlier class.

Here: the backbone is the shared frozen one, so the base session too trains only the neck, pooled features stand for
maps, and mixed features, in shares drawn evenly from 0 to 1, for mixed images. A bank's features are unit vectors, and
are made about as long again as the backbone's own. Without both, an earlier form diverged at the authors' length: the
neck soon fits frozen features, so that weight decay alone acts on it for the rest of the base session, and it shrinks
until a step of a session is larger than its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.engine import geometry
from concm.engine.descent import SGD, descend, half_cosine
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner, scale_to, steps_of
from concm.methods.registry import TOTAL, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class NCFSCILSettings(Checked):
    """The settings of NC-FSCIL, with the authors' values for CIFAR-100."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200", "short")

    size: float | None = setting(
        1.0,
        "Root mean square of the numbers in a base feature as it enters the neck, or `none`: as the bank has them "
        "(chosen: the authors take features as they are, and a batch-normalised network's are near one).",
        above=0,
    )
    width: int = setting(512, "Dimensions of the simplex (authors' code); more if its vertices need more.", least=1)
    hidden: float = setting(
        2.0,
        "Width of the neck's two hidden layers, in multiples of the feature dimension (authors' code).",
        least=0,
    )
    base_epochs: float = setting(
        200.0,
        "Passes of the base session, counted over all base images, also where a bank holds a part of them (authors' "
        "code, who train the backbone with it).",
        least=0,
    )
    base_batch: int = setting(512, "Features in a step of the base session (authors' code).", least=1)
    base_mixing: float = setting(
        0.8,
        "Share of the base session's steps that mix the features of two images (authors' code, which mixes images, and "
        "in those steps counts the whole loss of the first image's class once more).",
        least=0,
        most=1,
    )
    base_lr: float = setting(0.25, "Peak rate of the base session (authors' code).")
    steps: tuple[int, ...] = setting(
        (50, 75, 100, 120, 140, 160, 200, 200),
        "Steps of each session after the base session (authors' code); later ones have as many as the last.",
        least=0,
    )
    batch: int = setting(64, "Features in a step of a session (authors' code).", least=1)
    lr: float = setting(0.25, "Peak rate of the sessions (authors' code).")
    mixing: float = setting(0.75, "Share of the steps that average outputs of different samples (authors' code).")
    lengths: bool = setting(True, "Give classes that are rare in the batch longer targets in sessions (authors' code).")
    repeated: bool = setting(
        False, "Repeat the means of earlier novel classes as many times as there were sessions (authors' code)."
    )
    momentum: float = setting(0.9, "Momentum of SGD (authors' code).")
    weight_decay: float = setting(5e-4, "Weight decay of SGD (authors' code).")

    @classmethod
    def mini_imagenet(cls) -> NCFSCILSettings:
        """The authors' settings for mini-ImageNet, but for the base session's rate, which theirs lets fall in steps."""
        steps = tuple(range(100, 180, 10))
        mixing: dict[str, Any] = {"base_mixing": 0.0, "mixing": 0.0}
        return cls(base_epochs=500, lr=0.025, steps=steps, lengths=False, repeated=True, **mixing)

    @classmethod
    def cub200(cls) -> NCFSCILSettings:
        """The authors' settings for CUB200, but for the base session's rate, which theirs lets fall to a tenth only."""
        base: dict[str, Any] = {"base_epochs": 80, "base_lr": 0.025, "base_mixing": 0.0}
        return cls(lr=0.05, steps=tuple(range(105, 155, 5)), mixing=0.0, lengths=False, repeated=True, **base)

    @classmethod
    def short(cls) -> NCFSCILSettings:
        """For a CPU (chosen): half of the neck's width, and a twentieth of the base session, which needs no more."""
        return cls(hidden=1.0, base_epochs=10)


class Neck(nn.Module):
    """Three layers with a linear one beside them (authors' code)."""

    def __init__(self, dimension: int, hidden: int, width: int) -> None:
        super().__init__()
        self.deep = nn.Sequential(
            nn.Linear(dimension, hidden),
            nn.LayerNorm(hidden),
            nn.LeakyReLU(0.1),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.LeakyReLU(0.1),
            nn.Linear(hidden, width, bias=False),
        )
        self.shortcut = nn.Linear(dimension, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) → (n, width), of any length."""
        vectors: Tensor = self.deep(features) + self.shortcut(features)
        return vectors


@method(
    "nc_fscil",
    title="NC-FSCIL: a neck regressed onto a simplex of all classes to come",
    paper="ICLR 2023",
    link="https://arxiv.org/abs/2302.03004",
    code="https://github.com/NeuralCollapseApplications/FSCIL",
    needs=(TOTAL,),
)
class NCFSCIL(Learner):
    """A fixed simplex, a neck, and one mean feature for each class."""

    settings = NCFSCILSettings()
    total = 0
    scale = 1.0
    values = (*Learner.values, "total", "scale")
    kept = ("means", "simplex")

    def build(self) -> None:
        """Make the neck, as wide as the simplex needs."""
        width = max(self.settings.width, self.total - 1)
        self.neck = Neck(self.dimension, max(1, round(self.settings.hidden * self.dimension)), width).to(self.device)

    def fit_base(self, base: BaseSession) -> None:
        """Fix the simplex, and regress the base images onto its first vertices."""
        if base.total is None:
            raise Misuse("nc_fscil fixes a vertex for every class to come, so the base session must say how many")
        self.total = base.total
        self._find_room(base)
        base = self.begin(base)
        width = self.neck.shortcut.out_features
        self.simplex = geometry.random_simplex(self.total, width, self.generator).float()
        settings = self.settings
        if settings.size is not None:
            self.scale = scale_to(settings.size, base)
        self.means = base.mean
        batch = min(settings.base_batch, len(base.features))
        steps = steps_of(settings.base_epochs, int(base.counts.sum()), batch)
        rates = cooled_cosine(settings.base_lr, steps, 100, 10)
        self._regress(base.features, base.labels, rates, batch, mixing=settings.base_mixing, early=True)

    def learn(self, session: Session) -> None:
        """Go on training the neck, by regressing the shots and the means of all earlier classes onto their vertices."""
        self._find_room(session)
        session, settings = session.to(self.device), self.settings
        earlier = torch.arange(len(self.means), device=self.device)
        if settings.repeated:
            earlier = torch.cat([earlier, earlier[self.base :].repeat(session.index - 1)])
        features = torch.cat([self.means[earlier], session.features])
        labels = torch.cat([earlier, session.labels])
        steps = settings.steps[min(session.index, len(settings.steps)) - 1]
        rates = cooled_cosine(settings.lr, steps, 5, 5)
        self._regress(features, labels, rates, settings.batch, mixing=settings.mixing, lengths=settings.lengths)
        self.means = torch.cat([self.means, session.class_means()])

    def _find_room(self, session: Session) -> None:
        if session.classes.stop > self.total:
            raise Misuse(f"nc_fscil has a simplex of {self.total} classes and cannot learn {session.classes.stop}")

    def _regress(
        self,
        features: Tensor,
        labels: Tensor,
        rates: list[float],
        batch: int,
        *,
        mixing: float = 0.0,
        early: bool = False,
        lengths: bool = False,
    ) -> None:
        """Train the neck by dot-regression, mixing outputs half and half or, `early`, features at random.

        The authors' sum of losses has that of mixed features and their first class once more, whatever its share.
        """

        def shuffled(count: int) -> Tensor:
            return torch.randperm(count, generator=self.generator, device=self.device)

        def chance() -> float:
            return float(torch.rand((), generator=self.generator, device=self.device))

        def loss() -> Tensor:
            rows = shuffled(len(labels))[:batch]
            seen, wanted = features[rows], labels[rows]
            scale = balance(wanted) if lengths else torch.ones_like(seen[:, 0])
            if chance() >= mixing:
                return dot_regression(self._project(seen), self.simplex[wanted], scale)
            other = shuffled(len(rows))
            if early:
                share, again = chance(), 1.0
                mixed = self._project(torch.lerp(seen[other], seen, share))
            else:
                share, again, found = 0.5, 0.0, self._project(seen)
                mixed = (found + found[other]) / 2
            one, two = (dot_regression(mixed, self.simplex[wanted[at]], scale[at]) for at in (slice(None), other))
            return (share + again) * one + (1 - share) * two

        optimiser = SGD(momentum=self.settings.momentum, weight_decay=self.settings.weight_decay)
        descend(self.neck.parameters(), loss, rates, optimiser)

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Cosine to the vertex of every class seen."""
        return F.normalize(self._project(features.to(self.device))) @ self.simplex[: len(self.means)].T

    def _project(self, features: Tensor) -> Tensor:
        """(n, d) → (n, width), of features in the bank's own length."""
        vectors: Tensor = self.neck(self.scale * features)
        return vectors


def cooled_cosine(lr: float, steps: int, warm: int, cool: int) -> list[float]:
    """The authors' rates: from a tenth up over `warm` steps, half a cosine down to 1 %, and 0.1 % for the last `cool`.

    Neither is more than a tenth of the steps.
    """
    warm, cool = min(warm, steps // 10), min(cool, steps // 10)
    fall = [0.01 + 0.99 * half_cosine(step / (steps - cool)) for step in range(1, steps - cool + 1)] + [0.001] * cool
    return [lr * min(1.0, 0.1 + 0.9 * step / max(1, warm)) * rate for step, rate in enumerate(fall, 1)]


def dot_regression(vectors: Tensor, vertices: Tensor, lengths: Tensor) -> Tensor:
    """Ten times L_DR of vectors (n, d) to vertices of lengths l (n,), (l·cos − l)²: longer targets count l² times."""
    return 5 * (lengths * ((F.normalize(vectors) * vertices).sum(1) - 1)).square().mean()


def balance(labels: Tensor) -> Tensor:
    """√(mean count ∕ count) of each label's class in the batch (n,); it is one for all if classes are balanced."""
    counts = torch.bincount(labels)
    return (counts[counts > 0].float().mean() / counts[labels]).sqrt()
