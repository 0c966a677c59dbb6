"""Variants of a method's settings as users write them: `alpha=0.5`, `calibration.steps=50`, or a named preset."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from concm.errors import Misuse, did_you_mean


def vary(settings: Any, changes: Iterable[str], forms: Iterable[str] = ()) -> Any:
    """Default settings, or a preset's, with all changes made at once; a word without `=` is a preset.

    `forms` are other words that might have been meant.
    """
    made, values = settings, list[tuple[list[str], str, str]]()
    for change in changes:
        name, equals, value = (part.strip() for part in change.partition("="))
        if equals:
            values.append((name.split("."), value, change))
            continue
        presets = getattr(settings, "PRESETS", ())
        if name not in presets:
            known = [*forms, *presets, *(f"{item.name}=…" for item in fields(settings))]
            raise Misuse(f"{change!r} is neither a setting nor a preset; {did_you_mean(name, known)}")
        made = getattr(settings, name)()
    return _changed(made, values)


def _changed(settings: Any, values: list[tuple[list[str], str, str]]) -> Any:
    """The settings with values put in at their paths."""
    kinds = get_type_hints(type(settings))
    known = [item.name for item in fields(settings)]
    new: dict[str, Any] = {}
    inner: dict[str, list[tuple[list[str], str, str]]] = {}
    for (name, *rest), value, change in values:
        if name not in known:
            raise Misuse(f"no setting called {name!r}; {did_you_mean(name, known)}")
        if rest and not is_dataclass(getattr(settings, name)):
            raise Misuse(f"{change!r}: {name} has no settings of its own")
        if rest:
            inner.setdefault(name, []).append((rest, value, change))
        else:
            new[name] = _read(kinds[name], value, change)
    new |= {name: _changed(getattr(settings, name), parts) for name, parts in inner.items()}
    return replace(settings, **new)


def written(settings: Any, prefix: str = "") -> dict[str, tuple[str, str]]:
    """Each setting by the name that is typed: its value as it is typed, and its help."""
    words: dict[str, tuple[str, str]] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            words |= written(value, f"{prefix}{item.name}.")
        else:
            words[prefix + item.name] = (_typed(value), item.metadata.get("help", ""))
    return words


def _typed(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_typed, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _read(kind: Any, value: str, change: str) -> Any:
    """The value, converted to the type of its annotation."""
    if get_origin(kind) in (Union, types.UnionType):
        if value == "none":
            return None
        kind = next(part for part in get_args(kind) if part is not types.NoneType)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], part.strip(), change) for part in value.split("/"))
    if get_origin(kind) is Literal:
        options = {str(option): option for option in get_args(kind)}
        if value not in options:
            raise Misuse(f"{change!r}: it takes {', '.join(options)}")
        return options[value]
    if kind is bool:
        if value not in ("true", "false"):
            raise Misuse(f"{change!r}: it takes true or false")
        return value == "true"
    if kind in (int, float):
        try:
            number = kind(value)
        except ValueError as error:
            raise Misuse(f"{change!r}: it takes a {'whole ' if kind is int else ''}number") from error
        if not math.isfinite(number):
            raise Misuse(f"{change!r}: it takes a finite number")
        return number
    if is_dataclass(kind):
        raise Misuse(f"{change!r}: set one of its parts, such as {change.partition('=')[0]}.{fields(kind)[0].name}=…")
    return value
