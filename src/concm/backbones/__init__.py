"""Backbones: the registry, the networks, and the encoder that turns pictures into features."""

from concm.backbones.registry import Backbone, Open, Staged, backbones, find_backbone, opened, registered, staged

__all__ = ["Backbone", "Open", "Staged", "backbones", "find_backbone", "opened", "registered", "staged"]
