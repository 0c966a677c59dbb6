"""AutoAugment (Cubuk and others, CVPR 2019) as batch functions: each picture goes through two operations of a policy.

A policy is a list of pairs of operations, each with a chance and a strength from 0 to 9. As in `augment`, random
numbers are given, so that a picture has the same view wherever it is made. What moves in from outside is grey.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

CIFAR = (
    "invert .1 7 contrast .2 6, rotate .7 2 translate_x .3 9, sharpness .8 1 sharpness .9 3, "
    "shear_y .5 8 translate_y .7 9, autocontrast .5 8 equalize .9 2, shear_y .2 7 posterize .3 7, "
    "color .4 3 brightness .6 7, sharpness .3 9 brightness .7 9, equalize .6 5 equalize .5 1, "
    "contrast .6 7 sharpness .6 5, color .7 7 translate_x .5 8, equalize .3 7 autocontrast .4 8, "
    "translate_y .4 3 sharpness .2 6, brightness .9 6 color .2 8, solarize .5 2 invert 0 3, "
    "equalize .2 0 autocontrast .6 0, equalize .2 8 equalize .6 4, color .9 9 equalize .6 6, "
    "autocontrast .8 4 solarize .2 8, brightness .1 3 color .7 0, solarize .4 5 autocontrast .9 3, "
    "translate_y .9 9 translate_y .7 9, autocontrast .9 2 solarize .8 3, equalize .8 8 invert .1 3, "
    "translate_y .7 9 autocontrast .9 1"
)
"""The policy found for CIFAR-10."""
IMAGENET = (
    "posterize .4 8 rotate .6 9, solarize .6 5 autocontrast .6 5, equalize .8 8 equalize .6 3, "
    "posterize .6 7 posterize .6 6, equalize .4 7 solarize .2 4, equalize .4 4 rotate .8 8, "
    "solarize .6 3 equalize .6 7, posterize .8 5 equalize 1 2, rotate .2 3 solarize .6 8, "
    "equalize .6 8 posterize .4 6, rotate .8 8 color .4 0, rotate .4 9 equalize .6 2, "
    "equalize 0 7 equalize .8 8, invert .6 4 equalize 1 8, color .6 4 contrast 1 8, rotate .8 8 color 1 2, "
    "color .8 8 solarize .8 7, sharpness .4 7 invert .6 8, shear_x .6 5 equalize 1 9, color .4 0 equalize .6 3, "
    "equalize .4 7 solarize .2 4, solarize .6 5 autocontrast .6 5, invert .6 4 equalize 1 8, "
    "color .6 4 contrast 1 8, equalize .8 8 equalize .6 3"
)
"""The policy found for ImageNet."""
POLICIES = {"cifar": CIFAR, "imagenet": IMAGENET}
OPERATIONS = (
    *("shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast", "sharpness"),
    *("posterize", "solarize", "autocontrast", "equalize", "invert"),
)
MOVES = 5
"""So many of the operations move pixels; the others change colours."""


@cache
def table(policy: str) -> Tensor:
    """A policy as a tensor (pairs, 2, 3): number of the operation, chance, strength."""
    pairs = [pair.split() for pair in policy.split(",")]
    numbers = [
        [[OPERATIONS.index(pair[at]), float(pair[at + 1]), float(pair[at + 2])] for at in (0, 3)] for pair in pairs
    ]
    return torch.tensor(numbers)


def auto(images: Tensor, random: Tensor, policy: str) -> Tensor:
    """Images (n, 3, s, s) of 0..1 after both operations of a pair that is drawn for each.

    Random numbers (n, 5): which pair, the chance of each operation, and the sign of each.
    """
    every = table(policy).to(images.device)
    pair = every[(random[:, 0] * len(every)).long().clamp(max=len(every) - 1)]
    for at in (0, 1):
        number, chance, strength = pair[:, at].unbind(1)
        number = torch.where(random[:, 1 + at] < chance, number, -1.0)
        images = applied(images, number, strength / 9, torch.where(random[:, 3 + at] < 0.5, -1.0, 1.0))
    return images


def applied(images: Tensor, number: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Each image after its operation (n,), −1 for none, with a strength from 0 to 1 and a sign, where it has any."""
    images = torch.where(_is(number < 0) | _is(number >= MOVES), images, moved(images, number, strength * sign))
    for at, change in enumerate(COLOURS, MOVES):
        images = torch.where(_is(number == at), change(images, strength, sign), images)
    return images


