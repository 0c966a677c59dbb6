"""The operating point: on scores whose best constant is known, and groups of images that were taken together."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from concm.engine.operating import (
    NEAR,
    held_out,
    leads,
    likeness,
    matched,
    operating_point,
    taken_together,
    usual_distance,
)

seeds = st.integers(0, 10**6)


def told_apart(gap: Tensor, *, base: bool) -> tuple[Tensor, Tensor]:
    """Scores of one base and one novel class, of which the base class leads by `gap`, and the labels."""
    return torch.stack([gap, torch.zeros_like(gap)], 1), torch.full((len(gap),), int(not base))


def normal(count: int, mean: float, spread: float, seed: int) -> Tensor:
    return mean + spread * torch.randn(count, generator=torch.Generator().manual_seed(seed))


# the constant


@pytest.mark.promise
@pytest.mark.parametrize("lean", ["base", "even", "novel"])
@given(seed=seeds, middle=st.floats(-0.5, 0.5))
def test_between_two_equal_bells_it_is_the_middle(lean, seed, middle):
    base = told_apart(normal(2000, middle + 0.2, 0.1, seed), base=True)
    novel = told_apart(normal(2000, middle - 0.2, 0.1, seed + 1), base=False)
    point = operating_point(base, novel, 1, lean)
    assert point.constant == pytest.approx(middle, abs=0.03)
    right = 0.5 * (1 + math.erf(2 / math.sqrt(2)))  # two deviations from the middle
    assert point.base == pytest.approx(right, abs=0.02)
    assert point.novel == pytest.approx(right, abs=0.02)


@pytest.mark.parametrize("lean", ["base", "even", "novel"])
def test_where_kinds_are_far_apart_it_is_in_the_middle_between_them(lean):
    """Any constant between them is right for all images tried; an edge would be wrong for the next one."""
    base = told_apart(normal(200, 0.7, 0.02, 0), base=True)
    novel = told_apart(normal(200, -0.3, 0.02, 1), base=False)
    assert operating_point(base, novel, 1, lean).constant == pytest.approx(0.2, abs=0.05)


def test_what_it_expects_is_what_the_constant_does():
    base, novel = told_apart(normal(900, 0.1, 0.1, 0), base=True), told_apart(normal(900, -0.1, 0.2, 1), base=False)
    point = operating_point(base, novel, 1, "even")
    for (scores, labels), expected in ((base, point.base), (novel, point.novel)):
        right = (scores + torch.tensor([0.0, point.constant])).argmax(1) == labels
        assert float(right.float().mean()) == pytest.approx(expected, abs=0.03)


@given(seed=seeds, base=st.integers(2, 20), apart=st.floats(0.1, 0.4))
def test_the_more_it_leans_to_base_classes_the_smaller_the_constant(seed, base, apart):
    """With bells as wide and more base classes than novel ones, as in all sessions of the field."""
    absent = torch.full((2000, base - 1), -9.0)  # base classes that are never near

    def scored(middle: float, seed: int, *, old: bool) -> tuple[Tensor, Tensor]:
        scores, labels = told_apart(normal(2000, middle, 0.15, seed), base=old)
        return torch.cat([scores[:, :1], absent, scores[:, 1:]], 1), labels * base

    both = (scored(apart, seed, old=True), scored(-apart, seed + 1, old=False))
    by_base, even, by_novel = (operating_point(*both, base, lean).constant for lean in ("base", "even", "novel"))
    assert by_base <= even <= by_novel
    assert by_base < by_novel


@given(seed=seeds, moved=st.floats(-1, 1))
def test_moving_all_novel_scores_moves_the_constant_back(seed, moved):
    base, novel = told_apart(normal(300, 0.2, 0.1, seed), base=True), told_apart(normal(60, 0, 0.1, seed), base=False)
    shift = torch.tensor([0.0, moved])
    before = operating_point(base, novel, 1, "even")
    after = operating_point((base[0] + shift, base[1]), (novel[0] + shift, novel[1]), 1, "even")
    assert after.constant == pytest.approx(before.constant - moved, abs=0.01)
    assert after.base == pytest.approx(before.base, abs=0.02)


@pytest.mark.parametrize(("count", "images"), [(0, 5), (2, 5), (1, 0)], ids=["no base", "no novel", "no images"])
def test_without_two_kinds_of_classes_and_images_of_both_nothing_is_lifted(count, images):
    some, labels = told_apart(torch.zeros(images), base=True)
    point = operating_point((some, labels), (some, labels), count, "even")
    assert point.constant == 0
    assert math.isnan(point.base)
    assert math.isnan(point.novel)


@given(seed=seeds, constant=st.floats(-1, 1), scale=st.floats(0.1, 10))
def test_another_score_has_the_constant_that_costs_as_many_base_images(seed, constant, scale):
    gap = normal(1000, 0.2, 0.4, seed)
    other = scale * gap + 0.3  # in the same order
    found = matched(gap, constant, other)
    lost = float((gap < constant).float().mean())
    assert float((other < found).float().mean()) == pytest.approx(lost, abs=0.002)
    if 0.01 < lost < 0.99:
        assert found == pytest.approx(scale * constant + 0.3, abs=0.1 * scale)


def test_without_base_images_another_score_has_no_constant():
    assert matched(torch.empty(0), 0.3, torch.empty(0)) == 0


def test_a_lead_is_the_best_base_score_less_the_best_novel_one():
    scores = torch.tensor([[0.5, 0.9, 0.4, 0.1], [0.0, 0.1, 0.2, 0.7]])
    assert leads(scores, 2).tolist() == pytest.approx([0.5, -0.6])


# how alike


@given(seed=seeds)
def test_likeness_is_the_mean_cosine_over_all_pairs(seed):
    random = torch.Generator().manual_seed(seed)
    features, labels = torch.randn(12, 5, generator=random), torch.randint(0, 4, (12,), generator=random)
    found, counts = likeness(features, labels, 5)
    for label in range(5):
        own = features[labels == label]
        pairs = [
            float(torch.cosine_similarity(own[i], own[j], dim=0))
            for i in range(len(own))
            for j in range(len(own))
            if i != j
        ]
        assert counts[label] == len(own)
        assert float(found[label]) == pytest.approx(sum(pairs) / max(1, len(pairs)), abs=1e-5)


# what was taken together


def on_a_circle(*degrees: float) -> Tensor:
    angles = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([angles.cos(), angles.sin()], 1)


def test_a_chain_of_near_copies_is_one_group_and_others_are_alone():
    features = on_a_circle(0, 10, 20, 30, 90, 180, 185)
    found = taken_together(features, torch.zeros(7, dtype=torch.long), torch.tensor(0.2))
    assert found.tolist() == [0, 0, 0, 0, 4, 5, 5]


def test_a_chain_may_be_in_any_order_and_of_any_length():
    order = torch.randperm(36, generator=torch.Generator().manual_seed(0))
    features = on_a_circle(*(5.0 * order).tolist())
    assert len(torch.unique(taken_together(features, torch.zeros(36, dtype=torch.long), torch.tensor(0.1)))) == 1


def test_near_copies_of_different_classes_stay_apart():
    found = taken_together(on_a_circle(0, 0, 0, 0), torch.tensor([0, 1, 0, 1]), torch.tensor(1.0))
    assert found.tolist() == [0, 1, 0, 1]


@given(seed=seeds)
def test_groups_are_the_connected_parts_of_what_is_near(seed):
    random = torch.Generator().manual_seed(seed)
    features, labels = torch.randn(14, 2, generator=random), torch.randint(0, 2, (14,), generator=random)
    unit, usual = torch.nn.functional.normalize(features), usual_distance(features, labels)
    near = (torch.cdist(unit, unit).square() < NEAR * usual) & (labels[:, None] == labels)
    near |= torch.eye(14, dtype=torch.bool)
    reach = near.double()
    for _ in range(4):
        reach = (reach @ reach).clamp(max=1)
    found = taken_together(features, labels)
    assert torch.equal(found[:, None] == found, reach > 0)


# what is held out


def with_copies(classes: int, bursts: int, each: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Classes of so many bursts of near copies; features, labels and the burst of each."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(classes * bursts, 16, generator=random))
    burst = torch.arange(classes * bursts).repeat_interleave(each)
    return centres[burst] + 0.001 * torch.randn(len(burst), 16, generator=random), burst // bursts, burst


@given(
    seed=seeds, classes=st.integers(1, 4), bursts=st.integers(2, 12), each=st.integers(1, 4), share=st.floats(0.05, 0.5)
)
def test_whole_groups_are_held_out_and_every_class_keeps_an_image(seed, classes, bursts, each, share):
    features, labels, burst = with_copies(classes, bursts, each, seed)
    held = held_out(features, labels, share, seed)
    for label in range(classes):
        own = held[labels == label]
        assert 0 < int(own.sum()) < len(own)
        wanted = max(1, round(share * len(own)))
        assert int(own.sum()) <= max(each, 1.5 * wanted)
    for one in range(classes * bursts):
        assert len(torch.unique(held[burst == one])) == 1


def test_a_class_of_one_image_keeps_it_and_one_of_copies_alone_gives_some_of_them():
    features = torch.cat([torch.ones(1, 4), torch.ones(10, 4)])
    held = held_out(features, torch.tensor([0] + [1] * 10), 0.2, 0)
    assert not held[0]
    assert int(held[1:].sum()) == 2


def test_the_same_seed_holds_out_the_same():
    features, labels, _ = with_copies(3, 10, 1)
    assert torch.equal(held_out(features, labels, 0.2, 1), held_out(features, labels, 0.2, 1))
    assert not torch.equal(held_out(features, labels, 0.2, 1), held_out(features, labels, 0.2, 2))
