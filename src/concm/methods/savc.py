"""SAVC (Song, Zhao, Shi, Peng, Yuan and Tian, "Learning with Fantasy: Semantic-Aware Virtual Contrastive Constraint for
Few-Shot Class-Incremental Learning", CVPR 2023).

Turned copies of the pictures are classes of their own: fantasies, which hold places in the feature space that new
classes will need. The base session recognises classes and fantasies alike, and contrasts each picture, whole and in
small crops, with a queue of keys that a slow copy of the network made of others. Each class has a prototype for each
fantasy, sessions add class means and train nothing, and a picture's scores are the mean over its fantasies.

Here: fantasies are quarter turns alone (four for mini-ImageNet, whose twelve also permute colours), hues are not
shaken, small crops lie wholly inside the key's crop, places of the queue that are still empty do not count instead of
being noise, the queue is shorter for few classes, the optional training in sessions is left out, and the last epoch
counts instead of the best on the test images.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.data import augment
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.methods.ncm import NCM
from concm.methods.registry import method
from concm.records import Checked, setting
from concm.training.distributed import gather
from concm.training.objective import Objective, Stage
from concm.training.recipe import Schedule

TURNS = {1: (0,), 2: (0, 2), 4: (0, 1, 2, 3)}
"""The quarter turns for each number of fantasies, the upright one first."""
CROPS = 4
"""Largest number of small crops of a picture."""
KEYS = 70
"""Most keys per class and fantasy in the queue (chosen: 8192 are 68 on CIFAR-100; more would be the same pictures)."""


@dataclass(frozen=True)
class SAVCSettings(Checked):
    """The settings of SAVC, with the authors' values for CIFAR-100."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200")

    fantasies: Literal[1, 2, 4] = setting(
        2,
        "Number of turns in which each picture is learned and read, the upright one included (paper: upright and half "
        "a turn).",
    )
    scale: float = setting(16.0, "Scale of the classifier's cosines (authors' code).", above=0)
    global_weight: float = setting(0.2, "Weight of the contrast of whole pictures (paper).")
    local_weight: float = setting(0.8, "Weight of the contrast of small crops (paper).")
    queue: int = setting(
        8192, "Keys that are kept to contrast with (authors' code), at most 70 per class and fantasy.", above=0
    )
    width: int = setting(32, "Dimensions of queries and keys (authors' code).", above=0)
    temperature: float = setting(0.07, "Temperature of the contrast (authors' code).", above=0)
    momentum: float = setting(
        0.995, "Share of its weights that the keys' network keeps at each step (authors' code).", least=0, below=1
    )
    global_min: float = setting(
        0.9,
        "Smallest area of a query's and a key's crop, as a share of the picture's (authors' code).",
        above=0,
        most=1,
    )
    crops: int = setting(CROPS, "Small crops of each picture (authors' code).", least=1, most=CROPS)
    local_side: float = setting(
        18 / 32, "Side to which small crops are scaled, as a share of the picture's (authors' code).", above=0, most=1
    )
    local_min: float = setting(
        0.2, "Smallest area of a small crop, as a share of the picture's (authors' code).", above=0, most=1
    )
    local_max: float = setting(0.7, "Largest area of a small crop (authors' code).", above=0, most=1)
    jitter: float = setting(
        0.4, "Strength of changes in brightness, contrast and saturation of all crops (authors' code)."
    )
    grey: float = setting(0.2, "Share of crops without colour (authors' code).")
    test_views: bool = setting(
        True,
        "Whether scores are the mean over all fantasies (paper) or those of the upright picture alone, as in other "
        "methods.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_min > self.local_max:
            raise Misuse("setting local_min must be at most local_max")

    @classmethod
    def mini_imagenet(cls) -> SAVCSettings:
        """The authors' settings for mini-ImageNet, with four turns for their twelve fantasies."""
        return cls(fantasies=4, local_side=50 / 84, **_PHOTOGRAPHS)

    @classmethod
    def cub200(cls) -> SAVCSettings:
        """The authors' settings for CUB200."""
        return cls(local_side=96 / 224, **_PHOTOGRAPHS)


_PHOTOGRAPHS: dict[str, Any] = {
    "width": 128,
    "momentum": 0.999,
    "global_min": 0.2,
    "local_min": 0.05,
    "local_max": 0.14,
}


class Fantasies(Objective):
    """Cross-entropy over classes × fantasies, contrast with a queue of keys; rows are (pictures, crops, fantasies)."""

    schedule = Schedule(epochs=600, batch=128, lr=0.1, warmup=0, weight_decay=5e-4)
    draws = 3 + CROPS
    later: ClassVar[tuple[str, ...]] = ("test_views",)
    settings: SAVCSettings
    queue: Tensor
    owners: Tensor
    place: Tensor
    exchange: ClassVar[Callable[..., tuple[Tensor, Tensor]]]

    def __init__(self, stage: Stage, settings: SAVCSettings) -> None:
        super().__init__(stage, settings)
        self.turns = TURNS[settings.fantasies]
        # Only now, for this imports all of torch.compile, which takes seconds; and not of one object, which is copied.
        Fantasies.exchange = torch.compiler.disable(_exchange)  # type: ignore[no-untyped-call]
        width = stage.dimension
        self.head = nn.Linear(width, stage.classes * len(self.turns), bias=False)
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, settings.width))
        self.slow = deepcopy(nn.ModuleList([self.backbone, self.projection])).requires_grad_(False)
        length = min(settings.queue, KEYS * self.head.out_features)
        self.register_buffer("queue", torch.zeros(length, settings.width))
        self.register_buffer("owners", torch.full((length,), -1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """Losses of one step."""
        settings = self.settings
        shown, query, key, small = self.views(pixels, random)
        joint = labels[:, None] + self.classes * torch.arange(len(self.turns), device=labels.device)
        with torch.no_grad():
            self._follow()
            keys = self._keys(key)
            queue, owners = self.exchange(keys, joint)
        features = self.read(shown, random[:, 0, -1], first)
        scores = settings.scale * F.linear(F.normalize(features, dim=-1), F.normalize(self.head.weight)).float()
        recognised = F.cross_entropy(scores.flatten(0, 2), joint.flatten())
        queries, locals_ = (self.projected(crops, random[:, at, -1], first) for crops, at in ((query, 1), (small, 3)))
        with torch.autocast(pixels.device.type, enabled=False):
            whole, local = (
                contrast(found, keys[:, None], joint[:, None], queue, owners, settings.temperature)
                for found in (queries, locals_)
            )
        loss = recognised + settings.global_weight * whole + settings.local_weight * local
        return {"cross_entropy": recognised, "global": whole, "local": local, "loss": loss}

    def views(self, pixels: Tensor, random: Tensor) -> tuple[Tensor, ...]:
        """Crops (n, crops, 3, s, s): to recognise, as query, as key, and small ones inside the key's crop."""
        settings, size, side = self.settings, self.transform.size, pixels.shape[1]
        colours = settings.jitter, settings.grey
        shown = augment.weak(pixels, random[:, 0], size)
        query, key = (augment.strong(pixels, random[:, at], size, settings.global_min, *colours) for at in (1, 2))
        frame = 255 * augment.strong(pixels, random[:, 2], side, settings.global_min, 0, 0).permute(0, 2, 3, 1)
        area = settings.global_min + random[:, 2, augment.Strong.AREA] * (1 - settings.global_min)
        edge = max(1, round(settings.local_side * size))
        small = [
            augment.strong(frame, self._sized(random[:, 3 + at], area), edge, settings.local_min, *colours)
            for at in range(settings.crops)
        ]
        return shown[:, None], query[:, None], key[:, None], torch.stack(small, 1)

    def _sized(self, random: Tensor, area: Tensor) -> Tensor:
        """Random numbers (n, RANDOMS) for crops of `local_min` to `local_max` of a picture of which `area` is left."""
        low, high, column = self.settings.local_min, self.settings.local_max, augment.Strong.AREA
        share = ((low + random[:, column] * (high - low)) / area).clamp(max=1)
        return torch.cat([((share - low) / max(1 - low, 1e-6))[:, None], random[:, column + 1 :]], 1)

    def turned(self, crops: Tensor) -> Tensor:
        """(n, crops, 3, s, s) → (n · crops · fantasies, 3, s, s), ready for the network."""
        images = crops.flatten(0, 1)
        quarters = (torch.full((len(images),), turn, device=images.device) for turn in self.turns)
        return self.ready(torch.stack([augment.turn(images, quarter) for quarter in quarters], 1).flatten(0, 1))

    def read(self, crops: Tensor, chance: Tensor, first: int) -> Tensor:
        """Features (n, crops, fantasies, d) for the losses; FACL mixes them, by a uniform number per picture (n,)."""
        return self._shaped(self.backbone(self.turned(crops)), crops)

    def projected(self, crops: Tensor, chance: Tensor, first: int) -> Tensor:
        """Unit vectors (n, crops, fantasies, width): the projections of the features."""
        return F.normalize(self.projection(self.read(crops, chance, first)).float(), dim=-1)

    def _keys(self, crop: Tensor) -> Tensor:
        """Keys: unit vectors (n, fantasies, width) of the slow network."""
        backbone, projection = self.slow
        vectors = projection(self._shaped(backbone(self.turned(crop)), crop)).float()
        return F.normalize(vectors[:, 0], dim=-1)

    def _shaped(self, rows: Tensor, crops: Tensor) -> Tensor:
        return rows.float().view(*crops.shape[:2], len(self.turns), -1)

    def _follow(self) -> None:
        """Move the slow network a little towards the one that is trained."""
        for slow, trained in zip(self.slow, (self.backbone, self.projection), strict=True):
            for weight, towards in zip(slow.parameters(), trained.parameters(), strict=True):
                weight.lerp_(towards, 1 - self.settings.momentum)

    def classify(self, features: Tensor) -> Tensor:
        """Scores of the cosine classifier, as in the method: the mean over fantasies, or those of upright pictures."""
        turns = len(self.turns)
        heads = self.head.weight.view(turns, self.classes, -1).transpose(0, 1)
        views = turns if self.settings.test_views else 1
        return mean_cosines(features.view(len(features), turns, -1)[:, :views], heads[:, :views])

    def learned(self) -> dict[str, Tensor]:
        """The turns in which pictures are read."""
        return {"turns": torch.tensor(self.turns)}


def _exchange(own: Fantasies, keys: Tensor, joint: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the oldest keys by those of the global batch (n, fantasies, width); returns the queue as it was.

    It is not compiled, since a compiled backward pass would compute masks again, from the changed queue.
    """
    queue, owners = own.queue.clone(), own.owners.clone()
    new, theirs = (gather(rows).flatten(0, 1)[-len(queue) :] for rows in (keys, joint))
    places = (own.place + torch.arange(len(new), device=keys.device)) % len(queue)
    own.queue.index_copy_(0, places, new)
    own.owners.index_copy_(0, places, theirs)
    own.place.copy_((own.place + len(new)) % len(queue))
    return queue, owners


def contrast(queries: Tensor, own: Tensor, labels: Tensor, queue: Tensor, owners: Tensor, temperature: float) -> Tensor:
    """Mean over positives (each query's own key and those of its class) of log(1 + Σ e^negative · e^−positive).

    Unit vectors: queries (…, d) with their `own` keys and labels, which broadcast to them, and a queue (k, d) whose
    `owners` (k,) are −1 where it is still empty.
    """
    to_own = (queries * own).sum(-1, keepdim=True) / temperature
    to_queue = queries @ queue.T / temperature
    same = labels[..., None] == owners
    left_out = same | (owners < 0)
    negative = to_queue.masked_fill(left_out, torch.finfo(to_queue.dtype).min).logsumexp(-1, keepdim=True)
    others = (F.softplus(negative - to_queue) * same).sum(-1)
    return ((F.softplus(negative - to_own)[..., 0] + others) / (1 + same.sum(-1))).mean()


def mean_cosines(features: Tensor, prototypes: Tensor) -> Tensor:
    """(n, views, d) and (classes, views, d) → the mean over views of the cosines (n, classes)."""
    one, other = (F.normalize(rows, dim=2).flatten(1) for rows in (features, prototypes))
    return one @ other.T / features.shape[1]


@method(
    "savc",
    title="SAVC: turned pictures as fantasy classes, in a momentum contrast",
    paper="CVPR 2023",
    link="https://arxiv.org/abs/2304.00426",
    code="https://github.com/zysong0113/SAVC",
    group="own base session",
    objective=Fantasies,
)
class SAVC(NCM):
    """Nearest class mean in each fantasy, on the features of SAVC's base session."""

    settings = SAVCSettings()
    chunks = 1
    values = (*NCM.values, "chunks")

    def fit_base(self, base: BaseSession) -> None:
        """Take the means over all base images, one for each turn in which the backbone reads them."""
        if "turns" not in base.learned:
            raise Misuse(
                "this backbone does not say in which turns it reads pictures: train one with the method's base session"
            )
        self.chunks = len(base.learned["turns"])
        base = self.begin(base)
        self.prototypes = self._views(base.mean).flatten(1)

    def learn(self, session: Session) -> None:
        """Add the means of each new class's shots."""
        means = session.to(self.device).class_means()
        self.prototypes = torch.cat([self.prototypes, self._views(means).flatten(1)])

    def scores(self, features: Tensor) -> Tensor:
        """Mean over the fantasies of the cosine to every prototype."""
        views = self._views(features.to(self.device))
        return mean_cosines(views, self.prototypes.view(-1, *views.shape[1:]))

    def _views(self, features: Tensor) -> Tensor:
        """(n, fantasies · d) → (n, views, d): all fantasies, or the upright picture alone."""
        views = features.reshape(len(features), self.chunks, -1)
        return views if self.settings.test_views else views[:, :1]
