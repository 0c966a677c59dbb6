"""Folders and lists of labelled photos, and what is asked about them."""

from __future__ import annotations

import csv
import shutil
import unicodedata

import pytest
from PIL import Image

from concm.classifier.folders import left_out, refuse_similar
from concm.classifier.photos import by_class, find_photos
from concm.data import formats, images
from concm.errors import ConcmError, Misuse
from tests.support.data import encoded
from tests.support.photographs import picture, pictures, write_class, write_world
from tests.support.zoo import NEW, everything, names

# any photo


@pytest.mark.parametrize(
    ("suffix", "form"), [(".jfif", "JPEG"), (".avif", "AVIF"), (".jp2", "JPEG2000"), (".JPE", "JPEG")]
)
def test_photos_of_any_kind_are_found_in_a_folder_and_answered(zoo, tmp_path, suffix, form):
    image = Image.fromarray(picture("cat", NEW)).resize((96, 96))
    (tmp_path / f"cat{suffix}").write_bytes(encoded(image, form))
    assert [found.top[0][0] for found in zoo.predict(tmp_path)] == ["cat"]


def heic(name: str) -> bytes:
    pytest.importorskip("pillow_heif", reason="the extra 'heif' is not installed")
    formats.readable()
    return encoded(Image.fromarray(picture(name, NEW)).resize((96, 96)), "HEIF", quality=95)


def test_heic_photos_are_read_where_the_package_is_there(zoo, tmp_path):
    (tmp_path / "IMG_0001.HEIC").write_bytes(heic("cat"))
    assert [found.top[0][0] for found in zoo.predict(tmp_path)] == ["cat"]


def test_without_the_package_a_heic_photo_says_what_it_needs(tmp_path, monkeypatch):
    content = heic("cat")
    others = tuple(form for form in formats.readable() if form != "HEIF")
    monkeypatch.setattr(formats, "readable", lambda: others)
    (tmp_path / "a.heic").write_bytes(content)
    for form in (content, tmp_path / "a.heic"):
        with pytest.raises(images.BrokenPicture, match="it is a HEIC photo, which needs the extra 'heif'"):
            images.decode(form, 32)
    with pytest.raises(images.BrokenPicture, match="not an image format"):
        images.decode(b"something else", 32)


def test_what_a_folder_holds_beside_photos_is_counted_and_named(zoo, tmp_path):
    root = tmp_path / "photos"
    write_world(root, ["yak"], 2)
    for name in ("clip.mov", "other.MOV", "notes.txt", "README", ".hidden", "yak/raw.dng"):
        (root / name).write_text("no photo")
    assert left_out([root]) == [
        f"left out in {root}, for they are no photos by their names: 2 .mov, 1 .dng, 1 .txt, 1 without a suffix"
    ]
    write_class(root, 3, name="loose")
    zoo.learn(root)
    assert zoo.remarks[0] == f"left out, for they lie in no class folder of {root}: 3 photos, such as 0.png"
    assert zoo.remarks[1].startswith(f"left out in {root}")
    assert left_out([root / "yak" / "0.png", "nowhere", b"bytes"]) == []
    found = zoo.predict(root, unknown_rate=0)
    assert len(found) == 5
    assert found.remarks == left_out([root])
    assert zoo.predict(sorted(root.rglob("*.png"))).remarks == []


# folders in folders


def test_folders_within_a_class_folder_are_asked_about_or_flattened(zoo, tmp_path):
    root = tmp_path / "photos"
    write_world(root / "Fruit", ["apple", "pear"], 2)
    write_world(root, ["yak"], 2)
    before = everything(zoo)
    with pytest.raises(
        ConcmError, match=r"Fruit holds folders of photos itself \(apple, pear\): .*give .*Fruit; if all"
    ):
        zoo.learn(root)
    assert everything(zoo) == before
    zoo.learn(root, nested="flatten")
    assert names(zoo)[-2:] == ["Fruit", "yak"]
    assert zoo.classes[-2].photos == 4
    with pytest.raises(Misuse, match="`nested` is one of refuse, flatten"):
        by_class(root, nested="deep")


