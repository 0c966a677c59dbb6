"""Views of a picture that a bank keeps: what the few shots of a class might have looked like besides."""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.data import augment, policy

Augment = Literal["shift", "cifar", "imagenet"]
POLICY = slice(5, 10)
"""Columns of the random numbers that AutoAugment uses, behind those of a weak view."""
CUT = 0.5
"""Side of the square that is cut out beside the policy for CIFAR, as most authors do, as a share of the picture's."""


def view(pixels: Tensor, random: Tensor, size: int, kind: Augment = "shift") -> Tensor:
    """One view of each picture, by random numbers: (n, h, w, 3) uint8 and (n, RANDOMS) → (n, 3, size, size) in 0..1.

    It is shifted and mirrored. With a policy it also goes through AutoAugment, and as most authors have it, what moves
    in is black, and with the policy for CIFAR so is a square that is cut out.
    """
    if kind == "shift":
        return augment.weak(pixels, random, size)
    pad = size // 8 if pixels.shape[1] - size < size // 8 else 0
    images = augment.weak(F.pad(pixels, (0, 0, pad, pad, pad, pad)), random, size)
    images = policy.auto(images, random[:, POLICY], policy.POLICIES[kind])
    return augment.cut_out(images, random, CUT, fill=0.0) if kind == "cifar" else images


def uniform(name: str, views: int) -> Tensor:
    """Random numbers (views, RANDOMS) that depend on the name alone, the same on every machine."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return torch.from_numpy(np.random.default_rng(seed).random((views, augment.RANDOMS), dtype=np.float32))
