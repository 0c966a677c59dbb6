"""Photos as people give them: the same pixels however they come, names that can be shown, and files that are found."""

from __future__ import annotations

import io
import os
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from concm.classifier.photos import LONGEST_NAME, THUMBNAIL, Photo, by_class, called, checked_name, find_photos
from concm.data.images import BrokenPicture
from concm.errors import ConcmError, Misuse
from tests.support.data import noise, write_class_folders, write_picture
from tests.support.photographs import BACKBONE
from tests.support.zoo import opened

RED = (255, 0, 0)
small_pictures = arrays(np.uint8, (4, 4, 3))


def png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def read(picture, side: int = 8) -> Photo:
    return Photo.read(picture, side, "holiday")


# reading


@pytest.mark.promise
@pytest.mark.parametrize("given_as", [str, Path, Path.read_bytes, Image.open, np.asarray])
def test_a_picture_has_the_same_pixels_however_it_is_given(tmp_path, given_as):
    pixels = write_picture(tmp_path / "a.png")
    picture = pixels if given_as is np.asarray else given_as(tmp_path / "a.png")
    photo = read(picture)
    np.testing.assert_array_equal(photo.pixels, pixels)
    assert photo.name == "holiday"


@pytest.mark.parametrize("given_as", [str, Path, Path.read_bytes, Image.open, np.asarray])
def test_the_central_square_of_any_picture_is_kept(tmp_path, given_as):
    wide = np.concatenate([noise(0), noise(1), noise(2)], axis=1)
    (tmp_path / "a.png").write_bytes(png(wide))
    picture = wide if given_as is np.asarray else given_as(tmp_path / "a.png")
    np.testing.assert_array_equal(read(picture).pixels, noise(1))


def test_a_grey_array_has_its_level_in_all_three_colours():
    grey = noise(0)[..., 0]
    for picture in (grey, grey[..., None], np.dstack([grey] * 3), Image.fromarray(grey)):
        np.testing.assert_array_equal(read(picture).pixels, np.dstack([grey] * 3))


def test_an_array_with_alpha_lies_over_white():
    pixels = noise(0)
    opaque, clear = (np.dstack([pixels, np.full((8, 8), alpha, np.uint8)]) for alpha in (255, 0))
    np.testing.assert_array_equal(read(opaque).pixels, pixels)
    assert (read(clear).pixels == 255).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_are_the_same_picture_as_their_bytes(dtype, channels):
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(channels, 2)
    floats = (levels / 255).astype(dtype)
    np.testing.assert_array_equal(read(floats, 16).pixels, read(levels, 16).pixels)


def test_floats_between_two_levels_become_the_nearer():
    levels = np.array([[0.4, 0.6], [126.7, 254.9]])
    np.testing.assert_array_equal(read(levels / 255, 2).pixels[..., 0], [[0, 1], [127, 255]])


def test_an_array_need_not_lie_in_one_piece_and_is_left_as_it_was():
    pixels = noise(0, 16, 16)
    before = pixels.copy()
    np.testing.assert_array_equal(read(pixels[::2, ::-2]).pixels, np.ascontiguousarray(pixels[::2, ::-2]))
    np.testing.assert_array_equal(pixels, before)


def test_an_open_jpeg_is_left_as_it_was():
    file = io.BytesIO()
    Image.fromarray(noise(0, 256, 256)).save(file, "JPEG")
    image = Image.open(file)
    read(image)
    assert image.size == (256, 256)


@given(small_pictures)
def test_equal_pixels_have_equal_digests_however_they_are_given(pixels):
    forms = [pixels, pixels.astype(np.float32) / 255, Image.fromarray(pixels), png(pixels)]
    assert len({Photo.read(form, 4, str(at)).digest for at, form in enumerate(forms)}) == 1


@given(small_pictures, st.tuples(*[st.integers(0, size - 1) for size in (4, 4, 3)]), st.integers(1, 255))
def test_a_change_of_one_pixel_changes_the_digest(pixels, place, change):
    other = pixels.copy()
    other[place] ^= np.uint8(change)
    assert read(other, 4).digest != read(pixels, 4).digest


