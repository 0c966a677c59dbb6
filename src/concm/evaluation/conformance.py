"""The conformance suite: what every method must do, on small worlds in which the right answer is known.

A check is a function that raises `Broken` with a sentence. The tests run all of them for every registered method, and
`concm conformance` for anybody's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.backbones.encoder import Encoder, Reading
from concm.data.augment import RANDOMS
from concm.data.bank import Bank, Part
from concm.data.scenarios import of_folder
from concm.data.sessions import Session, as_base, draw, sessions
from concm.data.transform import Transform
from concm.errors import Misuse
from concm.files import load_tensors, save_tensors
from concm.methods import EXEMPLARS, NAMES, PICTURES, POOL, TOTAL, VIEWS, Choice, Method
from concm.training.objective import Objective, Stage, TwoViews
from concm.training.recipe import Recipe

ANIMALS = ("bear", "cat", "dog", "eagle", "horse", "lizard", "okapi", "spider", "tiger", "trout", "whale", "zebra")
MINERALS = ("agate", "basalt", "chalk", "diamond", "emerald", "flint", "gold", "iron", "jade", "lead", "marble", "opal")
DIMENSION, BASE = 32, 6
SIDE = 16
"""Of the pictures, in pixels."""
STEPS, BATCH = 60, 60
"""Of the base session on pictures."""


class Broken(AssertionError):
    """What a method does otherwise than it must."""


class Balls:
    """Classes that are balls of features, far from each other."""

    def __init__(self, total: int) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.centres = F.normalize(torch.randn(total, DIMENSION, generator=self.random))

    def images(self, label: int, count: int) -> Tensor:
        """Features, which are all that there is of an image."""
        return (self.centres[label] + 0.05 * torch.randn(count, DIMENSION, generator=self.random)).relu() + 0.01

    def features(self, images: Tensor) -> Tensor:
        """The same."""
        return images

    def views(self, features: Tensor) -> Tensor:
        """Two a feature."""
        return features[:, None] + 0.01 * torch.rand(len(features), 2, DIMENSION, generator=self.random)

    def about(self, images: Tensor) -> dict[str, Any]:
        """Nothing more."""
        return {}


class Flags:
    """Classes that are pictures of two stripes in colours of their own, seen by a small network trained on the base.

    What trains it is the method's own base session, if it has one.
    """

    def __init__(self, total: int, choice: Choice) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.colours = far_apart(total, self.random)
        self.objective = deepcopy(trained(choice, total))
        network = Reading.of(self.objective.backbone, self.objective.turns, self.objective.maps)
        self.encoder = Encoder(NETWORK, network, TRANSFORM, {"dimension": DIMENSION}).to(torch.device("cpu"))

    def images(self, label: int, count: int) -> Tensor:
        """(count, side, side, 3) uint8."""
        return flags(self.colours[label], count, self.random)

    def features(self, images: Tensor) -> Tensor:
        """As the network sees them."""
        return self.encoder(images).clone()

    def views(self, features: Tensor) -> Tensor:
        """Two a feature, close to it."""
        spread = 0.02 * features.std()
        return features[:, None] + spread * torch.rand(len(features), 2, features.shape[1], generator=self.random)

    def about(self, images: Tensor) -> dict[str, Any]:
        """The pictures, the network, and what the base session left for the method."""
        learned = {name: value.detach().clone() for name, value in self.objective.learned().items()}
        return {"pictures": images, "backbone": self.encoder, "learned": learned}


def far_apart(count: int, random: torch.Generator) -> Tensor:
    """(count, 2, 3): pairs of colours, chosen one after the other so that each is far from those before it."""
    candidates = torch.rand(500, 2, 3, generator=random)
    chosen = candidates[:1]
    while len(chosen) < count:
        away = torch.cdist(candidates.flatten(1), chosen.flatten(1)).amin(1)
        chosen = torch.cat([chosen, candidates[away.argmax()][None]])
    return chosen


def flags(colours: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Pictures of two colours (2, 3), one above the other, somewhat noisy."""
    stripes = colours.repeat_interleave(SIDE // 2, 0)[:, None].expand(SIDE, SIDE, 3)
    noise = torch.randn(count, SIDE, SIDE, 3, generator=random)
    return (255 * (stripes + 0.04 * noise)).clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=4)
