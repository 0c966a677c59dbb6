"""ALICE (Peng, Zhao, Wang, Li and Lovell, "Few-Shot Class-Incremental Learning from an Open-Set Perspective",
ECCV 2022).

Faces are recognised with losses that demand a margin between cosines, so that classes lie in dense clusters with room
between them; that room is for classes to come. So the base session is a cosine classifier with such a margin, behind a
projection that is thrown away, on two views of each picture; and mixtures of two classes are classes of their own,
which keeps features diverse. Sessions add class means and train nothing. A base class is the mean of as few images as
a new class has: of those nearest to its mean.

Here: ResNet-12 as in the other rows, where the authors have ResNet-18; hues are not shaken; both views of a batch are
normalised together; the rate falls along a cosine instead of in two steps; the last epoch counts instead of the best on
test images; and the images nearest to a class's mean are found among those that the bank holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.data import augment
from concm.features.sessions import BaseSession
from concm.methods.fact import beta_quantiles, interpolated
from concm.methods.ncm import NCM
from concm.methods.registry import method
from concm.records import Checked, setting
from concm.training.distributed import gather
from concm.training.objective import Objective, Stage
from concm.training.recipe import Schedule

FREE = 10
"""The first column of the random numbers that a view leaves free."""


@dataclass(frozen=True)
class ALICESettings(Checked):
    """The settings of ALICE, with the authors' values for CIFAR-100 and mini-ImageNet."""

    PRESETS: ClassVar = ("cub200",)

    scale: float = setting(30.0, "Scale of the cosines (authors' code).", above=0)
    margin: float = setting(0.4, "What is taken from the cosine to the own class (authors' code).", least=0)
    width: int = setting(2048, "Dimensions of the projection, which is not kept (authors' code).", least=1)
    mixes: int = setting(
        4,
        "Mixtures that each picture begins with; every pair of base classes is a class (authors' code).",
        least=0,
        most=augment.RANDOMS - FREE,
    )
    alpha: float = setting(
        20.0, "Parameter of Beta(alpha, alpha), which shares are drawn from (authors' code).", above=0
    )
    uneven: float = setting(
        0.1, "Largest distance of a share from one half; others are one half (authors' code).", least=0, most=0.5
    )
    nearest: int | None = setting(
        5, "Images whose mean is a base class, those nearest to the mean of all; none: all (authors' code).", least=1
    )
    scale_min: float = setting(0.2, "Smallest area of a view's crop (authors' code).", above=0, most=1)
    jitter: float = setting(
        0.4, "Strength of changes in brightness, contrast and saturation of the views (authors' code).", least=0
    )
    grey: float = setting(0.2, "Share of views without colour (authors' code).", least=0, most=1)

    @classmethod
    def cub200(cls) -> ALICESettings:
        """The authors' settings for CUB200, without mixtures."""
        return cls(mixes=0)


class AngularMargin(Objective):
    """A cosine classifier with a margin over base classes and pairs of them, on two views of pictures and mixtures."""

    schedule = Schedule(epochs=100, batch=128, lr=0.01, warmup=0, weight_decay=5e-4)
    draws = 2
    later = ("nearest",)
    settings: ALICESettings
    quantiles: Tensor

    def __init__(self, stage: Stage, settings: ALICESettings) -> None:
        super().__init__(stage, settings)
        pairs = stage.classes * (stage.classes - 1) // 2 if settings.mixes else 0
        self.projection = nn.Sequential(  # of maps of one place, whose batch norms are those of all processes
            nn.Unflatten(1, (stage.dimension, 1, 1)),
            nn.Conv2d(stage.dimension, settings.width, 1),
            nn.BatchNorm2d(settings.width),
            nn.ReLU(),
            nn.Conv2d(settings.width, settings.width, 1),
            nn.BatchNorm2d(settings.width, affine=False),
            nn.Flatten(),
        )
        self.head = nn.Linear(settings.width, stage.classes + pairs, bias=False)
        self.register_buffer("quantiles", beta_quantiles(settings.alpha))

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """The loss of one step, over pictures and over mixtures of two classes."""
        settings, size = self.settings, self.transform.size
        views = [
            augment.strong(pixels, random[:, at], size, settings.scale_min, settings.jitter, settings.grey)
            for at in range(self.draws)
        ]
        images, wanted = [views], [labels]
        for at in range(FREE, FREE + settings.mixes):
            partner = gather(random[:, 0, at]).argsort()[first : first + len(labels)]
            share = interpolated(self.quantiles, random[:, 1, at])
            share = torch.where((share - 0.5).abs() > settings.uneven, 0.5, share).view(-1, 1, 1, 1)
            images.append([share * view + (1 - share) * gather(view)[partner] for view in views])
            wanted.append(paired(labels, gather(labels)[partner], self.classes))
        every = torch.cat([view for kind in images for view in kind])
        targets = torch.cat([own for own in wanted for _ in views])
        cosines = self._cosines(self.backbone(self.ready(every)).float())
        losses = angular(cosines, targets.clamp_min(0), settings.scale, settings.margin)
        counted = (targets >= 0).float()
        # The mean is over all processes, since their shares of the batch differ in how many mixtures count.
        loss = (losses * counted).sum() / gather(counted.sum()[None]).mean()
        return {"angular": loss, "loss": loss}

    def _cosines(self, features: Tensor) -> Tensor:
        """Of projections to the rows of the classifier, in float32."""
        projected = self.projection(features).float()
        with torch.autocast(features.device.type, enabled=False):
            return F.linear(F.normalize(projected), F.normalize(self.head.weight.float()))

    def classify(self, features: Tensor) -> Tensor:
        """Cosines to the rows of the base classes."""
        return self._cosines(features)[:, : self.classes]


def angular(cosines: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """Cross-entropy (n,) of scaled cosines (n, c), after the own class has lost a margin (CosFace)."""
    penalty = margin * F.one_hot(labels, cosines.shape[1])
    return F.cross_entropy(scale * (cosines - penalty), labels, reduction="none")


def paired(labels: Tensor, others: Tensor, classes: int) -> Tensor:
    """The label (n,) of each pair of two classes, from `classes` on, in either order; −1 for twice the same one."""
    low, high = torch.minimum(labels, others), torch.maximum(labels, others)
    place = classes + low * (2 * classes - low - 1) // 2 + high - low - 1
    return torch.where(low == high, -1, place)


@method(
    "alice",
    title="ALICE: a base session with angular margins and mixed classes",
    paper="ECCV 2022",
    link="https://arxiv.org/abs/2208.00147",
    code="https://github.com/CanPeng123/FSCIL_ALICE",
    group="own base session",
    objective=AngularMargin,
)
class ALICE(NCM):
    """Nearest class mean with as few images of base classes as of new ones."""

    settings = ALICESettings()

    def fit_base(self, base: BaseSession) -> None:
        """Take the means of the images that are nearest to those of all."""
        super().fit_base(base)
        if self.settings.nearest is None:
            return
        known = slice(None) if base.held is None else ~base.held
        features, labels = base.features[known].to(self.device), base.labels[known].to(self.device)
        cosines = F.normalize(features) @ F.normalize(self.prototypes).T
        chosen = []
        for label in base.classes:
            rows = (labels == label).nonzero().flatten()
            best = cosines[rows, label].topk(min(self.settings.nearest, len(rows))).indices
            chosen.append(features[rows[best]].mean(0) if len(rows) else self.prototypes[label])
        self.prototypes = torch.stack(chosen)
