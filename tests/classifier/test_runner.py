"""An exported classifier without torch says what the store says, refuses what it refuses, and needs three packages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from concm.classifier.answers import Prediction
from concm.classifier.classifier import Classifier
from concm.classifier.structure import GOES_WITH, KIND, Structure
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse
from concm.files import load_tensors, save_tensors
from concm.onnx import Runner, main
from tests.support.photographs import BACKBONE, OTHER_WEIGHTS, pictures, write_class

torch.set_num_threads(1)
BASE = ("cat", "dog", "fox", "hen", "owl")
SETTINGS = Settings(calibrate="none", base_steps=5, steps=5, hidden=16, width=8)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """A folder with a store, its network and its structure, and photos in several forms."""
    pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install -e ".[onnx]"')
    pytest.importorskip("onnxscript", reason='onnxscript is not installed: pip install -e ".[onnx]"')
    root = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(root / "cache"))
        zoo = Classifier(root / "zoo", BACKBONE, device="cpu")
        zoo.fit({name: pictures(name, 24) for name in BASE}, settings=SETTINGS)
        zoo.learn({"okapi": pictures("okapi", 3)})
        zoo.export(root / "zoo.onnx")
        zoo.close()
    for name in (*BASE, "okapi", "stranger", "another"):
        write_class(root / "photos" / name, 4, first=300)
    odd = root / "photos" / "odd"
    odd.mkdir()
    large = Image.effect_mandelbrot((90, 60), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    large.save(odd / "wide.jpg")
    large.convert("CMYK").save(odd / "inks.jpg")
    large.convert("L").save(odd / "grey.png")
    large.convert("P").save(odd / "palette.gif")
    turned = Image.Exif()
    turned[0x0112] = 6
    large.save(odd / "turned.jpg", exif=turned)
    Image.fromarray(np.arange(90 * 60, dtype=np.uint16).reshape(60, 90) * 12).save(odd / "deep.png")
    (odd / "broken.jpg").write_bytes(b"no picture")
    return root


def store(root: Path) -> Classifier:
    return Classifier(root / "zoo", BACKBONE, device="cpu")


def assert_same(found: list[Prediction], expected: list[Prediction]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert (one.photo, one.label, one.unknown, one.novel, one.version) == (
            other.photo,
            other.label,
            other.unknown,
            other.novel,
            other.version,
        )
        assert [name for name, _ in one.top] == [name for name, _ in other.top]
        np.testing.assert_allclose([p for _, p in one.top], [p for _, p in other.top], atol=1e-3)
        assert one.score == one.top[0][1]
        assert abs(one.familiarity - other.familiarity) <= 0.011  # a step of the hundred that there are


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0, 0.05, 0.33])
def test_it_answers_and_refuses_as_the_store_does(exported, rate):
    found = Runner(exported / "zoo.onnx").predict(exported / "photos", unknown_rate=rate)
    expected = store(exported).predict(exported / "photos", unknown_rate=rate)
    assert_same(found, expected)
    assert [str(error) for error in found.failures] == [str(error) for error in expected.failures]
    assert len(found.failures) == 1
    assert any(one.unknown for one in found) == (rate > 0)


@pytest.mark.slow
def test_probabilities_are_those_of_the_store_in_the_order_of_the_labels(exported):
    runner, photos = Runner(exported / "zoo.onnx"), sorted((exported / "photos").glob("*/30*.png"))
    assert runner.labels == [*BASE, "okapi"]
    assert runner.version == 2
    np.testing.assert_allclose(runner.predict_proba(photos), store(exported).predict_proba(photos), atol=1e-4)
    assert runner.predict_proba([]).shape == (0, 6)


@pytest.mark.slow
def test_pictures_come_in_all_forms(exported):
    runner, file = Runner(exported / "zoo.onnx"), exported / "photos" / "cat" / "300.png"
    forms = [file, str(file), file.read_bytes(), Image.open(file), np.asarray(Image.open(file))]
    assert {one.label for one in runner.predict(forms, unknown_rate=0)} == {"cat"}
    with pytest.raises(ConcmError, match=r"picture 1 cannot be read"):
        runner.predict([b"broken"])


@pytest.mark.slow
def test_a_newer_structure_goes_with_the_same_network(exported, tmp_path):
    zoo = Classifier(shutil.copytree(exported / "zoo", tmp_path / "zoo"), BACKBONE, device="cpu")
    zoo.learn({"yak": pictures("yak", 3)})
    (newer,) = zoo.export(structure=tmp_path / "newer.safetensors")
    runner, photos = Runner(exported / "zoo.onnx", newer), pictures("yak", 4, first=300)
    assert_same(runner.predict(photos), zoo.predict(photos))


# without torch


WITHOUT = """
import sys
for name in ("torch", "rich", "safetensors", "cyclopts", "lightning_fabric", "matplotlib", "filelock", "onnx"):
    sys.modules[name] = None
