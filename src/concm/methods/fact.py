"""FACT (Zhou, Wang, Ye, Ma, Pu and Zhan, "Forward Compatible Few-Shot Class-Incremental Learning", CVPR 2022).

Room for classes to come is kept free from the start. Fixed virtual prototypes stand for them beside the rows of a
cosine classifier: every base image must have one as its second choice, and mixtures of two base classes, made half-way
through the network, stand for new images, whose first choice must be virtual and the second a base class. Sessions add
class means and train nothing; a test image is compared with them directly and, for a small share, through the virtual
prototypes.

Here: crops and colour shaking stand for AutoAugment and cutout; each pair of images has a mixing coefficient of its
own; virtual prototypes are orthogonal to each other alone and never trained; a second choice is always one that is tied
to the image's class, or any where none is; all losses begin in the first epoch, and the rate falls along a cosine on
every dataset; prototypes are projected as unit vectors. As in the authors' code, the first choice of base images is
learned among base classes alone. Scores are the logarithm of the probabilities, over the scale of the cosines. Through
orthogonal virtual prototypes all classes look nearly alike, so with the published share answers are those of nearest
class mean: what counts is the base session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.backbones import opened
from concm.data import augment
from concm.errors import Misuse
from concm.features.sessions import BaseSession
from concm.methods.ncm import NCM
from concm.methods.registry import TOTAL, method
from concm.records import Checked, setting
from concm.training.distributed import gather
from concm.training.objective import Objective, Stage
from concm.training.recipe import Schedule

LEARNED = "virtual_prototypes"


@dataclass(frozen=True)
class FACTSettings(Checked):
    """Defaults: the authors' for CIFAR-100."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200")

    virtual: int | None = setting(None, "Virtual prototypes; none: one a class to come (paper).", least=1)
    scale: float = setting(16.0, "Of the cosines, in all losses and at test time (authors' code).", above=0)
    gamma: float = setting(0.001, "Weight of the losses that concern virtual prototypes (authors' code).", least=0)
    ties: int = setting(
        3, "Base classes whose second choice a virtual prototype may be, drawn at random (authors' code).", least=1
    )
    alpha: float = setting(0.5, "Mixing coefficients are drawn from Beta(alpha, alpha) (authors' code).", above=0)
    eta: float = setting(
        0.1, "Share of the comparison through virtual prototypes at test time (authors' code).", least=0, most=1
    )
    nearest: int = setting(40, "Virtual prototypes that a test image is compared through (authors' code).", least=1)
    scale_min: float = setting(
        0.3,
        "Smallest area of a view's crop (chosen: ours; authors' code: shifts by up to four pixels, cutout).",
        above=0,
        most=1,
    )
    jitter: float = setting(
        0.4, "Brightness, contrast and saturation of the views (chosen: ours; authors' code: AutoAugment)."
    )
    grey: float = setting(0.2, "Share of views without colour (chosen: ours).")

    @property
    def needs(self) -> tuple[str, ...]:
        """A number of virtual prototypes that is set need not be known from elsewhere."""
        return () if self.virtual else (TOTAL,)

    @classmethod
    def mini_imagenet(cls) -> FACTSettings:
        """The authors' for mini-ImageNet."""
        return cls(gamma=0.01, scale_min=0.08)

    @classmethod
    def cub200(cls) -> FACTSettings:
        """The authors' for CUB200."""
        return cls(gamma=0.01, alpha=2.0, scale_min=0.08)


class ForwardCompatible(Objective):
    """A cosine classifier over base classes and virtual prototypes, on images and on mixtures half-way."""

    schedule = Schedule(epochs=600, batch=256, lr=0.1, warmup=0, weight_decay=5e-4)
    later = ("eta", "nearest")
    virtual: Tensor
    allowed: Tensor
    quantiles: Tensor

    def __init__(self, stage: Stage, settings: FACTSettings) -> None:
        super().__init__(stage, settings)
        opened(stage.backbone)
        count = stage.total - stage.classes if settings.virtual is None else settings.virtual
        if count < 1:
            raise Misuse("fact keeps room for classes to come, and there are none here: set virtual=N")
        self.head = nn.Linear(stage.dimension, stage.classes, bias=False)
        self.register_buffer("virtual", F.normalize(nn.init.orthogonal_(torch.empty(count, stage.dimension))))
        self.register_buffer("allowed", tied(count, stage.classes, settings.ties))
        self.register_buffer("quantiles", beta_quantiles(settings.alpha))

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """Losses of one step; partners are drawn from the global batch."""
        settings, network, numbers = self.settings, opened(self.backbone), random[:, 0]
        views = augment.strong(pixels, numbers, self.transform.size, settings.scale_min, settings.jitter, settings.grey)
        maps = network.front(self.ready(views))
        partner = gather(numbers[:, -1]).argsort()[first : first + len(labels)]
        share = interpolated(self.quantiles, numbers[:, -2]).view(-1, 1, 1, 1)
        mixed = share * maps + (1 - share) * gather(maps)[partner]
        different = (labels != gather(labels)[partner]).float()
        scores, mixtures = (self._scores(network.back(part).mean((2, 3))) for part in (maps, mixed))
        recognised = F.cross_entropy(scores[:, : self.classes], labels)
        reserved = second_choice(scores, labels, self.allowed)
        # Over the pairs of all processes, since shares of the batch differ in how many count.
        forecast = (new_image(mixtures, self.classes) * different).mean() / gather(different).mean().clamp_min(1e-6)
        loss = recognised + settings.gamma * (reserved + forecast)
        return {"cross_entropy": recognised, "reserved": reserved, "forecast": forecast, "loss": loss}

    def _scores(self, features: Tensor) -> Tensor:
        """Scaled cosines (n, base classes + virtual prototypes), in float32."""
        with torch.autocast(features.device.type, enabled=False):
            rows = torch.cat([F.normalize(self.head.weight), self.virtual])
            scores: Tensor = self.settings.scale * F.linear(F.normalize(features.float()), rows)
        return scores

    def classify(self, features: Tensor) -> Tensor:
        """By the base classes' rows."""
        return self._scores(features)[:, : self.classes]

    def learned(self) -> dict[str, Tensor]:
        """The virtual prototypes, which are needed at test time too."""
        return {LEARNED: self.virtual}


