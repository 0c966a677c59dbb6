"""The conformance suite: what every method must do, on small worlds in which the right answer is known.

A check is a function that raises `Broken` with a sentence. The tests run all of them for every registered method, and
`concm conformance` for anybody's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from concm.backbones.encoder import Identity
from concm.data.scenarios import of_folder
from concm.errors import Misuse
from concm.evaluation.worlds import ANIMALS, BASE, World
from concm.features.bank import Bank, Card, Part
from concm.features.sessions import Session, draw, sessions
from concm.files import load_tensors, save_tensors
from concm.methods import EXEMPLARS, NAMES, PICTURES, POOL, TOTAL, VIEWS, Choice, Method, teach
from concm.methods.registry import granted

MINERALS = ("agate", "basalt", "chalk", "diamond", "emerald", "flint", "gold", "iron", "jade", "lead", "marble", "opal")


class Broken(AssertionError):
    """What a method does otherwise than it must."""


def taught(choice: Choice, world: World, seed: int = 0) -> Iterator[tuple[Method, int]]:
    """The method after each session, and how many classes it should know."""
    method = choice.build(seed=seed, device="cpu")
    for session in world.sessions:
        teach(method, session)
        yield method, session.classes.stop


def _last(choice: Choice, world: World, seed: int = 0) -> Method:
    *_, (method, _) = taught(choice, world, seed)
    return method


def _need(found: bool, sentence: str) -> None:
    if not found:
        raise Broken(sentence)


def scores_grow_with_the_classes(choice: Choice) -> None:
    """One finite score for each class seen so far, on the CPU, whatever the number of images."""
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


def each_image_is_scored_by_itself(choice: Choice) -> None:
    """What an image scores does not depend on the other images that are scored with it."""
    world = World.of(choice=choice)
    method = _last(choice, world)
    together = method.scores(world.test)
    scale = float(together.abs().max())
    for at in range(0, len(world.test), 17):
        alone = method.scores(world.test[at : at + 1])
        same = torch.allclose(alone, together[at : at + 1], rtol=1e-3, atol=1e-3 * scale)
        _need(same, f"image {at} scores otherwise beside others than alone")


def the_same_seed_gives_the_same_result(choice: Choice) -> None:
    """Two runs with the same seed agree bit for bit."""
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
            old, new = getattr(kept, name, None), getattr(given, name, None)
            _need(old is None or (new is not None and torch.equal(old, new)), f"the session's {name} were changed")
    given_backbone, kept_backbone = world.base.backbone, twin.base.backbone
    if given_backbone is not None and kept_backbone is not None:
        weights = given_backbone.network.state_dict()
        same = all(torch.equal(value, weights[name]) for name, value in kept_backbone.network.state_dict().items())
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
        PICTURES: lambda session: granted(session, (TOTAL, POOL)),
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
    base, later = world.base, world.sessions[1:]
    features, labels = (torch.cat([getattr(session, name) for session in later]) for name in ("features", "labels"))
    views, pictures = (
        None if getattr(base, name) is None else torch.cat([getattr(session, name) for session in later])
        for name in ("views", "pictures")
    )
    part = Part(features, labels, views, [], pictures)
    bank = _Sealed(
        scenario=of_folder(ANIMALS[: BASE + 4], base=BASE, way=2, shot=5),
        encoder=Identity("none", "") if base.backbone is None else base.backbone.identity,
        base=Part(base.features, base.labels, base.views, [], base.pictures),
        novel=part,
        test=part,
        mean=base.mean,
        std=base.std,
        counts=base.counts,
        card=Card(),
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
    """Bytes kept of the data, at least a prototype's worth for each class, and never less with more classes."""
    before = 0
    for method, seen in taught(choice, World.of(choice=choice)):
        _need(
            isinstance(method.memory_bytes, int) and method.memory_bytes > 0, "memory_bytes must be a positive number"
        )
        _need(method.memory_bytes >= before, f"with {seen} classes it reports less memory than before")
        _need(
            isinstance(method.parameter_count, int) and method.parameter_count >= 0, "parameter_count must be a number"
        )
        before = method.memory_bytes


def memory_is_all_that_the_state_holds(choice: Choice) -> None:
    """Every tensor of the state counts as memory or as parameters, but for a copy of the backbone or of a network."""
    method = _last(choice, World.of(choice=choice))
    free = (*getattr(method, "copies", ()), *(("network",) if PICTURES in choice.needs else ()))
    uncounted = ("generator", "_extra_state", *(f"{name}." for name in free))
    held = {name: value for name, value in method.state_dict().items() if not name.startswith(uncounted)}
    total = sum(value.numel() * value.element_size() for value in held.values())
    declared = method.memory_bytes + 4 * method.parameter_count
    largest = sorted(held, key=lambda name: -held[name].numel())[:3]
    _need(
        total <= declared + SLACK,
        f"the state has {total:,} bytes, memory and parameters account for {declared:,}: count all of "
        f"{', '.join(largest)}",
    )


SLACK = 1024
"""Bytes of labels and the like that need not be counted."""

CHECKS: tuple[Callable[[Choice], None], ...] = (
    scores_grow_with_the_classes,
    old_classes_keep_their_index,
    every_class_can_be_predicted,
    uneven_and_small_sessions_are_learned,
    each_image_is_scored_by_itself,
    the_same_seed_gives_the_same_result,
    the_world_is_left_alone,
    state_goes_through_disk_bit_for_bit,
    it_uses_no_more_than_it_declares,
    it_keeps_no_image_that_it_does_not_declare,
    it_sees_no_test_data,
    memory_is_reported,
    memory_is_all_that_the_state_holds,
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
