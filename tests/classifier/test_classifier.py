"""The practitioner's classifier, as its users meet it: what it is told, what it says, and what no accident changes."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from concm.backbones.encoder import Encoder
from concm.classifier import store as store_module
from concm.classifier.classifier import Classifier, Prediction
from concm.classifier.evaluation import Evaluation
from concm.classifier.store import Store
from concm.data.images import BrokenPicture
from concm.engine import concm as engine_module
from concm.engine.calibration import CalibrationSettings
from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse
from concm.files import load_tensors
from concm.records import from_json
from concm.semantics.semantics import Semantics
from tests.support import photographs
from tests.support.data import huge_png
from tests.support.photographs import BACKBONE, TinyBackbone, picture, pictures, write_class, write_world

torch.set_num_threads(1)  # bit for bit only holds for one number of threads

QUICK = Settings(calibrate=False, base_steps=5, steps=5, hidden=32)
BASE = ("cat", "dog", "fox", "hen", "owl")
COUNT = 8
FEW = ("cat", "dog")
NEW = 300  # photos from this number on were never taught


@pytest.fixture(autouse=True)
def _own_cache(cache):
    """Nothing here touches the user's."""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """A store of the base classes, to be copied."""
    root = tmp_path_factory.mktemp("fitted")
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(root / "cache"))
        zoo = Classifier(root / "zoo", BACKBONE, device="cpu").fit(base_photos(), settings=QUICK)
        zoo.store.close()
    return root / "zoo"


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """A store of two photos of each of two classes."""
    path = tmp_path_factory.mktemp("few") / "zoo"
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(path.parent / "cache"))
        made(path, {name: pictures(name, 2) for name in FEW}).store.close()
    return path


@pytest.fixture
def zoo(fitted, tmp_path) -> Classifier:
    """A classifier of the base classes, of this test alone."""
    return opened(shutil.copytree(fitted, tmp_path / "zoo"))


def base_photos(count: int = COUNT) -> dict:
    return {name: pictures(name, count) for name in BASE}


def opened(path: Path, **how) -> Classifier:
    return Classifier(path, device="cpu", **how)


def made(path: Path, photos=None, *, settings: Settings | None = QUICK, **how) -> Classifier:
    return opened(path, backbone=BACKBONE).fit(base_photos() if photos is None else photos, settings=settings, **how)


def new_photos(*names: str, count: int = 6) -> list:
    return [photo for name in names for photo in pictures(name, count, first=NEW)]


def labels(zoo: Classifier, *names: str, count: int = 6, **how) -> list[str]:
    return [found.label for found in zoo.predict(new_photos(*names, count=count), **how)]


def right(zoo: Classifier, name: str, count: int = 20) -> float:
    """The share of new photos of a class that are given its name."""
    return labels(zoo, name, count=count, unknown_rate=0).count(name) / count


def probabilities(zoo: Classifier) -> np.ndarray:
    """Of photos of classes that are known and of some that are not."""
    return zoo.predict_proba(new_photos(*BASE, "okapi", "yak", count=2))


def names(zoo: Classifier) -> list[str]:
    return [row.name for row in zoo.classes]


def everything(zoo: Classifier) -> SimpleNamespace:
    """All that a change would change, but for the times."""
    tensors, state = zoo.store.state()
    rows = [
        (row, [(p.label, p.digest, p.features.tolist()) for p in zoo.store.photos(row.name)]) for row in zoo.classes
    ]
    tensors = {name: (value.dtype, value.numpy().tobytes()) for name, value in tensors.items()}
    history = [replace(line, created="") for line in zoo.history]
    return SimpleNamespace(version=zoo.version, history=history, tensors=tensors, state=state, classes=rows)


# fitting


@pytest.mark.promise
def test_photos_of_an_easy_world_are_recognised(zoo):
    for name in BASE:
        assert right(zoo, name) == 1
    assert names(zoo) == list(BASE)
    assert [(row.base, row.photos, row.added) for row in zoo.classes] == [(True, COUNT, 1)] * 5
    assert zoo.remarks == []


def loaded(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


def each(change, photos: dict) -> dict:
    return {name: [change(photo) for photo in own] for name, own in photos.items()}


def files(root: Path) -> dict:
    return {folder.name: sorted(folder.iterdir(), key=lambda path: int(path.stem)) for folder in sorted(root.iterdir())}


FORMS = {
    "folder": lambda root: root,
    "its name": str,
    "folders": lambda root: {folder.name: folder for folder in sorted(root.iterdir())},
    "globs": lambda root: {folder.name: f"{folder}/*.png" for folder in sorted(root.iterdir())},
    "paths": files,
    "names": lambda root: each(str, files(root)),
    "bytes": lambda root: each(Path.read_bytes, files(root)),
    "PIL": lambda root: each(loaded, files(root)),
    "arrays": lambda root: each(lambda path: np.asarray(loaded(path)), files(root)),
    "floats": lambda root: each(lambda path: np.asarray(loaded(path)) / 255, files(root)),
    "generators": lambda root: {name: iter(paths) for name, paths in files(root).items()},
}
"""The same photos as people may give them."""


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_same_classifier_however_the_photos_are_given(few, tmp_path, form):
    write_world(tmp_path / "photos", FEW, 2)
    zoo = made(tmp_path / "zoo", FORMS[form](tmp_path / "photos"))
    found, expected = everything(zoo), everything(opened(few))
    assert found.tensors == expected.tensors
    assert [row for row, _ in found.classes] == [row for row, _ in expected.classes]
    assert found.state == expected.state


def test_photos_are_remembered_by_their_file_names(tmp_path):
    files = write_world(tmp_path / "photos", ("cat", "dog"), 2)
    mixed = {"cat": files["cat"], "dog": [files["dog"][1], picture("dog", 7)]}
    zoo = made(tmp_path / "zoo", mixed)
    assert [photo.label for photo in zoo.store.photos("cat")] == ["0.png", "1.png"]
    assert [photo.label for photo in zoo.store.photos("dog")] == ["1.png", "picture 4"]


def test_a_file_name_that_is_no_text_is_no_obstacle(zoo, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))  # as old archives name files
    odd.write_bytes(write_class(tmp_path / "yak", 1)[0].read_bytes())
    zoo.learn({"yak": [odd]})
    assert right(zoo, "yak") > 0.9


def test_a_folder_makes_classes_in_alphabetical_order_and_a_mapping_in_its_own(tmp_path):
    write_world(tmp_path / "photos", ("owl", "ant", "cat"), 2)
    assert names(made(tmp_path / "one", tmp_path / "photos")) == ["ant", "cat", "owl"]
    mapping = {name: pictures(name, 2) for name in ("owl", "ant", "cat")}
    assert names(made(tmp_path / "other", mapping)) == ["owl", "ant", "cat"]


def test_the_same_seed_fits_the_same_and_another_does_not(fitted, tmp_path):
    other = opened(tmp_path / "zoo", backbone=BACKBONE, seed=1).fit(base_photos(), settings=QUICK)
    assert other.store.meta["seed"] == 1
    assert everything(other).tensors != everything(opened(fitted)).tensors


def test_settings_that_are_not_given_are_chosen(tmp_path):
    zoo = made(tmp_path / "zoo", base_photos(4), settings=None)
    assert from_json(Settings, zoo.store.state()[1]["settings"]) == Settings(calibrate=False)
    assert right(zoo, "cat") == 1


