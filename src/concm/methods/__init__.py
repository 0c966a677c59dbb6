"""Methods: three verbs, features in, scores out; they never see test data. One file each, and the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from concm.data.scenarios import nearest
from concm.errors import Misuse
from concm.methods.variants import vary

if TYPE_CHECKING:
    from torch import Tensor

    from concm.data.sessions import Session


class Method(Protocol):
    """What the protocol asks of every method."""

    def fit_base(self, base: Session) -> None:
        """Learn the base classes."""

    def learn(self, session: Session) -> None:
        """Learn a session's classes without forgetting the others."""

    def scores(self, features: Tensor) -> Tensor:
        """(n, d) → (n, classes seen so far)."""

    @property
    def memory_bytes(self) -> int:
        """What is kept of the data between sessions."""

    @property
    def parameters(self) -> int:
        """Trained weights, without the backbone's."""


@dataclass(frozen=True)
class Entry:
    """A registered method; `needs` is all that it uses beyond features and labels."""

    name: str
    title: str
    paper: str
    make: Callable[..., Method]
    settings: type[Any] | None
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """A method with its settings, ready to be made; `label` is how the user wrote it."""

    label: str
    entry: Entry
    settings: Any

    def build(self, *, seed: int, device: str) -> Method:
        """A fresh one."""
        given = {} if self.settings is None else {"settings": self.settings}
        return self.entry.make(**given, seed=seed, device=device)


Class = TypeVar("Class", bound=Callable[..., Method])
_registered: dict[str, Entry] = {}


def method(
    name: str, *, title: str, paper: str, settings: type[Any] | None = None, needs: tuple[str, ...] = ()
) -> Callable[[Class], Class]:
    """Register a class under `name`; it takes `seed` and `device`, and `settings` if it has any.

    What it needs is said here, or by a property `needs` of its settings where it depends on them.
    """

    def register(make: Class) -> Class:
        by_default = () if settings is None else getattr(settings(), "needs", ())
        _registered[name] = Entry(name, title, paper, make, settings, needs or by_default)
        entries.cache_clear()
        return make

    return register


@cache
def entries() -> dict[str, Entry]:
    """All methods by name; importing their modules is what registers them."""
    import_module("concm.concm")
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
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
