"""Export: an ONNX network that does not change, and a structure file with all that it needs to know of the classes.

The network takes pictures and the tensors of a structure file, for any number of classes: after learning, only the
structure file is written again.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from concm.backbones.encoder import Encoder, Identity
from concm.backbones.onnx import OnnxNetwork
from concm.backbones.readings import looks_at, read
from concm.classifier.confidence import Confidence, familiarity
from concm.classifier.structure import KIND as KIND
from concm.engine.concm import Engine
from concm.engine.head import Head
from concm.errors import Misuse, extra_needed
from concm.files import content_digest, replacing, save_tensors
from concm.records import to_json

RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
HEAD = tuple(item.name for item in fields(Head) if item.name not in ("metric", "weights", "reach"))
OUTPUTS = ("probabilities", "familiarity")


def tensors(engine: Engine, confidence: Confidence) -> dict[str, Tensor]:
    """The tensors of a structure file: the inputs of the network other than pictures."""
    known = engine.head
    if not known.structured:  # the network takes one all the same, which counts for nothing
        room = known.structure.new_zeros(len(known.structure), len(known.prototypes), known.outer_bias.shape[1])
        known = replace(known, structure=room)
    head = {name: getattr(known, name).cpu().contiguous() for name in HEAD}
    usual = {name: getattr(confidence, name) for name in ("offset", "centre", "width", "temperature")}
    if not len(confidence.offset):  # of an older store
        usual["offset"] = torch.zeros(len(known.prototypes), 2)
    return {**head, **usual}


def about(seen_by: Identity, engine: Engine, confidence: Confidence, version: int) -> dict[str, Any]:
    """The meaning of the outputs: labels in order, and the familiarity below which photos are unknown.

    It stands there for common rates, and as the quantiles of what is usual, from which any other follows. What the
    network has in it, encoder and metric, stands there too, for a structure goes with no other.
    """
    head, thresholds = engine.head, {f"{rate:g}": max(confidence.threshold(rate), -1e30) for rate in RATES}
    metric = b"".join(value.cpu().numpy().tobytes() for value in (*head.metric, head.weights))
    return {
        "labels": engine.names,
        "base": engine.memory.base,
        "version": version,
        "unknown_below": thresholds,
        "quantiles": confidence.quantiles.tolist(),
        "encoder": to_json(seen_by),
        "metric": content_digest(metric + (f"{head.reach:g}".encode() if head.reach else b"")),
    }


def write_structure(path: Path, seen_by: Identity, engine: Engine, confidence: Confidence, version: int) -> None:
    """Write the structure file of what is known now."""
    save_tensors(path, KIND, tensors(engine, confidence), about(seen_by, engine, confidence, version))


def write_onnx(path: Path, encoder: Encoder, engine: Engine, confidence: Confidence, version: int) -> None:
    """Write the network, with the current labels in its metadata."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise extra_needed("writing ONNX", "onnx") from error
    if isinstance(encoder.network, OnnxNetwork):
        raise Misuse(
            f"{encoder.source} is an ONNX network already, of which no other can be made; export the structure"
        )
    inputs = tensors(engine, confidence)
    side = encoder.transform.resize
    pixels = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    classes, width, batch = (torch.export.Dim(name, min=2) for name in ("classes", "width", "batch"))
    free: dict[str, dict[int, Any]] = {
        "outer_weight": {1: width},
        "outer_bias": {1: width},
        "structure": {1: classes, 2: width},
        **{name: {0: classes} for name in ("prototypes", "bias", "offset")},
    }
    device = encoder.device
    network = _Whole(encoder, engine.head).cpu()
    try:
        with quiet():
            program = torch.onnx.export(
                network,
                (pixels, *inputs.values()),
                dynamo=True,
                dynamic_shapes={"pixels": {0: batch}, "known": tuple(free.get(name, {}) for name in inputs)},
                input_names=["pixels", *inputs],
                output_names=list(OUTPUTS),
                verbose=False,
            )
    finally:
        encoder.to(device)
    assert program is not None
    told = about(encoder.identity, engine, confidence, version)
    meta = {**told, "transform": asdict(encoder.transform), "backbone": encoder.source}
    program.model.metadata_props.update({name: json.dumps(value) for name, value in meta.items()})
    with replacing(path) as draft:
        program.save(draft)


class _Whole(nn.Module):
    """Pictures (n, side, side, 3) of bytes to probabilities (n, classes) and familiarity (n,)."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.network, self.transform = encoder.network, encoder.transform
        self.blocks, self.turns, self.looks = encoder.blocks, encoder.turns, encoder.looks
        self.weights, self.reach = nn.Buffer(head.weights), head.reach
        self.readings = len(head.metric)
        for at, matrix in enumerate(head.metric):
            self.register_buffer(f"matrix{at}", matrix)

    def forward(self, pixels: Tensor, *known: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and familiarity, as the classifier computes them."""
        *parts, offset, centre, width, temperature = known
        looks = looks_at(pixels, self.transform, self.looks)
        features = read(self.network, looks, blocks=self.blocks, turns=self.turns)
        metric = tuple(self.get_buffer(f"matrix{at}") for at in range(self.readings))
        head = Head(metric=metric, weights=self.weights, reach=self.reach, **dict(zip(HEAD, parts, strict=True)))
        scores = head(features)
        return (scores / temperature).softmax(1), familiarity(scores, offset, centre, width)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's warnings about packages that it does not need and about names of axes."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
