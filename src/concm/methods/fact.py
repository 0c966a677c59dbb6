"""FACT (Zhou, Wang, Ye, Ma, Pu and Zhan, "Forward Compatible Few-Shot Class-Incremental Learning", CVPR 2022).

Room for classes to come is kept free from the start. Fixed virtual prototypes stand for them beside the rows of a
cosine classifier: every base image must have one as its second choice, and mixtures of two base classes, made half-way
through the network, stand for new images, whose first choice must be virtual and the second a base class. Sessions add
class means and train nothing; a test image is compared with them directly and, for a small share, through the virtual
prototypes.

Here: crops and colour shaking stand for AutoAugment and cutout; each pair of images has a mixing coefficient of its
own; virtual prototypes are orthogonal to each other alone and never trained; a second choice is always one that is tied
to the image's class, or any if none is; all losses begin in the first epoch, and the rate falls along a cosine on
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
    """The settings of FACT, with the authors' values for CIFAR-100."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200")

    virtual: int | None = setting(
        None, "Number of virtual prototypes; none means one for each class to come (paper).", least=1
    )
    scale: float = setting(16.0, "Scale of the cosines in all losses and at test time (authors' code).", above=0)
    gamma: float = setting(0.001, "Weight of the losses that concern virtual prototypes (authors' code).", least=0)
    ties: int = setting(
        3,
        "Number of base classes, drawn at random, whose second choice a virtual prototype may be (authors' code).",
        least=1,
    )
    alpha: float = setting(
        0.5, "Parameter of Beta(alpha, alpha), which mixing coefficients are drawn from (authors' code).", above=0
    )
    eta: float = setting(
        0.1, "Share of the comparison through virtual prototypes at test time (authors' code).", least=0, most=1
    )
    nearest: int = setting(
        40, "Number of virtual prototypes through which a test image is compared (authors' code).", least=1
    )
    scale_min: float = setting(
        0.3,
        "Smallest area of a view's crop (chosen: ours; authors' code: shifts by up to four pixels, cutout).",
        above=0,
        most=1,
    )
    jitter: float = setting(
        0.4,
        "Strength of changes in brightness, contrast and saturation of the views (chosen: ours; authors' code: "
        "AutoAugment).",
    )
    grey: float = setting(0.2, "Share of views without colour (chosen: ours).")

    @property
    def needs(self) -> tuple[str, ...]:
        """The number of classes to come, unless the number of virtual prototypes is set."""
        return () if self.virtual else (TOTAL,)

    @classmethod
    def mini_imagenet(cls) -> FACTSettings:
        """The authors' settings for mini-ImageNet."""
        return cls(gamma=0.01, scale_min=0.08)

    @classmethod
    def cub200(cls) -> FACTSettings:
        """The authors' settings for CUB200."""
        return cls(gamma=0.01, alpha=2.0, scale_min=0.08)


class ForwardCompatible(Objective):
    """A cosine classifier over base classes and virtual prototypes, on images and on mixtures of half-way maps."""

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
        among_shares, among_partners = numbers[:, -2], numbers[:, -1]
        partner = gather(among_partners).argsort()[first : first + len(labels)]
        share = interpolated(self.quantiles, among_shares).view(-1, 1, 1, 1)
        mixed = share * maps + (1 - share) * gather(maps)[partner]
        different = (labels != gather(labels)[partner]).float()
        scores, mixtures = (self._scores(network.back(part).mean((2, 3))) for part in (maps, mixed))
        recognised = F.cross_entropy(scores[:, : self.classes], labels)
        reserved = second_choice(scores, labels, self.allowed)
        # The mean is over all processes, since their shares of the batch differ in how many pairs count.
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
        """Scores of the base classes' rows."""
        return self._scores(features)[:, : self.classes]

    def learned(self) -> dict[str, Tensor]:
        """The virtual prototypes, which are needed at test time too."""
        return {LEARNED: self.virtual}


