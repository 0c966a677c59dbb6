"""Learning, forgetting and stepping back, and names that mean something."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from concm.classifier.lesson import Lesson
from concm.classifier.stream import Encoded
from concm.engine.calibration import CalibrationSettings
from concm.engine.settings import Settings
from concm.errors import ConcmError
from concm.semantics.semantics import Semantics
from tests.support.photographs import picture, pictures, write_world
from tests.support.zoo import (
    BASE,
    COUNT,
    FORMS,
    NEW,
    base_photos,
    everything,
    labels,
    made,
    names,
    opened,
    probabilities,
    right,
)

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
            "cat": pictures("cat", 2, first=40),
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
    zoo.learn({"okapi": pictures("okapi", 3), "cat": pictures("cat", 2, first=40)})
    zoo.learn({f"class {at}": pictures(f"class {at}", 1) for at in range(7)})
    zoo.forget("class 3")
    assert [(line.version, line.action, line.classes, line.photos) for line in zoo.history] == [
        (1, "fit", 5, 120),
        (2, "learn", 6, 125),
        (3, "learn", 13, 132),
        (4, "forget", 12, 131),
    ]
    assert [line.detail for line in zoo.history] == [
        "cat (24), dog (24), fox (24), hen (24), owl (24)",
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
    assert zoo.remarks == ["'xyblorvquux' means nothing here: its prototype comes from its images"]
    assert right(zoo, "xyblorvquux") > 0.9
    zoo.learn({"tiger": pictures("tiger", 2)})
    assert zoo.remarks == []
    zoo.learn({name: pictures(name, 2) for name in ("zxqv", "qwzrt")})
    assert zoo.remarks == ["2 names mean nothing here ('zxqv', 'qwzrt'): their prototypes come from their images"]


def test_predicting_and_stepping_back_look_up_no_name(meant, tmp_path, monkeypatch):
    zoo = opened(shutil.copytree(meant, tmp_path / "zoo"))

    def looked_up(*_names, **_how) -> None:
        raise AssertionError("WordNet was asked")

    monkeypatch.setattr(Semantics, "of_names", looked_up)
    assert right(zoo, "okapi") > 0.9
    zoo.undo()
    assert right(zoo, "cat") > 0.9
    with pytest.raises(AssertionError, match="WordNet"):
        zoo.learn({"tiger": pictures("tiger", 1)})


def test_photos_of_one_name_in_two_spellings_are_one_class():
    one, other = (Encoded(name, name, b"", torch.zeros(2)) for name in ("one.jpg", "other.jpg"))
    composed = "caf\u00e9"
    lesson = Lesson({composed: [one], "cafe\u0301": [other]}, []).spelled([composed])
    assert lesson.photos == {composed: [one, other]}
