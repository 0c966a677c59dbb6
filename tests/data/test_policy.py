"""AutoAugment in batches: every operation against PIL's, and which pictures it is applied to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from concm.data import policy

torch.set_num_threads(1)
SIDE = 20


def pictures(count: int = 4) -> np.ndarray:
    smooth = np.random.default_rng(0).random((count, 6, 6, 3))
    return np.stack(
        [np.asarray(Image.fromarray((200 * one + 20).astype(np.uint8)).resize((SIDE, SIDE))) for one in smooth]
    )


def batch(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def changed(name: str, strength: float, sign: float = 1.0) -> np.ndarray:
    images, number = batch(pictures()), torch.full((4,), float(policy.OPERATIONS.index(name)))
    found = policy.applied(images, number, torch.full((4,), strength), torch.full((4,), sign))
    return (255 * found).permute(0, 2, 3, 1).numpy()


SLOW = {
    "brightness": lambda image: ImageEnhance.Brightness(image).enhance(1.6),
    "color": lambda image: ImageEnhance.Color(image).enhance(1.6),
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.6),
    "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(1.6),
    "posterize": lambda image: ImageOps.posterize(image, 5),
    "solarize": lambda image: ImageOps.solarize(image, int(256 / 3) + 1),
    "autocontrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "invert": ImageOps.invert,
}


@pytest.mark.parametrize("name", SLOW)
def test_colours_change_as_pil_changes_them(name):
    found = changed(name, 2 / 3)
    for pixels, own in zip(pictures(), found, strict=True):
        wanted = np.asarray(SLOW[name](Image.fromarray(pixels))).astype(float)
        assert np.abs(own - wanted).max() < 2.5, name


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("shear_x", (1, 0.3, -0.3 * SIDE / 2, 0, 1, 0)),
        ("shear_y", (1, 0, 0, 0.3, 1, -0.3 * SIDE / 2)),
        ("translate_x", (1, 0, 150 / 331 * SIDE, 0, 1, 0)),
        ("translate_y", (1, 0, 0, 0, 1, 150 / 331 * SIDE)),
    ],
)
def test_pixels_move_as_an_affine_map_moves_them(name, matrix):
    """PIL maps centres of pixels too, and fills with grey here."""
    found = changed(name, 1.0)
    for pixels, own in zip(pictures(), found, strict=True):
        slow = Image.fromarray(pixels).transform((SIDE, SIDE), Image.Transform.AFFINE, matrix, 2, fillcolor=(128,) * 3)
        assert np.abs(own - np.asarray(slow).astype(float))[CENTRE[name]].max() < 3


CENTRE = {
    "shear_x": np.s_[4:16, 5:15],
    "shear_y": np.s_[5:15, 4:16],
    "translate_x": np.s_[1:-1, 1:9],
    "translate_y": np.s_[1:9, 1:-1],
}
"""Where neither way of treating the border matters."""


def test_a_turn_is_by_up_to_thirty_degrees():
    found = changed("rotate", 1.0, sign=-1.0)
    for pixels, own in zip(pictures(), found, strict=True):
        slow = np.asarray(Image.fromarray(pixels).rotate(-30, Image.Resampling.BILINEAR)).astype(float)
        assert np.abs(own - slow)[6:14, 6:14].max() < 3


def test_signs_and_strengths_of_zero():
    images = 255 * batch(pictures()).permute(0, 2, 3, 1).numpy()
    for name in policy.OPERATIONS[:9]:
        assert np.abs(changed(name, 0.0) - images).max() < 1e-3, name
    assert changed("brightness", 1.0, 1.0).mean() > images.mean() > changed("brightness", 1.0, -1.0).mean()


@pytest.mark.parametrize("words", [policy.CIFAR, policy.IMAGENET])
def test_a_policy_has_twenty_five_pairs(words):
    found = policy.table(words)
    assert tuple(found.shape) == (25, 2, 3)
    assert bool((found[..., 1] <= 1).all())
    assert bool((found[..., 2] <= 9).all())


def test_each_picture_has_the_pair_that_its_number_draws():
    images = batch(pictures(2))
    random = torch.tensor([[0.0, 0.99, 0.0, 0.9, 0.9], [0.999, 0.99, 0.0, 0.9, 0.9]])
    found = policy.auto(images, random, "invert .5 1 invert .5 1, invert .5 1 solarize 1 9")
    torch.testing.assert_close(found[0], 1 - images[0])
    torch.testing.assert_close(found[1], 1 - images[1])
    still = policy.auto(images, torch.full((2, 5), 0.99), "invert .5 1 invert .5 1")
    assert torch.equal(still, images)
