"""The metric whitens what varies within classes, and leaves everything else as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from concm.engine.metric import Metric, softened
from concm.features.sessions import BaseSession, Session

DIMENSION = 5
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
seeds = st.integers(0, 10**6)
shrinkages = st.floats(0.01, 100)


def base_session(
    *, classes: int = 4, images: int = 30, dtype: torch.dtype = torch.float64, seed: int = 0, loud: float = 1.0
) -> BaseSession:
    """Classes whose images differ in some directions more than in others, `loud` times as much in the first."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(images)
    centres = 3 * torch.randn(classes, DIMENSION, generator=random, dtype=torch.float64)
    noise = torch.randn(len(labels), DIMENSION, generator=random, dtype=torch.float64)
    mixing = torch.randn(DIMENSION, DIMENSION, generator=random, dtype=torch.float64)
    noise = noise @ mixing
    noise[:, 0] *= loud
    features = (centres[labels] + noise).to(dtype)
    views = features[:, None] + 0.1 * torch.randn(len(labels), 2, DIMENSION, generator=random, dtype=dtype)
    mean = torch.stack([features[labels == label].mean(0) for label in range(classes)])
    std = torch.stack([features[labels == label].std(0, correction=0) for label in range(classes)])
    names = tuple(f"class {label}" for label in range(classes))
    counts = torch.full((classes,), 500)
    return BaseSession(0, range(classes), names, features, labels, views, mean=mean, std=std, counts=counts)