@pytest.mark.parametrize(
    "shape", [(), (8,), (8, 8, 2), (8, 8, 5), (3, 8, 8), (1, 8, 8, 3), (0, 8), (8, 0, 3), (0, 0, 4), (0,), (8, 8, 0)]
)
def test_an_array_of_another_shape_is_refused_by_name(shape):
    with pytest.raises(BrokenPicture, match=r"^holiday has the shape \(") as caught:
        read(np.zeros(shape, np.uint8))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.int8, bool, complex, object, "U1"])
def test_an_array_of_another_type_is_refused_by_name(dtype):
    with pytest.raises(
        BrokenPicture, match=r"^holiday is of .*; an array should be of uint8, or of floats from 0 to 1"
    ):
        read(np.zeros((8, 8, 3), dtype))


@pytest.mark.parametrize("wrong", [-0.01, 1.01, 255.0, np.nan, np.inf, -np.inf])
def test_floats_beyond_0_and_1_are_refused_by_name(wrong):
    pixels = np.full((8, 8, 3), 0.5)
    pixels[3, 4, 1] = wrong
    with pytest.raises(BrokenPicture, match=r"^holiday .*floats from 0 to 1"):
        read(pixels)


@pytest.mark.parametrize("content", [b"", b"hello", png(noise(0))[:60]], ids=["empty", "text", "truncated"])
@pytest.mark.parametrize("given_as", ["file", "bytes"])
def test_what_is_no_picture_is_refused_by_the_name_it_was_given(tmp_path, content, given_as):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(BrokenPicture, match=r"^holiday cannot be read as a picture"):
        read(content if given_as == "bytes" else tmp_path / "a.png")


@pytest.mark.parametrize("given_as", [str, Path])
def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path, given_as):
    with pytest.raises(BrokenPicture, match=r"^holiday .*no such file"):
        read(given_as(tmp_path / "gone.jpg"))
    with pytest.raises(BrokenPicture, match=r"^holiday cannot be read"):
        read(given_as(tmp_path))


@pytest.mark.parametrize("size", [(0, 8), (8, 0), (0, 0)])
def test_an_image_without_a_pixel_is_refused_by_name(size):
    with pytest.raises(BrokenPicture, match=r"^holiday "):
        read(Image.new("RGB", size))


@pytest.mark.parametrize("side", [8, 128, 300])
def test_a_thumbnail_is_a_small_jpeg_of_the_picture(side):
    data = read(Image.new("RGB", (side, side), RED), side).thumbnail()
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == ("JPEG", (THUMBNAIL, THUMBNAIL))
        np.testing.assert_allclose(np.asarray(image).reshape(-1, 3).mean(0), RED, atol=4)
    assert len(read(noise(0, side, side), side).thumbnail()) < 25_000


def test_a_picture_is_called_by_its_path_or_its_place(tmp_path):
    assert called("photos/a.png", 3) == "photos/a.png"
    assert called(tmp_path / "a.png", 3) == str(tmp_path / "a.png")
    for picture in (b"", noise(0), Image.new("RGB", (8, 8))):
        assert called(picture, 0) == "picture 1"
        assert called(picture, 6) == "picture 7"


# names


printable = st.characters(exclude_categories=("C", "Z"), exclude_characters="/\\") | st.just(" ")
good_names = (
    st.text(printable, min_size=1, max_size=LONGEST_NAME)
    .map(lambda name: unicodedata.normalize("NFC", name).strip())
    .filter(lambda name: 0 < len(name) <= LONGEST_NAME and not name.startswith(".") and name.lower() != "unknown")
)


@given(good_names)
def test_a_printable_name_is_taken_as_it_is(name):
    assert checked_name(name) == name


@given(good_names, st.text(" \t\n\u00a0\u3000"), st.text(" \t\n\u00a0\u3000"))
def test_blanks_around_a_name_are_taken_away(name, before, after):
    assert checked_name(before + name + after) == name


