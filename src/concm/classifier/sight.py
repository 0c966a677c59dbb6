"""How a store sees photos: through which frozen backbone, and in which readings of it.

A new store takes what is asked for. A store that exists knows its own, or keeps it as a file, and refuses another one:
features of two networks cannot be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from concm import backbones
from concm.backbones.cores import one_thread
from concm.backbones.encoder import Encoder, Identity
from concm.backbones.references import load_encoder
from concm.classifier.folder import KEPT
from concm.classifier.made import Made
from concm.data.scenarios import natural
from concm.errors import Misuse

BACKBONE = "efficientnet_lite0"
LITE_BLOCKS = 2
LITE_SIZES = {"efficientnet_lite0": 288, "efficientnet_lite1": 320, "efficientnet_lite2": 320}
"""How many of the last blocks of an EfficientNet-Lite photos are read from, and in how many pixels, unless something
else is asked for: on larger ones than it was trained with it tells classes better apart (docs/photos.md)."""


@dataclass(frozen=True)
class Sight:
    """What was asked for, of the store at `path`; none where that is left to it."""

    path: Path
    backbone: str | nn.Module | None = None
    blocks: int | None = None
    looks: int | None = None
    size: int | None = None

    def encoder(self, made: Made | None, device: str) -> Encoder:
        """The encoder, checked to be the one that the store was `made` with."""
        reference = self._reference(made)
        with one_thread(), torch.random.fork_rng(devices=[]):
            readings = self._readings(reference, None if made is None else made.encoder)
            try:
                encoder = load_encoder(reference, natural(224), **readings).to(torch.device(device))
            except Misuse as error:
                if made is None or self.backbone is None:
                    raise
                raise Misuse(f"the store at {self.path} was made with {made.backbone}: {error}") from error
        if made is not None and encoder.identity != made.encoder:
            raise Misuse(
                f"the store at {self.path} was made with {made.backbone} of weights {made.encoder.weights}; "
                f"{encoder.source} has weights {encoder.weights}, or another transform of pictures"
            )
        return encoder

    def _reference(self, made: Made | None) -> str | nn.Module:
        """What the encoder is loaded from: what was given, or what the store keeps or names."""
        given, own = self.backbone, self.path / KEPT
        if made is None:
            return BACKBONE if given is None else given
        code = isinstance(given, str) and backbones.is_code(given)
        if own.exists() and (code or given in (None, made.backbone)):
            made.check(own)
            return f"{given}@{own}" if code else str(own)
        if given is not None:
            return given
        try:
            return backbones.registered(made.backbone).name
        except Misuse as error:
            raise Misuse(f"the store at {self.path} cannot see photos: {error}") from error

    def _readings(self, reference: str | nn.Module, made: Identity | None) -> dict[str, Any]:
        """How photos are read: as the store says, or as was asked for."""
        asked = {"blocks": self.blocks, "looks": self.looks, "size": self.size}
        if made is None:
            size = LITE_SIZES.get(str(reference))
            usual = {"blocks": LITE_BLOCKS if size else 1, "looks": 1, "size": size}
            return {name: usual[name] if value is None else value for name, value in asked.items()}
        size = None if made.transform is None else made.transform.size
        own = {"blocks": made.blocks, "looks": made.looks, "size": size}
        for name, value in asked.items():
            if value not in (None, own[name]):
                raise Misuse(f"the store at {self.path} was made with `{name}` {own[name]}, not {value}")
        return {**own, "turns": made.turns}
