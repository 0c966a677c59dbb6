"""The conformance suite: what every method must do, on small worlds in which the right answer is known.

A check is a function that raises `Broken` with a sentence. The tests run all of them for every registered method, and
`concm conformance` for anybody's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import or_
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.backbones.encoder import Identity
from concm.data.scenarios import of_folder
from concm.errors import Misuse
from concm.evaluation.course import Broken as Broken
from concm.evaluation.course import Course, last, stated, taught
from concm.evaluation.course import need as _need
from concm.evaluation.worlds import ANIMALS, BASE, World
from concm.features.bank import Bank, Card, Part
from concm.features.sessions import Session, draw, sessions
from concm.files import load_tensors, save_tensors
from concm.methods import EXEMPLARS, NAMES, PICTURES, POOL, TOTAL, VIEWS, Choice, Method
from concm.methods.base import NORMS
from concm.methods.registry import granted

MINERALS = ("agate", "basalt", "chalk", "diamond", "emerald", "flint", "gold", "iron", "jade", "lead", "marble", "opal")


def scores_grow_with_the_classes(course: Course) -> None:
    """One finite score for each class seen so far, on the CPU, whatever the number of images."""
    for said in course.said:
        for scores, images in ((said.scores, len(course.world.test)), (said.alone, 1)):
            _need(
                tuple(scores.shape) == (images, said.seen),
                f"scores are {tuple(scores.shape)}, {said.seen} classes are known",
            )
            _need(bool(scores.isfinite().all()), "some scores are not finite")
            _need(scores.device.type == "cpu", "scores of a method on the CPU are elsewhere")


def old_classes_keep_their_index(course: Course) -> None:
    """Base images are still given their base label after every session."""
    labels = course.world.labels
    for said in course.said:
        right = float((said.scores.argmax(1) == labels)[labels < BASE].double().mean())
        _need(right >= 0.9, f"with {said.seen} classes known, {100 * right:.0f} % of easy base images get their label")


def every_class_can_be_predicted(course: Course) -> None:
    """Every class that was added is the answer for most of its images, in a world where that is easy."""
    labels = course.world.labels
    for said in course.said:
        right = said.scores.argmax(1) == labels
        for label in range(said.seen):
            share = float(right[labels == label].double().mean())
            _need(share >= 0.5, f"class {label} of {said.seen} is recognised in {100 * share:.0f} % of easy images")


def uneven_and_small_sessions_are_learned(course: Course) -> None:
    """One shot, two ways, other numbers in each session and class, and a session of a single class."""
    world = World.of(((1, 1), (5, 2, 9), (1,)), choice=course.choice)
    for method, seen in taught(course.choice, world):
        images, labels = world.known(seen)
        scores = method.scores(images)
        _need(tuple(scores.shape) == (len(images), seen), f"scores are {tuple(scores.shape)}, {seen} classes are known")
        right = float((scores.argmax(1) == labels).double().mean())
        _need(right >= 0.6, f"with {seen} classes known, {100 * right:.0f} % of easy images get their label")


def each_image_is_scored_by_itself(course: Course) -> None:
    """What an image scores does not depend on the other images that are scored with it."""
    images, together = course.world.test, course.said[-1].scores
    scale = float(together.abs().max())
    for at in range(0, len(images), 17):
        alone = course.method.scores(images[at : at + 1])
        same = torch.allclose(alone, together[at : at + 1], rtol=1e-3, atol=1e-3 * scale)
        _need(same, f"image {at} scores otherwise beside others than alone")


def the_same_seed_gives_the_same_result(course: Course) -> None:
    """Two runs with the same seed agree bit for bit."""
    again = last(course.choice, World.of(choice=course.choice)).scores(course.world.test)
    _need(torch.equal(again, course.said[-1].scores), "two runs with the same seed give different scores")


def the_world_is_left_alone(course: Course) -> None:
    """Nothing that a session holds is changed, and torch's own random numbers go on as if nothing had happened."""
    choice = course.choice
    world, twin = World.of(choice=choice), World.of(choice=choice)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    method = last(choice, world)
    if stated(choice):
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


def state_goes_through_disk_bit_for_bit(course: Course) -> None:
    """What is saved in the middle and loaded elsewhere scores and goes on learning as the one that was never saved."""
    world = World.of(((5, 5), (5, 5), (5,)), choice=course.choice)
    twin: Method | None = None
    for at, (method, _) in enumerate(taught(course.choice, world)):
        scores = method.scores(world.test)
        if twin is not None:
            twin.learn(world.sessions[at])
            same = torch.equal(twin.scores(world.test), scores)
            _need(same, f"loaded after session {at - 1} it learns otherwise than it would have")
            _need(twin.memory_bytes == method.memory_bytes, "a loaded state reports other memory")
        with tempfile.TemporaryDirectory() as folder:
            save_tensors(Path(folder, "state"), "concm-conformance-1", method.state_dict(), {})
            state, _ = load_tensors(Path(folder, "state"), "concm-conformance-1")
        twin = course.choice.build(seed=0, device="cpu")
        twin.load_state_dict(state)
        _need(torch.equal(twin.scores(world.test), scores), f"after session {at} a loaded state scores otherwise")