@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u00a0", None, 7, b"dog", ["dog"], ("dog",)])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(Misuse, match="a class name is text"):
        checked_name(name)


@pytest.mark.parametrize("letter", ["n", "é", "字", "🦒"])
def test_a_name_has_at_most_100_characters(letter):
    assert LONGEST_NAME == 100
    assert checked_name(f" {letter * 100} ") == letter * 100
    for length in (101, 300):
        with pytest.raises(Misuse, match=f"{letter * 20}'… has {length} characters; at most 100"):
            checked_name(letter * length)


@pytest.mark.parametrize(
    "name",
    ["a/b", "/", "a\\b", "../x", "..", ".", ".hidden", " .hidden", "a\0b", "a\nb", "a\x1b[31mb", "a\u202eb", "\x7f"],
)
def test_a_name_that_cannot_be_a_folder_or_be_shown_is_refused(name):
    with pytest.raises(Misuse, match="cannot name a class") as caught:
        checked_name(name)
    assert str(caught.value).isprintable()


@given(good_names, st.characters(categories=("Cc", "Cf", "Cs", "Zl", "Zp")) | st.sampled_from("/\\"), st.data())
def test_a_slash_or_control_character_anywhere_inside_is_refused(name, letter, data):
    name = name[: LONGEST_NAME - 3]
    at = data.draw(st.integers(0, len(name)))
    with pytest.raises(Misuse):
        checked_name(f"x{name[:at]}{letter}{name[at:]}x")


@pytest.mark.parametrize("name", ["unknown", "Unknown", "UNKNOWN", " unKnown\t"])
def test_no_class_can_be_called_unknown(name):
    with pytest.raises(Misuse, match=f"no class can be called '{name.strip()}'"):
        checked_name(name)


def test_a_name_may_have_the_word_unknown_in_it():
    assert checked_name("unknown soldier") == "unknown soldier"


# finding


def write_all(root: Path, *names: str) -> list[Path]:
    for seed, name in enumerate(names):
        write_picture(root / name, seed)
    return [root / name for name in names]


@pytest.mark.parametrize("form", [str, Path])
def test_files_are_found_in_the_order_they_are_given(tmp_path, form):
    a, b, c = write_all(tmp_path, "a.png", "b.png", "c.png")
    assert find_photos([form(b), form(c), form(a)]) == [b, c, a]


def test_a_file_is_taken_whatever_it_is_called(tmp_path):
    odd = write_all(tmp_path, "picture", ".hidden.png", "photo.dat", "[1].png", "what?*.png")
    assert find_photos(odd) == odd


@pytest.mark.parametrize("form", [str, Path])
def test_a_folder_gives_all_its_pictures_and_those_below_in_order(tmp_path, form):
    expected = write_all(tmp_path, "a.png", "b.JPG", "c.webp", "sub/a.png", "sub/deep/er/a.gif", "tub/a.jpeg")
    for other in ("notes.txt", "sub/list.csv", "raw.nef", "png"):
        (tmp_path / other).write_text("no picture")
    assert find_photos([form(tmp_path)]) == expected


def test_hidden_files_in_a_folder_are_left_alone(tmp_path):
    seen, *_ = write_all(tmp_path, "a.png", ".b.png", "._a.png")
    assert find_photos([tmp_path]) == [seen]


def test_hidden_folders_in_a_folder_are_left_alone(tmp_path):
    seen, *_ = write_all(tmp_path, "a.png", ".ipynb_checkpoints/a.png", ".thumbnails/deep/b.png")
    assert find_photos([tmp_path]) == [seen]