def trained(choice: Choice, total: int) -> Objective:
    """A small network after some steps of the method's base session, or of plain cross-entropy."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stage = Stage(Small(), DIMENSION, BASE, total, TRANSFORM, ANIMALS[:BASE])
        kind = choice.entry.objective
        plain = Recipe(head="cosine", turned=0, contrast=0, jitter=0, grey=0, scale_min=0.8)
        objective = TwoViews(stage, plain) if kind is None else kind(stage, choice.settings)
    random = torch.Generator().manual_seed(0)
    pictures = torch.cat([flags(colours, 20, random) for colours in far_apart(total, random)[:BASE]])
    labels = torch.arange(BASE).repeat_interleave(20)
    weights = [weight for weight in objective.train().parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        rows = torch.randperm(len(labels), generator=random)[:BATCH]
        numbers = torch.rand(len(rows), objective.draws, RANDOMS, generator=random)
        optimizer.zero_grad()
        objective(pictures[rows], labels[rows], numbers, 0)["loss"].backward()
        optimizer.step()
    return objective.eval()


class Small(nn.Module):
    """Two convolutions that halve, open to methods that look inside."""

    dimension = DIMENSION

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.last = nn.Sequential(nn.Conv2d(16, DIMENSION, 3, 2, 1), nn.BatchNorm2d(DIMENSION), nn.ReLU())

    def front(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 16, h/4, w/4)."""
        out: Tensor = self.first(images)
        return out

    def back(self, maps: Tensor) -> Tensor:
        """(n, 16, h/4, w/4) → (n, 32, h/8, w/8)."""
        out: Tensor = self.last(maps)
        return out

    def maps(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 32, h/8, w/8)."""
        return self.back(self.front(images))

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 32)."""
        return self.maps(images).mean((2, 3))


NETWORK = f"{__name__}:Small"
TRANSFORM = Transform(SIDE, SIDE, (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))


@dataclass(frozen=True)
class World:
    """A base session, sessions of given shots a class, and test images: pictures for a method that needs them."""

    sessions: tuple[Session, ...]
    test: Tensor
    labels: Tensor

    @classmethod
    def of(cls, shots: Sequence[Sequence[int]] = ((5, 5), (5, 5)), *, choice: Choice | None = None) -> World:
        """`shots` has a list a session with the shots of each of its classes; `choice` is the method it is made for."""
        total = BASE + sum(map(len, shots))
        pictured = choice is not None and PICTURES in choice.needs
        seen = choice is not None and (pictured or choice.entry.objective is not None)
        make = Flags(total, choice) if choice is not None and seen else Balls(total)

        def session(index: int, first: int, counts: Sequence[int]) -> Session:
            images = torch.cat([make.images(first + at, count) for at, count in enumerate(counts)])
            features = make.features(images)
            labels = torch.tensor([first + at for at, count in enumerate(counts) for _ in range(count)])
            views = make.views(features)
            more = torch.cat([make.images(first + at, 10) for at in range(len(counts))])
            every = torch.cat([labels, torch.arange(first, first + len(counts)).repeat_interleave(10)])
            classes = range(first, first + len(counts))
            about: dict[str, Any] = {"scenario": "conformance", "total": total, **make.about(images)}
            about["pool"] = (torch.cat([features, make.features(more)]), every)
            return Session(index, classes, ANIMALS[first : classes.stop], features, labels, views, **about)

        base = as_base(session(0, 0, [20] * BASE))
        found = [replace(base, pool=(base.features, base.labels))]
        first = BASE
        for index, sizes in enumerate(shots, 1):
            found.append(session(index, first, sizes))
            first += len(sizes)
        labels = torch.arange(total).repeat_interleave(10)
        test = torch.cat([make.images(label, 10) for label in range(total)])
        return cls(tuple(found), test if pictured else make.features(test), labels)

    def known(self, seen: int) -> tuple[Tensor, Tensor]:
        """Test images and labels of the first classes."""
        chosen = self.labels < seen
        return self.test[chosen], self.labels[chosen]


def taught(choice: Choice, world: World, seed: int = 0) -> Iterator[tuple[Method, int]]:
    """The method after each session, and how many classes it should know."""
    method = choice.build(seed=seed, device="cpu")
    for session in world.sessions:
        if session.index == 0:
            method.fit_base(session)
        else:
            method.learn(session)
        yield method, session.classes.stop


def _last(choice: Choice, world: World, seed: int = 0) -> Method:
    *_, (method, _) = taught(choice, world, seed)
    return method


def _need(found: bool, sentence: str) -> None:
    if not found:
        raise Broken(sentence)


