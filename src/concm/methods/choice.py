"""How users name a method: by its name with settings, by an import path or a file, as a class or as an object."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial, wraps
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concm.errors import Misuse, did_you_mean
from concm.importing import FAILURES, imported
from concm.methods.entry import Entry
from concm.methods.registry import EQUAL, EXEMPLARS, VIEWS, entries
from concm.methods.variants import vary
from concm.records import to_json

if TYPE_CHECKING:
    from concm.methods.base import Method
    from concm.semantics.semantics import Semantics


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
