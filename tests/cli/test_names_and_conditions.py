"""Commands that teach a class by its name, adapt to new conditions, and say why the store does as it does."""

from __future__ import annotations

import json
import re

from concm.classifier.rehearsal import TRUSTS
from tests.support.photographs import BACKBONE, write_world
from tests.support.shell import BASE, KNOWN, answers, classes, refusal, shown, told, unchanged
from tests.support.tiny import call, sentence

ANIMALS = ["cat", "dog", "wolf", "fox", "lion", "tiger", "horse", "cow", "sheep", "goat", "hen", "owl"]


def test_a_class_is_taught_by_its_name_and_shown_so_until_photos_come(zoo, world, capsys):
    before = shown(capsys, zoo)
    assert call("learn", zoo, "heron", "--by-name", "--json") == 0
    said = capsys.readouterr()
    line = json.loads(said.out)
    assert sentence(said.err) == "by its name, 'heron' is expected to look most like 'crane'"
    assert (line["action"], line["detail"], line["classes"], line["photos"]) == (
        "learn",
        "heron (by its name)",
        7,
        106,
    )
    assert classes(capsys, zoo)["heron"] == 0
    (row,) = (line.split() for line in told(capsys, "show", zoo).splitlines() if line.split()[:2] == ["heron", "0"])
    assert row == ["heron", "0", "3", "by", "its", "name"]
    told(capsys, "learn", zoo, world / "heron")
    assert classes(capsys, zoo)["heron"] == 5
    assert {one["label"] for one in answers(capsys, zoo, world / "asked" / "heron", "--unknown-rate", 0)} == {"heron"}
    told(capsys, "undo", zoo)
    assert classes(capsys, zoo)["heron"] == 0
    told(capsys, "undo", zoo)
    assert shown(capsys, zoo) == before


def test_a_name_that_says_nothing_or_comes_with_photos_is_refused(zoo, world, capsys):
    with unchanged(capsys, zoo):
        assert "is not related enough to any base class" in refusal(capsys, "learn", zoo, "qwxzv", "--by-name", code=2)
        assert "already" in refusal(capsys, "learn", zoo, "bear", "--by-name", code=2)
        words = ("learn", zoo, "heron", world / "heron" / "heron", "--by-name")
        assert "without photos" in refusal(capsys, *words, code=2)


def test_names_that_are_almost_known_are_asked_about_by_every_command(zoo, world, capsys):
    said = "'Bear' and 'bear' are almost the same name: use one for both, or say --similar-names keep"
    number = json.loads(told(capsys, "show", zoo, "fox", "--json"))["photos"][0]["number"]
    commands = [
        ["rename", zoo, "fox", "Bear"],
        ["move", zoo, number, "--to", "Bear"],
        ["learn", zoo, "Bear", "--by-name"],
    ]
    for words in commands:
        with unchanged(capsys, zoo):
            assert said in refusal(capsys, *words, code=2)
        assert call(*words, "--similar-names", "keep") == 0
        assert {"Bear", "bear"} <= set(classes(capsys, zoo))
        told(capsys, "undo", zoo)


def test_calibrating_changes_no_class_is_said_by_show_and_undone(zoo, world, tmp_path, capsys):
    before = shown(capsys, zoo)
    write_world(tmp_path / "photos", KNOWN, 6, first=200)
    line = json.loads(told(capsys, "calibrate", zoo, tmp_path / "photos", "--json"))
    assert (line["version"], line["action"], line["classes"], line["photos"]) == (3, "calibrate", 6, 106)
    assert shown(capsys, zoo)["classes"] == before["classes"]
    said = "probabilities and the rate of unknown were calibrated on photos of yours"
    assert said in told(capsys, "show", zoo)
    told(capsys, "undo", zoo)
    assert said not in told(capsys, "show", zoo)
    assert shown(capsys, zoo) == before


def test_calibrating_takes_enough_photos_of_known_classes(zoo, world, tmp_path, capsys):
    write_world(tmp_path / "few", BASE, 2, first=200)
    with unchanged(capsys, zoo):
        assert "takes 20 photos or more" in refusal(capsys, "calibrate", zoo, tmp_path / "few", code=2)
        assert "'heron' is none" in refusal(capsys, "calibrate", zoo, world / "asked", code=2)


def test_show_says_how_far_names_are_trusted_and_why_and_where_it_leans(world, tmp_path, capsys):
    write_world(tmp_path / "photos", ANIMALS, 10)
    told(capsys, "fit", tmp_path / "zoo", tmp_path / "photos", "--backbone", BACKBONE, "--lean", "novel")
    told(capsys, "learn", tmp_path / "zoo", world / "heron")
    tried = shown(capsys, tmp_path / "zoo")["made_with"]["rehearsal"]
    assert set(tried) == {f"{trust:g}" for trust in TRUSTS}
    text = told(capsys, "show", tmp_path / "zoo")
    chosen = re.search(
        r"names are trusted by a factor of (\S+), by a rehearsal on the base classes", " ".join(text.split())
    )
    assert tried[chosen[1]] >= tried["0.5"]
    for trust, value in tried.items():
        assert f"{value:.1f} with {trust}" in " ".join(text.split())
    assert "(lean novel), with which" in " ".join(text.split())
