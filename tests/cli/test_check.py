"""`concm check` as people type it."""

from __future__ import annotations

import json
import shutil

from tests.support.shell import KNOWN, refusal, told, unchanged
from tests.support.tiny import call


def test_classes_and_photos_to_look_at_are_told_and_nothing_changes(zoo, world, tmp_path, capsys):
    wrong = shutil.copy(world / "asked" / "bear" / "100.png", tmp_path / "a-bear.png")
    assert call("learn", zoo, "fox", wrong) == 0
    with unchanged(capsys, zoo):
        said = told(capsys, "check", zoo)
    lines = [line.split() for line in said.splitlines()]
    assert lines[0][:4] == ["version", "3:", "6", "classes,"]
    assert {line[0] for line in lines if line} >= {*KNOWN, "a-bear.png"}
    [photo] = [line for line in lines if line and line[0] == "a-bear.png"][:1]
    assert photo[2:4] == ["fox", "bear"]
    found = json.loads(told(capsys, "check", zoo, "--json"))
    assert found["mislabelled"][0]["photo"] == "a-bear.png"
    assert [row["name"] for row in found["classes"]] == KNOWN


def test_so_many_photos_are_listed_as_are_asked_for(zoo, world, capsys):
    assert call("learn", zoo, "fox", *(world / "asked" / "bear").iterdir()) == 0
    said = told(capsys, "check", zoo, "--most", 1)
    assert "more" in said
    assert refusal(capsys, "check", zoo, "--most", 0, code=2) == "--most must be at least 1, not 0"


def test_what_is_no_store_is_refused(tmp_path, capsys):
    assert "there is no store" in refusal(capsys, "check", tmp_path / "nothing", code=2)
