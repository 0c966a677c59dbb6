"""From a decoded picture to a small square of eight bits, with no more memory than the picture itself takes."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from concm.errors import ConcmError

LARGE = 16_000_000
"""Pixels from which on a picture is shrunk before anything else is done with it."""


class BrokenPicture(ConcmError):
    """A file that cannot be read as a picture."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.reason = reason


class Room:
    """Bytes that all threads together may fill; who wants more than is left waits, and no one gets more than all."""

    def __init__(self, size: int) -> None:
        self.size = self.left = size
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """So many bytes, for as long as the block takes."""
        size = min(size, self.size)
        with self._changed:
            self._changed.wait_for(lambda: self.left >= size)
            self.left -= size
        try:
            yield
        finally:
            with self._changed:
                self.left += size
                self._changed.notify_all()


room = Room(2 * 10**9)
"""For pictures that are being decoded; one of the largest takes a third of it."""


DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
"""Modes of greys with more than eight bits."""


def grey(image: Image.Image, name: str, side: int) -> Image.Image:
    """An eight-bit grey from a deeper one, scaled rather than clipped; a large one is shrunk on the way, for memory."""
    extremes = [(float(part.max(initial=0)), float(part.min(initial=0))) for part in _strips(image, 1)]
    highest, lowest = max(high for high, _ in extremes), min(low for _, low in extremes)
    if image.mode == "F" and not math.isfinite(highest + lowest):
        raise BrokenPicture(name, "has values that are no numbers")
    if lowest < 0 or highest > 65535 or (image.mode == "F" and 1 < highest <= 2):
        raise BrokenPicture(name, f"has values from {lowest:g} to {highest:g}; they should end at 1, 255 or 65535")
    top = 1.0 if image.mode == "F" and highest <= 1 else 65535.0
    if image.mode in ("I", "F") and 1 < highest <= 255:
        top = 255.0
    block = max(1, min(image.size) // (2 * side))
    width = image.width // block
    small = [
        part[:, : width * block].reshape(-1, block, width, block).mean((1, 3), dtype=np.float32) if block > 1 else part
        for part in _strips(image, block)
    ]
    values = np.concatenate(small).astype(np.float64)
    return Image.fromarray((values.clip(0, top) / top * 255).round().astype(np.uint8))


def _strips(image: Image.Image, block: int) -> Iterator[NDArray[Any]]:
    """The rows of a picture, some at a time and each time a multiple of `block`; the few that are left over are not."""
    for box in _boxes(image, block):
        yield np.asarray(image.crop(box))


def _boxes(image: Image.Image, block: int) -> Iterator[tuple[int, int, int, int]]:
    """Boxes of whole rows, about a million pixels each."""
    rows, end = block * max(1, 2**20 // (image.width * block)), image.height // block * block
    for top in range(0, end, rows):
        yield 0, top, image.width, min(end, top + rows)


def shrunk(image: Image.Image, side: int) -> Image.Image:
    """RGB of any picture of eight bits; a large one is averaged over blocks on the way, part by part, for memory."""
    block = min(image.size) // (2 * side) if image.width * image.height > LARGE else 1
    if block <= 1:
        return rgb(image)
    width = image.width // block
    small = Image.new("RGB", (width, image.height // block))
    for box in _boxes(image, block):
        part = rgb(image.crop(box)).reduce(block)
        small.paste(part.crop((0, 0, width, part.height)), (0, box[1] // block))
    return small


def rgb(image: Image.Image) -> Image.Image:
    """RGB from any mode of eight bits, with transparency over white."""
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def square(image: Image.Image, side: int) -> Image.Image:
    """The central square, scaled to `side`; a picture of the right size is left untouched."""
    short = min(image.size)
    left, top = (image.width - short) / 2, (image.height - short) / 2
    if image.size == (side, side):
        return image
    return image.resize((side, side), Image.Resampling.BICUBIC, box=(left, top, left + short, top + short))
