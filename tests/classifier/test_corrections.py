"""Corrections: each is one version, which undo takes back exactly."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse
from tests.support.photographs import picture, pictures, write_class
from tests.support.zoo import BASE, COUNT, NEW, base_photos, everything, made, names, opened, probabilities, right


@pytest.fixture
def corrected(zoo):
    """A classifier that was also taught okapis, one of which is a yak, and yaks."""
    return zoo.learn({"okapi": [*pictures("okapi", 4), picture("yak", 50)], "yak": pictures("yak", 3)})


def counts(zoo) -> dict[str, int]:
    return {row.name: row.photos for row in zoo.classes}


def taken_back(zoo, before, table) -> None:
    zoo.undo()
    assert everything(zoo) == before
    assert np.array_equal(probabilities(zoo), table)
    assert zoo.verify() == []


CHANGES = {
    "remove": lambda zoo: zoo.remove([zoo.photos("okapi")[-1]]),
    "remove base": lambda zoo: zoo.remove([row.id for row in zoo.photos("cat")[:3]]),
    "move": lambda zoo: zoo.move([zoo.photos("okapi")[-1].id], "yak"),
    "move to a new class": lambda zoo: zoo.move([row.id for row in zoo.photos("okapi")[3:]], "gnu"),
    "move to a base class": lambda zoo: zoo.move([zoo.photos("okapi")[-1].id, zoo.photos("yak")[0].id], "cat"),
    "rename": lambda zoo: zoo.rename("okapi", "forest giraffe"),
    "rename base": lambda zoo: zoo.rename("cat", "tiger"),
    "merge": lambda zoo: zoo.merge(["okapi"], "yak"),
    "merge into base": lambda zoo: zoo.merge(["okapi", "yak", "dog"], "cat"),
    "merge base into a novel class": lambda zoo: zoo.merge(["cat", "yak"], "okapi"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_correction_is_one_version_that_undo_takes_back_exactly(corrected, change):
    before, table, total = everything(corrected), probabilities(corrected), sum(counts(corrected).values())
    CHANGES[change](corrected)
    assert corrected.version == before.version + 1
    assert corrected.history[-1].action == change.split()[0]
    gone = total - sum(counts(corrected).values())
    assert gone == {"remove": 1, "remove base": 3}.get(change, 0)
    assert corrected.history[-1].photos == total - gone
    assert corrected.verify() == []
    again = opened(corrected.path)
    assert np.array_equal(probabilities(again), probabilities(corrected))
    taken_back(corrected, before, table)


def test_removed_photos_are_gone_and_may_be_taught_again(corrected):
    wrong = corrected.photos("okapi")[-1]
    assert corrected.remove([wrong]) is corrected
    assert wrong.id not in [row.id for row in corrected.photos("okapi")]
    assert corrected.history[-1].detail == "okapi (1)"
    corrected.learn({"yak": [picture("yak", 50)]})
    assert counts(corrected)["yak"] == 4


def test_a_removed_photo_does_not_come_back_with_its_folder(zoo, tmp_path):
    folder = write_class(tmp_path / "photos" / "okapi", 4)[0].parent
    wrong = write_class(folder, 2, name="yak", first=50)
    root = folder.parent
    zoo.learn(root).remove(["50.png", "51.png"])
    before = everything(zoo)
    said = "2 of 6 photos of 'okapi' were removed from it before, and are left out: give them alone to teach them again"
    zoo.learn(root)
    assert zoo.remarks == [said, "4 of 4 photos of 'okapi' are known already", "there is nothing new to learn"]
    assert everything(zoo) == before
    write_class(folder, 1, first=90)
    zoo.learn(root)
    assert zoo.remarks[0] == said.replace("2 of 6", "2 of 7")
    assert counts(zoo)["okapi"] == 5
    zoo.learn({"okapi": wrong[:1]})
    assert zoo.remarks == []
    assert [row.label for row in zoo.photos("okapi")][-1] == "50.png"
    zoo.learn(root)
    assert zoo.remarks[:2] == [said.replace("2 of 6", "1 of 7"), "6 of 6 photos of 'okapi' are known already"]


def test_a_removed_photo_may_be_taught_as_another_class_beside_the_folder_that_it_came_from(zoo):
    photos = {"okapi": [*pictures("okapi", 3), picture("yak", 50)], "yak": [*pictures("yak", 2), picture("yak", 50)]}
    zoo.learn({"okapi": photos["okapi"]}).remove([zoo.photos("okapi")[-1]])
    zoo.learn(photos)
    zoo.learn(photos)
    assert (counts(zoo)["okapi"], counts(zoo)["yak"]) == (3, 3)


def test_a_removal_that_is_undone_or_of_a_class_that_was_forgotten_does_not_count(zoo):
    photos = {"okapi": pictures("okapi", 4)}
    zoo.learn(photos).remove([zoo.photos("okapi")[0]])
    zoo.undo()
    zoo.learn(photos)
    assert zoo.remarks[0] == "4 of 4 photos of 'okapi' are known already"
    zoo.remove([zoo.photos("okapi")[0]]).rename("okapi", "forest giraffe")
    zoo.learn({"forest giraffe": photos["okapi"]})
    assert counts(zoo)["forest giraffe"] == 3
    zoo.forget("forest giraffe").learn({"forest giraffe": photos["okapi"]})
    assert counts(zoo)["forest giraffe"] == 4


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(("name", "into"), [("cat", "okapi"), ("okapi", "cat"), ("yak", "okapi"), ("okapi", "yak")])
def test_a_removed_photo_does_not_come_back_after_a_merge(zoo, monkeypatch, name, into, pruned):
    photos = pictures("okapi", 4)
    zoo.learn({"okapi": photos, "yak": pictures("yak", 2)}).remove([zoo.photos("okapi")[0]])
    before, table = everything(zoo), probabilities(zoo)
    taken_back(zoo.merge([name], into), before, table)
    zoo.learn({"okapi": photos})
    assert counts(zoo)["okapi"] == 3
    count = zoo.merge([name], into).history[-1].photos
    if pruned:  # so that undo cannot bring it back, nor the class that it was removed from
        monkeypatch.setattr("concm.classifier.change.KEEP", 2)
        zoo.rename(into, "a").rename("a", "b").rename("b", into)
    zoo.learn({into: photos})
    assert zoo.remarks[0].startswith(f"1 of 4 photos of '{into}' were removed from it before")
    assert zoo.history[-1].photos == count
    assert zoo.verify() == []
    zoo.learn({into: photos[:1]})
    assert zoo.history[-1].photos == count + 1


def test_a_removal_from_a_class_that_was_merged_is_undone_after_the_merge(zoo):
    zoo.learn({"okapi": pictures("okapi", 4), "yak": pictures("yak", 2)})
    before, table = everything(zoo), probabilities(zoo)
    zoo.remove([zoo.photos("okapi")[0]]).merge(["okapi"], "yak").undo()
    taken_back(zoo, before, table)


def test_a_removed_photo_stays_out_when_undo_cannot_bring_it_back_any_more(zoo, monkeypatch, tmp_path):
    monkeypatch.setattr("concm.classifier.change.KEEP", 2)
    photos = {"okapi": pictures("okapi", 4)}
    gone = zoo.learn(photos).photos("okapi")[0]
    zoo.remove([gone])
    for name in ("a", "b", "c"):
        zoo.rename("okapi", name).rename(name, "okapi")
    assert zoo.store.thumbnail(gone.id) is None
    zoo.learn(photos)
    assert counts(zoo)["okapi"] == 3
    assert zoo.verify() == []
    assert opened(zoo.backup(tmp_path / "copy")).verify() == []
    with sqlite3.connect(zoo.path / "store.db") as db:
        row = db.execute("SELECT label, rows, length(features), length(thumbnail) FROM photos WHERE gone").fetchone()
    assert row == ("", 0, 0, 0)
    zoo.undo()
    assert zoo.verify() == []


def test_a_removed_photo_that_undo_would_bring_back_must_be_whole(zoo):
    gone = zoo.learn({"okapi": pictures("okapi", 4)}).photos("okapi")[0].id
    zoo.remove([gone])
    assert zoo.verify() == []
    with sqlite3.connect(zoo.path / "store.db") as db:
        nothing = "label = '', rows = 0, features = x'', thumbnail = x'', proof = NULL"
        db.execute(f"UPDATE photos SET {nothing} WHERE id = ?", (gone,))
    [said] = zoo.verify()
    assert said.startswith(f"photo {gone}: ")


def test_a_class_is_learned_again_from_the_photos_that_it_has_now(zoo):
    zoo.learn({"okapi": [*pictures("yak", 6), picture("okapi")]})
    assert right(zoo, "yak") == 0
    assert right(zoo, "okapi") < 0.8
    zoo.remove([row.id for row in zoo.photos("okapi")[:6]])
    assert right(zoo, "okapi") > 0.9


def test_moved_photos_keep_their_numbers_and_a_new_class_is_learned_from_them(corrected):
    wrong = corrected.photos("okapi")[-1]
    corrected.move([wrong.id], "yak")
    assert (wrong.id, wrong.digest) in [(row.id, row.digest) for row in corrected.photos("yak")]
    corrected.learn({"okapi": pictures("gnu", 3)})
    corrected.move([row.id for row in corrected.photos("okapi")[4:]], "gnu")
    assert counts(corrected)["gnu"] == 3
    assert right(corrected, "gnu") > 0.9
    assert corrected.history[-1].detail == "okapi (3) to gnu"


def test_a_base_class_stays_one(corrected):
    corrected.rename("cat", "tiger")
    corrected.remove([corrected.photos("tiger")[0]])
    corrected.merge(["dog"], "okapi")
    base = [row.name for row in corrected.classes if row.base]
    assert base == ["tiger", "okapi", "fox", "hen", "owl"]
    assert counts(corrected)["okapi"] == COUNT + 5
    assert [row.name for row in corrected.classes] == [*base, "yak"]


def test_a_renamed_class_keeps_its_place_and_its_answers(corrected):
    table = probabilities(corrected)
    corrected.rename("okapi", "forest giraffe")
    assert names(corrected) == [*BASE, "forest giraffe", "yak"]
    assert np.array_equal(probabilities(corrected), table)
    assert corrected.predict(picture("okapi", NEW), unknown_rate=0)[0].label == "forest giraffe"
    corrected.learn({"okapi": pictures("gnu", 2)})  # the old name is free
    assert names(corrected)[-1] == "okapi"


def test_a_new_name_brings_its_own_attributes(tmp_path):
    zoo = made(tmp_path / "zoo", base_photos(), settings=Settings(base_steps=5, steps=5, hidden=32))
    zoo.learn({"lion": pictures("lion", 3)})
    before = zoo._load().engine.memory.mean[-1]
    zoo.rename("lion", "hammer")
    assert not np.allclose(before.numpy(), zoo._load().engine.memory.mean[-1].numpy())
    zoo.learn({"tiger": pictures("tiger", 2)})
    assert names(zoo)[-2:] == ["hammer", "tiger"]


def test_merged_classes_answer_as_one(corrected):
    corrected.merge(["okapi", "yak"], "okapi")
    assert names(corrected) == [*BASE, "okapi"]
    assert counts(corrected)["okapi"] == 8
    labels = {found.label for found in corrected.predict(pictures("yak", 5, first=NEW), unknown_rate=0)}
    assert labels == {"okapi"}


def test_corrections_can_be_undone_one_after_the_other(corrected):
    steps = []
    for change in ("move to a new class", "merge base into a novel class", "rename base", "remove"):
        steps.append((everything(corrected), probabilities(corrected)))
        if change == "rename base":
            corrected.rename("fox", "vixen")
        else:
            CHANGES[change](corrected)
    corrected.forget("vixen")
    corrected.undo()
    for before, table in reversed(steps):
        taken_back(corrected, before, table)


def test_a_forgotten_class_from_which_photos_were_moved_can_come_back(corrected):
    corrected.move([corrected.photos("okapi")[-1].id], "yak")
    corrected.forget("okapi")
    corrected.undo()
    corrected.undo()
    assert counts(corrected) == dict.fromkeys(BASE, COUNT) | {"okapi": 5, "yak": 3}


def test_photos_are_named_by_file_or_class_and_file_or_number(zoo, tmp_path):
    okapi, yak = write_class(tmp_path / "okapi", 3), write_class(tmp_path / "yak", 3)
    zoo.learn({"okapi": okapi, "yak": [*yak[1:], *write_class(tmp_path / "only", 1, name="yak", first=90)]})
    with pytest.raises(Misuse, match=r"2 photos are called 1.png: number \d+ of 'okapi', number \d+ of 'yak'"):
        zoo.remove(["1.png"])
    zoo.remove([str(okapi[1])])
    zoo.remove(["90.png", "yak/2.png"])
    assert (counts(zoo)["okapi"], counts(zoo)["yak"]) == (2, 1)
    zoo.remove([str(zoo.photos("okapi")[0].id)])
    assert [row.label for row in zoo.photos("okapi")] == ["2.png"]


REFUSED = {
    "no photo": (lambda zoo: zoo.remove([]), "no photo was named"),
    "a photo that is not there": (lambda zoo: zoo.remove(["nowhere.jpg"]), "no class has a photo nowhere.jpg"),
    "a number that is not there": (lambda zoo: zoo.remove([10**6]), "no class has a photo 1000000"),
    "all photos": (lambda zoo: zoo.remove(zoo.photos("yak")), "would leave no photo of 'yak'"),
    "all photos moved": (lambda zoo: zoo.move(zoo.photos("yak"), "cat"), "would leave no photo of 'yak'"),
    "to where they are": (lambda zoo: zoo.move(zoo.photos("yak")[:1], "yak"), "these photos are of 'yak' already"),
    "to no name": (lambda zoo: zoo.move(zoo.photos("yak")[:1], "unknown"), "no class can be called"),
    "to a name that is taken": (lambda zoo: zoo.rename("yak", "cat"), "there is a class 'cat' already: merge"),
    "to its own name": (lambda zoo: zoo.rename("yak", "yak"), "'yak' is called that already"),
    "a class that is not there": (lambda zoo: zoo.rename("yack", "gnu"), "did you mean 'yak'"),
    "with itself": (lambda zoo: zoo.merge(["yak"], "yak"), "another class than 'yak' itself"),
    "into nothing": (lambda zoo: zoo.merge(["yak"], "gnu"), "no class called 'gnu'"),
    "everything": (lambda zoo: zoo.merge([*BASE, "okapi"], "yak"), "has two classes at least"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_correction_that_makes_no_sense_is_refused_and_changes_nothing(corrected, what):
    before = everything(corrected)
    wrong, words = REFUSED[what]
    with pytest.raises(ConcmError, match=words):
        wrong(corrected)
    assert everything(corrected) == before


def test_of_a_folder_what_can_be_read_is_answered_and_the_rest_is_named(zoo, tmp_path):
    folder = tmp_path / "mixed"
    write_class(folder, 3, name="cat", first=NEW)
    (folder / "notes.jpg").write_text("no picture")
    found = zoo.predict(folder)
    assert [one.label for one in found] == ["cat"] * 3
    assert [str(one).partition(" cannot")[0] for one in found.failures] == [str(folder / "notes.jpg")]
    listed = sorted(folder.iterdir())
    with pytest.raises(ConcmError, match=r"notes\.jpg cannot be read"):
        zoo.predict(listed)
    assert len(zoo.predict(listed, broken="skip")) == 3
    with pytest.raises(ConcmError, match=r"notes\.jpg cannot be read"):
        zoo.predict(folder, broken="refuse")


def test_familiarity_is_a_share_of_known_photos_and_says_why_a_photo_is_unknown(zoo):
    for found in zoo.predict([*pictures("cat", 6, first=NEW), *pictures("submarine", 6)], unknown_rate=0.1):
        assert 0 <= found.familiarity <= 1
        assert found.unknown == (found.familiarity < 0.1)