@pytest.mark.parametrize("count", [1, 2, 6])
def test_two_base_classes_are_enough(tmp_path, count):
    zoo = made(tmp_path / "zoo", {name: pictures(name, count) for name in ("cat", "dog")})
    assert [right(zoo, name) for name in ("cat", "dog")] == [1, 1]


def test_one_photo_of_each_base_class_is_enough_but_nothing_will_be_unknown(tmp_path):
    zoo = made(tmp_path / "zoo", base_photos(1))
    (remark,) = zoo.remarks
    assert "nothing will be called unknown" in remark
    assert all(right(zoo, name) > 0.9 for name in BASE)
    zoo.learn({"okapi": picture("okapi")})
    assert right(zoo, "okapi") > 0.9
    assert not any(found.unknown for found in zoo.predict(new_photos("yak", "elk"), unknown_rate=0.5))


def test_base_classes_need_not_have_equally_many_photos(tmp_path):
    counts = {"cat": 1, "dog": 12, "fox": 2, "hen": 5, "owl": 1}
    zoo = made(tmp_path / "zoo", {name: pictures(name, count) for name, count in counts.items()})
    assert all(right(zoo, name) > 0.9 for name in BASE)
    assert [row.photos for row in zoo.classes] == list(counts.values())
    assert "unknown" in labels(zoo, "yak")


def test_a_store_may_be_made_in_an_empty_folder_and_where_there_is_none(tmp_path):
    (tmp_path / "empty").mkdir()
    few = {name: pictures(name, 2) for name in ("cat", "dog")}
    assert made(tmp_path / "empty", few).version == 1
    assert made(tmp_path / "new" / "place", few).version == 1


# what a prediction says


@pytest.mark.promise
def test_a_prediction_says_what_how_sure_what_else_and_by_which_version(zoo):
    zoo.learn({"okapi": pictures("okapi", 4)})
    cat, okapi = zoo.predict([picture("cat", NEW), picture("okapi", NEW)], top=3)
    assert isinstance(cat, Prediction)
    assert (cat.label, cat.unknown, cat.novel, cat.version, cat.photo) == ("cat", False, False, 2, "picture 1")
    assert (okapi.label, okapi.unknown, okapi.novel, okapi.photo) == ("okapi", False, True, "picture 2")
    for found in (cat, okapi):
        assert len(found.top) == 3
        assert found.top[0] == (found.label, found.score)
        scores = [score for _, score in found.top]
        assert scores == sorted(scores, reverse=True)
        assert {name for name, _ in found.top} <= {*BASE, "okapi"}
        assert all(type(name) is str and type(score) is float for name, score in found.top)


def test_guesses_are_those_of_predict_proba_and_as_many_as_asked_for(zoo):
    photos = new_photos("cat", "yak", count=3)
    table = zoo.predict_proba(photos)
    for top, given in ((1, 1), (2, 2), (5, 5), (99, 5)):
        for row, found in zip(table, zoo.predict(photos, top=top), strict=True):
            assert len(found.top) == given
            order = np.argsort(-row, kind="stable")[:given]
            assert [name for name, _ in found.top] == list(zoo.classes_[order])
            np.testing.assert_allclose([score for _, score in found.top], row[order], atol=1e-6)


def test_an_unknown_photo_keeps_its_best_guesses(zoo):
    (found,) = zoo.predict(picture("yak", NEW))
    assert (found.label, found.unknown) == ("unknown", True)
    assert found.top[0][0] in BASE
    assert found.score == found.top[0][1]


def test_probabilities_are_a_row_a_photo_and_a_column_a_class(zoo):
    zoo.learn({"okapi": pictures("okapi", 3)})
    table = probabilities(zoo)
    assert table.shape == (7 * 2, 6)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table.sum(1), 1, rtol=1e-5)
    assert zoo.classes_.tolist() == [*BASE, "okapi"] == names(zoo)
    assert zoo.classes_.dtype.kind == "U"
    assert zoo.classes_[table.argmax(1)][:12].tolist() == [name for name in zoo.classes_ for _ in range(2)]


def test_no_photos_have_no_predictions(zoo):
    assert zoo.predict([]) == []
    assert zoo.predict_proba([]).shape == (0, 5)


def test_photos_to_predict_come_in_any_form(zoo, tmp_path):
    files = write_class(tmp_path / "photos" / "cat", 3, first=NEW)
    arrays = pictures("cat", 3, first=NEW)
    table = zoo.predict_proba(arrays)
    several = [
        tmp_path / "photos",
        str(tmp_path / "photos" / "cat"),
        f"{tmp_path}/photos/*/*.png",
        files,
        tuple(map(str, files)),
        np.stack(arrays),
        np.stack(arrays) / 255,
        [path.read_bytes() for path in files],
        [Image.open(path) for path in files],
        iter(arrays),
    ]
    for form in several:
        np.testing.assert_allclose(zoo.predict_proba(form), table, atol=1e-5)
    single = [files[0], str(files[0]), files[0].read_bytes(), Image.open(files[0]), arrays[0], arrays[:1]]
    for form in single:
        (found,) = zoo.predict(form)
        assert (found.label, found.photo) == (
            "cat",
            str(files[0]) if isinstance(form, str | os.PathLike) else "picture 1",
        )


def test_predictions_name_the_files_in_the_order_in_which_they_were_given(zoo, tmp_path):
    files = write_class(tmp_path / "dog", 3, first=NEW) + write_class(tmp_path / "cat", 40, first=NEW)
    found = zoo.predict(files, unknown_rate=0)
    assert [item.photo for item in found] == [str(path) for path in files]
    assert [item.label for item in found] == ["dog"] * 3 + ["cat"] * 40


def test_what_cannot_be_read_is_an_error_or_passes_through_the_stream(zoo, tmp_path):
    (tmp_path / "text.jpg").write_text("no picture")
    photos = [picture("cat", NEW), tmp_path / "text.jpg", picture("dog", NEW)]
    for method in (zoo.predict, zoo.predict_proba):
        with pytest.raises(BrokenPicture, match=r"text.jpg cannot be read as a picture"):
            method(photos)
    first, broken, last = zoo.stream(photos, unknown_rate=0)
    assert (first.label, last.label) == ("cat", "dog")
    assert isinstance(broken, BrokenPicture)
    with pytest.raises(ConcmError, match=r"no picture at .*gone.jpg"):
        zoo.predict(tmp_path / "gone.jpg")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConcmError, match=r"no pictures in .*empty"):
        zoo.predict(tmp_path / "empty")


# unknown


def test_photos_of_a_class_never_taught_are_unknown_until_it_is_taught(zoo):
    strangers = ("yak", "elk", "gnu")
    assert labels(zoo, *strangers) == ["unknown"] * 18
    zoo.learn({"yak": pictures("yak", 4)})
    assert labels(zoo, "elk", "gnu") == ["unknown"] * 12
    assert labels(zoo, "yak").count("yak") >= 4
    zoo.undo()
    assert labels(zoo, "yak") == ["unknown"] * 6


def test_at_rate_0_nothing_is_unknown_and_the_larger_the_rate_the_more(zoo):
    photos = new_photos(*BASE, "yak", "elk", count=12)
    shares = []
    for rate in (0, 0.01, 0.05, 0.2, 0.6, 0.99):
        found = zoo.predict(photos, unknown_rate=rate)
        assert all(item.unknown == (item.label == "unknown") for item in found)
        shares.append(sum(item.unknown for item in found))
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] > 60


