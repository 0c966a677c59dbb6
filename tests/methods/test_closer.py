"""CLOSER's base session: its losses against slow references, and what remains of it where its weights are zero."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from concm.data import augment, policy
from concm.data.augment import RANDOMS
from concm.evaluation.worlds import DIMENSION, TRANSFORM, Small
from concm.methods import choose
from concm.methods.closer import CLOSERSettings, SpreadAndCloseness, closeness
from concm.training.objective import Stage

torch.set_num_threads(1)


def made(**settings) -> SpreadAndCloseness:
    torch.manual_seed(0)
    return SpreadAndCloseness(Stage(Small(), DIMENSION, 4, 6, TRANSFORM), CLOSERSettings(**settings)).eval()


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    pixels = torch.randint(256, (6, 16, 16, 3), generator=random, dtype=torch.uint8)
    return pixels, torch.tensor([0, 0, 1, 2, 2, 3]), torch.rand(6, 3, RANDOMS, generator=random)


def test_closeness_is_the_mean_cosine_over_pairs_of_different_classes():
    units = F.normalize(torch.randn(7, 5, generator=torch.Generator().manual_seed(0)))
    labels = [0, 0, 1, 1, 1, 2, 0]
    pairs = [float(units[one] @ units[two]) for one in range(7) for two in range(7) if labels[one] != labels[two]]
    found = closeness(units, torch.tensor(labels), units, torch.tensor(labels))
    assert float(found) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)


def test_one_class_alone_is_close_to_nothing():
    units = F.normalize(torch.ones(3, 5))
    same = torch.zeros(3, dtype=torch.long)
    assert float(closeness(units, same, units, same)) == 0


def test_the_spread_is_a_contrast_between_views_of_a_picture_and_everything_else(batch):
    model = made(scale=10.0)
    units = F.normalize(torch.randn(18, DIMENSION, generator=torch.Generator().manual_seed(2)))
    found = float(model._spread(units, units, torch.arange(6)))
    total = 0.0
    for at in range(18):
        scores = [math.exp(10 * float(units[at] @ units[other])) for other in range(18)]
        all_others = sum(score for other, score in enumerate(scores) if other != at)
        twins = [other for other in range(18) if other % 6 == at % 6 and other != at]
        total -= sum(math.log(scores[twin] / all_others) for twin in twins) / len(twins) / 18
    assert found == pytest.approx(total, rel=1e-5)


def test_the_loss_is_the_weighted_sum_of_its_parts(batch):
    with torch.no_grad():
        parts = made(spread=0.3, closeness=0.7)(*batch, 0)
    wanted = parts["cross_entropy"] + 0.3 * parts["spread"] - 0.7 * parts["closeness"]
    assert float(parts["loss"]) == pytest.approx(float(wanted))


def test_without_its_two_weights_it_is_cross_entropy(batch):
    with torch.no_grad():
        parts = made(spread=0.0, closeness=0.0)(*batch, 0)
    assert float(parts["loss"]) == float(parts["cross_entropy"])


def test_descending_on_closeness_alone_draws_classes_together(batch):
    model = made(spread=0.0, closeness=100.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = float(model(*batch, 0)["closeness"].detach())
    for _ in range(5):
        optimizer.zero_grad()
        model(*batch, 0)["loss"].backward()
        optimizer.step()
    assert float(model(*batch, 0)["closeness"].detach()) > before


def test_presets_are_the_published_weights():
    mini, cub = (choose(f"closer:{name}").settings for name in ("mini_imagenet", "cub200"))
    assert (mini.spread, mini.closeness) == (0.1, 0.5)
    assert (cub.spread, cub.closeness) == (0.01, 1.5)


def test_half_of_the_views_are_shifts_and_half_of_all_go_through_the_policy(batch):
    pixels, _, random = batch
    random = random[:, 0].clone()
    random[:, 10] = torch.tensor([0.9, 0.9, 0.9, 0.1, 0.1, 0.1])
    random[:, 11] = torch.tensor([0.1, 0.1, 0.9, 0.9, 0.1, 0.9])
    model = made()
    found = model.view(pixels, random)
    shifts = augment.weak(pixels, random, TRANSFORM.size)
    crops = augment.strong(pixels, random, TRANSFORM.size, 0.25, 0.0, 0.0)
    torch.testing.assert_close(found[:3], torch.stack([shifts[0], shifts[1], crops[2]]))
    plain = torch.stack([crops[3], shifts[4], crops[5]])
    torch.testing.assert_close(found[3:], policy.auto(plain, random[3:, 5:10], policy.CIFAR))


def test_each_dataset_has_the_authors_views():
    mini, cub = (choose(f"closer:{name}").settings for name in ("mini_imagenet", "cub200"))
    assert (mini.shifted, mini.policy, mini.scale_min) == (0.0, "imagenet", 0.08)
    assert (cub.shifted, cub.policy, cub.scale_min) == (0.0, "none", 0.25)