def novel_session(dtype: torch.dtype = torch.float64) -> Session:
    features = torch.randn(6, DIMENSION, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return Session(1, range(4, 6), ("e", "f"), features, torch.tensor([5, 4, 4, 5, 5, 4]), features[:, None] + 1)


def slow_within(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The covariance of what each image differs from its class's mean, one image at a time."""
    total = torch.zeros(DIMENSION, DIMENSION, dtype=torch.float64)
    for label in set(labels.tolist()):
        own = features[labels == label].double()
        for image in own:
            total += torch.outer(image - own.mean(0), image - own.mean(0))
    return total / (len(features) - len(set(labels.tolist())))


def cosines(vectors: torch.Tensor) -> torch.Tensor:
    unit = F.normalize(vectors, dim=-1)
    return unit @ unit.T


def slow_left(features, labels):
    """Unit features without most of what all classes have in common, and their lengths."""
    unit = F.normalize(features.double(), dim=-1)
    common = torch.stack([unit[labels == label].mean(0) for label in labels.unique()]).mean(0)
    distance = ((unit - common) ** 2).sum(-1).mean() ** 0.5
    found = unit - common * max(0.0, 1 - 0.35 * float(distance / common.norm()))
    return F.normalize(found, dim=-1), found.norm(dim=-1)


@TYPES
@given(seed=seeds, shrinkage=shrinkages, length=st.floats(1e-3, 1e3))
def test_it_gives_unit_vectors_of_the_features_type_whatever_their_length(dtype, seed, shrinkage, length):
    base = base_session(dtype=dtype, seed=seed)
    metric = Metric.whitening(base, shrinkage)
    for features in (base.features, base.views, base.mean):
        found = metric(features)
        assert found.shape == features.shape
        assert found.dtype == dtype
        assert torch.allclose(found.norm(dim=-1), torch.ones(features.shape[:-1], dtype=dtype), atol=1e-5)
        assert torch.allclose(metric(length * features), found, atol=1e-4)


@TYPES
def test_without_shrinkage_images_of_a_class_vary_alike_in_all_directions(dtype):
    base = base_session(images=200, dtype=dtype, loud=5.0)
    unit = slow_left(base.features, base.labels)[0].to(dtype)
    before = slow_within(unit, base.labels)
    after = slow_within(unit @ Metric.whitening(base, 0.0).matrices[0][:-1], base.labels)
    level = after.diagonal().mean()
    same = level * torch.eye(DIMENSION, dtype=torch.float64)
    assert torch.allclose(after, same, atol=1e-4 * level)
    assert not torch.allclose(before, before.diagonal().mean() * torch.eye(DIMENSION, dtype=torch.float64), rtol=0.5)


@pytest.mark.promise
@given(seed=seeds, shrinkage=shrinkages)
def test_it_is_the_inverse_root_of_the_shrunk_covariance(seed, shrinkage):
    base = base_session(seed=seed)
    within = slow_within(slow_left(base.features, base.labels)[0], base.labels)
    shrunk = within + shrinkage * within.diagonal().mean() * torch.eye(DIMENSION, dtype=torch.float64)
    matrix = Metric.whitening(base, shrinkage).matrices[0][:-1]
    found = matrix @ shrunk @ matrix
    assert torch.allclose(matrix, matrix.T, atol=1e-10)
    assert (torch.linalg.eigvalsh(matrix) > 0).all()
    assert torch.allclose(found / found[0, 0], torch.eye(DIMENSION, dtype=torch.float64), atol=1e-8)


@TYPES
def test_strong_shrinkage_leaves_the_cosines_without_what_is_common(dtype):
    base = base_session(dtype=dtype, loud=5.0)
    expected = cosines(slow_left(base.features, base.labels)[0].to(dtype))
    assert torch.allclose(cosines(Metric.whitening(base, 1e7)(base.features)), expected, atol=1e-5)
    assert not torch.allclose(cosines(Metric.whitening(base, 0.1)(base.features)), expected, atol=0.1)


@pytest.mark.promise
def test_what_all_classes_have_in_common_hardly_counts():
    base = base_session(images=40)
    alike = replace(base, features=base.features + 50, mean=base.mean + 50)
    assert cosines(alike.features).min() > 0.9
    found = cosines(Metric.whitening(alike, 1.0)(alike.features))
    same = base.labels[:, None] == base.labels
    assert found[same].mean() > found[~same].mean() + 0.3


def test_a_matrix_without_the_last_row_takes_nothing_away():
    base = base_session()
    metric = Metric.whitening(base, 1.0)
    plain = Metric([matrix[:-1] for matrix in metric.matrices], metric.weights)
    expected = F.normalize(F.normalize(base.features, dim=-1) @ metric.matrices[0][:-1], dim=-1)
    torch.testing.assert_close(plain(base.features), expected)


@given(seed=seeds)
def test_the_more_it_is_shrunk_the_less_it_distorts(seed):
    base = base_session(seed=seed)
    ranges = [
        torch.linalg.cond(Metric.whitening(base, shrinkage).matrices[0][:-1])
        for shrinkage in (0.0, 0.1, 1.0, 10.0, 100.0)
    ]
    assert ranges == sorted(ranges, reverse=True)
    assert 1 <= ranges[-1] < ranges[0]


@TYPES
@pytest.mark.parametrize("shrinkage", [0.0, 10.0])
def test_one_image_a_class_leaves_the_cosine_as_it_is(shrinkage, dtype):
    base = base_session(classes=6, images=1, dtype=dtype)
    metric = Metric.whitening(base, shrinkage)
    assert metric.matrices[0].shape == (1, DIMENSION)  # no direction counts less
    expected = cosines(slow_left(base.features, base.labels)[0].to(dtype))
    assert torch.allclose(cosines(metric(base.features)), expected, atol=1e-6)


@given(seed=seeds, shrinkage=st.sampled_from([0.0, 0.1, 10.0]))
def test_rotating_all_features_rotates_what_comes_out(seed, shrinkage):
    base = base_session(seed=seed)
    noise = torch.randn(DIMENSION, DIMENSION, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rotation = torch.linalg.qr(noise).Q
    turned = replace(base, features=base.features @ rotation)
    here, there = Metric.whitening(base, shrinkage), Metric.whitening(turned, shrinkage)
    assert torch.allclose(there(turned.features), here(base.features) @ rotation, atol=1e-7)
    assert torch.allclose(cosines(there(turned.features)), cosines(here(base.features)), atol=1e-7)


@given(seed=seeds, random=st.randoms(use_true_random=False))
def test_neither_the_order_of_the_images_nor_their_length_matters(seed, random):
    base = base_session(seed=seed)
    order = list(range(len(base.labels)))
    random.shuffle(order)
    lengths = torch.tensor([random.uniform(0.1, 10) for _ in order], dtype=torch.float64)[:, None]
    mixed = replace(base, features=lengths * base.features[order], labels=base.labels[order])
    assert torch.allclose(Metric.whitening(mixed, 1.0).matrices[0], Metric.whitening(base, 1.0).matrices[0], atol=1e-10)


def test_in_a_direction_in_which_images_of_a_class_differ_a_difference_counts_less():
    base = base_session(images=300, loud=8.0)
    metric = Metric.whitening(base, 0.1)
    shots = torch.stack([base.features[base.labels == label][:2].mean(0) for label in base.classes])

    def share_right(queries: torch.Tensor, prototypes: torch.Tensor) -> float:
        predicted = (F.normalize(queries, dim=-1) @ F.normalize(prototypes, dim=-1).T).argmax(1)
        return float((predicted == base.labels).double().mean())

    assert share_right(metric(base.features), metric(shots)) > share_right(base.features, shots) + 0.1


@TYPES
def test_a_base_session_keeps_statistics_as_the_metric_sees_them(dtype):
    base = base_session(dtype=dtype)
    metric = Metric.whitening(base, 1.0)
    seen = metric.read(base)
    assert torch.equal(seen.features, metric(base.features))
    assert torch.equal(seen.views, metric(base.views))
    assert torch.equal(seen.mean, metric(base.mean))
    assert torch.allclose(seen.mean.norm(dim=1), torch.ones(4, dtype=dtype), atol=1e-5)
    assert seen.std.shape == base.std.shape
    assert seen.std.dtype == dtype
    for label in base.classes:
        own = seen.features[base.labels == label]
        variance = sum((image - own.mean(0)) ** 2 for image in own) / len(own)
        assert torch.allclose(seen.std[label], variance.sqrt(), atol=1e-5)
    assert torch.equal(seen.counts, base.counts)
    assert (seen.index, seen.classes, seen.names) == (base.index, base.classes, base.names)
    assert torch.equal(seen.labels, base.labels)


@pytest.mark.parametrize("held", [False, True])
def test_means_are_those_of_what_it_makes_of_images_where_all_of_them_are_at_hand(held):
    base = base_session()
    base = replace(base, counts=torch.bincount(base.labels), held=torch.arange(len(base.labels)) < 9 if held else None)
    metric = Metric.whitening(base, 1.0)
    seen = metric.read(base)
    if held:  # which are no part of the class means
        assert torch.equal(seen.mean, metric(base.mean))
        return
    for label in base.classes:
        own = metric(base.features[base.labels == label]).sum(0)
        torch.testing.assert_close(seen.mean[label], own / own.norm())
    assert not torch.allclose(seen.mean, metric(base.mean), atol=1e-4)


@TYPES
def test_a_novel_session_gets_no_statistics(dtype):
    metric = Metric.whitening(base_session(dtype=dtype), 1.0)
    session = novel_session(dtype)
    seen = metric.read(session)
    assert type(seen) is Session
    assert torch.equal(seen.features, metric(session.features))
    assert torch.equal(seen.views, metric(session.views))
    assert torch.equal(seen.labels, session.labels)
    assert (seen.index, seen.classes, seen.names) == (1, range(4, 6), ("e", "f"))


def test_sessions_without_views_stay_without():
    base = replace(base_session(), views=None)
    metric = Metric.whitening(base, 1.0)
    assert metric.read(base).views is None
    assert metric.read(replace(novel_session(), views=None)).views is None


def test_it_changes_nothing_in_place():
    base = base_session()
    before = {name: value.clone() for name, value in vars(base).items() if torch.is_tensor(value)}
    Metric.whitening(base, 1.0).read(base)
    assert all(torch.equal(getattr(base, name), value) for name, value in before.items())


def test_without_shrinkage_values_that_are_always_zero_do_no_harm():
    base = base_session()
    base.features[:, 1:4] = 0
    assert Metric.whitening(base, 0.0)(base.features).isfinite().all()


@pytest.mark.filterwarnings("ignore:std\\(\\)")
def test_a_base_class_of_which_no_image_is_at_hand_has_a_finite_spread():
    base = base_session()
    rest = base.labels != 1
    base = replace(base, features=base.features[rest], labels=base.labels[rest], views=base.views[rest])
    assert Metric.whitening(base, 1.0).read(base).std.isfinite().all()


# several readings


def two_readings(seed: int = 0, **how) -> BaseSession:
    """Two readings of each image side by side, of which the second is longer."""
    first, second = base_session(seed=seed, **how), base_session(seed=seed + 1, **how)
    sides = {name: torch.cat([getattr(first, name), 3 * getattr(second, name)], -1) for name in ("features", "mean")}
    return replace(first, **sides, views=None, layout=(DIMENSION, DIMENSION))


@pytest.mark.promise
@given(seed=seeds, shrinkage=shrinkages)
def test_the_cosine_over_several_readings_is_the_weighted_sum_of_those_of_each(seed, shrinkage):
    base = two_readings(seed)
    whole = Metric.whitening(base, shrinkage)
    parts = base.features.split(DIMENSION, 1)
    alone = [Metric.whitening(replace(base, features=own, layout=()), shrinkage) for own in parts]
    lengths = [float(own.norm(dim=1).mean() * slow_left(own, base.labels)[1].mean()) for own in parts]
    shares = [length**2 / sum(other**2 for other in lengths) for length in lengths]
    expected = sum(share * cosines(metric(own)) for share, metric, own in zip(shares, alone, parts, strict=True))
    assert torch.allclose(cosines(whole(base.features)), expected, atol=1e-9)
    for ours, metric in zip(whole.matrices, alone, strict=True):
        assert torch.equal(ours, metric.matrices[0])


@given(seed=seeds)
def test_a_layout_of_one_reading_is_no_layout(seed):
    base = base_session(seed=seed)
    found = Metric.whitening(replace(base, layout=(DIMENSION,)), 1.0)
    assert torch.equal(found(base.features), Metric.whitening(base, 1.0)(base.features))


def test_readings_survive_a_state_and_a_features_length():
    base = two_readings()
    metric = Metric.whitening(base, 1.0)
    again = Metric([torch.empty(0)] * 2, torch.empty(2))
    for name, value in metric.state_dict().items():
        setattr(again, name, value)
    assert torch.equal(again(base.features), metric(base.features))
    assert torch.allclose(metric(7 * base.features), metric(base.features))
    assert torch.allclose(metric(base.features).norm(dim=1), torch.ones(len(base.labels), dtype=torch.float64))


# fewer images than dimensions


@given(seed=seeds, shrinkage=st.floats(0.01, 100), images=st.integers(2, 5))
def test_with_fewer_images_than_dimensions_it_is_the_same_formula(seed, shrinkage, images):
    random = torch.Generator().manual_seed(seed)
    width, labels = 24, torch.arange(3).repeat(images)
    features = torch.randn(len(labels), width, generator=random, dtype=torch.float64) + 1
    unit, lengths = slow_left(features, labels)
    within = torch.zeros(width, width, dtype=torch.float64)
    for label in range(3):
        own = unit[labels == label]
        within += (own - own.mean(0)).T @ (own - own.mean(0)) / (len(labels) - 3)
    shrunk = within / within.diagonal().mean() + shrinkage * torch.eye(width, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(shrunk)
    session = BaseSession.of(Session(0, range(3), ("a", "b", "c"), features, labels))
    found = Metric.whitening(session, shrinkage)
    centre = F.normalize(features[0], dim=0) - lengths[0] * unit[0]
    others = torch.randn(7, width, generator=random, dtype=torch.float64)
    matrix = vectors * values.rsqrt() @ vectors.T
    whole = Metric([torch.cat([matrix, -(centre @ matrix)[None]])], torch.ones(1))
    for own in (features, others, others[0], others[None]):
        torch.testing.assert_close(found(own), whole(own), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("images", "height"), [(2, 5), (3, 9), (4, 25)])
def test_of_few_images_it_keeps_their_directions_and_no_matrix_of_the_full_size(images, height):
    random, labels = torch.Generator().manual_seed(0), torch.arange(4).repeat(images)
    features = torch.randn(len(labels), 24, generator=random)
    session = BaseSession.of(Session(0, range(4), tuple("abcd"), features, labels))
    assert len(Metric.whitening(session, 1.0).matrices[0]) == height


# held-out images


@given(seed=seeds)
def test_it_does_not_change_when_images_that_are_held_out_do(seed):
    base = two_readings(seed)
    held = torch.arange(len(base.labels)) % 3 == 0
    noise = torch.randn(base.features.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    other = replace(base, features=torch.where(held[:, None], 9 * noise, base.features))
    without = replace(base, features=base.features[~held], labels=base.labels[~held])
    expected = Metric.whitening(base, 1.0, ~held)
    for found in (Metric.whitening(other, 1.0, ~held), Metric.whitening(without, 1.0)):
        assert torch.equal(found.weights, expected.weights)
        assert all(torch.equal(one, two) for one, two in zip(found.matrices, expected.matrices, strict=True))
    assert not torch.equal(Metric.whitening(other, 1.0).weights, expected.weights)


@given(seeds, st.floats(0.3, 100))
def test_matrices_of_either_kind_compare_it_alike(seed, shrinkage):
    random, width = torch.Generator().manual_seed(seed), 60
    labels = torch.arange(4).repeat(3)
    features = torch.randn(4, width, generator=random, dtype=torch.float64)[labels]
    features = features + torch.randn(features.shape, generator=random, dtype=torch.float64) + 1
    base = BaseSession.of(Session(0, range(4), tuple("abcd"), features, labels))
    held = torch.arange(len(labels)) // 4 == 2
    low = [Metric.whitening(base, shrinkage), Metric.whitening(base, shrinkage, ~held)]
    assert all(len(metric.matrices[0]) <= width for metric in low)
    full = []
    for metric in low:
        directions, centre = metric.matrices[0][:-1], metric.matrices[0][-1]
        whole = torch.eye(width, dtype=torch.float64) - directions.T @ directions
        full.append(Metric([torch.cat([whole, -(centre @ whole)[None]])], metric.weights))
    for ours, theirs in ((low[0], full[1]), (full[0], low[1]), (full[0], full[1])):
        found = ours.as_if_unseen(features[held], theirs, base.mean)
        torch.testing.assert_close(found, low[0].as_if_unseen(features[held], low[1], base.mean), atol=1e-7, rtol=1e-6)


def test_a_reading_that_says_nothing_does_no_harm():
    base = two_readings()
    base.features[:, DIMENSION:] = 0
    held = torch.arange(len(base.labels)) % 5 == 0
    honest, metric = Metric.whitening(base, 1.0, ~held), Metric.whitening(base, 1.0)
    mean = torch.cat([base.mean[:, :DIMENSION], 0 * base.mean[:, DIMENSION:]], 1)
    assert metric.as_if_unseen(base.features[held], honest, mean).isfinite().all()


@given(seeds, shrinkages, st.sampled_from([3, 30]))
def test_as_if_unseen_by_itself_an_image_is_as_it_is(seed, shrinkage, images):
    base = two_readings(seed, images=images)
    metric = Metric.whitening(base, shrinkage)
    torch.testing.assert_close(metric.as_if_unseen(base.features, metric, base.mean), metric(base.features))


@pytest.mark.promise
@given(seeds)
def test_an_image_that_the_metric_was_learned_from_is_compared_as_if_it_was_not(seed):
    random, width = torch.Generator().manual_seed(seed), 60
    labels = torch.arange(12).repeat(8)
    features = (
        1.5 * torch.randn(12, width, generator=random)[labels] + torch.randn(len(labels), width, generator=random) + 1
    )
    base = BaseSession.of(Session(0, range(12), tuple("abcdefghijkl"), features, labels))
    held = torch.arange(len(labels)) // 12 == torch.randint(8, (1,), generator=random)
    means = BaseSession.of(replace(base, features=features[~held], labels=labels[~held])).mean
    honest, metric = Metric.whitening(base, 0.5, ~held), Metric.whitening(base, 0.5)
    wanted, seen = (kind(features[held]) @ kind(means).T for kind in (honest, metric))
    found = metric.as_if_unseen(features[held], honest, means) @ metric(means).T
    own = F.one_hot(labels[held], 12).bool()
    assert seen[own].mean() > wanted[own].mean() + 0.02
    assert (found - wanted)[own].mean().abs() < 0.01
    assert (found - wanted).abs().mean() < (seen - wanted).abs().mean() / 3


@given(seeds, st.floats(0.5, 8))
def test_softened_vectors_keep_signs_and_order_and_count_large_coordinates_less(seed, reach):
    unit = F.normalize(torch.randn(5, 24, generator=torch.Generator().manual_seed(seed)), dim=-1)
    soft = softened(unit, reach)
    torch.testing.assert_close(soft.norm(dim=1), torch.ones(5))
    assert torch.equal(soft.argsort(1), unit.argsort(1))
    assert torch.equal(soft.sign(), unit.sign())
    assert (soft.abs().amax(1) < unit.abs().amax(1)).all()
    assert torch.equal(softened(unit, 0.0), unit)
    torch.testing.assert_close(softened(unit, 1e4), unit, atol=1e-5, rtol=1e-4)