def test_the_rate_changes_no_guess(zoo):
    photos = new_photos("cat", "yak")
    strict, lenient = (zoo.predict(photos, unknown_rate=rate) for rate in (0.9, 0))
    assert [item.top for item in strict] == [item.top for item in lenient]


@pytest.mark.parametrize("rate", [-0.01, 1, 1.5, 5, float("nan")])
def test_a_rate_that_is_no_share_is_refused(zoo, rate):
    with pytest.raises(Misuse, match="unknown rate"):
        zoo.predict(picture("cat"), unknown_rate=rate)


@pytest.mark.parametrize("rate", [-0.01, 1, 1.5, 5, float("nan")])
def test_an_evaluation_at_a_rate_that_is_no_share_is_refused(zoo, rate):
    with pytest.raises(Misuse, match="unknown rate"):
        zoo.evaluate({"cat": new_photos("cat")}, unknown_rate=rate)
    assert zoo.store.evaluations() == []


@pytest.mark.parametrize("top", [0, -1])
def test_no_guess_at_all_is_refused(zoo, top):
    with pytest.raises(Misuse, match="at least one guess"):
        zoo.predict(picture("cat"), top=top)


# learning


def test_new_classes_are_learned_and_old_ones_are_not_forgotten(zoo):
    zoo.learn({"okapi": pictures("okapi", 3)})
    zoo.learn({name: pictures(name, 4) for name in ("yak", "elk")})
    assert names(zoo) == [*BASE, "okapi", "yak", "elk"]
    assert [(row.base, row.photos, row.added) for row in zoo.classes][5:] == [
        (False, 3, 2),
        (False, 4, 3),
        (False, 4, 3),
    ]
    for name in names(zoo):
        assert right(zoo, name) > 0.9


@pytest.mark.parametrize("form", FORMS)
def test_classes_are_learned_the_same_however_the_photos_are_given(zoo, tmp_path, form):
    reference = opened(shutil.copytree(zoo.path, tmp_path / "reference"))
    root = tmp_path / "photos"
    write_world(root, ("elk", "gnu", "yak"), 4)
    reference.learn({name: pictures(name, 4) for name in ("elk", "gnu", "yak")})
    zoo.learn(FORMS[form](root))
    assert everything(zoo).tensors == everything(reference).tensors


def test_one_photo_is_enough(zoo):
    zoo.learn({"okapi": picture("okapi")})
    assert right(zoo, "okapi") > 0.9
    assert zoo.classes[-1].photos == 1
    assert all(right(zoo, name) > 0.9 for name in BASE)


def test_more_photos_of_a_novel_class_improve_it_and_it_keeps_its_place(zoo):
    zoo.learn({"okapi": pictures("yak", 3), "elk": pictures("elk", 3)})  # taught wrongly
    assert right(zoo, "okapi") < 0.5
    zoo.learn({"okapi": pictures("okapi", 12)})
    assert right(zoo, "okapi") > 0.9
    assert names(zoo) == [*BASE, "okapi", "elk"]
    assert (zoo.classes[5].photos, zoo.classes[5].added) == (15, 2)
    assert right(zoo, "elk") > 0.9


def test_more_photos_of_a_base_class_improve_it_and_it_keeps_its_place(tmp_path):
    wrong = base_photos() | {"dog": pictures("yak", 3)}
    zoo = made(tmp_path / "zoo", wrong)
    assert right(zoo, "dog") < 0.7
    zoo.learn({"dog": pictures("dog", 15)})
    assert right(zoo, "dog") > 0.9
    assert names(zoo) == list(BASE)
    assert (zoo.classes[1].base, zoo.classes[1].photos, zoo.classes[1].added) == (True, 18, 1)
    assert not zoo.predict(picture("dog", NEW))[0].novel


def test_a_class_that_got_its_photos_in_two_parts_is_as_one_that_got_them_at_once(zoo):
    zoo.learn({"okapi": pictures("okapi", 2)})
    zoo.learn({"okapi": pictures("okapi", 3, first=2)})
    parts = zoo.store.state()[0]
    zoo.undo()
    zoo.undo()
    zoo.learn({"okapi": pictures("okapi", 5)})
    whole = zoo.store.state()[0]
    for name in ("mean", "std", "counts", "exemplars"):
        torch.testing.assert_close(parts[f"engine.memory.{name}"], whole[f"engine.memory.{name}"])


def test_new_classes_and_more_photos_of_known_ones_are_one_version(zoo):
    zoo.learn({"okapi": pictures("okapi", 2)})
    zoo.learn(
        {
            "yak": pictures("yak", 3),
            "cat": pictures("cat", 2, first=20),
            "okapi": pictures("okapi", 2, first=20),
            "elk": pictures("elk", 1),
        }
    )
    assert zoo.version == 3
    assert names(zoo) == [*BASE, "okapi", "yak", "elk"]
    assert {row.name: row.photos for row in zoo.classes} == dict.fromkeys(BASE, COUNT) | {
        "cat": COUNT + 2,
        "okapi": 4,
        "yak": 3,
        "elk": 1,
    }
    assert zoo.classes_.tolist() == names(zoo)
    assert all(right(zoo, name) > 0.9 for name in names(zoo))


def test_labels_are_any_strings_and_spaces_around_them_do_not_count(zoo):
    strange = ["été 2024", "日本", "o'neil; DROP TABLE", "cat ", "[bold]x", "7"]
    zoo.learn({name: pictures(name, 2) for name in strange if name != "cat "} | {"cat ": pictures("cat", 1, first=30)})
    assert names(zoo) == [*BASE, *(name for name in strange if name != "cat ")]
    assert labels(zoo, "日本", unknown_rate=0, count=2) == ["日本"] * 2
    zoo.forget("o'neil; DROP TABLE")
    assert len(zoo.classes) == 9


def test_learning_is_remembered_in_history(zoo):
    zoo.learn({"okapi": pictures("okapi", 3), "cat": pictures("cat", 2, first=20)})
    zoo.learn({f"class {at}": pictures(f"class {at}", 1) for at in range(7)})
    zoo.forget("class 3")
    assert [(line.version, line.action, line.classes, line.photos) for line in zoo.history] == [
        (1, "fit", 5, 40),
        (2, "learn", 6, 45),
        (3, "learn", 13, 52),
        (4, "forget", 12, 51),
    ]
    assert [line.detail for line in zoo.history] == [
        "cat (8), dog (8), fox (8), hen (8), owl (8)",
        "okapi (3), cat (2)",
        "class 0 (1), class 1 (1), class 2 (1), class 3 (1) and 3 more",
        "class 3",
    ]


# forgetting and stepping back


@pytest.mark.parametrize("name", ["cat", "owl", "okapi"])
def test_forgetting_and_undoing_it_is_as_if_nothing_had_been(zoo, name):
    zoo.learn({"okapi": pictures("okapi", 3), "yak": pictures("yak", 3)})
    before, table = everything(zoo), probabilities(zoo)
    zoo.forget(name)
    assert name not in zoo.classes_
    assert probabilities(zoo).shape[1] == 6
    assert name not in labels(zoo, name, unknown_rate=0)
    assert zoo.undo().version == 2
    assert everything(zoo) == before
    np.testing.assert_array_equal(probabilities(zoo), table)


