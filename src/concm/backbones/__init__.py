"""Backbones: the registry, the networks, and the encoder that turns pictures into features."""

from concm.backbones.registry import (
    SOURCES,
    Backbone,
    Open,
    Staged,
    backbones,
    find_backbone,
    is_code,
    opened,
    registered,
    staged,
)

__all__ = [
    "SOURCES",
    "Backbone",
    "Open",
    "Staged",
    "backbones",
    "find_backbone",
    "is_code",
    "opened",
    "registered",
    "staged",
]