def it_uses_no_more_than_it_declares(course: Course) -> None:
    """Class names, views, classes to come and images beyond the shots make no difference unless they are declared."""
    others: dict[str, Callable[[Session], Session]] = {
        NAMES: lambda session: replace(
            session, names=MINERALS[session.classes.start : session.classes.stop], scenario=""
        ),
        VIEWS: lambda session: replace(session, views=None),
        TOTAL: lambda session: replace(session, total=None),
        POOL: lambda session: replace(session, pool=None),
        PICTURES: lambda session: granted(session, (TOTAL, POOL)),
    }
    undeclared = [need for need in others if need not in course.choice.needs]

    def without(needs: list[str]) -> Tensor:
        different = course.world.sessions
        for need in needs:
            different = tuple(map(others[need], different))
        return last(course.choice, replace(course.world, sessions=different)).scores(course.world.test)

    if not torch.equal(without(undeclared), wanted := course.said[-1].scores):  # all at once, and if not, which of them
        used = [need for need in undeclared if not torch.equal(without([need]), wanted)]
        raise Broken(f"it uses {', '.join(used or undeclared)} without declaring it")


def it_keeps_no_image_that_it_does_not_declare(course: Course) -> None:
    """Single images, or their features, are in the state only if exemplars of their kind are declared.

    Features are found as they are; whatever was made of them, fewer images of that kind leave a smaller state, while
    what has a bound, such as sixteen directions of each class, has reached it with these too.
    """
    base, novel = _exemplars(course.choice.needs)
    if base and novel:
        return
    kind = "images" if not base and not novel else "base images" if not base else "shots of novel classes"
    first, *later = course.world.sessions
    undeclared = [*([] if base else [first]), *([] if novel else later)]
    images = F.normalize(torch.cat([session.features for session in undeclared]))
    state, dimension = course.method.state_dict(), images.shape[1]
    for name, value in state.items():
        pictures = value.dtype == torch.uint8 and value.ndim >= 3
        _need(base or novel or not pictures, f"{name} holds pictures: declare {EXEMPLARS}")
        if value.is_floating_point() and value.ndim >= 2 and value.shape[-1] == dimension:
            rows = F.normalize(value.reshape(-1, dimension).float())
            found = bool((images @ rows.T > 1 - 1e-6).any())
            _need(not found, f"{name} holds features of single {kind}: declare {EXEMPLARS}")
    fewer = World.of(((5, 5), (5, 5)) if novel else ((4, 4), (4, 4)), base=20 if base else 16, choice=course.choice)
    less = last(course.choice, fewer).state_dict()
    for name, value in state.items():
        grown = value.ndim >= 2 and (name not in less or value.numel() > less[name].numel())
        _need(not grown, f"{name} is larger with more {kind}, so it keeps single ones: declare {EXEMPLARS}")


def _exemplars(needs: tuple[str, ...]) -> tuple[bool, bool]:
    """Whether exemplars of base and of novel classes are declared; what names neither of them is said of both."""
    kept = [need for need in needs if need.startswith(EXEMPLARS)]
    base, novel = (["base" in need for need in kept], ["novel" in need or "shots" in need for need in kept])
    both = POOL in needs or not all(map(or_, base, novel))
    return both or any(base), both or any(novel)


def it_sees_no_test_data(course: Course) -> None:
    """It learns all sessions of a bank whose test part cannot be touched."""
    world = World.of(choice=course.choice)
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
    last(course.choice, replace(world, sessions=tuple(sessions(bank, draw(bank, 0)))))


class _Sealed(Bank):
    def __getattribute__(self, name: str) -> Any:
        if name == "test":
            raise Broken("it looked at test images")
        return super().__getattribute__(name)


def memory_is_reported(course: Course) -> None:
    """Bytes kept of the data, at least a prototype's worth for each class, and never less with more classes."""
    before = 0
    for said in course.said:
        kept = said.memory if isinstance(said.memory, int) else 0
        _need(kept > 0, "memory_bytes must be a positive number")
        _need(kept >= before, f"with {said.seen} classes it reports less memory than before")
        _need(isinstance(said.parameters, int) and said.parameters >= 0, "parameter_count must be a number")
        before = kept


def memory_is_all_that_the_state_holds(course: Course) -> None:
    """Every tensor of the state counts as memory or as parameters, but for the backbone itself and batch statistics."""
    method, backbone = course.method, getattr(course.world.sessions[0], "backbone", None)
    known = [] if backbone is None else list(backbone.network.state_dict().values())
    copies = tuple(f"{name}." for name in getattr(method, "copies", ()))
    held = {name: own for name, own in method.state_dict().items() if not any(part in name for part in UNCOUNTED)}
    for name in [name for name in held if name.startswith(copies)]:
        if any(torch.equal(held[name], own) for own in known):
            del held[name]
    total = sum(value.numel() * value.element_size() for value in held.values())
    declared = method.memory_bytes + 4 * method.parameter_count
    largest = sorted(held, key=lambda name: -held[name].numel())[:3]
    _need(
        total <= declared + SLACK,
        f"the state has {total:,} bytes, memory and parameters account for {declared:,}: count all of "
        f"{', '.join(largest)}",
    )


UNCOUNTED = ("generator", "_extra_state", *NORMS)
"""Parts of names of what is no data: random numbers, plain values, and the statistics of norms in networks."""
SLACK = 64
"""Bytes of a few numbers that need not be counted."""

CHECKS: tuple[Callable[[Course], None], ...] = (
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


OF_STATES = (
    *(state_goes_through_disk_bit_for_bit, it_keeps_no_image_that_it_does_not_declare),
    *(memory_is_reported, memory_is_all_that_the_state_holds),
)
"""Checks that a method without a state cannot be put to."""


def run(choice: Choice) -> Iterator[tuple[str, str | None]]:
    """Each check in words, and what was wrong, if anything; those of states are left out where there is none."""
    course = Course(choice)
    for check in CHECKS if stated(choice) else [check for check in CHECKS if check not in OF_STATES]:
        words = check.__name__.replace("_", " ")
        try:
            check(course)
            yield words, None
        except Broken as error:
            yield words, str(error)
        except Misuse:
            raise
        except Exception as error:  # whatever a method does wrong is its report, not ours
            yield words, f"{type(error).__name__}: {error}"
