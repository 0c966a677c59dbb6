"""The structures really are simplex ETFs, and no other one matches better."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from concm.engine import geometry
from concm.engine.assignment import assignment
from concm.errors import Misuse

shapes = st.integers(2, 24).flatmap(lambda n: st.tuples(st.just(n), st.integers(n - 1, n + 20), st.integers(0, 10**6)))


def means_of(shape: tuple[int, int, int], kind: str = "random") -> torch.Tensor:
    count, dimension, seed = shape
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(count, dimension, generator=generator, dtype=torch.float64)
    if kind == "rank one":
        means = means[:, :1] * means[:1]
    if kind == "nearly equal":
        means = means[:1] + 1e-9 * means
    if kind == "equal":
        means = means[:1].expand(count, -1).clone()
    return means


def assert_simplex(structure: torch.Tensor) -> None:
    count = len(structure)
    expected = (count * torch.eye(count, dtype=torch.float64) - 1) / (count - 1)
    assert torch.allclose(structure.double() @ structure.double().T, expected, atol=1e-6)


def match(means: torch.Tensor, structure: torch.Tensor) -> float:
    return float((torch.nn.functional.normalize(means, dim=1) * structure).sum())


@pytest.mark.promise
@given(shapes, st.sampled_from(["random", "rank one", "nearly equal", "equal"]))
def test_the_nearest_structure_is_a_simplex_whatever_the_means(shape, kind):
    assert_simplex(geometry.nearest_simplex(means_of(shape, kind)))


@given(shapes, st.integers(0, 10**6))
def test_a_random_structure_is_a_simplex(shape, seed):
    assert_simplex(geometry.random_simplex(shape[0], shape[1], torch.Generator().manual_seed(seed)))


@pytest.mark.promise
@given(shapes, st.integers(0, 10**6))
def test_no_other_simplex_matches_better(shape, seed):
    means = means_of(shape)
    best = match(means, geometry.nearest_simplex(means))
    other = geometry.random_simplex(shape[0], shape[1], torch.Generator().manual_seed(seed))
    assert best >= match(means, other) - 1e-9


@given(shapes, st.integers(0, 10**6), st.floats(1e-4, 1.0))
def test_no_rotation_of_the_nearest_structure_matches_better(shape, seed, angle):
    means = means_of(shape)
    structure = geometry.nearest_simplex(means)
    noise = torch.randn(shape[1], shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rotation = torch.linalg.matrix_exp(angle * (noise - noise.T))
    assert match(means, structure) >= match(means, structure @ rotation) - 1e-9


@given(shapes, st.randoms(use_true_random=False))
def test_no_permutation_of_the_nearest_structure_matches_better(shape, random):
    means = means_of(shape)
    structure = geometry.nearest_simplex(means)
    order = list(range(shape[0]))
    random.shuffle(order)
    assert match(means, structure) >= match(means, structure[order]) - 1e-9


@given(shapes, st.randoms(use_true_random=False))
def test_permuting_the_means_permutes_the_structure(shape, random):
    means = means_of((shape[0], max(shape[1], shape[0]), shape[2]))
    order = list(range(shape[0]))
    random.shuffle(order)
    assert torch.allclose(geometry.nearest_simplex(means[order]), geometry.nearest_simplex(means)[order], atol=1e-7)


@given(shapes)
def test_rotating_the_means_rotates_the_structure(shape):
    means = means_of((shape[0], max(shape[1], shape[0]), shape[2]))
    dimension = means.shape[1]
    noise = torch.randn(dimension, dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rotation = torch.linalg.qr(noise).Q
    assert torch.allclose(
        geometry.nearest_simplex(means @ rotation), geometry.nearest_simplex(means) @ rotation, atol=1e-6
    )


@given(shapes)
def test_a_simplex_is_its_own_nearest_structure(shape):
    structure = geometry.random_simplex(shape[0], shape[1], torch.Generator().manual_seed(shape[2]))
    assert torch.allclose(geometry.nearest_simplex(structure), structure, atol=1e-7)
    assert geometry.matching_rate(structure, structure) == pytest.approx(1.0)


@given(shapes, st.integers(1, 50))
def test_widening_changes_no_score(shape, more):
    means, structure = means_of(shape), geometry.nearest_simplex(means_of(shape))
    wide = geometry.widen(means, shape[1] + more) @ geometry.widen(structure, shape[1] + more).T
    assert torch.equal(wide, means @ structure.T) or torch.allclose(wide, means @ structure.T, atol=1e-12)


@pytest.mark.promise
@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 10**6))
def test_the_assignment_is_the_cheapest_of_all(rows, more, seed):
    cost = np.random.default_rng(seed).normal(size=(rows, rows + more))
    chosen = assignment(cost)
    assert len(set(chosen.tolist())) == rows
    every = itertools.permutations(range(rows + more), rows)
    assert cost[np.arange(rows), chosen].sum() == pytest.approx(
        min(cost[np.arange(rows), list(p)].sum() for p in every)
    )


def test_assigned_targets_match_better_than_their_given_order_and_worse_than_the_nearest():
    means = means_of((20, 30, 0))
    targets = geometry.random_simplex(20, 30, torch.Generator().manual_seed(1))
    given_order = geometry.matching_rate(means, targets)
    greedy = geometry.matching_rate(means, geometry.assigned(means, targets))
    assert given_order < greedy < geometry.matching_rate(means, geometry.nearest_simplex(means))


def test_one_class_points_at_its_mean():
    assert torch.allclose(geometry.nearest_simplex(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))


def test_float32_means_give_a_float32_simplex():
    structure = geometry.nearest_simplex(torch.randn(100, 128, generator=torch.Generator().manual_seed(0)))
    assert structure.dtype == torch.float32
    assert_simplex(structure)


def test_more_classes_than_a_simplex_has_room_for_are_refused():
    with pytest.raises(Misuse, match="5 classes needs at least 4 dimensions, not 3"):
        geometry.nearest_simplex(torch.randn(5, 3))


@pytest.mark.parametrize("rank", [40, 599], ids=["few directions", "all directions"])
def test_many_classes_take_a_faster_way_to_the_same_optimum(rank):
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(600, rank, generator=generator, dtype=torch.float64)
    means = F.normalize(means @ torch.randn(rank, 640, generator=generator, dtype=torch.float64), dim=1)
    found = geometry.nearest_simplex(means)
    gram = found @ found.T
    assert (gram - (600 / 599 * torch.eye(600, dtype=torch.float64) - 1 / 599)).abs().max() < 1e-9
    singular = torch.linalg.svdvals(means - means.mean(0))
    best = (600 / 599) ** 0.5 * singular.sum()
    assert float((means * found).sum()) == pytest.approx(float(best), rel=1e-9)
