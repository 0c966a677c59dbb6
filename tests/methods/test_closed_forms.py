"""GKEAL, calibrated FeCAM and calibrated RanPAC: nothing is trained, so each has a slow reference."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from concm.evaluation.worlds import BASE, World
from concm.methods import EXEMPLARS, choose, teach
from concm.methods.fecam import class_moments, likeness, shrunk, whitening
from concm.methods.ranpac import RIDGES, best_ridge, root

torch.set_num_threads(1)


def after(words, world, sessions=None):
    method = choose(words).build(seed=0, device="cpu")
    for session in world.sessions[:sessions]:
        teach(method, session)
    return method


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


# statistics


def test_moments_are_those_of_torch_and_a_single_image_has_no_spread():
    features, labels = random(9, 4), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
    means, covariances = class_moments(features, labels, range(3))
    for label in (0, 1):
        torch.testing.assert_close(means[label], features[labels == label].mean(0))
        torch.testing.assert_close(covariances[label], torch.cov(features[labels == label].T))
    assert float(covariances[2].abs().max()) == 0


def test_likeness_is_a_softmax_of_scaled_cosines():
    one, base = random(2, 5), random(3, 5, seed=1)
    for at, mean in enumerate(one):
        shares = [math.exp(16 * float(F.cosine_similarity(mean, row, dim=0))) for row in base]
        wanted = torch.tensor([share / sum(shares) for share in shares], dtype=torch.double)
        torch.testing.assert_close(likeness(one, base, 16.0)[at], wanted)


# FeCAM


def test_shrinkage_adds_means_of_the_diagonal_and_of_the_rest():
    covariance = torch.cov(random(4, 30))
    variance = sum(float(covariance[at, at]) for at in range(4)) / 4
    others = sum(float(covariance[one, two]) for one in range(4) for two in range(4) if one != two) / 12
    found = shrunk(covariance, 100.0)
    assert float(found[2, 2]) == pytest.approx(float(covariance[2, 2]) + 100 * variance)
    assert float(found[0, 3]) == pytest.approx(float(covariance[0, 3]) + 100 * others)


def test_the_whitening_matrix_inverts_the_correlations():
    covariance = torch.cov(random(5, 40))
    moved = shrunk(covariance, 1.0)
    correlations = moved / (moved.diagonal()[:, None] * moved.diagonal()).sqrt()
    matrix = whitening(covariance, 1.0)
    torch.testing.assert_close(matrix @ matrix.T, torch.linalg.inv(correlations))


def test_fecam_scores_are_mahalanobis_distances_to_calibrated_classes():
    world = World.of(((5, 3),))
    method = after("fecam:power=1,own=0.6,tau=4,shrinkage=2,weight=0.5", world)
    base, session = world.sessions
    units, shots = F.normalize(base.features), F.normalize(session.features)
    means, spreads = class_moments(units, base.labels, base.classes)
    means = F.normalize(means)
    own_mean, own_spread = class_moments(shots, session.labels, session.classes)
    shares = likeness(own_mean, means, 4.0)[0]
    centre = F.normalize(0.6 * F.normalize(own_mean[0], dim=0) + 0.4 * F.normalize(shares @ means, dim=0), dim=0)
    borrowed = sum(share * spread for share, spread in zip(shares, spreads, strict=True))
    moved = shrunk(0.5 * (own_spread[0] + borrowed).double(), 2.0)
    inverse = torch.linalg.inv(moved / (moved.diagonal()[:, None] * moved.diagonal()).sqrt())
    away = (F.normalize(world.test[0], dim=0) - centre).double()
    assert float(method.scores(world.test)[0, BASE]) == pytest.approx(-float(away @ inverse @ away), rel=1e-3)


def test_without_base_classes_in_them_new_means_are_those_of_the_shots():
    world = World.of(((5,),))
    method = after("fecam:own=1,power=1", world)
    wanted = F.normalize(F.normalize(world.sessions[1].features).mean(0), dim=0)
    torch.testing.assert_close(method.prototypes[BASE], wanted)


# RanPAC


def test_the_ridge_is_the_one_with_the_least_error_on_the_images_held_out():
    hidden, truth = random(40, 6).relu(), F.one_hot(torch.arange(40) % 3).double()
    errors = []
    for ridge in RIDGES:
        gram = hidden[:32].T @ hidden[:32] + ridge * torch.eye(6, dtype=torch.double)
        weights = torch.linalg.solve(gram, hidden[:32].T @ truth[:32])
        errors.append(float((hidden[32:] @ weights - truth[32:]).square().sum()))
    assert best_ridge(hidden, truth, 0.2) == RIDGES[errors.index(min(errors))]


def test_the_root_of_a_covariance_squares_to_it_also_where_it_lacks_rank():
    covariance = torch.cov(random(6, 4))
    torch.testing.assert_close(root(covariance) @ root(covariance), covariance)


def test_ranpac_has_its_authors_width_and_a_preset_for_cpus():
    assert (choose("ranpac").settings.width, choose("ranpac:short").settings.width) == (10_000, 2000)


def test_ranpac_is_the_ridge_regression_of_its_random_features():
    world = World.of()
    method = after("ranpac:width=50", world, 1)
    hidden = (F.normalize(world.base.features) @ method.projection).relu().double()
    truth = F.one_hot(world.base.labels).double()
    gram = hidden.T @ hidden + method.ridge * torch.eye(50, dtype=torch.double)
    wanted = torch.linalg.solve(gram, hidden.T @ truth)
    torch.testing.assert_close(method.weights.double(), wanted, atol=1e-4, rtol=1e-4)


def test_samples_of_a_new_class_have_its_calibrated_mean():
    world = World.of(((5,),))
    method = after("ranpac:width=50,samples=20000,weight=0", world)
    base, session = world.sessions
    means, _ = class_moments(F.normalize(base.features), base.labels, base.classes)
    own, _ = class_moments(F.normalize(session.features), session.labels, session.classes)
    centre = 0.75 * own[0] + 0.25 * likeness(own, means, 16.0)[0] @ means
    torch.testing.assert_close(method.sums[:, BASE] / 20000, (centre @ method.projection).relu(), atol=1e-3, rtol=1e-3)


# GKEAL


def test_the_kernel_is_gaussian_in_the_distance_to_base_features():
    world = World.of()
    method = after("gkeal:width=0.7,centres=8", world, 1)
    units = F.normalize(world.test)
    slow = math.exp(-float((units[3] - method.points[5]).square().sum()) / (2 * 0.7**2))
    assert float(method._kernel(units)[3, 5]) == pytest.approx(slow, rel=1e-5)
    assert any(torch.equal(method.points[0], row) for row in F.normalize(world.base.features))


def test_learning_session_by_session_is_regressing_everything_at_once():
    """What the paper promises: no image that came earlier counts less."""
    world = World.of(((5, 2), (3,)))
    method = after("gkeal:centres=10,copies=30,ridge=1e-4", world)
    rows, counted, labels = [F.normalize(world.base.features)], [torch.ones(120)], [world.base.labels]
    for session in world.sessions[1:]:
        every = torch.cat([session.features[:, None], session.views], 1)
        rows.append(F.normalize(every.flatten(0, 1)))
        labels.append(session.labels.repeat_interleave(3))
        counted.append(torch.full((len(labels[-1]),), 10.0))
    hidden, each = method._kernel(torch.cat(rows)).double(), torch.cat(counted).double()
    truth = F.one_hot(torch.cat(labels)).double()
    gram = hidden.T @ (each[:, None] * hidden) + 1e-4 * each.sum() * torch.eye(10, dtype=torch.double)
    wanted = torch.linalg.solve(gram, hidden.T @ (each[:, None] * truth))
    torch.testing.assert_close(method.weights.double(), wanted, atol=1e-3, rtol=1e-3)


def test_a_base_class_counts_all_its_images_where_the_bank_holds_a_part():
    base = World.of().base
    whole, part = (choose("gkeal").build(seed=0, device="cpu") for _ in range(2))
    whole.fit_base(base)
    part.fit_base(replace(base, counts=10 * base.counts))
    torch.testing.assert_close(part.gram, 10 * whole.gram)
    assert part.total == 10 * whole.total


def test_the_features_that_the_kernel_compares_with_are_declared():
    assert choose("gkeal:centres=7").needs[0] == f"{EXEMPLARS}: 7 features of base images"
