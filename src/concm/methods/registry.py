"""The registry of methods, and how users name one: by its name, by an import path, as a class or as an object."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeVar

from concm.errors import Misuse, did_you_mean
from concm.features.sessions import BaseSession, Session
from concm.importing import FAILURES, imported
from concm.methods.entry import Entry, Group
from concm.methods.variants import vary
from concm.records import to_json

if TYPE_CHECKING:
    from concm.methods.base import Method
    from concm.semantics.semantics import Semantics
    from concm.training.objective import Objective

AnySession = TypeVar("AnySession", bound=Session)

NAMES, VIEWS, TOTAL, POOL = "class names", "views of the shots", "number of classes to come", "all training images"
PICTURES = "pictures and a copy of the backbone"
"""What a method may need of a session beyond features, labels and statistics of the base classes.

One that needs pictures is also given pictures to score, (n, h, w, 3), instead of features.
"""
EXEMPLARS = "exemplars"
"""What a method may need to keep: single images, or their features; which and how many follows after a colon.

What speaks of base images, or of novel classes or shots, declares those alone, and what names neither declares both.
"""
EQUAL = "equal:"
"""What stands before a method that is to have this library's metric, views and operating point (`methods.footing`)."""


@dataclass(frozen=True)
class Choice:
    """A method with its settings, ready to be made; `label` is how the user wrote it, `equal` its footing."""

    label: str
    entry: Entry
    settings: Any
    equal: bool = False

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings as result files record them."""
        return to_json(self.settings) if self.settings is not None else {}

    @property
    def needs(self) -> tuple[str, ...]:
        """What it uses beyond features and labels, with these settings and on this footing."""
        own: tuple[str, ...] = tuple(getattr(self.settings, "needs", self.entry.needs))
        kept = f"{EXEMPLARS}: all shots and base images held out, for the operating point"
        added = (VIEWS, kept) if self.equal else ()
        return (*own, *(need for need in added if need not in own))

    @property
    def source(self) -> str | None:
        """A digest of the file that a method of one's own is in, so that a changed one is not taken for the old."""
        module = inspect.getmodule(inspect.unwrap(self.entry.make))
        file = getattr(module, "__file__", None)
        if module is None or file is None or module.__name__.startswith("concm."):
            return None
        return blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()

    def build(self, *, seed: int, device: str, semantics: Semantics | None = None) -> Method:
        """A new method with these settings, which has learned nothing yet; `semantics` are for those that take them."""
        given: dict[str, Any] = {} if self.settings is None else {"settings": self.settings}
        if semantics is not None and "semantics" in inspect.signature(self.entry.make).parameters:
            given["semantics"] = semantics
        make = partial(self.entry.make, **given, seed=seed, device=device)
        if not self.equal:
            return make()
        from concm.methods.footing import EqualFooting

        takes_views = VIEWS in replace(self, equal=False).needs
        return EqualFooting(make, takes_views=takes_views, seed=seed, device=device)


def granted(session: AnySession, needs: tuple[str, ...]) -> AnySession:
    """The session without the parts that only methods which declare them may see."""
    withheld: dict[str, Any] = {}
    if TOTAL not in needs:
        withheld["total"] = None
    if POOL not in needs:
        withheld["pool"] = None
    if PICTURES not in needs:
        withheld |= {"pictures": None, **({"backbone": None} if isinstance(session, BaseSession) else {})}
    return replace(session, **withheld)


Class = TypeVar("Class", bound=Callable[..., Any])
_registered: dict[str, Entry] = {}


def method(
    name: str,
    *,
    title: str,
    paper: str,
    group: Group = "shared backbone",
    needs: tuple[str, ...] = (),
    objective: type[Objective] | None = None,
    link: str = "",
    code: str = "",
    only: tuple[str, ...] = (),
) -> Callable[[Class], Class]:
    """Register a class as a method of the bench, by a decorator.

    The class takes `seed` and `device`. Where it has hyper-parameters, its attribute `settings` holds the default ones,
    a frozen dataclass, and it takes `settings` too.

    Parameters
    ----------
    name
        What users type: `concm bench --method NAME`.
    title
        A few words that say what it is.
    paper
        Where it was published, for example "CVPR 2024".
    group
        The group of methods with which it is compared.
    needs
        What it uses beyond features and labels, unless its settings have a property `needs` that says so.
    objective
        What it minimises in a base session of its own.
    link, code
        Addresses of the paper and of its authors' code, for the leaderboard.
    only
        The scenarios in whose ranking it stands, if not in all.

    Examples
    --------
    >>> import concm
    >>> from concm.methods.ncm import NCM
    >>> @concm.method("twice", title="nearest class mean, again", paper="nowhere")
    ... class Twice(NCM):
    ...     pass
    """

    def register(make: Class) -> Class:
        defaults = getattr(make, "settings", None)
        wanted = needs or tuple(getattr(defaults, "needs", ()))
        _registered[name] = Entry(
            name, title, paper, make, defaults, wanted, group, objective, link=link, code=code, only=only
        )
        entries.cache_clear()
        return make

    return register


