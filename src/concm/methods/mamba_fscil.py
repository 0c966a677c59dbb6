"""Mamba-FSCIL (Li et al., "Dynamic adaptation with selective state space model for few-shot class-incremental
learning", arXiv 2407.06136, 2024).

As in NC-FSCIL, pictures are regressed onto a fixed simplex with a vertex for every class to come. The neck reads the
backbone's last map as a sequence, in four directions, by a state-space model whose parameters depend on what it reads,
so that it adapts without growing. After the base session it is frozen, and one second branch beside it learns the
shifts of all novel classes: it begins silent, is kept silent on base classes and loud on novel ones, and its
parameters for both are driven apart.

Here: there is a norm after the scan and a layer back to the width of the simplex; the convolution before the scan is
left out, so that a position's parameters are the same in all directions; the shortcut is linear for CIFAR-100 too,
where the authors add the mean map itself. The second branch is added to vectors of the first that are scaled to one
mean length, that of the authors' log. The first branch stays frozen on CUB200 too; in the base session, pictures are
mixed one by one and in even shares, and the rate falls along a cosine for all data. The preset `short` is for a CPU: a
small branch, trained at a lower rate, in half of the steps, and without averaging outputs of different samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.backbones import opened
from concm.data import augment
from concm.engine import geometry
from concm.engine.descent import SGD, descend, warmed_cosine
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.methods.base import Learner
from concm.methods.nc_fscil import balance
from concm.methods.registry import TOTAL, method
from concm.records import Checked, setting
from concm.training.distributed import gather
from concm.training.objective import Objective, Stage
from concm.training.recipe import Schedule


@dataclass(frozen=True)
class MambaFSCILSettings(Checked):
    """The settings of the base session and of later ones, with the authors' values for CIFAR-100."""

    PRESETS: ClassVar = ("mini_imagenet", "cub200", "short")

    width: int = setting(
        640,
        "Dimensions of the simplex (authors' code; 512 for mini-ImageNet); more if its vertices need more.",
        least=1,
    )
    inner: int = setting(
        640,
        "Channels of a branch, half of those of its hidden layer (authors' code: the simplex's dimensions).",
        least=1,
    )
    state: int = setting(256, "Numbers that the scan remembers of each channel (authors' code).", least=1)
    rank: int = setting(256, "Rank of the step sizes Δ (authors' code).", least=1)
    scale_min: float = setting(0.6, "Smallest area of a crop in the base session (authors' code).", above=0, most=1)
    jitter: float = setting(
        0.4, "Strength of changes in brightness, contrast and saturation in the base session (authors' code)."
    )
    blended: float = setting(
        0.4, "Share of pictures blended with another in the base session (authors' code: Mixup).", least=0
    )
    pasted: float = setting(0.4, "Share of pictures with a part of another pasted in (authors' code: CutMix).", least=0)
    steps: int = setting(200, "Steps of the first session after the base session (authors' code).", least=0)
    more_steps: int = setting(0, "Steps that each session has more than the one before (authors' code).", least=0)
    batch: int = setting(64, "Maps in a step of a session (authors' code).", least=1)
    lr: float = setting(0.25, "Peak rate of the sessions (authors' code).")
    length: float = setting(
        31.0,
        "Mean length of base classes' vectors to which the second branch is added (that in the authors' log).",
        above=0,
    )
    shrink: float = setting(100.0, "Weight of the second branch's gate on base classes (authors' code).")
    grow: float = setting(1e-5, "Weight of the second branch's gate on novel classes (authors' code).")
    separate: float = setting(
        1e-3, "Weight of the likeness of the second branch's parameters for base and novel classes (authors' code)."
    )
    mixing: float = setting(0.75, "Share of the steps that average outputs of different samples (authors' code).")
    lengths: bool = setting(
        True,
        "Give classes that are rare in the batch longer targets in sessions, and so more weight (authors' code).",
    )
    copies: int = setting(1, "Number of copies of the mean map of each earlier novel class (authors' code).", least=1)
    more_base: bool = setting(
        False, "Repeat the mean maps of base classes as often as there were sessions (authors' code)."
    )
    momentum: float = setting(0.9, "Momentum of SGD in sessions (authors' code).")
    weight_decay: float = setting(5e-4, "Weight decay of SGD in sessions (authors' code).")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blended + self.pasted > 1:
            raise Misuse("settings blended and pasted are shares of the same pictures, so their sum is at most 1")

    @classmethod
    def mini_imagenet(cls) -> MambaFSCILSettings:
        """The authors' settings for mini-ImageNet (100 to 170 steps per session), except for mixing."""
        base: dict[str, Any] = {"width": 512, "inner": 512, "scale_min": 0.08, "blended": 0.0, "pasted": 0.0}
        losses: dict[str, Any] = {"grow": 0.0, "separate": 0.5, "mixing": 0.0, "copies": 10, "more_base": True}
        return cls(**base, **losses, steps=100, more_steps=10, lr=0.01)

    @classmethod
    def cub200(cls) -> MambaFSCILSettings:
        """The authors' settings for CUB200: 200 to 290 steps per session, with base means once in each."""
        base: dict[str, Any] = {
            "width": 1024,
            "inner": 1024,
            "scale_min": 0.08,
            "jitter": 0.3,
            "blended": 0.0,
            "pasted": 0.0,
        }
        losses: dict[str, Any] = {"grow": 10.0, "mixing": 0.5, "lengths": False, "copies": 10}
        return cls(**base, **losses, more_steps=10, lr=0.05)

    @classmethod
    def short(cls) -> MambaFSCILSettings:
        """For a CPU: a smaller branch, half of the steps; rate, length and mixing chosen on held-out base classes."""
        small: dict[str, Any] = {"width": 512, "inner": 128, "state": 8, "rank": 8}
        return cls(**small, steps=100, lr=0.05, length=2.0, mixing=0.0)