def second_choice(scores: Tensor, labels: Tensor, allowed: Tensor) -> Tensor:
    """Loss that makes the nearest virtual prototype that a class may have win, once the true class is left out.

    Scores are (n, base classes + virtual), `allowed` is (base classes, virtual).
    """
    classes = len(allowed)
    nearest = scores[:, classes:].masked_fill(~allowed[labels], -torch.inf).argmax(1) + classes
    return F.cross_entropy(without(scores, labels), nearest)


def new_image(scores: Tensor, classes: int) -> Tensor:
    """Loss (n,) that makes a mixture's nearest virtual prototype win and, without that, its nearest base class."""
    virtual, known = scores[:, classes:].argmax(1) + classes, scores[:, :classes].argmax(1)
    first = F.cross_entropy(scores, virtual, reduction="none")
    return first + F.cross_entropy(without(scores, virtual), known, reduction="none")


def without(scores: Tensor, labels: Tensor) -> Tensor:
    """Scores (n, c) with one entry of each row set so low that it cannot win."""
    return scores.scatter(1, labels[:, None], -torch.inf)


def tied(virtual: int, classes: int, ties: int) -> Tensor:
    """Which virtual prototypes each base class may have (classes, virtual): each is tied to a few classes at random.

    A class to which none is tied may have any of them.
    """
    chosen = torch.rand(virtual, classes).argsort(1)[:, :ties]
    allowed = torch.zeros(virtual, classes, dtype=torch.bool).scatter(1, chosen, True).T
    return allowed | ~allowed.any(1, keepdim=True)


def beta_quantiles(concentration: float, cells: int = 1024) -> Tensor:
    """The inverse distribution function of Beta(a, a) at equal steps from 0 to 1, (cells + 1,).

    It is integrated over the lower half as x = tᵐ ∕ 2, with m such that the density in t is finite for every a.
    """
    power = max(1.0, 1 / concentration)
    edges = np.linspace(0, 1, 100_001)
    middles = (edges[1:] + edges[:-1]) / 2
    density = middles ** (power * concentration - 1) * (1 - middles**power / 2) ** (concentration - 1)
    cumulated = np.concatenate([[0.0], density.cumsum()])
    half = np.interp(np.linspace(0, 1, cells // 2 + 1), cumulated / cumulated[-1], edges) ** power / 2
    return torch.from_numpy(np.concatenate([half, 1 - half[-2::-1]])).float()


def interpolated(table: Tensor, uniform: Tensor) -> Tensor:
    """Values between those of a table at equal steps, read at places from 0 to 1."""
    place = uniform * (len(table) - 1)
    below = place.long().clamp(max=len(table) - 2)
    return table[below] + (place - below) * (table[below + 1] - table[below])


@method(
    "fact",
    title="FACT: a base session that keeps room for classes to come",
    paper="CVPR 2022",
    link="https://arxiv.org/abs/2203.06953",
    code="https://github.com/zhoudw-zdw/CVPR22-Fact",
    group="own base session",
    objective=ForwardCompatible,
)
class FACT(NCM):
    """Class means, seen directly and through the virtual prototypes."""

    settings = FACTSettings()
    kept = (*NCM.kept, "virtual")

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

        A constant added to some scores then acts as it does on cosines: where eta is 0, the scores are the cosines plus
        one number for each image. And no score is lost to rounding where a probability is near 0 or 1.
        """
        settings, units, rows = self.settings, F.normalize(features.to(self.device)), F.normalize(self.prototypes)
        directly = (settings.scale * units @ rows.T).log_softmax(1)
        to_virtual = units @ self.virtual.T
        values, places = to_virtual.topk(min(settings.nearest, len(self.virtual)))
        nearest = torch.zeros_like(to_virtual).scatter(1, places, values)
        through = (nearest @ (self.virtual @ rows.T)).log_softmax(1)
        shares = directly.new_tensor([1 - settings.eta, settings.eta]).log()
        return torch.logaddexp(shares[0] + directly, shares[1] + through) / settings.scale
