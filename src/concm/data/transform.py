"""How a picture becomes a network's input: one description for caching, training and extraction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

from concm.errors import Misuse

if TYPE_CHECKING:
    from torch import Tensor

Triple = tuple[float, float, float]
LARGEST = 4096
"""Pixels of a side; a file cannot ask for pictures that fill the memory."""


@dataclass(frozen=True)
class Transform:
    """Shorter side to `resize`, central square; the network sees `size` pixels, normalised by mean and std of 0..1."""

    size: int
    resize: int
    mean: Triple
    std: Triple

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.resize <= LARGEST:
            raise Misuse(f"pictures are scaled to {self.resize} pixels and cut to {self.size}: not from 1 to {LARGEST}")
        if not all(isfinite(value) for value in (*self.mean, *self.std)) or not all(self.std):
            raise Misuse("a transform of pictures needs means that are numbers, and deviations other than 0")

    def at(self, size: int | None) -> Transform:
        """The same part of a picture, for a network that sees it in so many pixels, if that is asked for."""
        return self if size is None else replace(self, size=size, resize=round(self.resize * size / self.size))

    def normalise(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) of 0..1 → normalised, in the same dtype."""
        mean = images.new_tensor(self.mean).view(1, 3, 1, 1)
        std = images.new_tensor(self.std).view(1, 3, 1, 1)
        return (images - mean) / std

    def centre(self, pixels: Tensor) -> Tensor:
        """(n, h, w, 3) uint8 as cached → (n, 3, size, size) normalised, as at test time."""
        return self.normalise(self.cut(pixels).float() / 255)

    def cut(self, pixels: Tensor) -> Tensor:
        """(n, h, w, 3) uint8 as cached → the central (n, 3, size, size) of it, in the order that it has in memory."""
        edge = (self.resize - self.size) // 2
        return pixels[:, edge : edge + self.size, edge : edge + self.size].permute(0, 3, 1, 2)
