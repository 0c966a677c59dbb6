"""Views of pictures: plain shifts, and those of authors' training images."""

from __future__ import annotations

import torch

from concm.data import augment, policy
from concm.data.augment import RANDOMS
from concm.data.views import view

RANDOM = torch.Generator().manual_seed(0)
PIXELS = torch.randint(0, 256, (40, 32, 32, 3), generator=RANDOM, dtype=torch.uint8)
NUMBERS = torch.rand(40, RANDOMS, generator=RANDOM)


def test_a_plain_view_is_a_weak_one():
    assert torch.equal(view(PIXELS, NUMBERS, 32), augment.weak(PIXELS, NUMBERS, 32))


def test_with_a_policy_a_weak_view_goes_through_it():
    padded = torch.zeros(40, 40, 40, 3, dtype=torch.uint8)
    padded[:, 4:36, 4:36] = PIXELS
    shifted = augment.weak(padded, NUMBERS, 32)
    found = view(PIXELS, NUMBERS, 32, "imagenet")
    assert torch.equal(found, policy.auto(shifted, NUMBERS[:, 5:10], policy.IMAGENET))
    assert not torch.equal(found, shifted)


def test_what_moves_in_beside_a_policy_is_black():
    corner = NUMBERS.clone()
    corner[:, :2], corner[:, 6:8] = 0.0, 1.0  # shifted as far as can be, and no operation happens
    found = view(PIXELS, corner, 32, "imagenet")
    assert (found[:, :, :4] == 0).all()
    assert (found[:, :, 4:, 8:24] > 0).any()


def test_the_policy_for_cifar_cuts_out_a_square_of_half_the_side_at_most():
    found = view(PIXELS, NUMBERS, 32, "cifar")
    padded = torch.zeros(40, 40, 40, 3, dtype=torch.uint8)
    padded[:, 4:36, 4:36] = PIXELS
    whole = policy.auto(augment.weak(padded, NUMBERS, 32), NUMBERS[:, 5:10], policy.CIFAR)
    changed = (found != whole).any(1)
    assert (found.permute(0, 2, 3, 1)[changed] == 0).all()
    assert changed.any((1, 2)).float().mean() > 0.9
    assert int(changed.any(1).sum(1).max()) <= 16
    assert int(changed.any(2).sum(1).max()) <= 16