@pytest.mark.parametrize("reopen", [False, True])
def test_undo_goes_back_through_all_that_was_done(zoo, reopen):
    steps = [everything(zoo)]
    tables = [probabilities(zoo)]
    for change in (
        lambda: zoo.learn({"okapi": pictures("okapi", 2)}),
        lambda: zoo.learn({"okapi": pictures("okapi", 2, first=9), "cat": pictures("cat", 1, first=9)}),
        lambda: zoo.forget("dog"),
        lambda: zoo.learn({"dog": pictures("dog", 3)}),
    ):
        change()
        steps.append(everything(zoo))
        tables.append(probabilities(zoo))
    for at in reversed(range(4)):
        zoo.undo()
        zoo = opened(zoo.path) if reopen else zoo
        assert everything(zoo) == steps[at]
        np.testing.assert_array_equal(probabilities(zoo), tables[at])
    with pytest.raises(ConcmError, match="nothing to undo"):
        zoo.undo()


def test_the_others_are_still_known_when_one_is_forgotten(zoo):
    zoo.learn({"okapi": pictures("okapi", 3)})
    zoo.forget("dog")
    zoo.forget("okapi")
    assert names(zoo) == ["cat", "fox", "hen", "owl"]
    assert all(right(zoo, name) > 0.9 for name in names(zoo))
    assert labels(zoo, "okapi") == ["unknown"] * 6


def test_a_forgotten_class_can_be_taught_again_from_the_same_photos(zoo):
    zoo.forget("dog")
    zoo.learn({"dog": pictures("dog", COUNT)})
    assert names(zoo) == ["cat", "fox", "hen", "owl", "dog"]
    assert not zoo.classes[-1].base
    assert right(zoo, "dog") > 0.9


def test_photos_of_a_forgotten_class_may_be_taught_as_another(zoo):
    zoo.forget("dog")
    zoo.learn({"wolf": pictures("dog", 3)})
    assert labels(zoo, "dog", unknown_rate=0) == ["wolf"] * 6
    zoo.undo()
    zoo.undo()
    assert labels(zoo, "dog", unknown_rate=0) == ["dog"] * 6


# from disk


def test_what_is_opened_again_predicts_the_same_bit_for_bit(zoo):
    zoo.learn({"okapi": pictures("okapi", 3), "cat": pictures("cat", 1, first=20)})
    again = opened(zoo.path)
    np.testing.assert_array_equal(probabilities(again), probabilities(zoo))
    assert again.predict(new_photos("cat", "yak")) == zoo.predict(new_photos("cat", "yak"))
    assert everything(again) == everything(zoo)


def test_what_is_opened_again_goes_on_as_if_it_had_never_been_closed(zoo, tmp_path):
    path = shutil.copytree(zoo.path, tmp_path / "closed")
    steps = [
        lambda zoo: zoo.learn({"okapi": pictures("okapi", 3)}),
        lambda zoo: zoo.learn({"yak": pictures("yak", 2), "cat": pictures("cat", 2, first=20)}),
        lambda zoo: zoo.forget("fox"),
        lambda zoo: zoo.undo(),
        lambda zoo: zoo.learn({"elk": pictures("elk", 1), "okapi": pictures("okapi", 1, first=20)}),
    ]
    for step in steps:
        step(zoo)
        step(opened(path))
    assert everything(opened(path)) == everything(zoo)
    np.testing.assert_array_equal(probabilities(opened(path)), probabilities(zoo))


def test_a_store_can_be_moved_and_copied(zoo, tmp_path):
    table = probabilities(zoo)
    zoo.store.close()
    shutil.move(zoo.path, tmp_path / "elsewhere")
    np.testing.assert_array_equal(probabilities(opened(tmp_path / "elsewhere")), table)


def test_the_metric_is_written_once(zoo):
    zoo.learn({"okapi": pictures("okapi", 2)})
    states = zoo.path / "states"
    assert {file.name for file in states.iterdir()} == {"1.safetensors", "2.safetensors", "lasting.safetensors"}
    assert set(load_tensors(states / "lasting.safetensors", "concm-state-1")[0]) == {"engine.metric.matrix"}
    assert "engine.metric.matrix" not in load_tensors(states / "2.safetensors", "concm-state-1")[0]


def test_the_generator_of_the_process_is_neither_used_nor_moved(zoo):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    zoo.learn({"okapi": pictures("okapi", 2)})
    zoo.predict(picture("cat"))
    zoo.forget("cat")
    assert torch.equal(torch.random.get_rng_state(), before)


# names that mean something

MEANT = Settings(
    base_steps=5, steps=5, hidden=32, calibration=CalibrationSettings(steps=5, hidden=16, attention=8, shots=2)
)


@pytest.fixture(scope="module")
def meant(tmp_path_factory) -> Path:
    """A store whose prototypes are completed by attributes of their names."""
    root = tmp_path_factory.mktemp("meant")
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(root / "cache"))
        zoo = made(root / "zoo", base_photos(4), settings=MEANT)
        zoo.learn({"okapi": pictures("okapi", 2)})
        zoo.store.close()
    return root / "zoo"


def test_a_store_with_attributes_comes_back_and_goes_on_the_same(meant, tmp_path):
    one, other = (opened(shutil.copytree(meant, tmp_path / name)) for name in ("one", "other"))
    np.testing.assert_array_equal(probabilities(one), probabilities(other))
    one.learn({"tiger": pictures("tiger", 2)})
    one.learn({"horse": pictures("horse", 1), "okapi": pictures("okapi", 1, first=20)})
    other.learn({"tiger": pictures("tiger", 2)})
    again = opened(other.path)
    again.learn({"horse": pictures("horse", 1), "okapi": pictures("okapi", 1, first=20)})
    assert everything(again) == everything(one)
    assert all(right(one, name) > 0.9 for name in names(one))
    one.undo()
    other.undo()
    np.testing.assert_array_equal(probabilities(one), probabilities(other))


def test_a_name_without_attributes_is_learned_with_a_remark(meant, tmp_path):
    zoo = opened(shutil.copytree(meant, tmp_path / "zoo"))
    zoo.learn({"xyblorvquux": pictures("xyblorvquux", 2)})
    assert zoo.remarks == ["'xyblorvquux' has no attributes here: its prototype is not calibrated"]
    assert right(zoo, "xyblorvquux") > 0.9
    zoo.learn({"tiger": pictures("tiger", 2)})
    assert zoo.remarks == []


def test_predicting_and_stepping_back_look_up_no_name(meant, tmp_path, monkeypatch):
    zoo = opened(shutil.copytree(meant, tmp_path / "zoo"))

    def looked_up(*_names, **_how) -> None:
        raise AssertionError("WordNet was asked")

    monkeypatch.setattr(Semantics, "of_names", looked_up)
    assert right(zoo, "okapi") > 0.9
    zoo.undo()
    zoo.forget("dog")
    assert right(zoo, "cat") > 0.9
    with pytest.raises(AssertionError, match="WordNet"):
        zoo.learn({"tiger": pictures("tiger", 1)})


# evaluation


