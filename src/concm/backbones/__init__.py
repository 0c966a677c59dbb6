"""Backbones: the registry, the networks, and the encoder that turns pictures into features."""

from concm.backbones.registry import Backbone, Open, backbones, find_backbone, opened, registered

__all__ = ["Backbone", "Open", "backbones", "find_backbone", "opened", "registered"]
