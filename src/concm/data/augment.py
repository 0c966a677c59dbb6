"""Batch augmentation as pure functions of pixels and uniform random numbers.

The caller gives the random numbers, for the whole global batch. So every picture gets the same view at the same step,
whether there is one process or several, eager or compiled, interrupted or not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

RANDOMS = 14
"""How many uniform numbers one view of one picture has; views leave the last ones to objectives."""


class Weak:
    """Columns of the random numbers that a weak view uses."""

    TOP, LEFT, MIRROR, CENTRE_Y, CENTRE_X = range(5)


class Strong:
    """Columns of the random numbers that a strong view uses."""

    AREA, ASPECT, TOP, LEFT, MIRROR, SHAKEN = range(6)
    BRIGHTNESS_CONTRAST_SATURATION = slice(6, 9)
    GREY = 9


def crop(pixels: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, mirror: Tensor, size: int) -> Tensor:
    """Cut a box out of each picture and scale it to `size`: (n, h, w, 3) uint8 → (n, 3, size, size) in 0..1.

    Scaling is bilinear, and exact for whole-pixel boxes of `size`. Outside the picture lies its reflection.
    """
    count, rows, columns, _ = pixels.shape
    steps = torch.arange(size, device=pixels.device, dtype=torch.float32) + 0.5
    y = top[:, None] + steps * (height / size)[:, None] - 0.5
    x = left[:, None] + steps * (width / size)[:, None] - 0.5
    x = torch.where(mirror[:, None], x.flip(1), x)
    y0, x0 = y.floor(), x.floor()
    wy, wx = (y - y0)[:, :, None, None], (x - x0)[:, None, :, None]
    picture = torch.arange(count, device=pixels.device)[:, None, None]

    def at(vertical: Tensor, horizontal: Tensor) -> Tensor:
        inside_y = _reflect(vertical, rows)[:, :, None]
        inside_x = _reflect(horizontal, columns)[:, None, :]
        return pixels[picture, inside_y, inside_x].float()

    upper = at(y0, x0) * (1 - wx) + at(y0, x0 + 1) * wx
    lower = at(y0 + 1, x0) * (1 - wx) + at(y0 + 1, x0 + 1) * wx
    return ((upper * (1 - wy) + lower * wy) / 255).permute(0, 3, 1, 2)


def _reflect(position: Tensor, length: int) -> Tensor:
    inside = position.long().abs()
    return (length - 1 - (length - 1 - inside).abs()).clamp(0, length - 1)


def weak(pixels: Tensor, random: Tensor, size: int, box: int | None = None) -> Tensor:
    """Shift by up to an eighth and mirror; (n, h, w, 3) uint8 and (n, RANDOMS) → (n, 3, size, size).

    What is cut out has a side of `box` pixels, if that is another than `size`, and is scaled.
    """
    box = box or size
    slack = pixels.shape[1] - box
    pad = box // 8 if slack < box // 8 else 0
    span = slack + 2 * pad
    top, left = ((random[:, at] * (span + 1)).floor() - pad for at in (Weak.TOP, Weak.LEFT))
    side = torch.full_like(top, box)
    return crop(pixels, top, left, side, side, random[:, Weak.MIRROR] < 0.5, size)


def cut_out(images: Tensor, random: Tensor, side: float, fill: float = 0.5) -> Tensor:
    """Fill a square of `side` (a share of the picture's) whose centre lies anywhere in the picture; grey by default."""
    size = images.shape[-1]
    steps = torch.arange(size, device=images.device) + 0.5
    inside_y = (steps - (random[:, Weak.CENTRE_Y] * size).floor()[:, None]).abs() <= side * size / 2
    inside_x = (steps - (random[:, Weak.CENTRE_X] * size).floor()[:, None]).abs() <= side * size / 2
    return torch.where(inside_y[:, None, :, None] & inside_x[:, None, None, :], fill, images)


def strong(pixels: Tensor, random: Tensor, size: int, scale_min: float, jitter: float, grey: float) -> Tensor:
    """A crop of random area and aspect, mirrored, with colours changed or removed; shapes as in `weak`."""
    side = pixels.shape[1]
    area = (scale_min + random[:, Strong.AREA] * (1 - scale_min)) * side * side
    aspect = torch.exp((random[:, Strong.ASPECT] * 2 - 1) * math.log(4 / 3))
    height = (area / aspect).sqrt().clamp(max=side)
    width = (area * aspect).sqrt().clamp(max=side)
    top, left = random[:, Strong.TOP] * (side - height), random[:, Strong.LEFT] * (side - width)
    images = crop(pixels, top, left, height, width, random[:, Strong.MIRROR] < 0.5, size)
    shaken, colours = random[:, Strong.SHAKEN, None] < 0.8, random[:, Strong.BRIGHTNESS_CONTRAST_SATURATION]
    factors = torch.where(shaken, 1 + (colours * 2 - 1) * jitter, 1.0)
    brightness, contrast, saturation = (factors[:, at].view(-1, 1, 1, 1) for at in range(3))
    images = (images * brightness).clamp(0, 1)
    images = (images - (middle := _luma(images).mean((2, 3), keepdim=True))).mul(contrast).add(middle).clamp(0, 1)
    colourless = _luma(images)
    images = ((images - colourless) * saturation + colourless).clamp(0, 1)
    return torch.where((random[:, Strong.GREY] < grey).view(-1, 1, 1, 1), _luma(images), images)


def _luma(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def turn(images: Tensor, quarters: Tensor) -> Tensor:
    """Turn each picture (n, 3, s, s) by its own number of quarter turns (n,), from 0 to 3."""
    quarters = quarters.view(-1, 1, 1, 1)
    half = torch.where(quarters >= 2, images.flip((2, 3)), images)
    return torch.where(quarters % 2 == 1, half.transpose(2, 3).flip(2), half)