class Response(NamedTuple):
    """Vectors (n, width) of a branch, its gate (n, positions, inner), and what makes Δ, B and C (n, positions, ·)."""

    vectors: Tensor
    gate: Tensor
    selected: Tensor


class Branch(nn.Module):
    """A selective state-space model over the positions of a map, in four directions; if `silent`, its gate is shut."""

    def __init__(
        self, channels: int, shape: Sequence[int], width: int, settings: MambaFSCILSettings, silent: bool = False
    ) -> None:
        super().__init__()
        inner, positions = settings.inner, math.prod(shape)
        self.orders = directions(*shape)
        self.sizes = [settings.rank, settings.state, settings.state]
        self.enter = nn.Sequential(
            nn.Linear(channels, 2 * inner),
            nn.LayerNorm((positions, 2 * inner)),
            nn.LeakyReLU(0.1),
            nn.Linear(2 * inner, inner, bias=False),
        )
        self.place = nn.Parameter(0.02 * torch.randn(positions, inner))
        self.signal = nn.Linear(inner, inner, bias=False)
        self.gate = nn.Linear(inner, inner, bias=False)
        self.select = nn.Linear(inner, sum(self.sizes), bias=False)
        self.delta = nn.Linear(settings.rank, inner)
        steps = torch.exp(torch.empty(inner).uniform_(math.log(1e-3), math.log(0.1)))
        self.delta.bias.data = steps + torch.log(-torch.expm1(-steps))
        self.log_a = nn.Parameter(torch.arange(1.0, settings.state + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.norm = nn.LayerNorm(inner)
        self.leave = nn.Linear(inner, width, bias=False)
        if silent:
            nn.init.zeros_(self.gate.weight)

    def forward(self, maps: Tensor) -> Response:
        """(n, channels, h, w) → vectors, and the other quantities that the losses of sessions use."""
        tokens = self.enter(maps.flatten(2).transpose(1, 2)) + self.place
        signal, gate = F.silu(self.signal(tokens)).float(), self.gate(tokens).float()
        selected = self.select(signal).float()
        step, b, c = selected.split(self.sizes, -1)
        delta = F.softplus(self.delta(step).float())
        read = selective_scan(signal, delta, -self.log_a.exp(), b, c, self.orders) + self.skip * signal
        vectors = self.leave((self.norm(read) * F.silu(gate)).mean(1)).float()
        return Response(vectors, gate, selected)


def directions(height: int, width: int) -> list[list[int]]:
    """The positions of a map row by row, column by column, and each from the end."""
    rows = list(range(height * width))
    columns = [row * width + column for column in range(width) for row in range(height)]
    return [rows, rows[::-1], columns, columns[::-1]]


def selective_scan(
    signal: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, orders: Sequence[Sequence[int]]
) -> Tensor:
    """Mean over orders of y_t = C_t h_t, where h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_t, at each position.

    Signal x and Δ are (n, positions, inner), A is (inner, state), B and C are (n, positions, state). What a position
    does to the state is the same in all directions, so it is computed once.
    """
    with torch.autocast(signal.device.type, enabled=False):
        decay = (delta[..., None] * a).exp().unbind(1)
        drive = ((delta * signal)[..., None] @ b[:, :, None]).unbind(1)
        total: dict[int, Tensor] = {}
        for first, *others in orders:
            state = drive[first]
            total[first] = total[first] + state if first in total else state
            for at in others:
                state = decay[at] * state + drive[at]
                total[at] = total[at] + state if at in total else state
        states = torch.stack([total[at] for at in range(len(drive))], 1)
        return (states @ c[..., None]).squeeze(-1) / len(orders)


class Neck(nn.Module):
    """The first branch beside a linear layer on the mean of the map."""

    def __init__(self, channels: int, shape: Sequence[int], width: int, settings: MambaFSCILSettings) -> None:
        super().__init__()
        self.branch = Branch(channels, shape, width, settings)
        self.shortcut = nn.Linear(channels, width, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """(n, channels, h, w) → (n, width), of any length."""
        vectors: Tensor = self.branch(maps).vectors + self.shortcut(maps.mean((2, 3))).float()
        return vectors


IN_BASE_SESSION = ("width", "inner", "state", "rank", "scale_min", "jitter", "blended", "pasted")
"""Names of the settings that shape the neck and its training; the others belong to later sessions."""


class OntoSimplex(Objective):
    """Dot-regression of mixed pictures onto a fixed simplex of all classes to come."""

    schedule = Schedule(epochs=200, batch=512, lr=0.25, warmup=1.7, weight_decay=5e-4)
    draws = 2
    later = tuple(item.name for item in fields(MambaFSCILSettings) if item.name not in IN_BASE_SESSION)
    maps = True

    def __init__(self, stage: Stage, settings: MambaFSCILSettings) -> None:
        super().__init__(stage, settings)
        self.shape = map_shape(stage)
        width = max(settings.width, stage.total - 1)
        self.neck = Neck(stage.dimension, self.shape, width, settings)
        self.simplex: Tensor
        simplex = geometry.random_simplex(stage.total, width, torch.Generator().manual_seed(0))
        self.register_buffer("simplex", simplex.float())

    def forward(self, pixels: Tensor, labels: Tensor, random: Tensor, first: int) -> dict[str, Tensor]:
        """Loss of one step; partners are drawn from the global batch."""
        settings = self.settings
        images = augment.strong(
            pixels, random[:, 0], self.transform.size, settings.scale_min, settings.jitter, grey=0.0
        )
        partner = gather(random[:, 1, 0]).argsort()[first : first + len(labels)]
        mixed, share = mix(images, gather(images)[partner], random[:, 1, 1:], settings.blended, settings.pasted)
        vectors = self.neck(opened(self.backbone).maps(self.ready(mixed)).float())
        own, other = (misses(vectors, self.simplex[at]) for at in (labels, gather(labels)[partner]))
        return {"loss": (share * own + (1 - share) * other).mean()}

    def classify(self, features: Tensor) -> Tensor:
        """Cosines to the vertices of the base classes."""
        vertices = self.simplex[: self.classes].T
        return torch.cat([F.normalize(self.neck(folded(part, self.shape))) @ vertices for part in parts(features)])

    def learned(self) -> dict[str, Tensor]:
        """The neck, the simplex, and height and width of the maps."""
        neck = {f"neck.{name}": weight for name, weight in self.neck.state_dict().items()}
        return {**neck, "simplex": self.simplex, "shape": torch.tensor(self.shape)}


@torch.no_grad()
def map_shape(stage: Stage) -> list[int]:
    """Height and width of the backbone's last map."""
    training, size = stage.backbone.training, stage.transform.size
    maps = opened(stage.backbone.eval()).maps(torch.zeros(1, 3, size, size))
    stage.backbone.train(training)
    return list(maps.shape[2:])


def mix(images: Tensor, others: Tensor, random: Tensor, blended: float, pasted: float) -> tuple[Tensor, Tensor]:
    """Blend some images (n, 3, s, s) with others, paste a box of others into some; returns also the share (n,) left.

    Random numbers (n, 4 or more): whether to blend or paste, how much, and row and column of the box's centre.
    """
    kind, share, size = random[:, 0], random[:, 1], images.shape[-1]
    steps, half = torch.arange(size, device=images.device) + 0.5, (1 - share).sqrt() * size / 2
    rows, columns = ((steps - (random[:, at] * size)[:, None]).abs() <= half[:, None] for at in (2, 3))
    box = (rows[:, :, None] & columns[:, None]).float()
    of_other = torch.where((kind < blended)[:, None, None], (1 - share)[:, None, None], box)
    of_other = torch.where((kind < blended + pasted)[:, None, None], of_other, 0.0)
    return images + of_other[:, None] * (others - images), 1 - of_other.mean((1, 2))


def misses(vectors: Tensor, vertices: Tensor) -> Tensor:
    """Dot-regression (n,) of each vector to its vertex."""
    return 5 * ((F.normalize(vectors) * vertices).sum(1) - 1).square()


def folded(features: Tensor, shape: Sequence[int]) -> Tensor:
    """Maps (n, d, h, w) of features (n, d·h·w)."""
    return features.reshape(len(features), -1, *shape)


def parts(features: Tensor) -> tuple[Tensor, ...]:
    """The features in chunks of a few hundred, since a scan keeps a state for each channel at each position."""
    return torch.split(features, 512)


@method(
    "mamba_fscil",
    title="Mamba-FSCIL: a second selective scan beside a frozen one, onto a simplex of all classes to come",
    paper="arXiv 2024",
    link="https://arxiv.org/abs/2407.06136",
    code="https://github.com/xiaojieli0903/Mamba-FSCIL",
    group="own base session",
    needs=(TOTAL,),
    objective=OntoSimplex,
)
class MambaFSCIL(Learner):
    """The base session's neck and simplex, a second branch, and one mean map for each class."""

    settings = MambaFSCILSettings()
    room = 0
    scale = 1.0
    values = (*Learner.values, "shape", "room", "scale")
    kept = ("means", "simplex")

    def __init__(self, settings: MambaFSCILSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(settings, seed=seed, device=device)
        self.shape: list[int] = []

    def build(self) -> None:
        """Make both branches, the second one silent."""
        channels = self.dimension // math.prod(self.shape)
        self.neck = Neck(channels, self.shape, self.room, self.settings).to(self.device).requires_grad_(False)
        self.novel = Branch(channels, self.shape, self.room, self.settings, silent=True).to(self.device)

    def fit_base(self, base: BaseSession) -> None:
        """Take over what the base session learned."""
        if not base.learned.keys() >= {"simplex", "shape"}:
            raise Misuse(
                "mamba_fscil needs its own base session: train the backbone with `concm train --method mamba_fscil`"
            )
        self.shape, self.room = base.learned["shape"].tolist(), base.learned["simplex"].shape[1]
        base = self.begin(base)
        weights = {name.removeprefix("neck."): value for name, value in base.learned.items() if name[:5] == "neck."}
        try:
            self.neck.load_state_dict(weights)
        except RuntimeError as error:
            raise Misuse("inner, state and rank of mamba_fscil must be those of its base session") from error
        self.simplex = base.learned["simplex"].to(self.device)
        self.means = base.mean
        lengths = torch.cat([self._frozen(part).norm(dim=1) for part in parts(base.mean)])
        self.scale = self.settings.length / float(lengths.mean())

    def learn(self, session: Session) -> None:
        """Go on training the second branch, on the shots and on mean maps of all earlier classes."""
        if session.classes.stop > len(self.simplex):
            raise Misuse(
                f"mamba_fscil has {len(self.simplex)} vertices and cannot learn {session.classes.stop} classes"
            )
        session, settings = session.to(self.device), self.settings
        earlier = torch.arange(len(self.means), device=self.device)
        often = session.index if settings.more_base else 1
        earlier = torch.cat([earlier[: self.base].repeat(often), earlier[self.base :].repeat(settings.copies)])
        features = torch.cat([self.means[earlier], session.features])
        maps, labels = folded(features, self.shape), torch.cat([earlier, session.labels])
        frozen = torch.cat([self._frozen(part) for part in parts(features)])

        def loss() -> Tensor:
            rows = self._shuffled(len(labels))[: settings.batch]
            response = self.novel(maps[rows])
            matched = self._regression(frozen[rows] + response.vectors, labels[rows])
            old = labels[rows] < self.base
            loud = settings.shrink * loudness(response.gate, old) - settings.grow * loudness(response.gate, ~old)
            return matched + loud + settings.separate * likeness(response.selected, self.novel.sizes, old)

        rates = warmed_cosine(settings.lr, settings.steps + settings.more_steps * (session.index - 1), 5)
        weights, momentum = self.novel.parameters(), settings.momentum
        descend(weights, loss, rates, SGD(momentum=momentum, weight_decay=settings.weight_decay))
        self.means = torch.cat([self.means, session.class_means()])

    def _shuffled(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=self.device)

    @torch.no_grad()
    def _frozen(self, features: Tensor) -> Tensor:
        """Vectors of the first branch, scaled so that those of base classes have the mean length `length`."""
        vectors: Tensor = self.scale * self.neck(folded(features, self.shape))
        return vectors

    def _regression(self, found: Tensor, labels: Tensor) -> Tensor:
        """Dot-regression; in some steps, of outputs averaged with those of other samples.

        A target of length l asks for a dot product of l, so a miss counts l² times.
        """
        weight = balance(labels).square() if self.settings.lengths else torch.ones_like(found[:, 0])
        alone = float(torch.rand((), generator=self.generator, device=self.device)) >= self.settings.mixing
        other = torch.arange(len(labels), device=self.device) if alone else self._shuffled(len(labels))
        both, mixed = (torch.arange(len(labels), device=self.device), other), (found + found[other]) / 2
        one, two = ((weight[at] * misses(mixed, self.simplex[labels[at]])).mean() for at in both)
        return (one + two) / 2

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Cosine to the vertex of every class seen."""
        found = []
        for part in parts(features.to(self.device)):
            vectors = self._frozen(part) + self.novel(folded(part, self.shape)).vectors
            found.append(F.normalize(vectors) @ self.simplex[: len(self.means)].T)
        return torch.cat(found)


def loudness(gate: Tensor, rows: Tensor) -> Tensor:
    """Length of a gate's values (n, positions, inner) in some rows, over their number; zero if there are none."""
    length: Tensor = torch.linalg.vector_norm(torch.linalg.vector_norm(gate, dim=(1, 2))[rows])
    return length / (gate[0].numel() * rows.sum().clamp(min=1))


def likeness(selected: Tensor, sizes: list[int], old: Tensor) -> Tensor:
    """Half the sum of |cosine| between the means of old and of other maps, over Δ, B and C (n, positions, sizes).

    Zero if there are only old maps, or none.
    """
    groups = torch.stack([old, ~old]).to(selected)
    means = groups / groups.sum(1, keepdim=True).clamp(min=1) @ selected.mean(1)
    cosines = [torch.dot(*F.normalize(part)) for part in torch.split(means, sizes, 1)]
    return torch.stack(cosines).abs().sum() / 2
