"""What there is to say beside the figures of a scenario, as far as we know it (`remarks.toml`)."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


def remarks(scenario: str) -> dict[str, str]:
    """Why methods land where they do on a scenario, as far as we know."""
    return dict(_told(scenario).get("methods", {}))


def reading(scenario: str) -> list[str]:
    """How to read the figures of a scenario."""
    return list(_told(scenario).get("reading", []))


@cache
def _told(scenario: str) -> dict[str, Any]:
    data = tomllib.loads((files("concm.report") / "remarks.toml").read_text(encoding="utf-8"))
    return dict(data.get(scenario, {}))
