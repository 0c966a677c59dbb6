"""Records: settings and results as frozen dataclasses, checked by one rule and written as JSON in one way.

A setting carries its bounds and its help in its field, so that checks, command lines and documentation read the same
fact:

    @dataclass(frozen=True)
    class TEENSettings(Checked):
        alpha: float = setting(0.1, "How far a new prototype is moved.", least=0, most=1)
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from concm.errors import Misuse

T = TypeVar("T")


def setting(
    default: T,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> T:
    """A field of a settings class: its default, what it means, and the values that it may have."""
    bounds = {"least": least, "most": most, "above": above, "below": below}
    metadata = {"help": help, **{name: bound for name, bound in bounds.items() if bound is not None}}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Checked:
    """Base of all settings: a value outside the bounds of its field is refused when the settings are made."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None or not (bounds := _bounds(item.metadata)):
                continue
            for one in value if isinstance(value, tuple) else (value,):
                if not _within(one, item.metadata):
                    raise Misuse(f"setting {item.name} must be {bounds}, not {one}")


def _bounds(metadata: Mapping[str, Any]) -> str:
    """The bounds of a field in words."""
    words = {"least": "at least {}", "above": "more than {}", "most": "at most {}", "below": "less than {}"}
    return " and ".join(text.format(metadata[name]) for name, text in words.items() if name in metadata)


def _within(value: float, metadata: Mapping[str, Any]) -> bool:
    return (
        value >= metadata.get("least", value)
        and value <= metadata.get("most", value)
        and ("above" not in metadata or value > metadata["above"])
        and ("below" not in metadata or value < metadata["below"])
    )


def to_json(record: Any) -> dict[str, Any]:
    """A record as the plain values that JSON gives back: lists for tuples."""
    plain: dict[str, Any] = _plain(asdict(record))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(own) for key, own in value.items()}
    return [_plain(own) for own in value] if isinstance(value, list | tuple) else value


def shortened(value: Any, digits: int) -> Any:
    """Plain values with so many digits in each figure that is no whole number, for files of many figures."""
    if isinstance(value, float):
        return value if value.is_integer() else float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: shortened(own, digits) for key, own in value.items()}
    return [shortened(own, digits) for own in value] if isinstance(value, list) else value


class WrongRecord(ValueError):
    """JSON that does not describe the record it should: the message names the field."""


def from_json(kind: type[T], data: Any) -> T:
    """Inverse of `to_json`: every value is checked against its annotation, and absent fields have their defaults."""
    if not isinstance(data, dict):
        raise WrongRecord(f"{kind.__name__} should be a table of names and values, not {type(data).__name__}")
    hints, values = _hints(kind), dict[str, Any]()  # type: ignore[arg-type]
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name in data:
            value, hint = data[item.name], hints[item.name]
            plain = type(value) is hint and hint in (str, int, bool)  # nearly all are, of which there may be many
            values[item.name] = value if plain else _converted(hint, value, f"{kind.__name__}.{item.name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise WrongRecord(f"{kind.__name__} lacks {item.name}")
    if unknown := data.keys() - hints.keys():
        raise WrongRecord(f"{kind.__name__} has no field {min(map(str, unknown))!r}")
    return kind(**values)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _converted(kind: Any, value: Any, where: str) -> Any:
    """The value as its annotation says, from what JSON makes of it."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        return from_json(kind, value)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in inner:
            return None
        return _converted(next(part for part in inner if part is not types.NoneType), value, where)
    if origin is Literal:
        if (type(value), value) not in [(type(option), option) for option in inner]:
            raise WrongRecord(f"{where} is {value!r:.50}, not one of {', '.join(map(str, inner))}")
        return value
    if origin in (tuple, list):
        return _sequence(origin, inner, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise WrongRecord(f"{where} should be a table, not {type(value).__name__}")
        return {str(key): _converted(inner[1], own, f"{where}.{key}") for key, own in value.items()}
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise WrongRecord(f"{where} should be {kind.__name__}, not {value!r:.50}")
    try:
        return kind(value)
    except OverflowError as error:
        raise WrongRecord(f"{where} is too large a number") from error


def _sequence(origin: Any, inner: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise WrongRecord(f"{where} should be a list, not {type(value).__name__}")
    if origin is list or inner[-1] is Ellipsis:
        kinds = [inner[0]] * len(value)
    elif len(inner) == len(value):
        kinds = list(inner)
    else:
        raise WrongRecord(f"{where} should have {len(inner)} values, not {len(value)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return origin(_converted(kind, own, f"{where}[{at}]") for at, (kind, own) in pairs)