def scores_grow_with_the_classes(choice: Choice) -> None:
    """One finite score a class seen so far, on the CPU, whatever the number of images."""
    world = World.of(choice=choice)
    for method, seen in taught(choice, world):
        for images in (world.test, world.test[:1]):
            scores = method.scores(images)
            _need(
                tuple(scores.shape) == (len(images), seen),
                f"scores are {tuple(scores.shape)}, {seen} classes are known",
            )
            _need(bool(scores.isfinite().all()), "some scores are not finite")
            _need(scores.device.type == "cpu", "scores of a method on the CPU are elsewhere")


def old_classes_keep_their_index(choice: Choice) -> None:
    """Base images are still given their base label after every session."""
    world = World.of(choice=choice)
    for method, seen in taught(choice, world):
        images, labels = world.known(BASE)
        right = float((method.scores(images).argmax(1) == labels).double().mean())
        _need(right >= 0.9, f"with {seen} classes known, {100 * right:.0f} % of easy base images get their label")


def every_class_can_be_predicted(choice: Choice) -> None:
    """Every class that was added is the answer for most of its images, in a world where that is easy."""
    world = World.of(choice=choice)
    for method, seen in taught(choice, world):
        images, labels = world.known(seen)
        right = method.scores(images).argmax(1) == labels
        for label in range(seen):
            share = float(right[labels == label].double().mean())
            _need(share >= 0.5, f"class {label} of {seen} is recognised in {100 * share:.0f} % of easy images")


def uneven_and_small_sessions_are_learned(choice: Choice) -> None:
    """One shot, two ways, other numbers in each session and class, and a session of a single class."""
    world = World.of(((1, 1), (5, 2, 9), (1,)), choice=choice)
    for method, seen in taught(choice, world):
        images, labels = world.known(seen)
        scores = method.scores(images)
        _need(tuple(scores.shape) == (len(images), seen), f"scores are {tuple(scores.shape)}, {seen} classes are known")
        right = float((scores.argmax(1) == labels).double().mean())
        _need(right >= 0.6, f"with {seen} classes known, {100 * right:.0f} % of easy images get their label")


def the_same_seed_gives_the_same_result(choice: Choice) -> None:
    """Bit for bit."""
    world = World.of(choice=choice)
    one, other = (_last(choice, world, seed=3).scores(world.test) for _ in range(2))
    _need(torch.equal(one, other), "two runs with the same seed give different scores")


def the_world_is_left_alone(choice: Choice) -> None:
    """Nothing that a session holds is changed, and torch's own random numbers go on as if nothing had happened."""
    world, twin = World.of(choice=choice), World.of(choice=choice)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    method = _last(choice, world)
    choice.build(seed=0, device="cpu").load_state_dict(method.state_dict())
    _need(torch.equal(before, torch.get_rng_state()), "torch's global random state was used")
    for given, kept in zip(world.sessions, twin.sessions, strict=True):
        for name in ("features", "labels", "views", "mean", "std", "counts", "pictures"):
            old, new = getattr(kept, name), getattr(given, name)
            _need(old is None or torch.equal(old, new), f"the session's {name} were changed")
        if kept.backbone is not None and given.backbone is not None:
            weights = given.backbone.network.state_dict()
            same = all(torch.equal(value, weights[name]) for name, value in kept.backbone.network.state_dict().items())
            _need(same, "the session's backbone was trained: copy it")


def state_goes_through_disk_bit_for_bit(choice: Choice) -> None:
    """What is saved in the middle and loaded elsewhere scores and goes on learning as the one that was never saved."""
    world = World.of(((5, 5), (5, 5), (5,)), choice=choice)
    for at, (method, _) in enumerate(taught(choice, world)):
        with tempfile.TemporaryDirectory() as folder:
            save_tensors(Path(folder, "state"), "concm-conformance-1", method.state_dict(), {})
            state, _ = load_tensors(Path(folder, "state"), "concm-conformance-1")
        twin = choice.build(seed=0, device="cpu")
        twin.load_state_dict(state)
        _need(
            torch.equal(twin.scores(world.test), method.scores(world.test)),
            f"after session {at} a loaded state scores otherwise",
        )
        if at + 1 < len(world.sessions):
            twin.learn(world.sessions[at + 1])
            straight = _last(choice, replace(world, sessions=world.sessions[: at + 2]))
            same = torch.equal(twin.scores(world.test), straight.scores(world.test))
            _need(same, f"loaded after session {at} it learns otherwise than it would have")
            _need(twin.memory_bytes == straight.memory_bytes, "a loaded state reports other memory")


