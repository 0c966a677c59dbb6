"""What cannot be taught is refused, and nothing changes."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from concm.classifier.classifier import Classifier
from concm.errors import ConcmError, Misuse
from tests.support.data import huge_png
from tests.support.photographs import BACKBONE, picture, pictures, write_class, write_world
from tests.support.zoo import (
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


def test_a_place_where_no_store_can_be_made_is_found_out_before_any_photo_is_read(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConcmError, match=r"cannot make a store at .*: nothing may be written to"):
        made(tmp_path / "file" / "zoo", {"cat": [b"no photo"], "dog": [b"no photo"]})
    assert (tmp_path / "file").read_text() == "in the way"


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
    # Other photos share their batches, so features may differ by rounding.
    found, asked = zoo.predict_proba(pictures("cat", 3)), opened(fitted).predict_proba(pictures("cat", 3))
    assert list(zoo.classes_) == list(opened(fitted).classes_)
    assert abs(found - asked).max() < 1e-3


def test_a_class_of_which_nothing_is_left_is_refused_even_if_skipping(used, tmp_path):
    photos = {"yak": pictures("yak", 2), "elk": [b"no picture", cut_jpeg()]}
    refused(used, lambda: used.learn(photos, broken="skip"), "class 'elk' has no photo left that can be used")
    with pytest.raises(ConcmError, match="class 'elk' has no photo left"):
        made(tmp_path / "other", photos, broken="skip")
    assert not (tmp_path / "other").exists()


def test_the_same_photo_twice_in_a_class_counts_once(used):
    used.learn({"yak": [picture("yak", 0), picture("yak", 1), picture("yak", 0)]})
    assert used.remarks == ["picture 3 is the same picture as picture 1: it counts once"]
    assert used.classes[-1].photos == 2


@pytest.mark.parametrize("broken", ["refuse", "skip"])
def test_the_same_photo_in_two_classes_is_refused(used, broken):
    photos = {"yak": pictures("yak", 2), "elk": [picture("elk"), picture("yak", 1)]}
    words = r"picture 2 \(yak\) and picture 4 \(elk\) are the same picture: which is it\?"
    refused(used, lambda: used.learn(photos, broken=broken), words, Misuse)
    used.learn(photos, broken=broken, duplicates="skip")
    assert [(row.name, row.photos) for row in used.classes[-2:]] == [("yak", 1), ("elk", 1)]
    assert [remark.startswith("skipped: picture") for remark in used.remarks] == [True, True]


@pytest.mark.parametrize("name", ["cat", "okapi"])
def test_of_photos_that_are_partly_known_the_new_ones_are_learned(used, name):
    count = next(row.photos for row in used.classes if row.name == name)
    used.learn({name: [picture(name, 1), picture(name, 77)]})
    assert used.remarks == [f"1 of 2 photos of '{name}' are known already"]
    assert next(row.photos for row in used.classes if row.name == name) == count + 1


def test_where_nothing_is_new_nothing_changes(used):
    before = everything(used)
    used.learn({"okapi": pictures("okapi", 2), "cat": pictures("cat", 3)})
    assert everything(used) == before
    assert used.remarks[-1] == "there is nothing new to learn"


def test_known_and_new_classes_are_taught_in_one_go(used):
    used.learn({"okapi": pictures("okapi", 4), "cat": pictures("cat", 1), "yak": pictures("yak", 2)})
    assert used.history[-1].detail == "okapi (2), yak (2)"
    assert used.remarks == ["2 of 4 photos of 'okapi' are known already", "1 of 1 photos of 'cat' are known already"]


@pytest.mark.parametrize("broken", ["refuse", "skip"])
@pytest.mark.parametrize("name", ["cat", "okapi"])
def test_a_photo_that_is_known_as_another_class_is_refused(used, name, broken):
    photos = {"yak": [picture("yak"), picture(name, 1)]}
    words = rf"picture 2 \(yak\) is already known as a photo of '{name}': which is it\?"
    refused(used, lambda: used.learn(photos, broken=broken), words, Misuse)
    used.learn(photos, broken=broken, duplicates="skip")
    assert (used.classes[-1].name, used.classes[-1].photos) == ("yak", 1)
    assert used.remarks == [f"skipped: picture 2 (yak) is already known as a photo of '{name}'"]


def test_where_other_classes_claim_everything_nothing_is_learned(used):
    claimed = {"yak": pictures("cat", 2)}
    refused(used, lambda: used.learn(claimed, duplicates="skip"), "other classes claim all of these pictures")
    refused(used, lambda: used.learn(claimed, duplicates="keep"), "`duplicates` is one of refuse, skip", Misuse)


def test_a_copy_of_a_known_photo_in_another_format_is_found_out(used):
    file = io.BytesIO()
    Image.fromarray(picture("cat", 1)).save(file, "BMP")
    refused(used, lambda: used.learn({"yak": [file.getvalue()]}), "already known as a photo of 'cat'", Misuse)


BAD_NAMES = {
    "": "a class name is text",
    "n" * 300: "300 characters",
    "../x": "cannot name a class",
    "unknown": "no class can be called 'unknown'",
    7: "a class name is text",
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
    with pytest.raises(Misuse, match="`device=cuda`, but torch sees no GPU here"):
        Classifier(tmp_path / "zoo", BACKBONE, device="cuda")
    assert Classifier(tmp_path / "zoo", BACKBONE, device="auto").device == "cpu"
