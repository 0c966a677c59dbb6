"""Text that is hard to print: other alphabets, bytes that are none, and what a terminal would take for commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from concm.features.bank import Bank
from tests.support.data import make_bank
from tests.support.photographs import BACKBONE, write_class
from tests.support.shell import classes, refusal, told
from tests.support.tiny import call, environment, sentence, write_tiny

MARKUP = "[/bold]"
EMOJI = "\N{GOAT}"


SEVERAL = """
import sys
from concm.cli.app import main
for words in " ".join(sys.argv[1:]).split(" ; "):
    try:
        main(words.split())
    except SystemExit as end:
        if end.code:
            print(end.code, file=sys.stderr)
"""


def typed_in(locale: dict[str, str], *commands: list[object]) -> tuple[str, bytes]:
    """What commands print and complain of in a process of their own, with these settings of language and letters."""
    words = b" ; ".join(b" ".join(os.fsencode(str(word)) for word in own) for own in commands)
    surroundings = {name: value for name, value in environment().items() if name not in ("LC_ALL", "LANG")}
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, words], capture_output=True, env={**surroundings, **locale}, check=True
    )
    return done.stdout.decode(errors="replace"), done.stderr


@pytest.fixture(scope="module")
def herd(taught, tmp_path_factory) -> Path:
    """A store that knows goats, by a name that not every terminal has letters for."""
    folder = tmp_path_factory.mktemp("herd")
    assert call("learn", shutil.copytree(taught, folder / "zoo"), EMOJI, *write_class(folder / "goat", 3)) == 0
    return folder / "zoo"


@pytest.mark.slow
@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["C", "ascii", "C without Python's help"],
)
def test_a_terminal_without_letters_for_a_name_gets_its_number(herd, locale):
    said, complaints = typed_in(locale, ["show", herd], ["show", herd, "--card=-"], ["show", herd, "--json"])
    assert complaints == b""
    listed = json.loads(said[said.index("\n{") :])
    assert EMOJI in [row["name"] for row in listed["classes"]]


def test_a_name_without_a_meaning_is_said_to_have_none(zoo, tmp_path, capsys):
    assert call("learn", zoo, EMOJI, *write_class(tmp_path / "goat", 3)) == 0
    assert f"'{EMOJI}' means nothing here" in sentence(capsys.readouterr().err)


@pytest.mark.slow
def test_paths_that_are_no_text_are_used_and_shown(zoo, world, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(zoo, odd / "zoo")
    shutil.copytree(world / "asked" / "bear", odd / "photos")
    _, complaints = typed_in(
        {},
        ["predict", odd / "zoo", odd / "photos", "--backbone", BACKBONE],
        ["predict", odd / "zoo", odd / "photos", "--json", "--backbone", BACKBONE],
        ["show", odd / "zoo", "--card", odd / "card.md"],
        ["verify", odd / "zoo"],
        ["backup", odd / "zoo", odd / "copy"],
    )
    assert complaints == b""
    assert (odd / "card.md").exists()
    assert (odd / "copy" / "store.db").exists()
    _, complaints = typed_in({}, ["show", odd / "none"])
    assert complaints.startswith(b"concm: there is no store at ")
    assert complaints.endswith(b"2\n")


def test_features_of_folders_that_are_no_text_are_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CONCM_CACHE", str(tmp_path / "cache"))
    data = write_tiny(tmp_path / "data")
    odd = os.fsencode(data) + b"/train/base_0"
    os.rename(odd + b"/0.png", odd + b"/caf\xe9.png")
    words = ["features", "folder", "--data", data, "--backbone", BACKBONE, "--out", tmp_path / "bank.safetensors"]
    told(capsys, *words, "--base", 4, "--way", 1, "--shot", 5, "--image-size", 32, "--device", "cpu", "--views", 1)
    assert "base_0/caf\\xe9.png" in Bank.load(tmp_path / "bank.safetensors").base.ids


def test_a_name_is_one_class_however_its_accents_are_typed(zoo, tmp_path, capsys):
    one, other = (unicodedata.normalize(form, "\u00e9l\u00e9phant") for form in ("NFC", "NFD"))
    assert one != other
    assert call("learn", zoo, other, *write_class(tmp_path / "first", 3, name="first")) == 0
    told(capsys, "learn", zoo, one, *write_class(tmp_path / "second", 2, name="second"))
    assert classes(capsys, zoo)[one] == 5
    assert other not in classes(capsys, zoo)
    told(capsys, "forget", zoo, other)
    assert one not in classes(capsys, zoo)


@pytest.mark.parametrize("name", ["[bold]", "a [red]fox", ":fox_face:"])
def test_what_looks_like_markup_in_a_name_is_shown_as_it_is(zoo, tmp_path, capsys, name):
    told(capsys, "learn", zoo, name, *write_class(tmp_path / "photos", 3, name="fox 2"))
    assert name in told(capsys, "show", zoo)
    found = told(capsys, "predict", zoo, *write_class(tmp_path / "photos", 1, name="fox 2", first=9))
    assert name in found


def test_what_looks_like_markup_in_a_path_is_shown_as_it_is(tmp_path, capsys):
    lists = tmp_path / "[" / "bold]"
    lists.mkdir(parents=True)
    bank = make_bank()
    bank.save(tmp_path / "bank.safetensors")
    for session in range(1, bank.scenario.sessions + 1):
        ids = [
            name
            for name, label in zip(bank.novel.ids, bank.novel.labels.tolist(), strict=True)
            if label in bank.scenario.classes_of(session)
        ]
        (lists / f"session_{session + 1}.txt").write_text("\n".join(ids))
    said = told(capsys, "bank", tmp_path / "bank.safetensors", "--splits", lists)
    assert str(lists) in "".join(said.split())
    assert "[/x]" in refusal(capsys, "show", "[/x]", code=2)


def test_an_option_with_markup_is_refused_without_a_traceback(zoo, capsys):
    assert call("predict", zoo, "x.jpg", "--top", MARKUP) == 2
    assert "Traceback" not in capsys.readouterr().err


# what goes to standard output, and where errors come from


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_what_is_no_text_is_not_written_to_standard_output(zoo, tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for words in (
        ["features", "folder", "--data", tmp_path, "--backbone", BACKBONE, f"--out={name}"],
        ["export", zoo, f"--structure={name}"],
        ["export", zoo, f"--onnx={name}"],
        ["bank", f"--figure={name}"],
        ["bench", f"--figure={name}"],
        ["leaderboard", "table.json", f"--out={name}"],
    ):
        said = refusal(capsys, *words, code=2)
        assert said == f"{name} stands for standard output, which takes text alone; give the name of a file"
    assert not (tmp_path / "-").exists()


def test_debug_shows_where_an_error_came_from(zoo, capsys):
    assert call("forget", zoo, "nobody", "--debug") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("concm: ")
    assert call("--debug", "forget", zoo, "nobody") == 1
    assert capsys.readouterr().err.startswith("Traceback")
    assert call("forget", zoo, "nobody") == 1
    sentence(capsys.readouterr().err)


def test_a_bug_shows_its_traceback_in_any_case(zoo, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("concm.classifier.classifier.Classifier.undo", broken)
    with pytest.raises(ZeroDivisionError):
        call("undo", zoo)
