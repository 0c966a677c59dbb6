"""The store keeps whole versions, whatever happens to the processes that write it."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from concm.classifier import database
from concm.classifier import store as module
from concm.classifier.change import KEEP, Change
from concm.classifier.store import Store
from concm.errors import ConcmError

KILLS = int(os.environ.get("CONCM_TEST_KILLS", "8"))
META = {"backbone": "tiny", "dimension": 3}


@pytest.fixture
def store(tmp_path: Path):
    with Store.create(tmp_path / "zoo", META) as made:
        yield made


def features(seed: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


def learn(store: Store, *names: str, photos: int = 2, forget: str | None = None) -> int:
    """One version; its state says how many classes and photos there are, as the database does."""
    with store.writing() as change:
        rows = [row for row in store.classes() if row.name != forget]
        if forget is not None:
            change.remove_class(forget)
        for name in names:
            change.add_class(name, base=store.version == 0)
            for at in range(photos):
                change.add_photo(name, f"{at}.jpg", f"{name}/{at}", features(at), b"thumb")
        total = sum(row.photos for row in rows) + photos * len(names)
        meta = {"classes": len(rows) + len(names), "photos": total}
        line = change.commit("learn", ", ".join(names), {"weights": torch.full((2,), float(total))}, meta)
    return line.version


def names(store: Store) -> list[str]:
    return [row.name for row in store.classes()]


def states(store: Store) -> list[int]:
    return sorted(int(file.stem) for file in (store.path / "states").iterdir())


def agrees(store: Store) -> bool:
    """Whether the database, its history and the states tell the same story."""
    rows, line, (tensors, meta) = store.classes(), store.history()[-1], store.state()
    photos = sum(row.photos for row in rows)
    return (
        line.version == store.version
        and (len(rows), photos) == (meta["classes"], meta["photos"]) == (line.classes, line.photos)
        and photos == float(tensors["weights"][0]) == sum(len(store.photos(row.name)) for row in rows)
        and states(store) == [old.version for old in store.history()][-len(states(store)) :]
    )


@pytest.mark.promise
def test_what_was_committed_is_read_by_others(store: Store):
    assert store.version == 0
    assert learn(store, "dog", "cat") == 1
    learn(store, "okapi", photos=1)
    with Store.open(store.path) as other:
        assert other.meta == META
        assert [(row.name, row.base, row.photos, row.added) for row in other.classes()] == [
            ("dog", True, 2, 1),
            ("cat", True, 2, 1),
            ("okapi", False, 1, 2),
        ]
        first, second = other.photos("cat")
        assert (first.label, first.digest, first.thumbnail) == ("0.jpg", "cat/0", b"thumb")
        assert torch.equal(first.features, features(0))
        assert torch.equal(second.features, features(1))
        assert [(line.version, line.action, line.classes, line.photos) for line in other.history()] == [
            (1, "learn", 2, 4),
            (2, "learn", 3, 5),
        ]
        assert agrees(other)
        assert other.state(1)[1]["photos"] == 4


@pytest.mark.promise
def test_undo_brings_back_what_went_and_numbers_are_not_used_again(store: Store):
    learn(store, "dog", "cat")
    learn(store, "okapi", forget="dog")
    with store.writing() as change:
        change.add_photo("cat", "late.jpg", "late", features(7), b"")
        change.commit("learn", "one more cat", {"weights": torch.full((2,), 5.0)}, {"classes": 2, "photos": 5})
    assert agrees(store)
    assert store.undo().version == 2
    assert agrees(store)
    assert store.undo().version == store.version == 1
    assert names(store) == ["dog", "cat"]
    assert len(store.photos("dog")) == 2
    assert states(store) == [1]
    assert agrees(store)
    assert learn(store, "okapi") == 4
    assert store.undo().version == 1
    with pytest.raises(ConcmError, match="nothing to undo"):
        store.undo()
    with pytest.raises(ConcmError, match="no version 4"):
        store.state(4)


def test_a_class_can_be_replaced_in_one_change(store: Store):
    learn(store, "dog", "cat")
    learn(store, "dog", photos=5, forget="dog")
    assert [(row.name, row.photos) for row in store.classes()] == [("cat", 2), ("dog", 5)]
    store.undo()
    assert [(row.name, row.photos) for row in store.classes()] == [("dog", 2), ("cat", 2)]


@pytest.mark.promise
@pytest.mark.parametrize("leave", ["exception", "no commit"])
def test_a_change_that_is_not_committed_never_was(store: Store, leave: str):
    learn(store, "dog")
    try:
        with store.writing() as change:
            change.remove_class("dog")
            change.add_class("cat", base=False)
            if leave == "exception":
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert (names(store), store.version, states(store)) == (["dog"], 1, [1])
    assert agrees(store)
    with pytest.raises((RuntimeError, sqlite3.ProgrammingError)):
        change.add_class("cow", base=False)
    learn(store, "cat")
    assert agrees(store)


def test_a_commit_ends_the_change(store: Store):
    with store.writing() as change:
        change.commit("fit", "", {}, {})
        with pytest.raises(RuntimeError, match="over"):
            change.add_class("cat", base=False)


def _fill_up(change: Change) -> None:
    pages = change._db.execute("PRAGMA page_count").fetchone()[0]
    change._db.execute(f"PRAGMA max_page_count = {pages}")
    change.add_class("cat", base=False)
    for at in range(100):
        change.add_photo("cat", "", str(at), torch.zeros(100, 100), b"")


def test_a_commit_that_fails_leaves_the_old_version_and_no_file(store: Store, monkeypatch: pytest.MonkeyPatch):
    learn(store, "dog")
    big = {"weights": torch.zeros(2)}
    with pytest.raises(ConcmError, match="disk is full"), store.writing() as change:
        _fill_up(change)
    assert (names(store), states(store)) == (["dog"], [1])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("concm.files.os.fsync", full)
    with pytest.raises(ConcmError, match="No space left"), store.writing() as change:
        change.commit("learn", "", big, {})
    monkeypatch.undo()
    assert states(store) == [1]
    assert agrees(store)


def test_a_picture_is_known_by_its_digest(store: Store):
    learn(store, "dog")
    with store.writing() as change:
        assert change.has_photo("dog/1") == "dog"
        assert change.has_photo("cat/1") is None
        change.add_class("cat", base=False)
        change.add_photo("cat", "", "cat/1", features(0), b"")
        assert change.has_photo("cat/1") == "cat"
        change.remove_class("dog")
        assert change.has_photo("dog/1") is None


def test_names_are_checked(store: Store):
    learn(store, "okapi")
    with pytest.raises(ConcmError, match="did you mean 'okapi'"):
        store.photos("okapy")
    with store.writing() as change:
        with pytest.raises(ConcmError, match="already has a class called 'okapi'"):
            change.add_class("okapi", base=False)
        with pytest.raises(ConcmError, match="no class called 'cow'"):
            change.remove_class("cow")
        with pytest.raises(ConcmError, match="no class called 'cow'"):
            change.add_photo("cow", "", "", features(0), b"")


def test_a_second_writer_waits_for_the_first(store: Store):
    has_to_wait, done = threading.Event(), threading.Event()
    calls: list[int] = []

    def second() -> None:
        def waiting() -> None:
            calls.append(store.version)
            has_to_wait.set()

        with Store.open(store.path) as other, other.writing(waiting) as change:
            calls.append(other.version)
            change.commit("learn", "second", {}, {})
        done.set()

    thread = threading.Thread(target=second)
    with store.writing() as change:
        thread.start()
        assert has_to_wait.wait(300)
        with pytest.raises(ConcmError, match="being changed by another"):
            store.undo(timeout=0.05)
        assert not done.is_set()
        change.commit("fit", "first", {}, {})
    thread.join(300)
    assert calls == [0, 1]
    assert [line.detail for line in store.history()] == ["first", "second"]


def test_readers_see_the_old_version_while_one_is_written(store: Store):
    learn(store, "dog")
    with Store.open(store.path) as reader, store.writing() as change:
        change.remove_class("dog")
        change.add_class("cat", base=False)
        assert (names(reader), reader.version, len(reader.history())) == (["dog"], 1, 1)
        assert agrees(reader)
        change.commit("learn", "", {}, {"photos": 0})
        assert (names(reader), reader.version) == (["cat"], 2)
        assert reader.state()[1] == {"photos": 0}


def test_a_state_that_is_undone_while_it_is_read_gives_the_one_before(store: Store, monkeypatch: pytest.MonkeyPatch):
    learn(store, "dog")
    learn(store, "cat")
    load = module.load_tensors

    def slow(*words: Any) -> Any:
        if store.version == 2:
            store.undo()
        return load(*words)

    monkeypatch.setattr(module, "load_tensors", slow)
    assert store.state()[1] == {"classes": 1, "photos": 2}


def _keep_writing(path: Path, pipe: Connection, seed: int) -> None:
    """Learn, forget and undo for ever; say each version that is safe, after it is."""
    torch.set_num_threads(1)
    choose = random.Random(seed)
    with Store.open(path) as store:
        for at in range(10**9):
            known = names(store)
            if choose.random() < 0.2 and len(store.history()) > 2 and len(states(store)) > 1:
                pipe.send(("undo", store.history()[-2].version))
                version = store.undo().version
            else:
                pipe.send(("learn", None))
                forget = choose.choice(known) if len(known) > 5 else None
                version = learn(store, f"{seed}-{at}", photos=choose.randint(1, 4), forget=forget)
            pipe.send(("done", version))


def test_kill_9_leaves_the_last_version_whose_commit_returned(store: Store):
    context = multiprocessing.get_context("forkserver")  # torch is imported once, not once a child
    context.set_forkserver_preload(["concm.classifier.store", "pytest"])
    choose = random.Random(0)
    learn(store, "first")
    store.close()
    used = 1
    for turn in range(KILLS):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_keep_writing, args=(store.path, theirs, turn))
        child.start()
        theirs.close()
        said = [ours.recv(), ours.recv()]
        time.sleep(choose.uniform(0, 0.2))
        child.kill()
        child.join()
        try:
            while True:
                said.append(ours.recv())
        except EOFError:
            ours.close()
        done = [version for word, version in said if word == "done"]
        used = max(used, *done)
        with Store.open(store.path) as opened:
            if opened.version != done[-1]:
                word, version = said[-1]
                assert word != "done"
                assert opened.version == version if word == "undo" else opened.version > used
            _writes_on(opened, f"after {turn}", max(used, opened.version))
            used = opened.version


def _writes_on(store: Store, name: str, used: int) -> None:
    before = names(store)
    with store.writing():  # removes what the killed one left behind
        pass
    assert agrees(store)
    for version in states(store):
        line = next(line for line in store.history() if line.version == version)
        assert store.state(version)[1] == {"classes": line.classes, "photos": line.photos}
    assert learn(store, name) > used
    assert names(store) == [*before, name]
    assert agrees(store)


def test_what_a_killed_writer_left_is_removed_by_the_next(store: Store):
    learn(store, "dog")
    folder = store.path / "states"
    for name in ("2.safetensors", "17.safetensors", ".draft-0123456789abcdef", "notes.txt"):
        (folder / name).write_bytes(b"half a st")
    learn(store, "cat")
    assert {file.name for file in folder.iterdir()} == {"1.safetensors", "2.safetensors", "notes.txt"}
    assert store.state()[1]["photos"] == 4


def test_the_state_of_a_commit_that_failed_stays_until_the_next_writer_has_looked(store: Store, monkeypatch):
    """Where the disk fails to sync, the next process may find the commit in the WAL all the same."""
    learn(store, "dog")

    def unsynced(db: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("concm.classifier.change.commit", unsynced)
        with pytest.raises(ConcmError, match="disk I/O error"):
            learn(store, "cat")
    assert states(store) == [1, 2]
    assert names(store) == ["dog"]
    with store.writing():
        pass
    assert states(store) == [1]


def test_the_newest_versions_can_be_undone_and_older_ones_take_no_room(store: Store):
    learn(store, "dog", "forgotten")
    learn(store, "v2", forget="forgotten")
    for at in range(3, KEEP + 6):
        learn(store, f"v{at}")
    assert states(store) == list(range(6, KEEP + 6))
    assert [line.version for line in store.history()] == list(range(1, KEEP + 6))
    with store._reading() as db:
        assert db.execute("SELECT count(*) FROM classes WHERE name = 'forgotten'").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM photos WHERE digest LIKE 'forgotten%'").fetchone() == (0,)
    for version in reversed(range(6, KEEP + 5)):
        assert store.undo().version == version
        assert agrees(store)
    with pytest.raises(ConcmError, match=f"newest {KEEP} versions"):
        store.undo()
    with pytest.raises(ConcmError, match="no version 5"):
        store.state(5)
    assert learn(store, "again") == KEEP + 6
    assert agrees(store)


def test_a_store_moves_only_into_a_folder_of_its_own(tmp_path: Path, store: Store):
    with pytest.raises(ConcmError, match="no store at"):
        Store.open(tmp_path / "nowhere")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dog.jpg").write_bytes(b"")
    for way in (Store.open, lambda path: Store.create(path, META)):
        with pytest.raises(ConcmError, match="belongs to another program"):
            way(tmp_path / "photos")
        with pytest.raises(ConcmError, match="is a file"):
            way(tmp_path / "photos" / "dog.jpg")
    learn(store, "dog")
    with pytest.raises(ConcmError, match="already a store"):
        Store.create(store.path, META)
    assert Store.exists(store.path)
    assert not Store.exists(tmp_path / "photos")


def test_a_store_that_was_never_learned_anything_may_be_made_anew(store: Store):
    with Store.create(store.path, {"backbone": "another"}) as anew:
        assert anew.meta == {"backbone": "another"}
        assert anew.version == 0
        learn(anew, "dog")
        assert agrees(anew)


def _foreign(file: Path) -> None:
    file.unlink()
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE bookmarks (address TEXT)")
    db.close()


def _newer(file: Path) -> None:
    db = sqlite3.connect(file)
    db.execute("PRAGMA user_version = 99")
    db.close()


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda file: file.write_bytes(b""), "damaged"),
        (lambda file: file.write_bytes(b"not a database, " * 500), "damaged"),
        (lambda file: os.truncate(file, 5000), "damaged"),
        (lambda file: os.truncate(file, 50), "damaged"),
        (_foreign, "belongs to another program"),
        (_newer, "newer concm"),
    ],
    ids=["empty", "garbage", "truncated", "cut in its head", "foreign", "newer"],
)
def test_a_database_that_cannot_be_used_is_told_in_a_sentence(
    store: Store, harm: Callable[[Path], None], sentence: str
):
    learn(store, "dog")
    store.close()
    harm(store.path / "store.db")
    with pytest.raises(ConcmError, match=sentence):
        Store.open(store.path)


def test_damage_inside_the_database_is_told_when_it_is_read(store: Store):
    learn(store, "dog", photos=50)
    store.close()
    file = store.path / "store.db"
    data = file.read_bytes()
    file.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with pytest.raises(ConcmError, match="damaged"), Store.open(store.path) as opened:
        opened.photos("dog")


def test_a_state_that_is_missing_or_damaged_is_named_and_undo_is_the_way_out(store: Store):
    with pytest.raises(ConcmError, match="is empty"):
        store.state()
    learn(store, "dog")
    learn(store, "cat")
    (store.path / "states" / "2.safetensors").write_bytes(b"damage")
    with pytest.raises(ConcmError, match=r"version 2 .* damaged.* undo"):
        store.state()
    (store.path / "states" / "2.safetensors").unlink()
    with pytest.raises(ConcmError, match=r"version 2 .* no state file .* undo"):
        store.state()
    store.undo()
    assert agrees(store)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("files", ["closed", "left by a killed process"])
def test_a_read_only_store_can_be_read(store: Store, files: str):
    learn(store, "dog")
    if files == "closed":
        store.close()
    store.path.chmod(0o555)
    try:
        with Store.open(store.path) as opened:
            assert names(opened) == ["dog"]
            assert agrees(opened)
            with pytest.raises(ConcmError, match="read-only"), opened.writing():
                pass
            with pytest.raises(ConcmError, match="read-only"):
                opened.undo()
        with pytest.raises(ConcmError, match="Permission denied"):
            Store.create(store.path / "inner", META)
    finally:
        store.path.chmod(0o755)


def test_an_older_store_is_brought_up_to_date_whole_or_not_at_all(store: Store, monkeypatch: pytest.MonkeyPatch):
    learn(store, "dog")
    store.close()
    note = "ALTER TABLE photos ADD COLUMN note TEXT NOT NULL DEFAULT 'none'"
    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, (note, "ALTER TABLE nowhere ADD COLUMN x")])
    with pytest.raises(ConcmError, match="no such table"):
        Store.open(store.path)
    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS[:-1], (note,)])
    with Store.open(store.path) as opened:
        assert agrees(opened)
        learn(opened, "cat")
        with opened._reading() as db:
            assert db.execute("PRAGMA user_version").fetchone() == (len(database.MIGRATIONS),)
            assert db.execute("SELECT note FROM photos").fetchall() == [("none",)] * 4
    monkeypatch.undo()
    with pytest.raises(ConcmError, match="newer concm"):
        Store.open(store.path)


def test_a_store_of_the_first_schema_is_brought_up_to_date(tmp_path: Path):
    with Store.create(tmp_path / "old", META) as old:
        with sqlite3.connect(database.file(old.path)) as db:
            db.execute("DROP TABLE evaluations")
            db.execute("DROP TABLE corrections")
            db.execute("DROP INDEX photos_living")
            db.execute("CREATE INDEX photos_class ON photos (class)")
            later = ("store.identity", "store.lasting", "store.proof", "versions.digest", "photos.gone", "photos.proof")
            for column in later:
                db.execute("ALTER TABLE {} DROP COLUMN {}".format(*column.split(".")))
            db.execute("PRAGMA user_version = 1")
        db.close()
    with Store.open(tmp_path / "old") as opened:
        learn(opened, "dog")
    with Store.open(tmp_path / "old") as opened:
        assert agrees(opened)
        assert opened.evaluations() == []
        opened.keep_evaluation(1, "photos/test", {"acc": 80.0})
        assert [(row.version, row.source, row.result) for row in opened.evaluations()] == [
            (1, "photos/test", {"acc": 80.0})
        ]


def test_an_evaluation_goes_with_its_version(store: Store):
    learn(store, "dog")
    learn(store, "cat")
    for version in (1, 2, 3):  # there is no third, as if it had been undone meanwhile
        store.keep_evaluation(version, "test", {})
    assert [row.version for row in store.evaluations()] == [1, 2]
    store.undo()
    assert [row.version for row in store.evaluations()] == [1]


def test_lasting_tensors_are_part_of_every_state_and_written_once(store: Store):
    lasting = {"metric": torch.eye(3)}
    for number, more in enumerate((lasting, None), 1):
        with store.writing() as change:
            change.commit("learn", "", {"head": torch.full((2,), float(number))}, {"number": number}, lasting=more)
        tensors, meta = store.state()
        assert meta == {"number": number}
        assert tensors.keys() == {"metric", "head"}
        assert torch.equal(tensors["metric"], torch.eye(3))
        assert torch.equal(tensors["head"], torch.full((2,), float(number)))
    with pytest.raises(ValueError, match="first version"), store.writing() as change:
        change.commit("learn", "", {}, {}, lasting=lasting)
    assert sorted(path.name for path in (store.path / "states").iterdir()) == [
        "1.safetensors",
        "2.safetensors",
        "lasting.safetensors",
    ]


@pytest.mark.promise
@pytest.mark.parametrize("name", ["states", "states.jpg", "store.txt", "backbone.safetensors"])
def test_a_folder_that_holds_anything_of_the_user_s_is_refused_and_left_as_it_is(tmp_path, name):
    root = tmp_path / "usa"
    mine = root / name / "1.jpg" if name == "states" else root / name
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(ConcmError, match="choose a new folder"):
        Store.create(root, {})
    assert [path.read_bytes() for path in root.rglob("*") if path.is_file()] == [b"mine"]


def test_a_folder_of_states_that_is_a_link_is_refused_and_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "1.safetensors").write_bytes(b"mine")
    Store.create(tmp_path / "zoo", {}).close()
    (tmp_path / "zoo" / "states").symlink_to(elsewhere)
    for use in (Store.open, lambda path: Store.create(path, {})):
        with pytest.raises(ConcmError, match=r"link|choose a new folder"):
            use(tmp_path / "zoo")
    assert (elsewhere / "1.safetensors").read_bytes() == b"mine"


def test_sweeping_removes_only_states_that_a_store_wrote(tmp_path):
    with Store.create(tmp_path / "zoo", {}) as store:
        states = tmp_path / "zoo" / "states"
        states.mkdir()
        foreign = {"1.jpg", "2.png", "utah.jpg", "3.safetensors.bak", ".draft-letter", ".draft-0123456789abcdef.txt"}
        for name in (*foreign, "7.safetensors", ".draft-0123456789abcdef", ".draft-0123456789abcdef-wal"):
            (states / name).write_bytes(b"")
        (states / "8.safetensors").mkdir()
        (states / ".draft-00000000000000ff").mkdir()
        (states / ".draft-00000000000000fe").symlink_to(states / "1.jpg")
        with store.writing():
            pass
        left = {path.name for path in states.iterdir()}
    assert left == {*foreign, "8.safetensors", ".draft-00000000000000ff", ".draft-00000000000000fe"}


# damage, and what takes a store's place


@pytest.mark.promise
@pytest.mark.parametrize("name", ["1.safetensors", "lasting.safetensors"])
def test_any_damaged_byte_of_a_state_is_noticed(tmp_path, name):
    with Store.create(tmp_path / "zoo", META) as store:
        with store.writing() as change:
            change.add_class("ant", base=True)
            tensors = {"weights": torch.arange(8.0)}
            change.commit("fit", "", tensors, {}, lasting={"metric": torch.eye(4)}, names=["ant"])
        assert store.verify() == []
        file = tmp_path / "zoo" / "states" / name
        whole = file.read_bytes()
        for at in range(0, len(whole), 7):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(ConcmError, match="damaged"):
                store.state()
        assert "version 1" in store.verify()[0]
        file.write_bytes(whole)
        assert store.verify() == []


def test_a_damaged_newest_version_can_be_left_by_undo(store):
    learn(store, "ant")
    learn(store, "bee")
    (store.path / "states" / "2.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConcmError, match="step back with undo"):
        store.state()
    assert store.undo().version == 1
    assert store.state()[1]["classes"] == 1


def test_a_state_of_another_store_or_version_is_refused(tmp_path):
    stores = [Store.create(tmp_path / name, META) for name in ("one", "two")]
    for store in stores:
        learn(store, "ant")
        learn(store, "bee")
    mine, theirs = (store.path / "states" for store in stores)
    (mine / "2.safetensors").write_bytes((theirs / "2.safetensors").read_bytes())
    with pytest.raises(ConcmError, match="version 2"):
        stores[0].state()
    (mine / "2.safetensors").write_bytes((mine / "1.safetensors").read_bytes())
    with pytest.raises(ConcmError, match="version 2"):
        stores[0].state()
    for store in stores:
        store.close()


def test_a_store_that_took_the_place_of_an_open_one_is_noticed_by_readers_and_writers(store, tmp_path):
    learn(store, "ant")
    store.backup(tmp_path / "copy")
    learn(store, "bee")
    store.path.rename(tmp_path / "old")
    (tmp_path / "copy").rename(store.path)
    for use in (lambda: store.version, store.classes, store.state, lambda: learn(store, "cat"), store.undo):
        with pytest.raises(ConcmError, match="was replaced or removed since it was opened"):
            use()
    with Store.open(store.path) as again:
        assert names(again) == ["ant"]


def test_a_state_that_names_other_classes_than_the_database_is_not_committed(store):
    learn(store, "ant")
    with store.writing() as change:
        change.add_class("bee", base=False)
        with pytest.raises(ConcmError, match="other classes than its engine"):
            change.commit("learn", "bee", {}, {}, names=["ant", "cat"])
    assert names(store) == ["ant"]


def test_a_version_that_is_undone_while_it_is_verified_is_no_damage(store, monkeypatch):
    for name in ("dog", "cat"):
        learn(store, name)
    checked = Store._checked

    def meanwhile(self: Store, version: int):
        if version == 2:
            with Store.open(store.path) as other:
                other.undo()
        return checked(self, version)

    monkeypatch.setattr(Store, "_checked", meanwhile)
    assert store.verify() == []
    assert names(store) == ["dog"]


def test_a_backup_is_the_store_and_no_existing_folder_is_touched(store, tmp_path):
    learn(store, "ant")
    learn(store, "bee")
    store.backup(tmp_path / "copy")
    with Store.open(tmp_path / "copy") as copy:
        assert (names(copy), copy.version, copy.verify()) == (["ant", "bee"], 2, [])
        assert copy.state()[1] == store.state()[1]
        assert copy.undo().version == 1
    assert store.version == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("Dear all")
    with pytest.raises(ConcmError, match="there is something already"):
        store.backup(tmp_path / "mine")
