"""The exported network says what the classifier says, also of classes that it was not exported with."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from concm.classifier.classifier import Classifier
from concm.classifier.export import KIND, RATES
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse
from concm.files import load_tensors
from tests.support.photographs import BACKBONE, SIDE, TinyBackbone, picture, pictures

torch.set_num_threads(1)

BASE = ("cat", "dog", "fox", "hen", "owl")
NARROW = Settings(calibrate="none", base_steps=5, steps=5, hidden=16, width=8)
CLOSE = 1e-4


@pytest.fixture(autouse=True)
def _own_cache(cache):
    """Nothing here touches the user's."""


def new_photos(*names: str, count: int = 4) -> np.ndarray:
    return np.stack([photo for name in names for photo in pictures(name, count, first=300)])


ALL = new_photos(*BASE, "okapi", "yak", "elk")


def fitted(path: Path, settings: Settings, backbone: str = BACKBONE, count: int = 24) -> Classifier:
    zoo = Classifier(path, backbone, device="cpu")
    return zoo.fit({name: pictures(name, count) for name in BASE}, settings=settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A store of five base classes and a novel one, to be copied."""
    path = tmp_path_factory.mktemp("made") / "zoo"
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(path.parent / "cache"))
        fitted(path, NARROW).learn({"okapi": pictures("okapi", 3)}).store.close()
    return path


@pytest.fixture
def zoo(made, tmp_path) -> Classifier:
    return Classifier(shutil.copytree(made, tmp_path / "zoo"), device="cpu")


@pytest.fixture(scope="module")
def network(made, tmp_path_factory) -> SimpleNamespace:
    """Its network as other programs run it, and the files that were written."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("exported")
    zoo = Classifier(shutil.copytree(made, folder / "zoo"), device="cpu")
    before = zoo.predict_proba(ALL)
    written = zoo.export(folder / "out" / "zoo.onnx")
    session = runtime.InferenceSession(written[0], providers=["CPUExecutionProvider"])
    return SimpleNamespace(session=session, written=written, before=before, zoo=zoo)


def structure_of(zoo: Classifier, path: Path) -> Path:
    (written,) = zoo.export(structure=path)
    return written


def run(session, structure: Path, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and familiarity, by nothing but the two files."""
    known = {name: value.numpy() for name, value in load_tensors(structure, KIND)[0].items()}
    return tuple(session.run(["probabilities", "familiarity"], {"pixels": pixels, **known}))


def by_torch(zoo: Classifier, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = zoo.known()
    scores = known.engine.scores(zoo.encoder(torch.from_numpy(pixels)))
    return zoo.predict_proba(pixels), known.confidence.familiarity(scores).numpy()


def assert_agree(session, structure: Path, zoo: Classifier, pixels: np.ndarray = ALL) -> None:
    for found, expected in zip(run(session, structure, pixels), by_torch(zoo, pixels), strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=CLOSE, rtol=CLOSE)


# the network


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, len(ALL)])
def test_it_says_what_the_classifier_says_in_batches_of_any_size(network, count):
    assert_agree(network.session, network.written[1], network.zoo, ALL[:count])


@pytest.mark.slow
def test_a_label_or_unknown_is_what_the_classifier_calls_each_photo(network):
    table, familiarity = run(network.session, network.written[1], ALL)
    about = load_tensors(network.written[1], KIND)[1]
    for rate in RATES:
        best = [about["labels"][at] for at in table.argmax(1)]
        strange = familiarity < about["unknown_below"][f"{rate:g}"]
        found = ["unknown" if unknown else name for name, unknown in zip(best, strange, strict=True)]
        assert found == [item.label for item in network.zoo.predict(ALL, unknown_rate=rate)]
        assert 0 < strange.sum() < len(ALL)


@pytest.mark.slow
def test_exporting_changes_nothing(network):
    np.testing.assert_array_equal(network.zoo.predict_proba(ALL), network.before)
    assert network.zoo.version == 2


@pytest.mark.slow
def test_the_network_is_one_valid_file_beside_the_structure(network):
    onnx = pytest.importorskip("onnx")
    model, structure = network.written
    assert [model.name, structure.name] == ["zoo.onnx", "zoo.structure.safetensors"]
    assert sorted(model.parent.iterdir()) == [model, structure]
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.slow
def test_its_inputs_are_pictures_and_the_tensors_of_a_structure_file(network):
    names = {item.name for item in network.session.get_inputs()}
    assert names == {"pixels", *load_tensors(network.written[1], KIND)[0]}
    pixels = next(item for item in network.session.get_inputs() if item.name == "pixels")
    assert (pixels.type, pixels.shape[1:]) == ("tensor(uint8)", [SIDE, SIDE, 3])


@pytest.mark.slow
def test_its_metadata_say_what_it_was_made_for(network):
    found = {name: json.loads(text) for name, text in network.session.get_modelmeta().custom_metadata_map.items()}
    about = load_tensors(network.written[1], KIND)[1]
    assert found["labels"] == about["labels"] == [*BASE, "okapi"]
    assert found["base"] == about["base"] == 5
    assert found["version"] == about["version"] == 2
    assert found["unknown_below"] == about["unknown_below"]
    assert found["backbone"] == BACKBONE
    assert found["transform"] == network.zoo.store.meta["encoder"]["transform"]


# the same network, and what was learned since


@pytest.mark.slow
def test_after_learning_the_same_network_needs_only_a_new_structure(network, zoo, tmp_path):
    zoo.learn({"yak": pictures("yak", 2)})
    structure = structure_of(zoo, tmp_path / "new.safetensors")
    assert_agree(network.session, structure, zoo)
    table, _ = run(network.session, structure, new_photos("yak"))
    assert table.shape == (4, 7)
    assert (table.argmax(1) == 6).all()
    assert load_tensors(structure, KIND)[1]["labels"] == [*BASE, "okapi", "yak"]
    assert run(network.session, network.written[1], ALL)[0].shape[1] == 6  # and the old one still does


@pytest.mark.slow
def test_classes_that_outgrow_the_projector_fit_into_the_same_network(network, zoo, tmp_path):
    narrow = structure_of(zoo, tmp_path / "narrow.safetensors")
    zoo.learn({f"class {at}": pictures(f"class {at}", 2) for at in range(5)})
    wide = structure_of(zoo, tmp_path / "wide.safetensors")
    widths = [load_tensors(file, KIND)[0]["structure"].shape for file in (narrow, wide)]
    heads = NARROW.heads
    assert widths[0] == (heads, 6, 8)
    assert widths[1][:2] == (heads, 11)
    assert widths[1][2] > 11
    assert_agree(network.session, wide, zoo)


@pytest.mark.slow
def test_forgetting_stepping_back_and_more_photos_fit_into_it_too(network, zoo, tmp_path):
    changes = [
        lambda: zoo.forget("dog"),
        lambda: zoo.learn({"okapi": pictures("okapi", 2, first=20), "cat": pictures("cat", 1, first=20)}),
        lambda: zoo.undo(),
        lambda: [zoo.forget(name) for name in ("fox", "okapi", "hen")],
    ]
    for at, change in enumerate(changes):
        change()
        assert_agree(network.session, structure_of(zoo, tmp_path / f"{at}.safetensors"), zoo)
    assert run(network.session, tmp_path / "3.safetensors", ALL)[0].shape[1] == 2


# other networks


def cropping() -> TinyBackbone:
    """It sees the middle of a larger picture."""
    network = TinyBackbone()
    network.transform = replace(network.transform, resize=SIDE + 9, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    return network


@pytest.mark.slow
def test_it_crops_as_the_classifier_does_and_needs_no_metric(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    zoo = fitted(tmp_path / "zoo", replace(NARROW, whitening=None), f"{__name__}:cropping")
    model, structure = zoo.export(tmp_path / "zoo.onnx", tmp_path / "elsewhere.safetensors")
    assert structure == tmp_path / "elsewhere.safetensors"
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).integers(0, 256, (3, SIDE + 9, SIDE + 9, 3), dtype=np.uint8)
    assert_agree(session, structure, zoo, pixels)


class Staged(TinyBackbone):
    """It shows two blocks, and sees the middle of a larger picture."""

    transform = replace(TinyBackbone.transform, resize=SIDE + 8)

    def stages(self, images: Tensor) -> list[Tensor]:
        maps = self.pool(images)
        return [maps, self.mix(maps.flatten(1)).tanh()[..., None, None]]


def staged() -> Staged:
    return Staged()


@pytest.mark.slow
def test_it_reads_pictures_in_blocks_and_looks_as_the_classifier_does(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    zoo = Classifier(tmp_path / "zoo", f"{__name__}:staged", device="cpu", blocks=2, looks=5)
    zoo.fit({name: pictures(name, 6) for name in BASE}, settings=NARROW)
    model, structure = zoo.export(tmp_path / "zoo.onnx")
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).integers(0, 256, (3, SIDE + 8, SIDE + 8, 3), dtype=np.uint8)
    assert_agree(session, structure, zoo, pixels)


# the structure alone


def test_a_structure_says_what_its_columns_are_and_where_the_unknown_begins(zoo, tmp_path):
    tensors, about = load_tensors(structure_of(zoo, tmp_path / "zoo.safetensors"), KIND)
    assert about["labels"] == zoo.classes_.tolist()
    assert (about["base"], about["version"]) == (5, 2)
    judge = zoo.known().confidence
    assert {float(rate): below for rate, below in about["unknown_below"].items()} == pytest.approx(
        {rate: judge.threshold(rate) for rate in RATES}
    )
    assert len(tensors["prototypes"]) == len(tensors["bias"]) == 6
    assert all(torch.equal(tensors[name], getattr(judge, name)) for name in ("centre", "width", "temperature"))


def test_where_nothing_is_unknown_no_familiarity_is_too_small(tmp_path):
    zoo = fitted(tmp_path / "zoo", NARROW, count=1)
    about = load_tensors(structure_of(zoo, tmp_path / "zoo.safetensors"), KIND)[1]
    assert set(about["unknown_below"].values()) == {-1e30}


def test_writing_a_structure_needs_neither_onnx_nor_the_backbone(zoo, tmp_path, monkeypatch):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("tests.support.photographs.tiny_backbone", None)
    assert zoo.export(structure=tmp_path / "new" / "zoo.safetensors") == [tmp_path / "new" / "zoo.safetensors"]
    assert load_tensors(tmp_path / "new" / "zoo.safetensors", KIND)[1]["version"] == 2


def test_a_structure_takes_the_place_of_the_one_before(zoo, tmp_path):
    structure = structure_of(zoo, tmp_path / "zoo.safetensors")
    zoo.forget("cat")
    assert load_tensors(structure_of(zoo, structure), KIND)[1]["labels"] == zoo.classes_.tolist()
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["zoo.safetensors"]


def test_a_place_that_cannot_be_written_to_is_told_in_a_sentence(zoo, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConcmError, match=r"cannot write .*file/zoo\.safetensors"):
        zoo.export(structure=tmp_path / "file" / "zoo.safetensors")


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_without_onnx_a_sentence_says_what_to_install(zoo, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Misuse, match="needs the extra 'onnx'"):
        zoo.export(tmp_path / "out" / "zoo.onnx")
    assert not (tmp_path / "out").exists()
    assert zoo.predict(picture("cat"), unknown_rate=0)[0].label == "cat"
