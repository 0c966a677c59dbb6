"""Augmentation: exact where nothing is interpolated, within bounds, and the same for each picture in any batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from concm.data import augment
from concm.data.augment import RANDOMS
from concm.data.scenarios import of_folder
from concm.training.objective import Stage, TwoViews
from concm.training.recipe import Recipe

often = settings(max_examples=60, deadline=None, database=None, derandomize=True)
seeds = st.integers(0, 2**32)
NEARLY_ONE = 1 - 2**-24
STRONG = {"scale_min": 0.3, "jitter": 0.4, "grey": 0.2}


def pictures(count: int = 3, side: int = 8, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, side, side, 3), generator=random, dtype=torch.uint8)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, RANDOMS, generator=torch.Generator().manual_seed(seed))


def plain(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.permute(0, 3, 1, 2).float() / 255


def cut(pixels, top: float, left: float, side: float, mirror: bool = False, size: int = 8) -> torch.Tensor:
    def every(value: float) -> torch.Tensor:
        return torch.full((len(pixels),), value)

    whole = [every(value) for value in (top, left, side, side)]
    return augment.crop(pixels, *whole, torch.full((len(pixels),), mirror), size)


# crops


@pytest.mark.parametrize("side", [1, 2, 8, 33])
def test_the_whole_picture_is_itself(side):
    pixels = pictures(side=side)
    assert torch.equal(cut(pixels, 0, 0, side, size=side), plain(pixels))


@often
@given(top=st.integers(0, 4), left=st.integers(0, 4), seed=seeds)
def test_whole_pixel_boxes_are_exact(top, left, seed):
    pixels = pictures(side=12, seed=seed)
    assert torch.equal(cut(pixels, top, left, 8), plain(pixels[:, top : top + 8, left : left + 8]))


@often
@given(top=st.integers(-7, 7), left=st.integers(-7, 7), seed=seeds)
def test_beyond_the_edge_lies_the_reflection(top, left, seed):
    pixels = pictures(seed=seed)
    padded = nn.functional.pad(plain(pixels), (7, 7, 7, 7), mode="reflect")
    assert torch.equal(cut(pixels, top, left, 8), padded[..., 7 + top : 15 + top, 7 + left : 15 + left])


def test_mirrored_is_exactly_mirrored():
    pixels = pictures()
    assert torch.equal(cut(pixels, 0, 0, 8, mirror=True), plain(pixels).flip(3))


def test_half_a_pixel_is_the_mean_of_two():
    pixels = pictures(side=12)
    found = cut(pixels, 0.5, 0, 8)
    torch.testing.assert_close(found, (plain(pixels[:, :8, :8]) + plain(pixels[:, 1:9, :8])) / 2)


@often
@given(seed=seeds, top=st.floats(-3, 10), left=st.floats(-3, 10), side=st.floats(0.1, 12))
def test_any_box_lies_between_the_pictures_darkest_and_brightest(seed, top, left, side):
    pixels = pictures(side=12, seed=seed)
    found, given = cut(pixels, top, left, side), plain(pixels)
    assert found.min() >= given.min() - 1e-6
    assert found.max() <= given.max() + 1e-6


# weak and strong views


@often
@given(seed=seeds, side=st.sampled_from([8, 9, 12]))
def test_a_weak_view_is_a_whole_pixel_shift(seed, side):
    pixels, random = pictures(side=side, seed=seed), numbers(3, seed=seed)
    for picture, view in zip(plain(pixels), augment.weak(pixels, random, 8), strict=True):
        padded = nn.functional.pad(picture[None], (1, 1, 1, 1), mode="reflect")[0]
        shifts = [
            candidate
            for top in range(side - 8 + 3)
            for left in range(side - 8 + 3)
            for window in [padded[:, top : top + 8, left : left + 8]]
            for candidate in (window, window.flip(2))
        ]
        assert any(torch.equal(view, shift) for shift in shifts)


@pytest.mark.parametrize("value", [0.0, 0.5, NEARLY_ONE])
@pytest.mark.parametrize("view", [augment.weak, lambda *words: augment.strong(*words, **STRONG)])
def test_extreme_random_numbers_stay_within_bounds(view, value):
    found = view(pictures(side=32), torch.full((3, RANDOMS), value), 32)
    assert found.shape == (3, 3, 32, 32)
    assert found.isfinite().all()
    assert found.min() >= 0
    assert found.max() <= 1


@often
@given(seed=seeds, jitter=st.floats(0, 1), grey=st.floats(0, 1), scale=st.floats(0.05, 1))
def test_strong_views_stay_within_bounds(seed, jitter, grey, scale):
    found = augment.strong(pictures(seed=seed), numbers(3, seed=seed), 8, scale, jitter, grey)
    assert found.min() >= 0
    assert found.max() <= 1


def test_without_colour_all_channels_are_equal():
    found = augment.strong(pictures(), numbers(3), 8, 0.3, 0.4, 1.0)
    assert torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(found[:, 0], found[:, 2])


def test_with_everything_switched_off_the_picture_is_unchanged():
    random = numbers(3)
    random[:, 1] = 0.5  # a square box
    random[:, 4] = 0.9  # not mirrored
    found = augment.strong(pictures(), random, 8, 1.0, 0.0, 0.0)
    torch.testing.assert_close(found, plain(pictures()), rtol=0, atol=1e-6)


@pytest.mark.promise
@often
@given(seed=seeds)
def test_the_same_random_numbers_give_the_same_view_in_any_batch(seed):
    pixels, random = pictures(6, side=12, seed=seed), numbers(6, seed=seed)
    some = torch.tensor([4, 1, 5])
    for view in (augment.weak, lambda *words: augment.strong(*words, **STRONG)):
        together = view(pixels, random, 8)
        assert torch.equal(view(pixels, random, 8), together)
        torch.testing.assert_close(view(pixels[2:5], random[2:5], 8), together[2:5], rtol=0, atol=1e-5)
        torch.testing.assert_close(view(pixels[some], random[some], 8), together[some], rtol=0, atol=1e-5)


def test_pixels_and_numbers_are_left_as_they_were():
    pixels, random = pictures(), numbers(3)
    augment.strong(pixels, random, 8, **STRONG)
    augment.cut_out(augment.weak(pixels, random, 8), random, 0.5)
    assert torch.equal(pixels, pictures())
    assert torch.equal(random, numbers(3))


# cut-out and turns


@pytest.mark.parametrize("side", [0.25, 0.5, 1.0])
def test_a_square_of_the_right_size_is_greyed_out(side):
    random = numbers(1)
    random[:, 3:5] = 0.5
    found = augment.cut_out(torch.ones(1, 3, 16, 16), random, side)
    assert (found == 0.5).sum() == 3 * (16 * side) ** 2
    assert ((found == 0.5) | (found == 1)).all()


@often
@given(seed=seeds, side=st.floats(0, 1))
def test_never_more_than_the_square_is_greyed_out(seed, side):
    found = augment.cut_out(torch.ones(5, 3, 16, 16), numbers(5, seed=seed), side)
    grey = (found[:, 0] == 0.5).sum((1, 2))
    assert grey.max() <= (int(side * 16) + 1) ** 2
    assert (found == 0.5).all(1).sum() == grey.sum()


def test_no_cut_out_leaves_the_picture():
    images = plain(pictures(side=16))
    assert torch.equal(augment.cut_out(images, numbers(3), 0.0), images)


def test_turns_are_those_of_rot90():
    images = plain(pictures(8))
    quarters = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
    found = augment.turn(images, quarters)
    for image, quarter, view in zip(images, quarters, found, strict=True):
        assert torch.equal(view, torch.rot90(image, int(quarter), (1, 2)))


# the objective's views


def objective(**recipe) -> TwoViews:
    transform = of_folder("abcde", base=5, way=1, shot=1, size=8).transform
    return TwoViews(Stage(nn.Flatten(), 192, 5, 5, transform), Recipe(**recipe))


def quarters_of(model: TwoViews, last: torch.Tensor) -> torch.Tensor:
    """The turns that given last random numbers lead to, from the labels."""
    random = numbers(len(last), 2)
    random[:, 0, -1] = last
    labels = torch.arange(len(last)) % 5
    turned = model.views(pictures(len(last)), labels, random)[1]
    assert torch.equal(turned % 5, labels)
    return turned // 5


@pytest.mark.parametrize("share", [1e-3, 0.1, 0.5, 0.75, 1.0])
def test_turns_never_exceed_three_quarters(share):
    extremes = torch.tensor([0.0, 2**-24, 1 - share, 0.5, 1 - 2**-23, NEARLY_ONE]).clamp(0, NEARLY_ONE)
    quarters = quarters_of(objective(turned=share), extremes)
    assert quarters.min() >= 0
    assert quarters[-1] == 3


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
def test_the_given_share_is_turned_and_each_turn_is_as_likely(share):
    last = (torch.arange(3000) + 0.5) / 3000
    counts = torch.bincount(quarters_of(objective(turned=share), last), minlength=4) / 3000
    assert counts.tolist() == pytest.approx([1 - share, share / 3, share / 3, share / 3], abs=2e-3)


def test_without_turns_labels_stay():
    labels = torch.tensor([0, 4, 2])
    assert torch.equal(objective(turned=0).views(pictures(), labels, numbers(3, 2))[1], labels)


def test_both_views_of_a_picture_are_turned_alike():
    random = numbers(6, 2)
    turned, straight = objective(turned=1.0, cutout=0.0), objective(turned=0, cutout=0.0)
    pixels, labels = pictures(6), torch.zeros(6, dtype=torch.long)
    views, found = turned.views(pixels, labels, random)
    upright = straight.views(pixels, labels, random)[0]
    for at, view in enumerate(views):
        torch.testing.assert_close(view, torch.rot90(upright[at], int(found[at % 6] // 5), (1, 2)))


def test_a_share_of_the_batch_gets_its_share_of_the_views():
    model, pixels, random = objective(), pictures(6), numbers(6, 2)
    labels = torch.arange(6) % 5
    views, found = model.views(pixels, labels, random)
    for share in (slice(0, 3), slice(3, 6)):
        own, own_labels = model.views(pixels[share], labels[share], random[share])
        torch.testing.assert_close(own, torch.cat([views[:6][share], views[6:][share]]), rtol=1e-5, atol=1e-4)
        assert torch.equal(own_labels, found[share])
