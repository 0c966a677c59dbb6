"""The registry of methods: what each may need, and who gets it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeVar

from concm.features.sessions import BaseSession, Session
from concm.methods.entry import Entry, Group

if TYPE_CHECKING:
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