def test_an_evaluations_figures_are_those_of_its_predictions(zoo, tmp_path):
    zoo.learn({"okapi": pictures("okapi", 1), "emu": pictures("cat", 2, first=60)})  # an emu that looks like a cat
    photos = write_world(tmp_path / "test", (*BASE, "okapi", "emu", "yak", "elk"), 9, first=NEW)
    result = zoo.evaluate(tmp_path / "test", unknown_rate=0.2)
    found = [(name, item) for name in photos for item in zoo.predict(photos[name], unknown_rate=0.2)]
    known = [(name, item) for name, item in found if name in names(zoo)]
    strange = [item for name, item in found if name not in names(zoo)]

    def per_cent(answers) -> float:
        answers = list(answers)
        return 100 * sum(answers) / len(answers)

    assert isinstance(result, Evaluation)
    assert (result.version, result.photos, result.classes, result.strangers) == (2, 63, 7, 18)
    assert result.unknown_rate == 20
    best = [(name, item.top[0][0], item) for name, item in known]
    assert result.acc == pytest.approx(per_cent(name == guess for name, guess, _ in best))
    base = per_cent(name == guess for name, guess, _ in best if name in BASE)
    novel = per_cent(name == guess for name, guess, _ in best if name not in BASE)
    assert (result.acc_base, result.acc_novel) == pytest.approx((base, novel))
    assert result.hm == pytest.approx(2 * base * novel / (base + novel))
    assert result.acc < 100
    assert result.refused == pytest.approx(per_cent(item.unknown for _, item in known))
    assert result.false_accept == pytest.approx(per_cent(not item.unknown for item in strange))
    assert result.auroc > 90
    assert result.by_class == {
        name: (sum(guess == name for own, guess, _ in best if own == name), 9) for name in names(zoo)
    }
    mean = 100 * sum(item.score for _, item in known) / len(known)
    assert result.ece >= abs(mean - result.acc) - 1e-6  # the gap of the whole is at most the sum of its parts'


def test_an_evaluation_is_kept_with_its_version_and_goes_with_it(zoo, tmp_path):
    photos = {"cat": new_photos("cat"), "yak": new_photos("yak")}
    write_world(tmp_path / "test", ("cat", "dog"), 3, first=NEW)
    first = zoo.evaluate(photos)
    zoo.learn({"yak": pictures("yak", 3)})
    second = zoo.evaluate(tmp_path / "test")
    assert (first.strangers, second.strangers) == (6, 0)
    rows = opened(zoo.path).store.evaluations()
    assert [(row.version, row.source) for row in rows] == [(1, "photos in memory"), (2, str(tmp_path / "test"))]
    assert [from_json(Evaluation, row.result) for row in rows] == [first, second]
    zoo.undo()
    assert [row.version for row in zoo.store.evaluations()] == [1]


def test_figures_that_cannot_be_kept_are_given_all_the_same(zoo):
    photos = {"cat": [*new_photos("cat"), b"no picture"], "dog": new_photos("dog")}
    other = opened(zoo.path, wait=0)
    with zoo.store.writing():
        unkept = other.evaluate(photos, broken="skip")
    assert [remark.partition(":")[0] for remark in other.remarks] == ["skipped", "the figures were not kept"]
    assert "being changed by another" in other.remarks[1]
    assert zoo.store.evaluations() == []
    assert other.evaluate(photos, broken="skip") == unkept
    assert len(other.remarks) == len(zoo.store.evaluations()) == 1


def test_a_folder_whose_name_is_no_text_can_be_evaluated(zoo, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9t\xe9"))
    write_world(odd, ("cat", "dog"), 2, first=NEW)
    assert zoo.evaluate(odd).photos == 4


def test_an_evaluation_changes_nothing_that_is_known(zoo):
    before = everything(zoo)
    zoo.evaluate({"cat": new_photos("cat"), "yak": new_photos("yak")})
    assert everything(zoo) == before


def test_photos_may_be_evaluated_that_were_taught_or_are_there_twice(zoo):
    result = zoo.evaluate({"cat": [picture("cat"), picture("cat")], "dog": [picture("dog"), picture("cat")]})
    assert result.by_class == {"cat": (2, 2), "dog": (1, 2)}


def test_an_evaluation_of_strangers_alone_is_refused(zoo):
    with pytest.raises(ConcmError, match="none of these photos is of a known class"):
        zoo.evaluate({"yak": new_photos("yak")})


def test_broken_photos_are_refused_in_an_evaluation_or_skipped(zoo):
    photos = {"cat": [*new_photos("cat"), b"no picture"]}
    with pytest.raises(ConcmError, match="picture 7 cannot be read"):
        zoo.evaluate(photos)
    assert zoo.evaluate(photos, broken="skip").photos == 6
    assert len(zoo.remarks) == 1


# several at once


def test_what_one_learns_another_sees_at_once(zoo):
    other = opened(zoo.path)
    assert other.predict(picture("okapi", NEW))[0].unknown
    zoo.learn({"okapi": pictures("okapi", 3)})
    (found,) = other.predict(picture("okapi", NEW))
    assert (found.label, found.version) == ("okapi", 2)
    other.learn({"yak": pictures("yak", 3)})
    assert names(zoo) == names(other) == [*BASE, "okapi", "yak"]
    np.testing.assert_array_equal(probabilities(zoo), probabilities(other))
    zoo.undo()
    assert other.predict(picture("yak", NEW))[0].unknown
    assert other.version == 2


def test_a_stream_goes_by_the_newest_version_as_it_goes(zoo):
    found = zoo.stream([picture("okapi", NEW)] * 70)
    assert next(found).version == 1
    opened(zoo.path).learn({"okapi": pictures("okapi", 3)})
    assert [(item.label, item.version) for item in found] == [("okapi", 2)] * 69


def test_what_another_process_fitted_is_used(fitted, tmp_path):
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE)
    with pytest.raises(Misuse, match=r"no store at .* yet: fit it with two classes or more first"):
        zoo.predict(picture("cat"))
    program = f"""
from concm.classifier.classifier import Classifier
from concm.engine.settings import Settings
from tests.support.photographs import BACKBONE, pictures
settings = Settings(calibrate=False, base_steps={QUICK.base_steps}, steps={QUICK.steps}, hidden={QUICK.hidden})
zoo = Classifier({str(tmp_path / "zoo")!r}, BACKBONE, device="cpu")
zoo.fit({{name: pictures(name, {COUNT}) for name in {BASE}}}, settings=settings)
zoo.learn({{"okapi": pictures("okapi", 3)}})
"""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)
    assert zoo.predict(picture("okapi", NEW))[0].label == "okapi"
    assert [line.action for line in zoo.history] == ["fit", "learn"]
    reference = opened(shutil.copytree(fitted, tmp_path / "reference")).learn({"okapi": pictures("okapi", 3)})
    np.testing.assert_allclose(probabilities(zoo), probabilities(reference), atol=1e-3)


