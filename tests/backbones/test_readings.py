"""Readings: which blocks, turns and looks make a feature, and in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from concm.backbones.efficientnet_lite import EfficientNetLite
from concm.backbones.encoder import Encoder, Identity, Reading
from concm.backbones.readings import EARLIER, LOOKS, looks_at
from concm.backbones.resnet import ResNet12, resnet18, resnet20
from concm.data.dataset import ImageSet
from concm.data.transform import Transform
from concm.errors import Misuse
from concm.records import WrongRecord, to_json

torch.set_num_threads(1)
TRANSFORM = Transform(16, 20, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
CPU = torch.device("cpu")


def pixels(count: int = 3, side: int = 20) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8))


@pytest.fixture
def small() -> Encoder:
    torch.manual_seed(0)
    network = resnet20()
    network(torch.randn(8, 3, 16, 16))  # so that its batch statistics are not the initial ones
    return Encoder("resnet20", network, TRANSFORM, {"dimension": 64}).to(CPU)


# blocks of the networks


@pytest.mark.parametrize(
    ("make", "widths"),
    [
        (ResNet12, [64, 160, 320, 640]),
        (resnet18, [64, 128, 256, 512]),
        (resnet20, [16, 32, 64]),
        (lambda: EfficientNetLite(0), [320, 1280]),
    ],
    ids=["resnet12", "resnet18", "resnet20", "lite0"],
)
def test_a_network_shows_its_blocks_and_its_feature_is_the_mean_of_the_last(make, widths):
    torch.manual_seed(0)
    network = make().eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        stages = network.stages(images)
        assert [maps.shape[1] for maps in stages] == widths
        assert torch.equal(stages[-1].mean((2, 3)), network(images))
        if hasattr(network, "maps"):
            assert torch.equal(stages[-1], network.maps(images))


# one reading and several


def test_a_single_reading_is_the_networks_own_mean_bit_for_bit(small):
    with torch.inference_mode():
        expected = small.network(TRANSFORM.centre(pixels()).contiguous(memory_format=torch.channels_last))
    assert torch.equal(small(pixels()), expected)
    assert (small.layout, small.identity.layout, small.passes) == ((64,), (), 1)


def test_several_readings_are_weighted_unit_vectors_turn_by_turn_and_the_last_block_first(small):
    images = TRANSFORM.centre(pixels())
    with torch.inference_mode():
        turned = [small.network.stages(images.rot90(quarter, (2, 3))) for quarter in (0, 2)]
    parts = [F.normalize(maps.mean((2, 3))) for stages in turned for maps in (stages[2], stages[1], stages[0])]
    weights = [1, EARLIER, EARLIER] * 2
    expected = torch.cat([weight * part for weight, part in zip(weights, parts, strict=True)], 1)
    several = replace(small, blocks=3, turns=2)
    torch.testing.assert_close(several(pixels()), expected)
    assert several.layout == several.identity.layout == (64, 32, 16) * 2
    assert several.passes == several.identity.passes == 2


@pytest.mark.parametrize(("turns", "quarters"), [(1, [0]), (2, [0, 2]), (4, [0, 1, 2, 3])])
def test_turns_are_quarter_turns_of_the_picture(small, turns, quarters):
    read = replace(small, turns=turns)(pixels())
    expected = [small(pixels().rot90(quarter, (1, 2))) for quarter in quarters]
    if turns > 1:
        expected = [F.normalize(part) for part in expected]
    torch.testing.assert_close(read, torch.cat(expected, 1))


def test_finding_the_widths_changes_neither_the_network_nor_its_mode(small):
    small.network.train()
    before = {name: value.clone() for name, value in small.network.state_dict().items()}
    assert replace(small, blocks=2).layout == (64, 32)
    assert small.network.training
    assert all(torch.equal(value, before[name]) for name, value in small.network.state_dict().items())


# looks


@pytest.mark.parametrize(("resize", "shift"), [(20, 2), (16, 1)], ids=["slack", "reflected"])
def test_looks_are_the_centre_and_four_diagonal_shifts_each_with_its_mirror_image(resize, shift):
    transform, some = replace(TRANSFORM, resize=resize), pixels(side=resize)
    looks = list(looks_at(some, transform, LOOKS))
    assert torch.equal(looks[0], transform.centre(some))
    wide = F.pad(some.permute(0, 3, 1, 2).float() / 255, (4, 4, 4, 4), mode="reflect")
    edge = 4 + (resize - 16) // 2
    for at, (down, right) in enumerate([(-1, -1), (-1, 1), (1, -1), (1, 1)]):
        top, left = edge + down * shift, edge + right * shift
        expected = transform.normalise(wide[:, :, top : top + 16, left : left + 16])
        torch.testing.assert_close(looks[2 + 2 * at], expected)
    assert all(torch.equal(looks[at + 1], looks[at].flip(3)) for at in range(0, LOOKS, 2))
    fewer = looks_at(some, transform, 5)
    assert all(torch.equal(one, other) for one, other in zip(fewer, looks[:5], strict=True))


@pytest.mark.parametrize("count", [2, 3, 10])
def test_looks_are_averaged(small, count):
    with torch.inference_mode():
        expected = torch.stack([small.network(look) for look in looks_at(pixels(), TRANSFORM, count)]).mean(0)
    averaging = replace(small, looks=count)
    torch.testing.assert_close(averaging(pixels()), expected)
    assert (averaging.layout, averaging.identity.layout, averaging.passes) == ((64,), (), count)


def test_looks_are_averaged_inside_each_reading_before_it_becomes_a_unit_vector(small):
    with torch.inference_mode():
        looks = [small.network.stages(look) for look in looks_at(pixels(), TRANSFORM, 4)]
    means = [torch.stack([stages[at].mean((2, 3)) for stages in looks]).mean(0) for at in (2, 1)]
    expected = torch.cat([F.normalize(means[0]), EARLIER * F.normalize(means[1])], 1)
    torch.testing.assert_close(replace(small, blocks=2, looks=4)(pixels()), expected)


def test_views_are_read_once_each_in_all_turns_and_blocks(small):
    images = ImageSet(pixels().numpy(), np.arange(3), np.zeros(3, np.int64), ["a", "b", "c"])
    several = replace(small, blocks=2, turns=2)
    views = several.encode(images, views=2)
    assert views.shape == (3, 2, 2 * (64 + 32))
    assert torch.equal(replace(several, looks=10).encode(images, views=2), views)
    last, plain = views[..., :64], small.encode(images, views=2)
    torch.testing.assert_close(last, F.normalize(plain, dim=2))
    assert several.encode(images.where(np.zeros(3, bool)), views=2).shape == (0, 2, 192)
    torch.testing.assert_close(several.encode(images), several(pixels()))


# refused


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"blocks": 0}, "`blocks` must be at least 1"),
        ({"looks": 0}, "`looks` must be at least 1"),
        ({"looks": 11}, "`looks` must be at most 10"),
        ({"turns": 3}, "`turns` is one of 1, 2, 4, not 3"),
        ({"network": nn.Conv2d(3, 3, 1), "blocks": 2}, "Conv2d has no method `stages`"),
        ({"network": Reading(resnet20(), (0, 2)), "turns": 2}, "base session settled how pictures are read"),
        ({"network": Reading(resnet20(), (0, 2)), "blocks": 2}, "base session settled how pictures are read"),
        ({"network": Reading(resnet20(), maps=True), "looks": 2}, "`looks` averages features"),
    ],
)
def test_readings_that_cannot_be_are_refused_in_a_sentence(small, change, why):
    with pytest.raises(Misuse, match=why):
        replace(small, **change)


def test_more_blocks_than_there_are_are_refused(small):
    with pytest.raises(Misuse, match="`blocks` is 4, and ResNet shows 3"):
        replace(small, blocks=4)(pixels())


def test_the_passes_of_a_base_session_of_its_own_are_counted():
    encoder = Encoder("resnet20", Reading(resnet20(), (0, 1, 2, 3)), TRANSFORM, {}, looks=2)
    assert encoder.passes == 8


# identities on disk


@pytest.mark.parametrize("mirror", [False, True])
def test_mirrored_features_of_before_are_two_looks(mirror):
    new = to_json(Identity("resnet20", "abc", TRANSFORM))
    old = {name: new[name] for name in ("name", "weights", "transform")} | {"mirror": mirror}
    assert Identity.read(old) == Identity("resnet20", "abc", TRANSFORM, looks=1 + mirror)
    assert Identity.read(new) == Identity("resnet20", "abc", TRANSFORM)
    with pytest.raises(WrongRecord, match="mirror"):
        Identity.read({**new, "mirror": "yes"})