def test_globs_give_the_files_they_match_in_order(tmp_path):
    a, b, deep = write_all(tmp_path, "a.png", "b.png", "sub/c.png")
    (tmp_path / "notes.txt").write_text("no picture")
    write_all(tmp_path, ".hidden.png")
    assert find_photos([f"{tmp_path}/*.png"]) == [a, b]
    assert find_photos([tmp_path / "[b-z].png"]) == [b]
    assert find_photos([f"{tmp_path}/**/*.png"]) == [a, b, deep]
    assert find_photos([f"{tmp_path}/s*/?.png"]) == [deep]
    assert find_photos([f"{tmp_path}/[as]*"]) == [a]  # the folder that matches is no file


def test_a_picture_that_is_meant_twice_is_found_once_in_its_first_place(tmp_path, monkeypatch):
    a, b, c = write_all(tmp_path, "a.png", "b.png", "c.png")
    assert find_photos([c, tmp_path, f"{tmp_path}/*.png", str(b)]) == [c, a, b]
    monkeypatch.chdir(tmp_path)
    assert find_photos(["a.png", "./a.png"]) == [Path("a.png")]


def test_copies_are_not_repetitions(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        write_picture(path, seed=0)
    assert find_photos([tmp_path]) == paths


def test_nothing_asked_for_is_nothing_found():
    assert find_photos([]) == []


@pytest.mark.parametrize("word", ["gone.png", "gone/", "*.png", "**/*.jpg", "a.jpeg/b.png", "gone\0.png", "g" * 300])
def test_what_is_missing_is_named_in_a_sentence(tmp_path, word):
    write_picture(tmp_path / "a.jpeg")
    with pytest.raises(
        ConcmError, match=f"^no picture {'matches' if '*' in word else 'at'} {re.escape(str(tmp_path / word))}"
    ):
        find_photos([tmp_path / "a.jpeg", f"{tmp_path}/{word}"])


def test_a_folder_without_pictures_is_named_with_what_is_read(tmp_path):
    (tmp_path / "notes.txt").write_text("no picture")
    write_picture(tmp_path / ".hidden.png")
    with pytest.raises(ConcmError, match=rf"^no pictures in {tmp_path}; these are read: .*\.jpg.*\.png"):
        find_photos([tmp_path])


# by class


@pytest.mark.parametrize("form", [str, Path])
def test_a_folder_of_class_folders_gives_its_classes_in_order(tmp_path, form):
    write_class_folders(tmp_path, {"okapi": 2, "cat": 1, "sea lion": 3})
    write_picture(tmp_path / "okapi" / "more" / "a.png")
    write_picture(tmp_path / "loose.png")
    write_picture(tmp_path / ".trash" / "a.png")
    groups = by_class(form(tmp_path), nested="flatten")
    assert list(groups) == ["cat", "okapi", "sea lion"]
    assert groups["okapi"] == [tmp_path / "okapi" / name for name in ("0.png", "1.png", "more/a.png")]
    assert [len(pictures) for pictures in groups.values()] == [1, 3, 3]


def test_a_mapping_takes_pictures_of_every_kind(tmp_path):
    write_class_folders(tmp_path, {"folder": 2})
    first, second = tmp_path / "folder" / "0.png", tmp_path / "folder" / "1.png"
    array, image, data = noise(0), Image.new("RGB", (8, 8)), first.read_bytes()
    groups = by_class(
        {
            "one file": first,
            "the same as text": str(first),
            "folder": tmp_path / "folder",
            "folder as text": str(tmp_path / "folder"),
            "glob": f"{tmp_path}/folder/*.png",
            "array": array,
            "image": image,
            "bytes": data,
            "list": [str(second), array, image, data],
            "tuple": (first, second),
            "generator": (path for path in (second, first)),
            "array of one": [array],
        }
    )
    assert {name: len(pictures) for name, pictures in groups.items()} == {
        "one file": 1,
        "the same as text": 1,
        "folder": 2,
        "folder as text": 2,
        "glob": 2,
        "array": 1,
        "image": 1,
        "bytes": 1,
        "list": 4,
        "tuple": 2,
        "generator": 2,
        "array of one": 1,
    }
    assert groups["one file"] == groups["the same as text"] == [first]
    assert groups["folder"] == groups["folder as text"] == groups["glob"] == groups["tuple"] == [first, second]
    assert groups["generator"] == [second, first]
    for name, picture in (("array", array), ("image", image), ("bytes", data), ("array of one", array)):
        assert groups[name][0] is picture
    assert [type(picture) for picture in groups["list"]] == [str, np.ndarray, Image.Image, bytes]


def test_a_mapping_keeps_its_order_and_its_names_without_blanks_around_them():
    assert list(by_class({" okapi ": b"1", "cat\n": b"2", "sea lion": b"3"})) == ["okapi", "cat", "sea lion"]


def test_a_class_that_is_given_twice_is_refused():
    with pytest.raises(Misuse, match="class 'cat' is given twice"):
        by_class({"cat": b"1", "dog": b"2", " cat": b"3"})


@pytest.mark.parametrize("name", ["unknown", "../x", "", 7])
def test_a_wrong_name_is_refused_wherever_it_stands(name):
    with pytest.raises(Misuse):
        by_class({"cat": b"1", name: b"2"})


@pytest.mark.parametrize("nothing", [[], (), {}, iter(())])
def test_a_class_without_a_picture_is_refused_by_name(nothing):
    with pytest.raises(Misuse, match="class 'dog' comes without a picture"):
        by_class({"cat": b"1", "dog": nothing})


def test_a_class_folder_without_a_picture_is_named(tmp_path):
    write_class_folders(tmp_path, {"cat": 1, "dog": 0})
    with pytest.raises(ConcmError, match=f"no pictures in {tmp_path / 'dog'}"):
        by_class(tmp_path)
    with pytest.raises(ConcmError, match=f"no pictures in {tmp_path / 'dog'}"):
        by_class({"dog": tmp_path / "dog"})


def test_no_class_at_all_is_refused():
    with pytest.raises(Misuse, match="no class was given"):
        by_class({})


def test_a_folder_of_loose_pictures_tells_how_to_teach_one_class(tmp_path):
    write_picture(tmp_path / "cat" / "0.png")
    with pytest.raises(ConcmError, match=rf"no class folders in {tmp_path}/cat: .*photos: cat {tmp_path}/cat$"):
        by_class(tmp_path / "cat", alone=True)


def test_the_hint_has_a_name_wherever_one_stands(tmp_path, monkeypatch):
    write_picture(tmp_path / "cat" / "0.png")
    monkeypatch.chdir(tmp_path / "cat")
    with pytest.raises(ConcmError, match=r"no class folders in \.: .*photos: cat \.$"):
        by_class(".", alone=True)


@pytest.mark.parametrize("inside", [None, "notes.txt", ".hidden.png", ".git/a.png"])
def test_a_folder_without_classes_or_pictures_is_told_without_that_hint(tmp_path, inside):
    if inside:
        write_picture(tmp_path / inside)
    with pytest.raises(ConcmError, match=rf"^no class folders in {tmp_path}: .* with its photos inside$"):
        by_class(tmp_path, alone=True)


@pytest.mark.parametrize("command", ["fit", "evaluate", "calibrate"])
def test_only_learning_tells_how_to_teach_one_class(few, tmp_path, command):
    write_picture(tmp_path / "cat" / "0.png")
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE) if command == "fit" else opened(few)
    with pytest.raises(ConcmError, match=rf"^no class folders in {tmp_path}/cat: .* with its photos inside$"):
        getattr(zoo, command)(tmp_path / "cat")
    with pytest.raises(ConcmError, match=rf"to teach one class, .*: cat {tmp_path}/cat$"):
        opened(few).learn(tmp_path / "cat")


@pytest.mark.parametrize("form", [str, Path])
@pytest.mark.parametrize("name", ["a.png", "gone"])
def test_a_file_or_nothing_in_place_of_the_folder_is_refused(tmp_path, form, name):
    write_picture(tmp_path / "a.png")
    with pytest.raises(Misuse, match=f"no folder at {os.path.join(tmp_path, name)}; .*one folder per class"):
        by_class(form(tmp_path / name))