def test_of_two_that_fit_the_same_folder_the_second_is_refused(tmp_path):
    one, other = (opened(tmp_path / "zoo", backbone=BACKBONE) for _ in range(2))
    one.fit(base_photos(2), settings=QUICK)
    before = everything(one)
    with pytest.raises(ConcmError, match="already"):
        other.fit(base_photos(3), settings=QUICK)
    assert everything(one) == before
    assert other.predict(picture("cat", NEW), unknown_rate=0)[0].label == "cat"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_of_two_that_make_the_store_at_the_same_time_the_second_is_refused(tmp_path, monkeypatch, moment):
    one, other = (opened(tmp_path / "zoo", backbone=BACKBONE) for _ in range(2))
    create = Store.create

    def meanwhile(*how) -> Store:
        monkeypatch.setattr(Store, "create", create)
        made = [create(*how)] if moment == "after" else []
        other.fit({name: pictures(name, 2) for name in ("yak", "elk", "gnu")}, settings=QUICK)
        return made[0] if made else create(*how)

    monkeypatch.setattr(Store, "create", meanwhile)
    with pytest.raises(ConcmError):
        one.fit(base_photos(2), settings=QUICK)
    for zoo in (one, other, opened(tmp_path / "zoo")):
        assert names(zoo) == ["yak", "elk", "gnu"]
        assert labels(zoo, "elk", unknown_rate=0) == ["elk"] * 6
    one.learn({"okapi": pictures("okapi", 2)})
    assert names(other) == ["yak", "elk", "gnu", "okapi"]


def test_while_one_thread_learns_others_predict_by_whole_versions(zoo, tmp_path):
    photos = new_photos("cat", "okapi", "yak", count=2)
    lessons = [{name: pictures(name, 2)} for name in ("okapi", "yak", "elk", "gnu")]
    reference = opened(shutil.copytree(zoo.path, tmp_path / "reference"))
    expected = {1: reference.predict(photos)}
    for lesson in lessons:
        reference.learn(lesson)
        expected[reference.version] = reference.predict(photos)
    over, found, failures = threading.Event(), [], []
    begun = threading.Semaphore(0)

    def watch(own: Classifier) -> None:
        try:
            while not over.is_set():
                found.extend(zip(range(len(photos)), own.predict(photos), strict=True))
                begun.release()
        except BaseException as error:
            failures.append(error)
            begun.release()

    watchers = [threading.Thread(target=watch, args=(own,)) for own in (zoo, opened(zoo.path))]
    for watcher in watchers:
        watcher.start()
    try:
        for lesson in lessons:
            for _ in range(2):
                begun.acquire()
            zoo.learn(lesson)
    finally:
        over.set()
        for watcher in watchers:
            watcher.join()
    assert not failures
    found += enumerate(zoo.predict(photos))
    assert {item.version for _, item in found} >= {1, 5}
    assert all(item == expected[item.version][at] for at, item in found)


def test_who_comes_second_waits_is_told_and_gives_up_in_a_sentence(zoo):
    told = []
    other = opened(zoo.path, wait=0, waiting=lambda: told.append("wait"))
    changes = [
        lambda: other.learn({"okapi": pictures("okapi", 2)}),
        lambda: other.forget("cat"),
        lambda: other.undo(),
    ]
    with zoo.store.writing():
        for change in changes:
            with pytest.raises(ConcmError, match="being changed by another; try again later"):
                change()
        assert other.predict(picture("cat", NEW))[0].label == "cat"
    assert told == ["wait"] * 3
    changes[0]()
    assert names(other)[-1] == "okapi"


def test_what_was_learned_meanwhile_counts_for_who_waited(zoo):
    other = opened(zoo.path)
    probabilities(other)  # so that it has a version in mind
    zoo.learn({"okapi": pictures("okapi", 3)})
    with pytest.raises(Misuse, match="already known as a photo of 'okapi'"):
        other.learn({"giraffe": pictures("okapi", 1)})
    other.learn({"okapi": pictures("okapi", 1, first=20)})
    assert [row.photos for row in zoo.classes] == [COUNT] * 5 + [4]


# the backbone


def other_weights() -> TinyBackbone:
    return TinyBackbone(seed=1)


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
        opened(zoo.path, backbone=f"{__name__}:other_weights")
    assert everything(zoo) == before
    assert opened(zoo.path, backbone=BACKBONE).predict(picture("cat", NEW))[0].label == "cat"


def test_a_backbone_whose_weights_changed_is_refused(zoo, monkeypatch):
    monkeypatch.setattr(photographs, "tiny_backbone", other_weights)
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
    zoo = opened(tmp_path / "zoo", backbone=f"{__name__}:other_weights")
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


def test_a_ready_made_backbone_is_not_copied(zoo):
    assert not (zoo.path / "backbone.safetensors").exists()
    assert zoo.store.meta["backbone"] == BACKBONE


def test_photos_that_a_trained_backbone_saw_are_judged_by_figures_from_elsewhere(tmp_path):
    file = trained(tmp_path / "backbone.safetensors")
    zoo = opened(tmp_path / "zoo", backbone=f"{BACKBONE}@{file}").fit(base_photos(1), settings=QUICK)
    assert zoo.remarks == []
    assert zoo.predict(picture("yak", NEW), unknown_rate=0.9)[0].unknown


# what cannot be taught


