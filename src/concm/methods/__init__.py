"""Methods: three verbs, features or pictures in, scores out; no test data seen. One file each, and the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from concm.data.scenarios import nearest
from concm.errors import Misuse
from concm.methods.variants import vary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from concm.features.sessions import Session
    from concm.training.objective import Objective


class Method(Protocol):
    """What the protocol asks of every method."""

    def fit_base(self, base: Session) -> None:
        """Learn the base classes."""

    def learn(self, session: Session) -> None:
        """Learn a session's classes without forgetting the others."""

    def scores(self, features: Tensor) -> Tensor:
        """(n, d) → (n, classes seen so far)."""

    def state_dict(self) -> dict[str, Tensor]:
        """All that was learned, as tensors."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Inverse of `state_dict`, into a method of the same settings."""

    @property
    def memory_bytes(self) -> int:
        """What is kept of the data between sessions."""

    @property
    def parameters(self) -> int:
        """Trained weights; the backbone's only where the method goes on training it."""


Group = Literal["control", "shared backbone", "own base session", "updates the backbone", "reference"]

NAMES, VIEWS, TOTAL, POOL = "class names", "views of the shots", "number of classes to come", "all training images"
PICTURES = "pictures and a copy of the backbone"
"""What a method may need of a session beyond features, labels and statistics of the base classes.

One that needs pictures is also given pictures to score, (n, h, w, 3), instead of features.
"""
EXEMPLARS = "exemplars"
"""What a method may need to keep: single images, or their features; how many is said after a colon."""


@dataclass(frozen=True)
class Entry:
    """A registered method; `needs` is all that it uses beyond features and labels.

    `objective` is what it minimises in a base session of its own, where it has one: made from a stage and settings.
    """

    name: str
    title: str
    paper: str
    make: Callable[..., Method]
    settings: type[Any] | None
    needs: tuple[str, ...]
    group: Group = "shared backbone"
    objective: type[Objective] | None = None


@dataclass(frozen=True)
class Choice:
    """A method with its settings, ready to be made; `label` is how the user wrote it."""

    label: str
    entry: Entry
    settings: Any

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings as files have them."""
        return asdict(self.settings) if self.settings is not None else {}

    @property
    def needs(self) -> tuple[str, ...]:
        """What it uses beyond features and labels, with these settings."""
        return tuple(getattr(self.settings, "needs", self.entry.needs))

    def build(self, *, seed: int, device: str) -> Method:
        """A fresh one."""
        given = {} if self.settings is None else {"settings": self.settings}
        return self.entry.make(**given, seed=seed, device=device)


Class = TypeVar("Class", bound=Callable[..., Method])
_registered: dict[str, Entry] = {}


def method(
    name: str,
    *,
    title: str,
    paper: str,
    group: Group = "shared backbone",
    settings: type[Any] | None = None,
    needs: tuple[str, ...] = (),
    objective: type[Objective] | None = None,
) -> Callable[[Class], Class]:
    """Register a class under `name`; it takes `seed` and `device`, and `settings` if it has any.

    What it needs is said here, or by a property `needs` of its settings where it depends on them.
    """

    def register(make: Class) -> Class:
        by_default = () if settings is None else getattr(settings(), "needs", ())
        _registered[name] = Entry(name, title, paper, make, settings, needs or by_default, group, objective)
        entries.cache_clear()
        return make

    return register


@cache
def entries() -> dict[str, Entry]:
    """All methods by name; importing their modules is what registers them.

    Other packages add theirs with an entry point of the group `concm.methods` that names the module.
    """
    import_module("concm.engine.concm")
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    for other in entry_points(group="concm.methods"):
        other.load()
    return dict(sorted(_registered.items()))


def choose(words: str) -> Choice:
    """A method as users write it: `concm`, `concm:published`, `concm:structure=random,calibrate=false`."""
    name, _, changes = words.partition(":")
    if name not in entries():
        raise Misuse(f"no method called {name!r}; {nearest(name, entries())}")
    entry = entries()[name]
    if entry.settings is None and changes:
        raise Misuse(f"method {name} has no settings, so {changes!r} cannot be set")
    settings = None if entry.settings is None else vary(entry.settings, [word for word in changes.split(",") if word])
    return Choice(words, entry, settings)


def foreign(reference: str) -> Choice | None:
    """Anybody's method by import path, registered or not; None if `reference` is the name of one that is."""
    module, _, name = reference.partition(":")
    if module in entries() or not name.isidentifier():
        return None
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Misuse(f"cannot import the method {reference!r}: {error}") from error
    known = next((entry for entry in _registered.values() if entry.make is make), None)
    entry = known or Entry(reference, name, "", make, None, ())
    return Choice(reference, entry, entry.settings() if entry.settings else None)