def _is(rows: Tensor) -> Tensor:
    return rows.view(-1, 1, 1, 1)


def moved(images: Tensor, number: Tensor, amount: Tensor) -> Tensor:
    """Shear by up to 0.3, shift by up to 150 / 331 of the side, or turn by up to 30 degrees."""
    zero = torch.zeros_like(amount)
    shear_x, shear_y = (torch.where(number == at, 0.3 * amount, zero) for at in (0, 1))
    x, y = (torch.where(number == at, 2 * 150 / 331 * amount, zero) for at in (2, 3))
    angle = torch.where(number == 4, torch.pi / 6 * amount, zero)
    one = torch.stack([angle.cos(), shear_x - angle.sin(), x], 1)
    other = torch.stack([shear_y + angle.sin(), angle.cos(), y], 1)
    grid = F.affine_grid(torch.stack([one, other], 1).to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images - 0.5, grid, align_corners=False) + 0.5


def _blended(images: Tensor, other: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Away from another image, or towards it, by up to nine tenths."""
    return (other + (1 + 0.9 * _is(strength * sign)) * (images - other)).clamp(0, 1)


def grey(images: Tensor) -> Tensor:
    """Luma (n, 1, s, s)."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def _brightness(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return _blended(images, torch.zeros_like(images), strength, sign)


def _colour(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return _blended(images, grey(images).expand_as(images), strength, sign)


def _contrast(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return _blended(images, grey(images).mean((2, 3), keepdim=True).expand_as(images), strength, sign)


def _sharpness(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    kernel = torch.ones(3, 1, 3, 3, device=images.device, dtype=images.dtype)
    kernel[:, :, 1, 1] = 5
    smooth = F.pad(F.conv2d(images, kernel / 13, groups=3), (1, 1, 1, 1))
    inside = F.pad(torch.ones_like(smooth[:, :, 1:-1, 1:-1]), (1, 1, 1, 1))
    return _blended(images, torch.where(inside > 0, smooth, images), strength, sign)


def _posterize(images: Tensor, strength: Tensor, _: Tensor) -> Tensor:
    step = 2.0 ** (8 - _is((8 - 4 * strength).round()))
    return ((255 * images).round() / step).floor() * step / 255


def _solarize(images: Tensor, strength: Tensor, _: Tensor) -> Tensor:
    return torch.where(255 * images >= 256 * (1 - _is(strength)), 1 - images, images)


def _autocontrast(images: Tensor, _: Tensor, __: Tensor) -> Tensor:
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-6), images)


def equalized(images: Tensor, _: Tensor, __: Tensor) -> Tensor:
    """Each channel with its levels spread evenly, as PIL does it."""
    levels = (255 * images).round().long().flatten(2).clamp(0, 255)
    counts = torch.zeros(*levels.shape[:2], 256, device=images.device).scatter_add_(
        2, levels, torch.ones_like(images).flatten(2)
    )
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = ((counts.sum(2, keepdim=True) - last) / 255).floor()
    before = counts.cumsum(2) - counts
    lookup = ((before + (step / 2).floor()) / step.clamp(min=1)).floor().clamp(0, 255)
    found = lookup.gather(2, levels).view_as(images) / 255
    return torch.where(step.unsqueeze(-1) > 0, found, images)


def _invert(images: Tensor, _: Tensor, __: Tensor) -> Tensor:
    return 1 - images


COLOURS = (*(_brightness, _colour, _contrast, _sharpness, _posterize, _solarize, _autocontrast, equalized, _invert),)