def it_uses_no_more_than_it_declares(choice: Choice) -> None:
    """Class names, views, classes to come and images beyond the shots make no difference unless they are declared."""
    world = World.of(choice=choice)
    wanted = _last(choice, world).scores(world.test)
    needs = choice.needs
    others: dict[str, Callable[[Session], Session]] = {
        NAMES: lambda session: replace(
            session, names=MINERALS[session.classes.start : session.classes.stop], scenario=""
        ),
        VIEWS: lambda session: replace(session, views=None),
        TOTAL: lambda session: replace(session, total=None),
        POOL: lambda session: replace(session, pool=None),
        PICTURES: lambda session: replace(session, pictures=None, backbone=None),
    }
    for need, changed in others.items():
        if need not in needs:
            different = replace(world, sessions=tuple(map(changed, world.sessions)))
            _need(
                torch.equal(_last(choice, different).scores(world.test), wanted), f"it uses {need} without declaring it"
            )


def it_keeps_no_image_that_it_does_not_declare(choice: Choice) -> None:
    """Single images, or their features, are in the state only if exemplars are declared."""
    if any(need.startswith(EXEMPLARS) or need == POOL for need in choice.needs):
        return
    world = World.of(choice=choice)
    state = _last(choice, world).state_dict()
    images = F.normalize(torch.cat([session.features for session in world.sessions]))
    dimension = images.shape[1]
    for name, value in state.items():
        _need(value.dtype != torch.uint8 or value.ndim < 3, f"{name} holds pictures: declare {EXEMPLARS}")
        if value.is_floating_point() and value.ndim >= 2 and value.shape[-1] == dimension:
            rows = F.normalize(value.reshape(-1, dimension).float())
            _need(
                not bool((images @ rows.T > 1 - 1e-6).any()),
                f"{name} holds features of single images: declare {EXEMPLARS}",
            )


def it_sees_no_test_data(choice: Choice) -> None:
    """It learns all sessions of a bank whose test part cannot be touched."""
    world = World.of(choice=choice)
    base, *later = world.sessions
    features, labels = (torch.cat([getattr(session, name) for session in later]) for name in ("features", "labels"))
    views, pictures = (
        None if getattr(base, name) is None else torch.cat([getattr(session, name) for session in later])
        for name in ("views", "pictures")
    )
    part = Part(features, labels, views, [], pictures)
    assert base.mean is not None
    assert base.std is not None
    assert base.counts is not None
    bank = _Sealed(
        scenario=of_folder(ANIMALS[: BASE + 4], base=BASE, way=2, shot=5),
        encoder={} if base.backbone is None else base.backbone.identity,
        base=Part(base.features, base.labels, base.views, [], base.pictures),
        novel=part,
        test=part,
        mean=base.mean,
        std=base.std,
        counts=base.counts,
        card={"training": {}},
        learned=dict(base.learned),
        weights={} if base.backbone is None else dict(base.backbone.backbone.state_dict()),
    )
    _last(choice, replace(world, sessions=tuple(sessions(bank, draw(bank, 0)))))


class _Sealed(Bank):
    def __getattribute__(self, name: str) -> Any:
        if name == "test":
            raise Broken("it looked at test images")
        return super().__getattribute__(name)


def memory_is_reported(choice: Choice) -> None:
    """Bytes kept of the data, at least a prototype's worth a class, and never less with more classes."""
    before = 0
    for method, seen in taught(choice, World.of(choice=choice)):
        _need(
            isinstance(method.memory_bytes, int) and method.memory_bytes > 0, "memory_bytes must be a positive number"
        )
        _need(method.memory_bytes >= before, f"with {seen} classes it reports less memory than before")
        _need(isinstance(method.parameters, int) and method.parameters >= 0, "parameters must be a number")
        before = method.memory_bytes


CHECKS: tuple[Callable[[Choice], None], ...] = (
    scores_grow_with_the_classes,
    old_classes_keep_their_index,
    every_class_can_be_predicted,
    uneven_and_small_sessions_are_learned,
    the_same_seed_gives_the_same_result,
    the_world_is_left_alone,
    state_goes_through_disk_bit_for_bit,
    it_uses_no_more_than_it_declares,
    it_keeps_no_image_that_it_does_not_declare,
    it_sees_no_test_data,
    memory_is_reported,
)


def run(choice: Choice) -> Iterator[tuple[str, str | None]]:
    """Each check in words, and what was wrong, if anything."""
    for check in CHECKS:
        words = check.__name__.replace("_", " ")
        try:
            check(choice)
            yield words, None
        except Broken as error:
            yield words, str(error)
        except Misuse:
            raise
        except Exception as error:  # whatever a method does wrong is its report, not ours
            yield words, f"{type(error).__name__}: {error}"
