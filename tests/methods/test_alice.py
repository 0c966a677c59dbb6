"""ALICE: its loss and its pairs against slow references, and prototypes of a few images."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from concm.data.augment import RANDOMS
from concm.evaluation.worlds import BASE, DIMENSION, TRANSFORM, Small, World
from concm.methods import choose
from concm.methods.alice import ALICESettings, AngularMargin, angular, paired
from concm.training.objective import Stage

torch.set_num_threads(1)


def made(**settings) -> AngularMargin:
    torch.manual_seed(0)
    return AngularMargin(Stage(Small(), DIMENSION, 4, 6, TRANSFORM), ALICESettings(width=16, **settings)).eval()


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    pixels = torch.randint(256, (6, 16, 16, 3), generator=random, dtype=torch.uint8)
    return pixels, torch.tensor([0, 0, 1, 2, 2, 3]), torch.rand(6, 2, RANDOMS, generator=random)


def test_the_own_class_must_win_by_a_margin():
    cosines, labels = torch.rand(5, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1, [0, 3, 1, 1, 2]
    found = angular(cosines, torch.tensor(labels), 30.0, 0.4)
    for row, label, loss in zip(cosines.tolist(), labels, found.tolist(), strict=True):
        own = math.exp(30 * (row[label] - 0.4))
        others = sum(math.exp(30 * value) for at, value in enumerate(row) if at != label)
        assert loss == pytest.approx(-math.log(own / (own + others)), rel=1e-4)


def test_without_a_margin_it_is_cross_entropy():
    cosines, labels = torch.rand(5, 4), torch.tensor([0, 3, 1, 1, 2])
    plain = F.cross_entropy(16 * cosines, labels, reduction="none")
    torch.testing.assert_close(angular(cosines, labels, 16.0, 0.0), plain)


def test_every_pair_of_classes_is_a_class_of_its_own_in_either_order():
    pairs = list(itertools.combinations(range(7), 2))
    one, two = (torch.tensor(side) for side in zip(*pairs, strict=True))
    assert paired(one, two, 7).tolist() == list(range(7, 7 + len(pairs)))
    assert torch.equal(paired(two, one, 7), paired(one, two, 7))
    assert paired(one, one, 7).tolist() == [-1] * len(pairs)


def test_mixtures_of_one_class_do_not_count(batch):
    pixels, _, random = batch
    model, same = made(mixes=4), torch.zeros(6, dtype=torch.long)
    seen: list[torch.Tensor] = []
    model.backbone.register_forward_hook(lambda _, given, found: seen.append(found))
    with torch.no_grad():
        loss = float(model(pixels, same, random, 0)["loss"])
        alone = angular(model._cosines(seen[0])[: 2 * 6], same.repeat(2), 30.0, 0.4)
    assert loss == pytest.approx(float(alone.mean()), rel=1e-5)


def test_the_loss_is_the_mean_over_views_of_pictures_and_of_mixtures_of_two_classes(batch):
    pixels, labels, random = batch
    model = made(mixes=3)
    seen: list[torch.Tensor] = []
    model.backbone.register_forward_hook(lambda _, given, found: seen.append(found))
    with torch.no_grad():
        loss = float(model(pixels, labels, random, 0)["loss"])
        cosines = model._cosines(seen[0])
    assert len(cosines) == 6 * 2 * (1 + 3)
    wanted = [labels.repeat(2)]
    for at in range(10, 13):
        partner = random[:, 0, at].argsort()
        wanted.append(paired(labels, labels[partner], 4).repeat(2))
    counted = [(row, int(label)) for row, label in zip(cosines, torch.cat(wanted), strict=True) if label >= 0]
    slow = [float(angular(row[None], torch.tensor([label]), 30.0, 0.4)) for row, label in counted]
    assert loss == pytest.approx(sum(slow) / len(slow), rel=1e-4)


def test_a_base_class_is_the_mean_of_the_images_nearest_to_its_mean():
    world = World.of()
    few, every = (choose(f"alice:nearest={count}").build(seed=0, device="cpu") for count in ("2", "none"))
    for method in (few, every):
        method.fit_base(world.base)
    assert torch.equal(every.prototypes, world.base.mean)
    for label in range(BASE):
        images = world.base.features[world.base.labels == label]
        order = F.cosine_similarity(images, world.base.mean[label][None]).argsort(descending=True)
        torch.testing.assert_close(few.prototypes[label], images[order[:2]].mean(0))


def test_cub_has_no_mixtures():
    assert made(mixes=0).head.out_features == 4
    assert choose("alice:cub200").settings.mixes == 0
