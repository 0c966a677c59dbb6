"""Readings: the ways to look at one picture through a frozen backbone, and how they make one feature.

A reading is one of the last blocks at one quarter turn. Looks (mirror images and shifts) are averaged inside a reading.
Readings stand side by side as weighted unit vectors, so that one inner product of two features is the weighted sum of
their cosines. All of it can be traced, so that an exported network reads pictures as the encoder does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.backbones.modules import vectors
from concm.backbones.registry import staged
from concm.data import augment
from concm.data.transform import Transform
from concm.errors import Misuse, at_least, at_most

EARLIER = 0.7
"""Weight of a block before the last: chosen on validation banks of CIFAR-100's base classes, docs/engine.md."""
QUARTERS = {1: (0,), 2: (0, 2), 4: (0, 1, 2, 3)}
"""The quarter turns that are read, by their number."""
LOOKS = 10
"""The most looks there are: the central square and four shifts, each with its mirror image."""
_DIAGONALS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


def check(blocks: int, turns: int, looks: int) -> None:
    """Refuse numbers that no reading has."""
    at_least(1, blocks=blocks, looks=looks)
    at_most(LOOKS, looks=looks)
    if turns not in QUARTERS:
        raise Misuse(f"`turns` is one of {', '.join(map(str, QUARTERS))}, not {turns}")


def looks_at(pixels: Tensor, transform: Transform, count: int = 1) -> Iterator[Tensor]:
    """The first `count` looks at pictures: (n, h, w, 3) uint8 → (n, 3, size, size) each, normalised.

    In this order: the central square, four shifts by half of the largest one along the diagonals, and after each of
    them its mirror image.
    """
    return islice(_looks(pixels, transform), count)


def _looks(pixels: Tensor, transform: Transform) -> Iterator[Tensor]:
    images = transform.normalise(transform.cut(pixels).contiguous().float() / 255)  # bytes are put in order fastest
    yield images
    yield images.flip(3)
    size, slack = transform.size, transform.resize - transform.size
    shift = max(1, (slack or size // 8) // 2)
    count, centre = pixels.shape[0], slack // 2
    full = torch.full((count,), float(size), device=pixels.device)
    straight = torch.zeros(count, dtype=torch.bool, device=pixels.device)
    for down, right in _DIAGONALS:
        top, left = (torch.full_like(full, centre + way * shift) for way in (down, right))
        images = transform.normalise(augment.crop(pixels, top, left, full, full, straight, size))
        yield images
        yield images.flip(3)


def read(network: nn.Module, looks: Iterable[Tensor], *, blocks: int = 1, turns: int = 1) -> Tensor:
    """The feature (n, d) of pictures from their looks (n, 3, s, s): its readings side by side, in float32.

    Readings come turn by turn, and in each turn from the last block to earlier ones. A single one is the plain mean.
    """
    count, readings = 0, list[Tensor]()
    for images in looks:
        found = [own for quarter in QUARTERS[turns] for own in pooled(network, _turned(images, quarter), blocks)]
        readings = [before + own for before, own in zip(readings, found, strict=True)] if count else found
        count += 1
    if count > 1:
        readings = [own / count for own in readings]
    return readings[0] if len(readings) == 1 else side_by_side(readings, blocks)


def side_by_side(readings: Sequence[Tensor], blocks: int) -> Tensor:
    """Readings (n, d) each, turn by turn, as one feature of weighted unit vectors."""
    weights = [EARLIER if at % blocks else 1.0 for at in range(len(readings))]
    return torch.cat([weight * F.normalize(own, dim=1) for weight, own in zip(weights, readings, strict=True)], 1)


def _turned(images: Tensor, quarter: int) -> Tensor:
    if not quarter:
        return images
    return torch.rot90(images, quarter, (2, 3)).contiguous(memory_format=torch.channels_last)


def pooled(network: nn.Module, images: Tensor, blocks: int) -> list[Tensor]:
    """Means (n, d) of the last blocks, the last one first."""
    if blocks == 1:
        return [vectors(network(images), images.shape[0]).float()]
    stages = staged(network).stages(images)
    if blocks > len(stages):
        raise Misuse(f"`blocks` is {blocks}, and {type(network).__name__} shows {len(stages)}")
    return [maps.float().mean((2, 3)) for maps in stages[: -blocks - 1 : -1]]