@cache
def entries() -> dict[str, Entry]:
    """All methods by name; importing their modules registers them.

    Other packages add theirs with an entry point of the group `concm.methods` that names the module.
    """
    package = __name__.rpartition(".")[0]
    for module in iter_modules(sys.modules[package].__path__):
        import_module(f"{package}.{module.name}")
    for other in entry_points(group="concm.methods"):
        other.load()
    return dict(sorted(_registered.items()))


def known(words: str) -> Choice | None:
    """A method that a file names: only registered names are looked up, so that no file can make code run."""
    if words.startswith(EQUAL):
        inner = known(words.removeprefix(EQUAL))
        return inner and replace(inner, label=words, equal=True)
    name, changes = _parted(words)
    entry = entries().get(name)
    if entry is None:
        return None
    try:
        wanted = [word for word in changes.split(",") if word]
        return Choice(words, entry, None if entry.settings is None else vary(entry.settings, wanted))
    except Misuse:
        return Choice(words, entry, entry.settings)


def choose(words: str) -> Choice:
    """A method as users write it: `concm`, `concm:published`, `concm:structure=random,calibrate=none`.

    A user's own method is `package.module:Class` or `file.py:Class`; settings follow after another colon. Any of them
    may stand on equal footing: `equal:teen`.
    """
    if words.startswith(EQUAL):
        return replace(choose(words.removeprefix(EQUAL)), label=words, equal=True)
    name, changes = _parted(words)
    entry = entries().get(name)
    if entry is None and changes:
        attribute, _, changes = changes.partition(":")
        entry = _imported(name, attribute)
    if entry is None:
        raise Misuse(f"no method called {name!r}; {did_you_mean(name, entries())}")
    if entry.settings is None and changes:
        raise Misuse(f"method {entry.name} has no settings, so {changes!r} cannot be set")
    given = [word for word in changes.split(",") if word]
    forms = [other.removeprefix(f"{name}:") for other in entries() if other.startswith(f"{name}:")]
    settings = None if entry.settings is None else vary(entry.settings, given, forms)
    return Choice(words, entry, settings)


def _parted(words: str) -> tuple[str, str]:
    """The name of a method and the changes of its settings; a form that is registered by itself is part of the name."""
    name, _, changes = words.partition(":")
    parts = [part.strip() for part in changes.split(",")]
    form = next((part for part in parts if f"{name}:{part}" in entries()), None)
    if form is None:
        return name, changes
    return f"{name}:{form}", ",".join(part for part in parts if part != form)


def choice_of(given: Any) -> Choice:
    """A method by name, as a class, or as an object that has learned nothing yet, which is copied for every run.

    A class may take `seed` and `device`, but need not. An object's attribute `label` is what its row is called.
    """
    if isinstance(given, str):
        return choose(given)
    if isinstance(given, Choice):
        return given
    if not _has_verbs(given):
        raise Misuse(f"{given!r:.80} is no method: it needs the verbs fit_base, learn and scores")
    if isinstance(given, type):
        entry = _entry_of(given, given.__name__)
        return Choice(entry.name, entry, entry.settings)

    def make(**_: Any) -> Any:
        return deepcopy(given)

    entry, settings = _entry_of(type(given), type(given).__name__), getattr(given, "settings", None)
    needs = tuple(getattr(settings, "needs", entry.needs))
    return Choice(getattr(given, "label", entry.name), replace(entry, make=make, settings=None, needs=needs), None)


def _has_verbs(given: Any) -> bool:
    return all(callable(getattr(given, verb, None)) for verb in ("fit_base", "learn", "scores"))


def _entry_of(make: Any, name: str) -> Entry:
    """The registered entry of a class, or a new one for a class that is not registered."""
    found = next((entry for entry in entries().values() if entry.make is make), None)
    if found is not None:
        return found
    settings = getattr(make, "settings", None)
    needs = tuple(getattr(settings, "needs", getattr(make, "needs", ())))
    return Entry(name, name, "", _leniently(make), settings, needs)


def _leniently(make: Any) -> Callable[..., Any]:
    """A factory that passes seed and device only to a class that takes them."""
    taken = inspect.signature(make).parameters
    free = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in taken.values())

    @wraps(make, updated=())
    def build(**given: Any) -> Any:
        passed = {name: value for name, value in given.items() if free or name in taken}
        if "settings" in given and "settings" not in passed and given["settings"] != make.settings:
            raise Misuse(f"{make.__name__} takes no settings, so they cannot be changed")
        return make(**passed)

    return build


def _imported(module: str, attribute: str) -> Entry | None:
    """A user's method by import path or file, registered or not; the current folder is searched too."""
    if not attribute.isidentifier():
        return None
    reference = f"{module}:{attribute}"
    try:
        make = imported(module, attribute)
    except FAILURES as error:
        close = difflib.get_close_matches(module, entries(), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise Misuse(f"cannot import the method {reference!r}: {error}{hint}") from error
    if not isinstance(make, type) or not _has_verbs(make):
        raise Misuse(f"{reference!r} is no method: it needs to be a class with the verbs fit_base, learn and scores")
    return _entry_of(make, reference)