def animation() -> bytes:
    file = io.BytesIO()
    frames = [Image.fromarray(picture("cat", at)) for at in range(3)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def cut_jpeg() -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture("okapi")).save(file, "JPEG")
    return file.getvalue()[: file.tell() // 2]


BROKEN = {
    "text.jpg": lambda: b"this is no picture",
    "empty.png": lambda: b"",
    "cut.jpg": cut_jpeg,
    "huge.png": lambda: huge_png(30_000),
    "moving.gif": animation,
}


def refused(zoo: Classifier, action, words: str, kind: type[ConcmError] = ConcmError) -> str:
    """What the sentence says; nothing was changed, and everything still works."""
    before, table = everything(zoo), probabilities(zoo)
    files = sorted(str(file) for file in zoo.path.rglob("*") if "store.db-" not in file.name)
    with pytest.raises(kind, match=words) as caught:
        action()
    assert everything(zoo) == everything(opened(zoo.path)) == before
    assert sorted(str(file) for file in zoo.path.rglob("*") if "store.db-" not in file.name) == files
    np.testing.assert_array_equal(probabilities(zoo), table)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def used(zoo) -> Classifier:
    """One whose lock file is there already."""
    return zoo.learn({"okapi": pictures("okapi", 2)})


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_photo_is_refused_by_its_file_name(used, tmp_path, name):
    files = write_class(tmp_path / "yak", 2)
    (tmp_path / "yak" / name).write_bytes(BROKEN[name]())
    said = refused(used, lambda: used.learn({"yak": tmp_path / "yak"}), rf"{tmp_path}/yak/{name} ")
    assert re.search("; remove it, or .*skip", said)
    used.learn({"yak": files})
    assert right(used, "yak") > 0.9


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_photo_is_refused_when_fitting_and_no_store_is_made(tmp_path, name):
    write_world(tmp_path / "photos", ("cat", "dog"), 2)
    (tmp_path / "photos" / "dog" / name).write_bytes(BROKEN[name]())
    with pytest.raises(ConcmError, match=rf"dog/{name} .*; remove it, or .*skip"):
        made(tmp_path / "zoo", tmp_path / "photos")
    assert not (tmp_path / "zoo").exists()


def test_broken_photos_are_skipped_with_remarks(used, tmp_path):
    write_world(tmp_path / "photos", ("yak", "elk"), 3)
    for name, content in BROKEN.items():
        (tmp_path / "photos" / "yak" / name).write_bytes(content())
    used.learn(tmp_path / "photos", broken="skip")
    assert [remark.split()[1] for remark in used.remarks] == [
        f"{tmp_path}/photos/yak/{name}" for name in sorted(BROKEN)
    ]
    assert all(remark.startswith("skipped: ") for remark in used.remarks)
    assert [row.photos for row in used.classes][-2:] == [3, 3]
    assert right(used, "yak") > 0.9
    used.learn({"gnu": pictures("gnu", 1)})
    assert used.remarks == []


def test_broken_photos_are_skipped_when_fitting(fitted, tmp_path):
    photos = {name: [b"no picture", *own, b"neither"] for name, own in base_photos().items()}
    zoo = made(tmp_path / "zoo", photos, broken="skip")
    assert len(zoo.remarks) == 10
    assert everything(zoo).tensors == everything(opened(fitted)).tensors


def test_a_class_of_which_nothing_is_left_is_refused_even_if_skipping(used, tmp_path):
    photos = {"yak": pictures("yak", 2), "elk": [b"no picture", cut_jpeg()]}
    refused(used, lambda: used.learn(photos, broken="skip"), "class 'elk' has no photo left that can be used")
    again = {"okapi": pictures("okapi", 2)}
    refused(used, lambda: used.learn(again, broken="skip"), "class 'okapi' has no photo left that can be used")
    with pytest.raises(ConcmError, match="class 'elk' has no photo left"):
        made(tmp_path / "other", photos, broken="skip")
    assert not (tmp_path / "other").exists()


def test_the_same_photo_twice_in_a_class_is_refused_or_skipped(used):
    photos = {"yak": [picture("yak", 0), picture("yak", 1), picture("yak", 0)]}
    refused(used, lambda: used.learn(photos), "picture 3 is the same picture as picture 1; remove it")
    used.learn(photos, broken="skip")
    assert used.remarks == ["skipped: picture 3 is the same picture as picture 1"]
    assert used.classes[-1].photos == 2


@pytest.mark.parametrize("broken", ["refuse", "skip"])
def test_the_same_photo_in_two_classes_is_refused(used, broken):
    photos = {"yak": pictures("yak", 2), "elk": [picture("elk"), picture("yak", 1)]}
    words = r"picture 4 \(elk\) and picture 2 \(yak\) are the same picture: which is it\?"
    refused(used, lambda: used.learn(photos, broken=broken), words, Misuse)


@pytest.mark.parametrize("name", ["cat", "okapi"])
def test_a_photo_that_is_known_already_is_refused_or_skipped(used, name):
    photos = {name: [picture(name, 1), picture(name, 77)]}
    refused(used, lambda: used.learn(photos), f"picture 1 is already among the photos of '{name}'; remove it")
    count = next(row.photos for row in used.classes if row.name == name)
    used.learn(photos, broken="skip")
    assert used.remarks == [f"skipped: picture 1 is already among the photos of '{name}'"]
    assert next(row.photos for row in used.classes if row.name == name) == count + 1


@pytest.mark.parametrize("broken", ["refuse", "skip"])
@pytest.mark.parametrize("name", ["cat", "okapi"])
def test_a_photo_that_is_known_as_another_class_is_refused(used, name, broken):
    photos = {"yak": [picture("yak"), picture(name, 1)]}
    words = rf"picture 2 \(yak\) is already known as a photo of '{name}': which is it\?"
    refused(used, lambda: used.learn(photos, broken=broken), words, Misuse)


def test_a_copy_of_a_known_photo_in_another_format_is_found_out(used):
    file = io.BytesIO()
    Image.fromarray(picture("cat", 1)).save(file, "BMP")
    refused(used, lambda: used.learn({"yak": [file.getvalue()]}), "already known as a photo of 'cat'", Misuse)


BAD_NAMES = {
    "": "needs a name",
    "n" * 300: "300 characters",
    "../x": "cannot name a class",
    "unknown": "no class can be called 'unknown'",
    7: "needs a name",
}


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:12])
def test_a_name_that_cannot_name_a_class_is_refused(used, tmp_path, name):
    photos = {"yak": pictures("yak", 2), name: pictures("elk", 2)}
    refused(used, lambda: used.learn(photos), BAD_NAMES[name], Misuse)
    with pytest.raises(Misuse, match=BAD_NAMES[name]):
        made(tmp_path / "other", photos)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("form", ["folder of empty folders", "empty folder", "no folder", "no class", "no photos"])
def test_nothing_to_learn_is_refused(used, tmp_path, form):
    (tmp_path / "photos" / "yak").mkdir(parents=True)
    photos, words = {
        "folder of empty folders": (tmp_path / "photos", "no pictures in .*photos/yak"),
        "empty folder": (tmp_path / "photos" / "yak", "no class folders in"),
        "no folder": (tmp_path / "gone", "no folder at"),
        "no class": ({}, "no class was given"),
        "no photos": ({"yak": []}, "class 'yak' comes without a picture"),
    }[form]
    refused(used, lambda: used.learn(photos), words)
    with pytest.raises(ConcmError, match=words):
        made(tmp_path / "other", photos)
    assert not (tmp_path / "other").exists()


def test_one_class_alone_cannot_be_fitted(tmp_path):
    with pytest.raises(Misuse, match="fit needs two classes or more, and there is only 'cat'"):
        made(tmp_path / "zoo", {"cat": pictures("cat", 5)})
    assert not (tmp_path / "zoo").exists()


def test_before_it_is_fitted_a_sentence_says_so(tmp_path):
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE)
    for action in (
        lambda: zoo.learn({"yak": pictures("yak", 2)}),
        lambda: zoo.predict(picture("cat")),
        lambda: zoo.predict_proba(picture("cat")),
        lambda: zoo.evaluate({"cat": pictures("cat", 2)}),
        lambda: zoo.forget("cat"),
        lambda: zoo.undo(),
        lambda: zoo.export(tmp_path / "zoo.onnx"),
        lambda: zoo.version,
        lambda: zoo.classes,
        lambda: zoo.classes_,
        lambda: zoo.history,
    ):
        with pytest.raises(Misuse, match=r"no store at .*zoo yet: fit it with two classes or more first"):
            action()
    assert not (tmp_path / "zoo").exists()


def test_it_is_fitted_once(used):
    words = "is fitted already: teach it more with learn, or use another folder"
    refused(used, lambda: used.fit(base_photos(2), settings=QUICK), words, Misuse)
    refused(used, lambda: opened(used.path).fit(base_photos(2), settings=QUICK), words, Misuse)


def test_what_is_not_known_cannot_be_forgotten(used):
    refused(used, lambda: used.forget("okapy"), "no class called 'okapy'; did you mean 'okapi'?")
    refused(used, lambda: used.forget("zebra crossing"), "no class called 'zebra crossing'; it has 6 others")
    refused(used, lambda: used.forget("Cat"), "did you mean 'cat'?")


def test_two_classes_stay(tmp_path):
    zoo = made(tmp_path / "zoo", {name: pictures(name, 3) for name in ("cat", "dog")})
    zoo.learn({"fox": pictures("fox", 3)})
    zoo.forget("cat")
    refused(zoo, lambda: zoo.forget("dog"), "'dog' is one of the last two classes", Misuse)
    refused(zoo, lambda: zoo.forget("fox"), "'fox' is one of the last two classes", Misuse)
    assert [right(zoo, name) for name in ("dog", "fox")] == [1, 1]
    zoo.learn({"owl": pictures("owl", 2)})
    assert right(zoo, "owl") == 1