def test_a_folder_without_photos_in_a_class_folder_is_none_of_anybodys_business(tmp_path):
    write_world(tmp_path, ["yak"], 2)
    (tmp_path / "yak" / "notes").mkdir()
    (tmp_path / "yak" / "notes" / "a.txt").write_text("")
    assert len(by_class(tmp_path)["yak"]) == 2
    assert len(find_photos([tmp_path])) == 2


# lists


def write_list(path, rows, head=("path", "label")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def test_photos_are_taught_and_measured_from_a_list(zoo, tmp_path):
    write_world(tmp_path / "photos", ["yak", "elk"], 3)
    rows = [(f"photos/{name}/{at}.png", name) for name in ("yak", "elk") for at in range(3)]
    zoo.learn(write_list(tmp_path / "list.csv", rows))
    assert zoo.history[-1].detail == "yak (3), elk (3)"
    result = zoo.evaluate(write_list(tmp_path / "test.CSV", rows, head=("path", "label")))
    assert result.photos == 6


WRONG_LISTS = {
    "another head": ("file,class\na.png,yak\n", "should begin with the line path,label"),
    "a gap": ("path,label\na.png,\n", "line 2 of .* lacks a path or a label"),
    "a short line": ("path,label\na.png\n", "line 2 of .* lacks a path or a label"),
    "no text": (b"path,label\n\xff\xfe,yak\n", "no CSV file of UTF-8 text"),
    "nothing": ("path,label\n", "no class was given"),
    "a file that is not there": ("path,label\nnowhere.png,yak\n", "no such file"),
}


@pytest.mark.parametrize("what", WRONG_LISTS)
def test_a_list_that_is_none_is_refused(zoo, tmp_path, what):
    text, words = WRONG_LISTS[what]
    (tmp_path / "list.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConcmError, match=words):
        zoo.learn(tmp_path / "list.csv")


# names


@pytest.mark.parametrize("name", ["Cat", "CAT", "cat "])
def test_a_name_that_is_almost_a_known_one_is_asked_about(zoo, name):
    before = everything(zoo)
    if name.strip() == "cat":
        zoo.learn({name: pictures("cat", 1, first=50)})
        assert names(zoo).count("cat") == 1
        return
    with pytest.raises(Misuse, match=f"'{name}' and 'cat' are almost the same name"):
        zoo.learn({name: pictures("yak", 2)})
    assert everything(zoo) == before
    zoo.learn({name: pictures("yak", 2)}, similar_names="keep")
    assert names(zoo)[-1] == name


def test_names_that_are_almost_the_same_are_asked_about_among_themselves_too(zoo):
    with pytest.raises(Misuse, match="'sea_lion' and 'sea lion' are almost the same name"):
        zoo.learn({"sea lion": pictures("yak", 2), "sea_lion": pictures("elk", 2)})
    refuse_similar(["cat", "dog"], ["cat"], "refuse")
    with pytest.raises(Misuse, match="`similar_names` is one of refuse, keep"):
        refuse_similar([], [], "ask")


@pytest.mark.parametrize("twins", [("orange", "Orange"), ("Orange", "orange")])
def test_a_name_that_is_known_exactly_is_no_question_beside_its_twin(zoo, twins):
    for name in twins:
        zoo.learn({name: pictures(name, 2)}, similar_names="keep")
    for name in twins:
        zoo.learn({name: pictures(name, 1, first=50)})
    assert [(row.name, row.photos) for row in zoo.classes][-2:] == [(name, 3) for name in twins]
    with pytest.raises(Misuse, match=f"'ORANGE' and '{twins[0]}' are almost the same name"):
        zoo.learn({"ORANGE": pictures("ORANGE", 1)})


ALMOST = {
    "move": lambda zoo, to, **how: zoo.move(zoo.photos("dog")[:2], to, **how),
    "rename": lambda zoo, to, **how: zoo.rename("dog", to, **how),
    "learn by name": lambda zoo, to, **how: zoo.learn_name(to, **how),
}


@pytest.mark.parametrize("change", ALMOST)
def test_every_change_that_makes_a_name_asks_about_one_that_is_almost_known(zoo, change, monkeypatch):
    monkeypatch.setattr("concm.engine.concm.Engine.kin", lambda engine, name: "cat")
    before = everything(zoo)
    words = "'Cat' and 'cat' are almost the same name: use one for both, or say `similar_names=\"keep\"`"
    with pytest.raises(Misuse, match=words):
        ALMOST[change](zoo, "Cat")
    assert everything(zoo) == before
    ALMOST[change](zoo, "Cat", similar_names="keep")
    assert {"cat", "Cat"} <= set(names(zoo))


def test_a_class_may_be_renamed_to_another_spelling_of_its_own_name(zoo):
    zoo.rename("cat", "Cat")
    assert names(zoo)[0] == "Cat"


def test_strangers_that_are_almost_known_are_remarked_on(zoo):
    photos = {"cat": pictures("cat", 2, first=NEW), "DOG": pictures("dog", 2, first=NEW)}
    strange = {"yak": pictures("yak", 2), "Yak": pictures("Yak", 2)}
    assert zoo.evaluate(photos | strange).strangers == 6
    assert zoo.remarks == ["photos of 'DOG' count as strangers, but 'dog' is known"]
    with pytest.raises(ConcmError, match=r"none of these photos is of a known class; .*; is 'DOG' meant to be 'dog'\?"):
        zoo.evaluate({"DOG": photos["DOG"]})
    with pytest.raises(Misuse, match=r"'DOG' is none; is it 'dog'\?"):
        zoo.calibrate(photos)


@pytest.mark.parametrize("kept", ["NFC", "NFD"])
def test_a_class_is_found_however_the_letters_of_its_name_are_composed(zoo, kept):
    """Stores of before have names as they were typed."""
    one, other = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
    zoo.learn({one: pictures("yak", 2), "tea": pictures("elk", 2)})
    if kept == "NFD":
        _spelled(zoo, one, other)
    zoo.rename("tea", "the\u0301")
    for name in (one, other):
        assert len(zoo.photos(name)) == 2
        zoo.merge(["th\u00e9"], name).undo()
        zoo.merge([name], "the\u0301").undo()
        zoo.forget(name).undo()
        zoo.rename(name, "bar").undo()
    with pytest.raises(Misuse, match="another class than"):
        zoo.merge([other], one)
    assert zoo.verify() == []


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_photos_of_a_class_are_taught_and_measured_however_its_name_is_composed(zoo, form):
    """Stores of before have names as they were typed."""
    one, other = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
    zoo.learn({one: pictures("yak", 3)})
    _spelled(zoo, one, other)
    given = unicodedata.normalize(form, one)
    zoo.learn({given: pictures("yak", 5)})
    assert zoo.remarks == [f"3 of 5 photos of '{other}' are known already"]
    assert (names(zoo)[-1], len(zoo.photos(given))) == (other, 5)
    zoo.move([zoo.photos("cat")[0]], given)
    assert (names(zoo)[-1], len(zoo.photos(given))) == (other, 6)
    result = zoo.evaluate({given: pictures("yak", 3, first=NEW), "cat": pictures("cat", 2, first=NEW)})
    assert (result.photos, result.strangers, result.by_class[other][1]) == (5, 0, 3)
    assert zoo.remarks == []
    zoo.calibrate({given: pictures("yak", 30, first=NEW)})
    assert zoo.history[-1].detail == f"{other} (30)"


def _spelled(zoo, name: str, other: str) -> None:
    """Give a class a name that is not checked."""
    with zoo.store.writing() as change:
        known = zoo._load()
        change.rename_class(name, other)
        known.engine.names[known.engine.names.index(name)] = other
        zoo._commit(change, "rename", "", known.engine, known.confidence)


# measuring


def test_what_is_confused_and_by_which_photos_is_part_of_an_evaluation(zoo, tmp_path):
    root = tmp_path / "test"
    write_world(root, ["cat", "dog"], 3, first=NEW)
    shutil.copy(root / "dog" / f"{NEW}.png", root / "cat" / "really-a-dog.png")
    result = zoo.evaluate(root)
    assert result.confused == [("cat", "dog", 1)]
    [wrong] = result.wrong
    assert (wrong.photo, wrong.truth, wrong.guess) == (str(root / "cat" / "really-a-dog.png"), "cat", "dog")
    assert 0 < wrong.score <= 1
    assert zoo.store.evaluations()[-1].result["confused"] == [["cat", "dog", 1]]