from concm.onnx import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.promise
def test_it_runs_where_nothing_but_three_packages_can_be_imported(exported):
    words = [str(exported / "zoo.onnx"), str(exported / "photos"), "--unknown-rate", "0.1"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 1
    assert done.stderr == f"concm: {exported}/photos/odd/broken.jpg cannot be read as a picture (not an image format)\n"
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = store(exported).predict(exported / "photos", unknown_rate=0.1, top=3)
    assert_same([Prediction(**{**one, "top": [tuple(pair) for pair in one["top"]]}) for one in found], expected)
    assert found[0].keys() == asdict(expected[0]).keys()


@pytest.mark.slow
def test_what_a_folder_holds_beside_photos_is_named(exported, tmp_path, capsys):
    shutil.copytree(exported / "photos" / "cat", tmp_path / "photos")
    (tmp_path / "photos" / "raw.dng").write_text("no photo")
    said = f"left out in {tmp_path}/photos, for they are no photos by their names: 1 .dng"
    assert Runner(exported / "zoo.onnx").predict(tmp_path / "photos").remarks == [said]
    assert main([str(exported / "zoo.onnx"), str(tmp_path / "photos")]) == 0
    assert capsys.readouterr().err == f"concm: {said}\n"


@pytest.mark.slow
def test_it_ends_quietly_where_nobody_reads_on(exported):
    command = [sys.executable, "-m", "concm.onnx", str(exported / "zoo.onnx"), str(exported / "photos")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        said = running.stderr.read()
    assert (running.returncode, said) == (1, b"")


# what does not fit


@pytest.mark.slow
def test_files_that_do_not_fit_are_refused_in_a_sentence(exported, tmp_path, capsys):
    shutil.copy(exported / "zoo.onnx", tmp_path / "zoo.onnx")
    words = [str(tmp_path / "zoo.onnx"), str(exported / "photos" / "cat")]
    assert main(["nothing.onnx", "x"]) == 1
    assert capsys.readouterr().err == "concm: no exported network at nothing.onnx\n"
    assert main(words) == 1
    assert capsys.readouterr().err == f"concm: no structure file at {tmp_path}/zoo.structure.safetensors\n"
    structure = tmp_path / "zoo.structure.safetensors"
    whole = (exported / "zoo.structure.safetensors").read_bytes()
    for harm in (b"", b"hello", whole[:40], whole[:-9], whole.replace(b"F32", b"F17")):
        structure.write_bytes(harm)
        assert main(words) == 1
        assert "is damaged or not a structure file" in capsys.readouterr().err
    structure.write_bytes(whole.replace(b"concm-structure-2", b"concm-structure-0"))
    assert main(words) == 1
    assert "is no structure that this concm reads" in capsys.readouterr().err
    structure.write_bytes(whole)
    assert main(words) == 0
    (tmp_path / "zoo.onnx").write_bytes(b"hello")
    assert main(words) == 1
    assert "zoo.onnx is damaged or not a exported network" in capsys.readouterr().err


OTHERS = {
    "another backbone of the same width": {"backbone": OTHER_WEIGHTS},
    "another metric": {"first": 200},
}


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_a_structure_of_another_classifier_is_refused_although_it_has_the_same_form(exported, tmp_path, other, cache):
    how = {"backbone": BACKBONE, "first": 0} | OTHERS[other]
    zoo = Classifier(tmp_path / "zoo", how["backbone"], device="cpu")
    zoo.fit({name: pictures(name, 24, first=how["first"]) for name in BASE}, settings=SETTINGS)
    (structure,) = zoo.export(structure=tmp_path / "other.safetensors")
    with pytest.raises(ConcmError, match=r"zoo.onnx and its structure file were not exported from one classifier"):
        Runner(exported / "zoo.onnx", structure)


@pytest.mark.slow
def test_files_of_before_that_do_not_say_what_they_go_with_are_taken(exported, tmp_path):
    onnx = pytest.importorskip("onnx")
    tensors, meta = load_tensors(exported / "zoo.structure.safetensors", KIND)
    assert meta["encoder"]["weights"]
    del meta["encoder"], meta["metric"]
    save_tensors(tmp_path / "old.safetensors", KIND, tensors, meta)
    model = onnx.load(exported / "zoo.onnx")
    kept = [item for item in model.metadata_props if item.key not in GOES_WITH]
    assert len(kept) == len(model.metadata_props) - 2
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, tmp_path / "old.onnx")
    photo = exported / "photos" / "cat" / "300.png"
    for network in (exported / "zoo.onnx", tmp_path / "old.onnx"):
        for structure in (exported / "zoo.structure.safetensors", tmp_path / "old.safetensors"):
            assert Runner(network, structure).predict([photo], unknown_rate=0)[0].label == "cat"


@pytest.mark.slow
def test_questions_that_make_no_sense_are_refused(exported):
    runner = Runner(exported / "zoo.onnx")
    for how in ({"unknown_rate": 1}, {"top": 0}):
        with pytest.raises(Misuse):
            runner.predict([], **how)


def test_thresholds_are_those_of_the_store(exported):
    confidence = store(exported).known().confidence
    structure = Structure.read(exported / "zoo.structure.safetensors")
    for rate in (0, 0.01, 0.05, 0.123, 0.5, 0.99):
        assert structure.threshold(rate) == pytest.approx(confidence.threshold(rate))
