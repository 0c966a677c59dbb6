"""Views of a picture that a bank keeps: what the few shots of a class might have looked like besides."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from concm.data import augment, policy

Augment = Literal["shift", "cifar", "imagenet"]
POLICY = slice(5, 10)
"""Columns of the random numbers that AutoAugment uses, behind those of a weak view."""
CUT = 0.5
"""Side of the square that is cut out beside the policy for CIFAR, as most authors do, as a share of the picture's."""


def view(pixels: Tensor, random: Tensor, size: int, kind: Augment = "shift") -> Tensor:
    """One view of each picture, by random numbers: (n, h, w, 3) uint8 and (n, RANDOMS) → (n, 3, size, size) in 0..1.

    It is shifted and mirrored, and with a policy also goes through AutoAugment; that for CIFAR cuts out a square too.
    """
    images = augment.weak(pixels, random, size)
    if kind == "shift":
        return images
    images = policy.auto(images, random[:, POLICY], policy.POLICIES[kind])
    return augment.cut_out(images, random, CUT) if kind == "cifar" else images
