"""From what a user names to an encoder: a name, a file, a folder, code, or a network.

A file cannot name code to run: only registered names and timm's architectures are looked up for it.
"""

from __future__ import annotations

import re
from pathlib import Path

from torch import nn

from concm import backbones
from concm.backbones import modules, onnx, timm
from concm.backbones.efficientnet_lite import EfficientNetLite
from concm.backbones.encoder import KIND, LEARNED, Encoder, Reading
from concm.backbones.readings import check
from concm.data.transform import Transform
from concm.errors import ConcmError, Misuse, at_least, in_a_line, loading
from concm.files import load_tensors
from concm.records import from_json


def load_encoder(
    reference: str | nn.Module,
    transform: Transform,
    *,
    blocks: int = 1,
    turns: int = 1,
    looks: int = 1,
    size: int | None = None,
) -> Encoder:
    """The encoder that a user names: by a trained backbone's file or run folder, by name, or as a network.

    Pictures enter it as it says itself, or else as `transform` says; `size` is another number of pixels of their side.

    Names are those of registered backbones that come with weights, `timm:NAME`, `hf-hub:OWNER/NAME`,
    `local-dir:FOLDER`, an ONNX file, or `package.module:factory`. A file cannot name code to run: weights of a user's
    own network are loaded as `package.module:factory@file`.
    """
    how = (blocks, turns, looks)
    check(*how)
    if size is not None:
        at_least(1, size=size)
    if isinstance(reference, nn.Module):
        return _tried(modules.given(reference), transform, how, size)
    if re.match(backbones.SOURCES, reference):
        return _tried(timm.found(reference), transform, how, size)
    factory, at, file = reference.partition("@")
    if at and ":" in factory:
        backbones.find_backbone(factory, transform, size)
        reference = file
    path = Path(reference)
    path = path / "backbone.safetensors" if path.is_dir() else path
    if path.suffix == ".onnx":
        return _tried(onnx.found(path), transform, how, size)
    if path.suffix == ".safetensors":
        with loading(path, "backbone file", "train it again"):
            return _trained(path, how, size)
    if "/" in reference and ":" not in reference:
        raise Misuse(f"no run folder or backbone file at {reference}")
    return _ready(reference, transform, how, size)


def _tried(found: modules.Found, transform: Transform, how: tuple[int, int, int], size: int | None) -> Encoder:
    """The encoder of a network that nobody has tried here yet, tried on an empty picture."""
    meta = {"dimension": 0, "recipe": None, "source": found.source, "licence": found.licence}
    encoder = _folded(Encoder(found.name, found.network, (found.transform or transform).at(size), meta, *how))
    meta["dimension"] = _width(encoder)
    return encoder


def _folded(encoder: Encoder) -> Encoder:
    """The encoder, whose weights' digest is known by now, with its network as it runs fastest."""
    if isinstance(encoder.network, EfficientNetLite):
        encoder.network.fold()
    return encoder


def _sized(encoder: Encoder, own: Transform) -> Encoder:
    """The encoder, tried if pictures enter it in another size than its own; any does for an EfficientNet-Lite."""
    if encoder.transform != own and not isinstance(encoder.network, EfficientNetLite):
        encoder.meta["dimension"] = _width(encoder)
    return encoder


def _width(encoder: Encoder) -> int:
    """The width of its features, found by trying it on an empty picture."""
    try:
        return sum(encoder.layout)
    except ConcmError:
        raise
    except Exception as error:  # somebody else's code may raise anything
        pixels = f"pictures of {encoder.transform.size} pixels"
        raise Misuse(f"{encoder.source} cannot take {pixels}: {in_a_line(error)}") from error


def _trained(path: Path, how: tuple[int, int, int], size: int | None) -> Encoder:
    state, meta = load_tensors(path, KIND)
    if not meta.keys() >= {"name", "transform"}:
        raise ConcmError(f"{path} lacks its backbone's name or transform; train it again")
    name, transform = meta["name"], from_json(Transform, meta["transform"])
    learned = {name.removeprefix(LEARNED): state.pop(name) for name in list(state) if name.startswith(LEARNED)}
    try:
        if name.startswith(timm.KEPT):
            network = timm.kept(name, transform, state)
        else:
            network = backbones.registered(name).build()
            network.load_state_dict(state)
    except RuntimeError as error:
        raise ConcmError(f"{path} does not hold the weights of {name}: {in_a_line(error)}") from error
    network = Reading.of(network, **meta.get("reading", {"turns": (0,), "maps": False}))
    return _sized(_folded(Encoder(name, network, transform.at(size), meta, *how, learned)), transform)


def _ready(name: str, transform: Transform, how: tuple[int, int, int], size: int | None) -> Encoder:
    backbone = backbones.find_backbone(name, transform, size)
    if not backbone.ready:
        raise Misuse(f"{name} comes without weights: `concm train` it, then give its file or run folder")
    meta = {"dimension": backbone.dimension, "recipe": None}
    own = backbone.transform or transform
    return _sized(_folded(Encoder(backbone.name, backbone.build(), own.at(size), meta, *how)), own)