def second_choice(scores: Tensor, labels: Tensor, allowed: Tensor) -> Tensor:
    """Without the true class, an image's nearest virtual prototype should win, of those that its class may have.

    Scores are (n, base classes + virtual), allowed (base classes, virtual).
    """
    classes = len(allowed)
    nearest = scores[:, classes:].masked_fill(~allowed[labels], -torch.inf).argmax(1) + classes
    return F.cross_entropy(without(scores, labels), nearest)


def new_image(scores: Tensor, classes: int) -> Tensor:
    """A mixture's nearest virtual prototype should win, and without it the nearest base class: (n,)."""
    virtual, known = scores[:, classes:].argmax(1) + classes, scores[:, :classes].argmax(1)
    first = F.cross_entropy(scores, virtual, reduction="none")
    return first + F.cross_entropy(without(scores, virtual), known, reduction="none")


def without(scores: Tensor, labels: Tensor) -> Tensor:
    """Scores of which one in each row cannot win."""
    return scores.scatter(1, labels[:, None], -torch.inf)


def tied(virtual: int, classes: int, ties: int) -> Tensor:
    """Which virtual prototypes each base class may have (classes, virtual): each is tied to a few classes at random.

    A class that none is tied to may have any.
    """
    chosen = torch.rand(virtual, classes).argsort(1)[:, :ties]
    allowed = torch.zeros(virtual, classes, dtype=torch.bool).scatter(1, chosen, True).T
    return allowed | ~allowed.any(1, keepdim=True)


def beta_quantiles(concentration: float, cells: int = 1024) -> Tensor:
    """The inverse distribution function of Beta(a, a) at equal steps from 0 to 1, (cells + 1,).

    Integrated over the lower half as x = tᵐ ∕ 2, with m such that the density in t is finite for every a.
    """
    power = max(1.0, 1 / concentration)
    edges = np.linspace(0, 1, 100_001)
    middles = (edges[1:] + edges[:-1]) / 2
    density = middles ** (power * concentration - 1) * (1 - middles**power / 2) ** (concentration - 1)
    cumulated = np.concatenate([[0.0], density.cumsum()])
    half = np.interp(np.linspace(0, 1, cells // 2 + 1), cumulated / cumulated[-1], edges) ** power / 2
    return torch.from_numpy(np.concatenate([half, 1 - half[-2::-1]])).float()


def interpolated(table: Tensor, uniform: Tensor) -> Tensor:
    """Values between those of a table at equal steps, at places of 0..1."""
    place = uniform * (len(table) - 1)
    below = place.long().clamp(max=len(table) - 2)
    return table[below] + (place - below) * (table[below + 1] - table[below])


@method(
    "fact",
    title="FACT: a base session that keeps room for classes to come",
    paper="CVPR 2022",
    group="own base session",
    settings=FACTSettings,
    objective=ForwardCompatible,
)
class FACT(NCM):
    """Class means, seen directly and through the virtual prototypes."""

    def __init__(self, settings: FACTSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(seed=seed, device=device)
        self.settings = settings or FACTSettings()

    def fit_base(self, base: BaseSession) -> None:
        """Take the means over all base images, and the base session's virtual prototypes."""
        if LEARNED not in base.learned:
            raise Misuse(
                "fact compares through the virtual prototypes of its own base session, and this backbone has none: "
                "train it with `concm train --method fact`"
            )
        found = len(base.learned[LEARNED])
        if self.settings.virtual not in (None, found):
            raise Misuse(f"fact is set to virtual={self.settings.virtual}, and the backbone was trained with {found}")
        super().fit_base(base)
        self.virtual = base.learned[LEARNED].to(self.device)

    def scores(self, features: Tensor) -> Tensor:
        """Logarithm of the mixture of both comparisons' probabilities, on the scale of cosines.

        So a constant added to some scores acts as it does on cosines, which these are, but for one number an image,
        where eta is 0; and no score is lost to rounding where a probability is near 0 or 1.
        """
        settings, units, rows = self.settings, F.normalize(features.to(self.device)), F.normalize(self.prototypes)
        directly = (settings.scale * units @ rows.T).log_softmax(1)
        to_virtual = units @ self.virtual.T
        values, places = to_virtual.topk(min(settings.nearest, len(self.virtual)))
        nearest = torch.zeros_like(to_virtual).scatter(1, places, values)
        through = (nearest @ (self.virtual @ rows.T)).log_softmax(1)
        shares = directly.new_tensor([1 - settings.eta, settings.eta]).log()
        return torch.logaddexp(shares[0] + directly, shares[1] + through) / settings.scale
