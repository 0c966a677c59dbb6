"""What the photo commands refuse: the exit code, and the library's sentence about options. The sentences
themselves are stated where the library is tested."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from concm.classifier.store import Store
from tests.support.data import encoded, huge_png
from tests.support.photographs import BACKBONE, write_class
from tests.support.shell import (
    BASE,
    FOREIGN,
    classes,
    contents,
    refusal,
    shown,
    told,
    unchanged,
)
from tests.support.tiny import call, sentence, typed


def broken_file(kind: str) -> tuple[str, bytes, str]:
    """Its name, its content, and what is to be said of it."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    photo = encoded(Image.effect_noise((64, 64), 50), "JPEG")
    return {
        "text": ("notes.jpg", b"not a picture", "cannot be read as a picture"),
        "empty": ("empty.jpg", b"", "cannot be read as a picture"),
        "truncated": ("half.jpg", photo[: len(photo) // 2], "cannot be read as a picture"),
        "huge": ("poster.png", huge_png(30_000), "pixels"),
        "animated": ("dance.gif", encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), "has 2 frames"),
    }[kind]


KINDS = ("text", "empty", "truncated", "huge", "animated")


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_photo_among_good_ones_is_named_and_the_good_ones_are_answered(zoo, world, tmp_path, capsys, kind):
    name, content, why = broken_file(kind)
    (tmp_path / name).write_bytes(content)
    good = [world / "asked" / "bear" / "100.png", world / "asked" / "fox" / "100.png"]
    with unchanged(capsys, zoo):
        for form in ([], ["--json"]):
            assert call("predict", zoo, good[0], tmp_path / name, good[1], *form) == 1
            out, err = capsys.readouterr()
            assert [str(path) in line for path, line in zip(good, out.splitlines(), strict=True)] == [True, True]
            first, last = err.splitlines()
            assert first.startswith(f"concm: {tmp_path / name} ")
            assert why in first
            assert last == "concm: files that could not be read: 1"


@pytest.mark.slow
def test_a_shell_sees_answers_a_complaint_and_no_traceback(zoo, world, tmp_path):
    text = tmp_path / "notes.jpg"
    text.write_text("not a picture")
    done = typed("predict", zoo, text, world / "asked" / "bear" / "100.png", "--backbone", BACKBONE)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{world}/asked/bear/100.png: bear ")
    assert len(done.stdout.splitlines()) == 1
    assert [line.partition(" (")[0] for line in done.stderr.splitlines()] == [
        f"concm: {text} cannot be read as a picture",
        "concm: files that could not be read: 1",
    ]


def test_a_photo_that_another_class_has_already_is_refused_or_skipped(zoo, world, tmp_path, capsys):
    again, fresh = world / "later" / "fox" / "0.png", write_class(tmp_path / "fox", 2, first=50)
    with unchanged(capsys, zoo):
        said = refusal(capsys, "learn", zoo, "gnu", *fresh, again, code=2)
        assert f"{again} (gnu) is already known as a photo of 'fox'" in said
        assert said.endswith("can be left out with --duplicates skip")
    assert call("learn", zoo, "gnu", *fresh, again, "--duplicates", "skip") == 0
    assert sentence(capsys.readouterr().err) == f"skipped: {again} (gnu) is already known as a photo of 'fox'"
    assert classes(capsys, zoo)["gnu"] == 2


def test_of_a_folder_that_grew_only_what_is_new_is_learned(zoo, world, tmp_path, capsys):
    folder = shutil.copytree(world / "later", tmp_path / "later")
    assert call("learn", zoo, folder) == 0
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "concm: there is nothing new to learn"
    assert said.out.startswith("version 2 as before")
    write_class(folder / "fox", 2, first=50)
    assert call("learn", zoo, folder) == 0
    said = capsys.readouterr()
    assert "concm: 5 of 7 photos of 'fox' are known already" in said.err.splitlines()
    assert said.out.startswith("learn: fox (2); version 3")
    assert classes(capsys, zoo)["fox"] == 7


def test_strangers_may_be_evaluated_from_a_folder_called_unknown(zoo, world, tmp_path, capsys):
    shutil.copytree(world / "asked" / "bear", tmp_path / "photos" / "bear")
    write_class(tmp_path / "photos" / "unknown", 3, name="submarine")
    result = json.loads(told(capsys, "evaluate", zoo, tmp_path / "photos", "--json"))
    assert (result["photos"], result["strangers"]) == (4, 3)


def test_a_name_without_photos_is_refused_with_what_was_meant(zoo, world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with unchanged(capsys, zoo):
        said = refusal(capsys, "learn", zoo, "heron", code=2)
        assert "a class name and then its photos" in said
        folder = world / "heron" / "heron"
        assert f"give its name and then its photos: heron {folder}" in refusal(capsys, "learn", zoo, folder, code=1)
        sentence_of_300 = refusal(capsys, "learn", zoo, "n" * 300, code=1)
        assert "File name too long" in sentence_of_300


def test_photos_must_be_given_to_predict(zoo, capsys):
    assert "takes photos after the store" in refusal(capsys, "predict", zoo, code=2)
    assert refusal(capsys, "predict", zoo, "", code=2) == "an empty word is no photo; the current folder is `.`"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["fit", "learn", "predict", "evaluate", "show"])
def test_a_gpu_that_is_not_there_is_refused(zoo, world, tmp_path, capsys, command):
    words = {"fit": [tmp_path / "new", world / "base"], "learn": [zoo, world / "heron"], "show": [zoo]}
    with unchanged(capsys, zoo):
        said = refusal(capsys, command, *words.get(command, [zoo, world / "asked"]), "--device", "cuda", code=2)
    assert "torch sees no GPU here" in said
    assert not (tmp_path / "new").exists()


def on(store: Path, world: Path, file: Path) -> list[list[object]]:
    """Every command on this store."""
    return [
        ["fit", store, world / "base", "--backbone", BACKBONE],
        ["learn", store, world / "heron"],
        ["learn", store, "heron", world / "heron"],
        ["predict", store, world / "asked"],
        ["show", store],
        ["show", store, "--json"],
        ["show", store, "--card", file],
        ["forget", store, "bear"],
        ["undo", store],
        ["evaluate", store, world / "asked"],
        ["export", store, "--structure", file],
    ]


def test_everything_but_fit_needs_a_store(world, tmp_path, capsys):
    for words in on(tmp_path / "none", world, tmp_path / "file")[1:]:
        said = refusal(capsys, *words, code=2)
        assert said == f"there is no store at {tmp_path / 'none'} yet: fit it with two classes or more first"
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_was_made_but_not_fitted_needs_to_be(zoo, world, tmp_path, capsys):
    Store.create(tmp_path / "new", shown(capsys, zoo)["made_with"]).close()
    fit, *others = on(tmp_path / "new", world, tmp_path / "file")
    for words in others:
        assert f"no store at {tmp_path / 'new'} yet: fit it" in refusal(capsys, *words, code=2)
    assert told(capsys, *fit).startswith("fit: ")
    assert classes(capsys, tmp_path / "new") == dict.fromkeys(BASE, 24)


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_folder_of_another_program_is_left_alone(world, tmp_path, capsys, kind):
    folder = tmp_path / "theirs"
    folder.mkdir()
    FOREIGN[kind](folder)
    before = contents(folder)
    for words in on(folder, world, tmp_path / "file"):
        said = refusal(capsys, *words, code=1)
        assert str(folder) in said
        assert "belongs to another program" in said
    assert contents(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_an_export_needs_to_know_where_to(zoo, tmp_path, capsys):
    assert "say where to" in refusal(capsys, "export", zoo, code=2)
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file" / "x", tmp_path):
        for words in (["export", zoo, "--structure", place], ["show", zoo, "--card", place]):
            assert f"cannot write {place}: " in refusal(capsys, *words, code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "zoo"]
