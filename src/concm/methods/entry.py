"""An entry of the registry: what is known of a method before it is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from concm.methods.base import Method
    from concm.training.objective import Objective

Group = Literal["control", "shared backbone", "own base session", "updates the backbone", "reference"]


@dataclass(frozen=True)
class Entry:
    """A registered method; `settings` are its defaults, and `needs` is all that it uses beyond features and labels.

    `objective` is what it minimises in a base session of its own, if it has one; it is made from a stage and settings.
    `link` and `code` are addresses, and `only` names the scenarios in whose ranking it stands, if not in all.
    """

    name: str
    title: str
    paper: str
    make: Callable[..., Method]
    settings: Any
    needs: tuple[str, ...]
    group: Group = "shared backbone"
    objective: type[Objective] | None = None
    link: str = ""
    code: str = ""
    only: tuple[str, ...] = ()

    def meant_for(self, scenario: str) -> bool:
        """Whether it stands in the ranking of a scenario, or of one's validation."""
        return not self.only or scenario.removesuffix("-validation") in self.only

    @property
    def departures(self) -> str:
        """Where its file says that it departs from its paper: the paragraph that begins with "Here:"."""
        text = inspect.getdoc(inspect.getmodule(inspect.unwrap(self.make))) or ""
        paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
        return next((words.removeprefix("Here: ") for words in paragraphs if words.startswith("Here: ")), "")
