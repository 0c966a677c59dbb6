"""The photo commands: the story from the first class to the card, and what is typed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from concm.classifier.evaluation import Evaluation
from concm.files import load_tensors
from concm.records import from_json
from tests.support.html import Page
from tests.support.photographs import BACKBONE, write_class, write_world
from tests.support.shell import (
    BASE,
    COMMANDS,
    KNOWN,
    LATER,
    answers,
    classes,
    right,
    shown,
    told,
)
from tests.support.tiny import call, sentence


def test_a_fit_says_what_it_made(world, tmp_path, capsys):
    out = json.loads(told(capsys, "fit", tmp_path / "zoo", world / "base", "--backbone", BACKBONE, "--json"))
    assert out.pop("seconds") > 0
    assert out.pop("created")
    detail = "apple (24), bear (24), crane (24), daisy (24)"
    assert out == {"version": 1, "action": "fit", "detail": detail, "classes": 4, "photos": 96, "remarks": []}
    assert classes(capsys, tmp_path / "zoo") == dict.fromkeys(BASE, 24)


def test_a_fit_is_told_how_to_read_photos_and_the_store_remembers_it(world, tmp_path, capsys):
    words = ("fit", tmp_path / "zoo", world / "base", "--backbone", BACKBONE)
    told(capsys, *words, "--looks", 2)
    made_with = shown(capsys, tmp_path / "zoo")["made_with"]["encoder"]
    assert (made_with["looks"], made_with["blocks"]) == (2, 1)
    assert [one["label"] for one in answers(capsys, tmp_path / "zoo", world / "asked" / BASE[0])] == [BASE[0]] * 4
    told(capsys, "show", tmp_path / "zoo", "--card", tmp_path / "card.md")
    assert "forward passes per picture: 2." in (tmp_path / "card.md").read_text()
    assert call("fit", tmp_path / "other", world / "base", "--backbone", BACKBONE, "--blocks", 2) == 2
    assert sentence(capsys.readouterr().err).endswith("TinyBackbone has no method `stages`")


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
    found = answers(capsys, tmp_path / "zoo", tmp_path / "photos", "--csv", tmp_path / "found.csv")
    assert [(one["label"], one["familiarity"]) for one in found] == [(name, None) for name in BASE[:2]]
    assert all(line.endswith(",False,") for line in (tmp_path / "found.csv").read_text().splitlines()[1:])
    assert "nothing will be called unknown" in " ".join(told(capsys, "show", tmp_path / "zoo").split())
    limits = card(capsys, tmp_path / "zoo", tmp_path / "card.md")["Limits"]
    assert "calls every photo one of them: these photos are too few" in limits
    assert "calls what is unlike all of them unknown" not in limits


def test_a_folder_of_folders_is_learned_in_one_version(zoo, capsys):
    found = shown(capsys, zoo)
    assert [(row["name"], row["base"], row["photos"], row["added"]) for row in found["classes"]] == [
        *((name, True, 24, 1) for name in BASE),
        *((name, False, 5, 2) for name in LATER),
    ]
    assert [(line["action"], line["detail"]) for line in found["history"]][1:] == [("learn", "eagle (5), fox (5)")]


@pytest.mark.parametrize("given", ["files", "folder", "glob", "all of them"])
def test_a_name_and_photos_teach_a_class(zoo, world, capsys, given):
    folder = world / "heron" / "heron"
    forms = {"files": sorted(folder.iterdir()), "folder": [folder], "glob": [f"{folder}/[0-9].png"]}
    words = forms.get(given) or [word for form in forms.values() for word in form]
    assert told(capsys, "learn", zoo, "heron", *words).startswith(
        "learn: heron (5); version 3, 7 classes, 111 photos ("
    )
    assert right(answers(capsys, zoo, world / "asked", "--unknown-rate", 0)) == [True] * 28


def test_more_photos_of_a_known_class_add_to_it(zoo, tmp_path, capsys):
    files = write_class(tmp_path / "more", 3, name="fox", first=50)
    out = json.loads(told(capsys, "learn", zoo, "fox", *files, "--json"))
    assert (out["version"], out["classes"], out["photos"], out["remarks"]) == (3, 6, 109, [])
    assert classes(capsys, zoo) == {**dict.fromkeys(BASE, 24), "eagle": 5, "fox": 8}
    assert [row["added"] for row in shown(capsys, zoo)["classes"]] == [1, 1, 1, 1, 2, 2]


def test_known_and_new_classes_can_come_together(zoo, tmp_path, capsys):
    write_world(tmp_path / "photos", ["apple", "gnu"], 3, first=50)
    told(capsys, "learn", zoo, tmp_path / "photos")
    assert classes(capsys, zoo) == {"apple": 27, "bear": 24, "crane": 24, "daisy": 24, "eagle": 5, "fox": 5, "gnu": 3}


def test_every_photo_is_answered_in_a_line(zoo, world, capsys):
    lines = told(capsys, "predict", zoo, world / "asked").splitlines()
    found = answers(capsys, zoo, world / "asked")
    files = sorted((world / "asked").rglob("*.png"))
    assert len(lines) == len(files) == 28
    refused = 0
    for line, file, one in zip(lines, files, found, strict=True):
        name, best = file.parent.name, one["top"][0][0]
        assert name in ("heron", best)
        assert one["unknown"] or name != "heron"
        refused += one["unknown"] and name != "heron"
        share = f"{100 * one['familiarity']:.0f} % of known photos are as strange"
        strange = f"{file}: unknown (unlike what is known: {share}; most like {best})"
        assert line == strange if one["unknown"] else line.startswith(f"{file}: {name} {one['score']:.2f} (then ")
    assert refused <= 5  # of 24, where one is expected, by a rate that about twenty held-out photos tell


def test_every_answer_is_an_object_in_a_line_of_json(zoo, world, capsys):
    found = answers(capsys, zoo, world / "asked" / "bear", f"{world}/asked/heron/*.png", "--top", 4)
    files = [f"{world}/asked/{name}/{number}.png" for name in ("bear", "heron") for number in range(100, 104)]
    assert [one["photo"] for one in found] == files
    assert [(one["label"], one["unknown"]) for one in found] == [("bear", False)] * 4 + [("unknown", True)] * 4
    for one in found:
        assert one.keys() == {"label", "score", "top", "unknown", "novel", "version", "photo", "familiarity"}
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
        *([name, "24", "1", "base"] for name in BASE),
        *([name, "5", "2", "later"] for name in LATER),
    ]
    assert lines[7].startswith("names are trusted by a factor of ")
    assert lines[8].startswith("scores of new classes are lifted by ")
    assert rows[9][0] == "version"
    assert [row[:1] + row[3:] for row in rows[10:]] == [
        ["1", "fit", "4", "96", "apple", "(24),", "bear", "(24),", "crane", "(24),", "daisy", "(24)"],
        ["2", "learn", "6", "106", "eagle", "(5),", "fox", "(5)"],
    ]


def test_what_a_store_knows_is_shown_as_json(zoo, capsys):
    found = shown(capsys, zoo)
    assert found.keys() == {"store", "version", "made_with", "classes", "history", "evaluations"}
    assert (found["store"], found["version"], found["evaluations"]) == (str(zoo), 2, [])
    assert found["made_with"].keys() == {"backbone", "encoder", "seed", "concm", "file", "rehearsal", "licence"}
    assert found["made_with"]["backbone"] == BACKBONE
    assert [(line["version"], line["classes"], line["photos"]) for line in found["history"]] == [
        (1, 4, 96),
        (2, 6, 106),
    ]


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
        *(f"| {name} | 24 | 1 | base |" for name in BASE),
        *(f"| {name} | 5 | 2 | later |" for name in LATER),
    ]
    assert "| learn | eagle (5), fox (5) | 6 | 106 |" in found["Versions"]
    assert "calls what is unlike all of them unknown" in found["Limits"]


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


def test_figures_of_photos_that_were_taught_say_so_wherever_they_are_shown(zoo, world, tmp_path, capsys):
    assert call("evaluate", zoo, world / "later", "--html", tmp_path / "page.html") == 0
    said = capsys.readouterr()
    assert "concm: 10 of 10 photos were taught: " in said.err
    assert "taught, so no test of it           10 of 10 photos" in said.out
    assert "| taught, so no test of it | 10 of 10 photos |" in card(capsys, zoo, tmp_path / "card.md")["Evaluation"]
    assert "10 of 10 photos" in (tmp_path / "page.html").read_text()


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
    assert told(capsys, "forget", zoo, "bear").startswith("forget: bear; version 3, 5 classes, 82 photos (")
    names = {name for one in answers(capsys, zoo, world / "asked", "--top", 9) for name, _ in one["top"]}
    assert names == set(KNOWN) - {"bear"}
    assert told(capsys, "undo", zoo) == "back at version 2: 6 classes, 106 photos\n"
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
        tensors, meta = load_tensors(path, "concm-structure-2")
        assert meta["labels"] == labels
        assert len(tensors["prototypes"]) == len(labels)
    assert list(file.parent.iterdir()) == [file]


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
    assert classes(capsys, zoo)["bear"] == 25


def test_a_file_name_that_is_no_text_is_answered(zoo, no_text, capsys):
    assert json.loads(told(capsys, "predict", zoo, no_text, "--json"))["label"] == "bear"
    assert ".png: bear " in told(capsys, "predict", zoo, no_text)


def test_a_store_is_verified_and_backed_up(zoo, tmp_path, capsys):
    assert told(capsys, "verify", zoo).startswith(f"{zoo} is sound: 2 versions, 6 classes")
    assert told(capsys, "backup", zoo, tmp_path / "copy") == f"wrote {tmp_path / 'copy'}, version 2\n"
    assert shown(capsys, tmp_path / "copy")["history"] == shown(capsys, zoo)["history"]
    (zoo / "states" / "2.safetensors").write_bytes(b"damaged")
    capsys.readouterr()
    assert call("verify", zoo) == 1
    assert "is damaged, in places: 1" in capsys.readouterr().err
    told(capsys, "undo", zoo)
    assert "is sound" in told(capsys, "verify", zoo)


def test_corrections_are_typed_as_commands_and_undone(zoo, capsys):
    listed = json.loads(told(capsys, "show", zoo, "fox", "--json"))["photos"]
    assert [row["photo"] for row in listed] == [f"{at}.png" for at in range(5)]
    assert "fox" in told(capsys, "show", zoo, "fox")
    assert told(capsys, "remove", zoo, "fox/0.png", listed[1]["number"]).startswith("remove: fox (2); version 3")
    assert told(capsys, "move", zoo, "fox/2.png", "--to", "gnu").startswith(
        "move: fox (1) to gnu; version 4, 7 classes"
    )
    assert told(capsys, "rename", zoo, "gnu", "wildebeest").startswith("rename: gnu to wildebeest; version 5")
    line = json.loads(told(capsys, "merge", zoo, "wildebeest", "eagle", "--into", "fox", "--json"))
    assert (line["action"], line["detail"], line["photos"]) == ("merge", "wildebeest, eagle into fox", 4 * 24 + 8)
    assert classes(capsys, zoo)["fox"] == 8
    for _ in range(4):
        assert call("undo", zoo) == 0
    assert classes(capsys, zoo)["fox"] == 5


def test_answers_wrong_photos_and_the_confusion_matrix_are_written_as_tables(zoo, world, tmp_path, capsys):
    said = told(capsys, "predict", zoo, world / "asked" / "bear", "--csv", tmp_path / "answers.csv")
    rows = (tmp_path / "answers.csv").read_text().splitlines()
    assert rows[0] == "path,label,guess,score,unknown,familiarity"
    assert len(rows) == 1 + len(said.splitlines())
    assert rows[1].startswith(f"{world}/asked/bear/100.png,bear,bear,")
    shutil.copytree(world / "asked", tmp_path / "test")
    shutil.copy(tmp_path / "test" / "bear" / "100.png", tmp_path / "test" / "fox" / "bear.png")
    tables = ("--wrong", tmp_path / "wrong.csv", "--confusion", tmp_path / "confusion.csv")
    assert "most often taken: fox for bear (1)" in told(capsys, "evaluate", zoo, tmp_path / "test", *tables)
    assert (tmp_path / "wrong.csv").read_text().splitlines()[1].startswith(f"{tmp_path}/test/fox/bear.png,fox,bear,")
    table = [row.split(",") for row in (tmp_path / "confusion.csv").read_text().splitlines()]
    assert table[0] == ["label", *KNOWN]
    assert table[1 + KNOWN.index("fox")] == ["fox", "0", "1", "0", "0", "0", "4"]


def test_what_is_no_photo_in_a_folder_is_said_by_predict(zoo, world, tmp_path, capsys):
    folder = shutil.copytree(world / "asked" / "bear", tmp_path / "mixed")
    (folder / "clip.mov").write_text("no photo")
    assert call("predict", zoo, folder) == 0
    assert capsys.readouterr().err.endswith(f"left out in {folder}, for they are no photos by their names: 1 .mov\n")


def test_a_list_of_photos_is_taught(zoo, world, tmp_path, capsys):
    rows = [f"{world}/heron/heron/{at}.png,heron" for at in range(5)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    assert told(capsys, "learn", zoo, tmp_path / "list.csv").startswith("learn: heron (5); version 3")


def test_an_evaluation_is_written_as_a_page_with_the_wrong_photos(zoo, world, tmp_path, capsys):
    shutil.copytree(world / "asked", tmp_path / "test")
    shutil.copy(tmp_path / "test" / "bear" / "100.png", tmp_path / "test" / "fox" / "bear.png")
    told(capsys, "evaluate", zoo, tmp_path / "test", "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert page.text["h1"] == ["zoo, measured"]
    assert [card.split()[1] for card in page.cards] == ["wrong"]
    assert "bear.png" in page.cards[0]


def test_a_zip_is_taught_asked_and_measured(zoo, world, tmp_path, capsys):
    later, asked = (shutil.make_archive(str(tmp_path / name), "zip", world / name, ".") for name in ("heron", "asked"))
    assert told(capsys, "learn", zoo, later).startswith("learn: heron (5); version 3")
    assert len(told(capsys, "predict", zoo, asked).splitlines()) == 4 * 7
    assert json.loads(told(capsys, "evaluate", zoo, asked, "--json", "--html", tmp_path / "a.html"))["photos"] == 4 * 7
