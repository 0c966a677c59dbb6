"""Senses that are known: of classes whose folders bear an ImageNet id, and a small table for names of other classes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from concm.data import scenarios
from concm.errors import Misuse
from concm.semantics.wordnet import key, nouns

_WAY_OUT = 'write an id ("n02076196"), a lemma with its sense number ("seal#9"), or "" for no meaning'


@lru_cache(1 << 18)
def plain(name: str) -> str:
    """A class name without the running number that CUB puts before it."""
    return re.sub(r"^\d+\.", "", name.strip())


def bundled(scenario: str) -> dict[str, str]:
    """The senses of a bundled scenario's class names: what their ids say, and what concm sets by hand."""
    if scenario not in scenarios.names():
        return {}
    table = tomllib.loads((files("concm.semantics") / "overrides.toml").read_text(encoding="utf-8"))
    found, known = {}, scenarios.load_scenario(scenario)
    for part, first, last in known.parts:
        by_hand = table.get(part, {})
        for folder, name in zip(known.keys[first:last], known.names[first:last], strict=True):
            if identified(folder):
                found[name] = folder
            elif name in by_hand:
                found[name] = by_hand[name]
    return found


def read(path: Path) -> dict[str, str]:
    """A TOML file of lines `name = "sense"`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Misuse(
            f'cannot read the senses in {path} ({error}); it takes TOML lines such as seal = "seal#9"'
        ) from error
    for name, value in table.items():
        if not isinstance(value, str):
            raise Misuse(f"{path}: the sense of {name!r} is {value!r}; {_WAY_OUT}")
    return table


def synsets(overrides: Mapping[str, str] | Path | None) -> dict[str, int | None]:
    """The synset of each name by its key, or None for a name that is set to have no meaning."""
    table = read(overrides) if isinstance(overrides, Path) else overrides or {}
    place = f"{overrides}: " if isinstance(overrides, Path) else ""
    return {key(plain(name)): _synset(value, f"{place}the sense of {name!r}") for name, value in table.items()}


def _synset(value: str, what: str) -> int | None:
    if not value:
        return None
    if found := identified(value):
        if found not in nouns():
            raise Misuse(f"{what}: {value} is no noun of WordNet 3.0; {_WAY_OUT}")
        return found
    lemma, _, number = value.partition("#")
    synset = nouns().numbered(lemma, int(number or 1)) if number.isdecimal() or not number else None
    if synset is None:
        count = len(nouns().senses(lemma))
        known = f"{lemma} has {count} senses" if count else f"{lemma} is no noun there"
        raise Misuse(f"{what}: WordNet 3.0 has no {value} ({known}); {_WAY_OUT}")
    return synset


def identified(name: str) -> int | None:
    """The offset in an ImageNet id."""
    return int(name[1:]) if re.fullmatch(r"n\d{8}", name.strip()) else None
