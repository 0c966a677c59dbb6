"""A method on its way through a small world, for the checks of conformance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from concm.evaluation.worlds import World
from concm.methods import Choice, Method, teach


def taught(choice: Choice, world: World) -> Iterator[tuple[Method, int]]:
    """The method after each session, and how many classes it should know."""
    method = choice.build(seed=0, device="cpu")
    for session in world.sessions:
        teach(method, session)
        yield method, session.classes.stop


def last(choice: Choice, world: World) -> Method:
    """The method after the last session."""
    *_, (method, _) = taught(choice, world)
    return method


class Broken(AssertionError):
    """What a method does otherwise than it must."""


def need(found: bool, sentence: str) -> None:
    """Raise what is broken, unless it was found."""
    if not found:
        raise Broken(sentence)


def stated(choice: Choice) -> bool:
    """Whether a method has a state that can be saved and measured; `concm.methods.Learner` gives it one."""
    return hasattr(choice.build(seed=0, device="cpu"), "state_dict")


@dataclass(frozen=True)
class Said:
    """What a method says after a session: scores of all test images, and of the first alone, and its size."""

    seen: int
    scores: Tensor
    alone: Tensor
    memory: int | None
    parameters: int | None


class Course:
    """A method, and what it says while it learns the plain world, which it does once for all checks that only look."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    @cached_property
    def _taught(self) -> tuple[World, list[Said], Method]:
        world, said = World.of(choice=self.choice), []
        for method, seen in taught(self.choice, world):
            scores, alone = method.scores(world.test), method.scores(world.test[:1])
            sizes = (getattr(method, name, None) for name in ("memory_bytes", "parameter_count"))
            said.append(Said(seen, scores, alone, *sizes))
        return world, said, method

    @property
    def world(self) -> World:
        """The plain world: two sessions of two classes with five shots."""
        return self._taught[0]

    @property
    def said(self) -> list[Said]:
        """After each session."""
        return self._taught[1]

    @property
    def method(self) -> Method:
        """After the last session."""
        return self._taught[2]
