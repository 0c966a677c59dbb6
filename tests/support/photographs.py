"""Photos of made-up classes, and a backbone so small that it sees little more than where which colour is.

A class looks as its name says: the name chooses sixteen patches of colour, and every photo of it varies them a little.
So photos of one class are alike, those of two classes are not, and the same name and number are always the same photo.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from concm.data.transform import Transform

BACKBONE = "tests.support.photographs:tiny_backbone"
"""How a classifier is told to use it; in another process, PYTHONPATH must contain the repository."""
OTHER_WEIGHTS = "tests.support.photographs:other_weights"
SIDE = 32
PATCHES = 4


class TinyBackbone(nn.Module):
    """Mean colours of 4 × 4 patches, mixed by a fixed rotation and a little bent: (n, 3, 32, 32) → (n, 48)."""

    dimension = 3 * PATCHES**2
    transform = Transform(size=SIDE, resize=SIDE, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = np.random.default_rng(seed).standard_normal((self.dimension, self.dimension))
        rotation = torch.from_numpy(np.linalg.qr(random)[0]).float()
        self.pool = nn.AvgPool2d(SIDE // PATCHES)
        self.mix = nn.utils.skip_init(nn.Linear, self.dimension, self.dimension, bias=False)
        self.mix.weight = nn.Parameter(rotation)

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(self.pool(images).flatten(1)).tanh()


def tiny_backbone() -> TinyBackbone:
    return TinyBackbone()


def other_weights() -> TinyBackbone:
    """The same network with other weights."""
    return TinyBackbone(seed=1)


def picture(name: str, number: int = 0, *, vary: float = 30.0) -> NDArray[np.uint8]:
    """Photo (32, 32, 3) of this number of the class called `name`; `vary`: how much its colours differ from others'."""
    look = zlib.crc32(name.encode())
    colours = np.random.default_rng(look).uniform(40, 215, (PATCHES, PATCHES, 3))
    own = np.random.default_rng([look, number])
    colours = colours + own.normal(0, vary, colours.shape)
    pixels = colours.repeat(SIDE // PATCHES, 0).repeat(SIDE // PATCHES, 1) + own.normal(0, 10, (SIDE, SIDE, 3))
    return pixels.clip(0, 255).round().astype(np.uint8)


def pictures(name: str, count: int, *, first: int = 0) -> list[NDArray[np.uint8]]:
    """That many photos of a class, from number `first` on."""
    return [picture(name, number) for number in range(first, first + count)]


def write_class(folder: Path, count: int, *, name: str | None = None, first: int = 0) -> list[Path]:
    """Photos of a class (the folder's name says which, or `name`) as files `<number>.png`, from `first` on."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.png" for number in range(first, first + count)]
    for number, path in enumerate(paths, first):
        Image.fromarray(picture(name or folder.name, number)).save(path, "PNG")
    return paths


def write_world(root: Path, names: Iterable[str], count: int, *, first: int = 0) -> dict[str, list[Path]]:
    """A folder of class folders."""
    return {name: write_class(root / name, count, first=first) for name in names}