def test_a_base_that_was_forgotten_altogether_is_no_obstacle(tmp_path):
    zoo = made(tmp_path / "zoo", {name: pictures(name, 3) for name in ("cat", "dog")})
    zoo.learn({name: pictures(name, 3) for name in ("fox", "owl")})
    for name in ("cat", "dog"):
        zoo.forget(name)
    assert [right(zoo, name) for name in ("fox", "owl")] == [1, 1]
    zoo.learn({"hen": pictures("hen", 2), "owl": pictures("owl", 2, first=9)})
    assert [right(zoo, name) for name in ("fox", "owl", "hen")] == [1, 1, 1]
    assert all(found.novel for found in zoo.predict(new_photos("fox", "hen")))
    zoo.undo()
    zoo.undo()
    assert names(zoo) == ["dog", "fox", "owl"]


def test_a_folder_of_another_program_is_left_alone(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mother.txt").write_text("Dear mother")
    with pytest.raises(ConcmError, match="letters is not a store: the folder belongs to another program"):
        opened(tmp_path / "letters", backbone=BACKBONE)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConcmError, match="file is a file; a store is a folder"):
        opened(tmp_path / "file", backbone=BACKBONE)
    assert [file.name for file in (tmp_path / "letters").iterdir()] == ["mother.txt"]


def test_a_folder_that_another_program_filled_meanwhile_is_left_alone(tmp_path):
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mother.txt").write_text("Dear mother")
    with pytest.raises(ConcmError, match="zoo is not a store"):
        zoo.fit(base_photos(2), settings=QUICK)
    assert [file.name for file in (tmp_path / "zoo").iterdir()] == ["mother.txt"]


def test_an_export_must_say_where_to(used):
    refused(used, lambda: used.export(), "say where to", Misuse)


def test_a_gpu_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Misuse, match="device cuda, but torch sees no GPU here"):
        Classifier(tmp_path / "zoo", BACKBONE, device="cuda")
    assert Classifier(tmp_path / "zoo", BACKBONE, device="auto").device == "cpu"


# accidents

CHANGES = {
    "learn": lambda zoo: zoo.learn({"yak": pictures("yak", 2), "cat": pictures("cat", 2, first=40)}),
    "forget": lambda zoo: zoo.forget("dog"),
}


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["before", "amidst", "committing"])
def test_an_interruption_leaves_all_as_it_was(used, tmp_path, monkeypatch, change, moment):
    uninterrupted = opened(shutil.copytree(used.path, tmp_path / "uninterrupted"))
    before, table = everything(used), probabilities(used)
    with monkeypatch.context() as then:
        if moment == "before":
            for verb in ("learn", "revise", "forget"):
                then.setattr(Engine, verb, interrupted)
        elif moment == "amidst":
            then.setattr(engine_module, "descend", interrupted)
        else:
            then.setattr(store_module, "save_tensors", interrupted)
        with pytest.raises(KeyboardInterrupt):
            CHANGES[change](used)
    assert everything(used) == everything(opened(used.path)) == before
    np.testing.assert_array_equal(probabilities(used), table)
    CHANGES[change](used)
    CHANGES[change](uninterrupted)
    assert everything(used).tensors == everything(uninterrupted).tensors


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["draft", "sync", "rename"])
def test_a_full_disk_leaves_all_as_it_was(used, tmp_path, monkeypatch, change, place):
    before, table = everything(used), probabilities(used)
    states = sorted((used.path / "states").iterdir())
    with monkeypatch.context() as then:
        then.setattr(
            *{"draft": (tempfile, "mkstemp"), "sync": (os, "fsync"), "rename": (os, "replace")}[place], no_room
        )
        with pytest.raises(ConcmError, match="No space left on device"):
            CHANGES[change](used)
    assert sorted((used.path / "states").iterdir()) == states
    assert everything(used) == everything(opened(used.path)) == before
    np.testing.assert_array_equal(probabilities(used), table)
    CHANGES[change](used)
    assert used.version > before.version


@pytest.mark.parametrize("reopen", [False, True], ids=["an interruption", "a full disk, reopened"])
def test_a_fit_that_failed_can_be_made_again(fitted, tmp_path, monkeypatch, reopen):
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE)
    with monkeypatch.context() as then:
        then.setattr(os, "replace", no_room) if reopen else then.setattr(store_module, "save_tensors", interrupted)
        with pytest.raises(ConcmError if reopen else KeyboardInterrupt):
            zoo.fit(base_photos(), settings=QUICK)
    with pytest.raises(Misuse, match="fit it with two classes or more first"):
        zoo.predict(picture("cat"))
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE) if reopen else zoo
    zoo.fit(base_photos(), settings=QUICK)
    assert everything(zoo).tensors == everything(opened(fitted)).tensors
    assert [row.photos for row in zoo.classes] == [COUNT] * 5


def test_a_fit_that_failed_may_be_made_again_with_another_backbone_and_seed(tmp_path, monkeypatch):
    with monkeypatch.context() as then:
        then.setattr(store_module, "save_tensors", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "zoo", base_photos(2))
    zoo = opened(tmp_path / "zoo", backbone=f"{__name__}:other_weights", seed=3)
    zoo.fit(base_photos(2), settings=QUICK)
    assert zoo.store.meta["backbone"] == f"{__name__}:other_weights"
    assert zoo.store.meta["seed"] == 3
    assert right(opened(tmp_path / "zoo"), "cat") == 1


def test_an_interruption_while_photos_are_read_leaves_all_as_it_was(used, monkeypatch):
    before = everything(used)
    with monkeypatch.context() as then:
        then.setattr(TinyBackbone, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            used.learn({"yak": pictures("yak", 2)})
    assert everything(used) == before
    used.learn({"yak": pictures("yak", 2)})


def test_a_version_whose_state_is_damaged_is_told_and_undone(used):
    table = probabilities(used)
    used.learn({"yak": pictures("yak", 2)})
    (used.path / "states" / "3.safetensors").write_bytes(b"scratched")
    damaged = opened(used.path)
    for action in (partial(damaged.predict, picture("cat")), partial(damaged.forget, "cat")):
        with pytest.raises(ConcmError, match=r"version 3 of .*or step back with undo"):
            action()
    damaged.undo()
    np.testing.assert_array_equal(probabilities(damaged), table)


def test_a_store_is_one_for_its_readers_too(used):
    with Store.open(used.path) as store:
        assert [row.name for row in store.classes()] == names(used)
        assert store.meta["backbone"] == BACKBONE
        assert store.meta["encoder"]["transform"]["size"] == photographs.SIDE


@pytest.mark.promise
def test_a_store_cannot_make_code_run(fitted, tmp_path, monkeypatch):
    mark = tmp_path / "called"
    (tmp_path / "store_trap.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    copy = shutil.copytree(fitted, tmp_path / "zoo")
    with closing(sqlite3.connect(copy / "store.db", isolation_level=None)) as db:
        meta = json.loads(db.execute("SELECT meta FROM store").fetchone()[0])
        db.execute("UPDATE store SET meta = ?", (json.dumps({**meta, "backbone": "store_trap:build"}),))
    with pytest.raises(Misuse, match="name it yourself"):
        Classifier(copy, device="cpu").predict(picture("cat"))
    assert not mark.exists()
