"""A store that is damaged, or was made by a stranger, is refused in a sentence or answers as before."""

from __future__ import annotations

import errno
import json
import os
import random
import secrets
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from concm.classifier import database
from concm.classifier.change import KIND
from concm.classifier.classifier import Classifier
from concm.classifier.proof import commit
from concm.classifier.store import Store
from concm.errors import ConcmError
from concm.files import load_tensors, save_tensors
from concm.report.classifier import card, show_classes
from tests.support.photographs import picture, pictures
from tests.support.zoo import opened

TRIALS = 60


@pytest.fixture
def store(used: Classifier) -> Path:
    """A store of two versions that nobody has open."""
    used.evaluate({"cat": pictures("cat", 2, first=50)})
    used.close()
    return used.path


def edited(store: Path, *statements: str, sealed: bool = True) -> None:
    """Change the database as a stranger might, who can seal it again."""
    with closing(sqlite3.connect(database.file(store), isolation_level=None)) as db:
        db.execute("BEGIN")
        for statement in statements:
            db.execute(statement)
        if sealed:
            commit(db)
        else:
            db.execute("COMMIT")


def restated(store: Path, change) -> None:
    """Change the newest state, and its digest in the database."""
    file = store / "states" / "2.safetensors"
    tensors, meta = load_tensors(file, KIND)
    change(tensors, meta)
    digest = save_tensors(file, KIND, tensors, meta)
    edited(store, f"UPDATE versions SET digest = '{digest}' WHERE version = 2")


def every_use(store: Path) -> None:
    """What reads all of a store: opening, answering, teaching, and the tables that are shown."""
    with opened(store) as zoo:
        zoo.predict(picture("cat"))
        assert all(row.name and row.photos for row in zoo.classes)
        assert zoo.history
        zoo.store.evaluations()
        card(zoo)
        zoo.learn({"okapi": pictures("okapi", 2, first=70)})
        zoo.undo()
        if wrong := zoo.verify():
            raise ConcmError(wrong[0])


def refused(store: Path) -> str:
    with pytest.raises(ConcmError) as caught:
        every_use(store)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_store_that_nobody_touched_serves_every_use(store):
    every_use(store)


EDITS = {
    "no meta": "UPDATE store SET meta = ''",
    "bad JSON": "UPDATE store SET meta = '{'",
    "a list": "UPDATE store SET meta = '[1]'",
    "no keys": "UPDATE store SET meta = '{}'",
    "deep JSON": f"UPDATE store SET meta = '{'[' * 100_000}'",
    "a strange seed": "UPDATE store SET meta = json_set(meta, '$.seed', -1)",
    "a seed in words": "UPDATE store SET meta = json_set(meta, '$.seed', 'two')",
    "no transform": "UPDATE store SET meta = json_set(meta, '$.encoder.transform.size', 'large')",
    "no row": "DELETE FROM store",
    "two rows": "INSERT INTO store SELECT * FROM store",
    "a name in bytes": "UPDATE classes SET name = x'ff00' WHERE id = 1",
    "a name that moves the cursor": "UPDATE classes SET name = 'cat' || char(27) || '[2J' WHERE id = 1",
    "another name": "UPDATE classes SET name = 'cow' WHERE id = 1",
    "a class less": "DELETE FROM classes WHERE id = 1",
    "a history in bytes": "UPDATE versions SET created = x'00'",
    "a number in words": "UPDATE versions SET photos = 'many'",
    "an evaluation of bad JSON": "UPDATE evaluations SET result = '{'",
    "features that are odd": "UPDATE photos SET features = x'000000', proof = NULL",
    "features without rows": "UPDATE photos SET rows = 0, proof = NULL",
    "features of another width": "UPDATE photos SET features = x'0000803f', rows = 1, proof = NULL",
    "features that are no numbers": "UPDATE photos SET features = x'0000c07f', rows = 1, proof = NULL",
    "features as text": "UPDATE photos SET features = 'abcd', proof = NULL",
    "a photo changed": "UPDATE photos SET thumbnail = x'00'",
    "a trigger": "CREATE TRIGGER more AFTER INSERT ON versions BEGIN DELETE FROM classes; END",
    "a view": "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i FROM n) SELECT i FROM n",
    "another store's identity": "UPDATE store SET identity = 'other'",
}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edited_database_is_refused_in_a_sentence(store, kind):
    edited(store, EDITS[kind])
    refused(store)


@pytest.mark.parametrize("kind", ["another name", "a history in bytes", "no keys", "an evaluation of bad JSON"])
def test_a_database_that_does_not_say_what_was_written_is_refused_at_once(store, kind):
    edited(store, EDITS[kind], sealed=False)
    assert "it does not say what was written" in refused(store)


@pytest.mark.parametrize("tell", [card, show_classes])
@pytest.mark.parametrize("edit", ["UPDATE store SET meta = '{}'", "UPDATE evaluations SET result = '{}'"])
def test_what_is_told_of_a_store_is_told_of_a_damaged_one_in_a_sentence(store, tell, edit):
    edited(store, edit)
    with suppress(ConcmError), opened(store) as zoo:
        tell(zoo)


def test_a_name_that_is_no_text_is_refused(store):
    edited(store, "UPDATE classes SET name = CAST(x'ff' AS TEXT) WHERE id = 1", sealed=False)
    refused(store)


def test_a_change_does_not_make_a_damaged_database_valid(used):
    edited(used.path, EDITS["another name"], sealed=False)
    with pytest.raises(ConcmError, match="it does not say what was written"):
        used.undo()


def put(name: str, value):
    def change(tensors, meta):
        tensors[name] = value(tensors[name])

    return change


STATES = {
    "a tensor less": lambda tensors, meta: tensors.pop("engine.structure"),
    "a tensor more": lambda tensors, meta: tensors.update({"engine.more": torch.ones(1)}),
    "no confidence": lambda tensors, meta: tensors.pop("confidence.width"),
    "no settings": lambda tensors, meta: meta.update(state={}),
    "settings out of bounds": lambda tensors, meta: meta["state"]["settings"].update(alpha=7.0),
    "no state": lambda tensors, meta: meta.update(state=None),
    "an odd structure": put("engine.structure", lambda value: value[:, :-1].contiguous()),
    "a structure of whole numbers": put("engine.structure", lambda value: value.long()),
    "no numbers": put("engine.memory.mean", lambda value: value * float("nan")),
    "wild labels": put("engine.memory.labels", lambda value: value + 10**12),
    "negative labels": put("engine.memory.labels", lambda value: value - 100),
    "wild held-out labels": put("engine.memory.held_labels", lambda value: value + 10**12),
    "fewer held-out photos": put("engine.memory.held", lambda value: value[:-1].contiguous()),
    "fewer means": put("engine.memory.apart", lambda value: value[:-1].contiguous()),
    "no temperature": put("confidence.temperature", lambda value: value * 0),
    "quantiles in no order": put("confidence.quantiles", lambda value: value.flip(0).contiguous()),
    "a narrow confidence": put("confidence.centre", lambda value: value[:1].contiguous()),
    "no widths": put("confidence.width", lambda value: value * 0),
    "garbled extra": put("engine._extra_state", lambda value: value[:9].contiguous()),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_that_does_not_fit_is_refused_in_a_sentence(store, kind):
    restated(store, STATES[kind])
    refused(store)


def test_random_damage_is_noticed_or_harmless(store, tmp_path):
    with opened(store) as zoo:
        before = zoo.predict_proba(pictures("cat", 2)), json.dumps([repr(row) for row in zoo.classes + zoo.history])
    chance = random.Random(0)
    noticed = 0
    for trial in range(TRIALS):
        copy = shutil.copytree(store, tmp_path / f"copy {trial}")
        file = chance.choice(sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size))
        data = bytearray(file.read_bytes())
        for _ in range(chance.choice((1, 1, 8, 64))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        file.write_bytes(data)
        try:
            with opened(copy) as zoo:
                table = zoo.predict_proba(pictures("cat", 2))
                assert json.dumps([repr(row) for row in zoo.classes + zoo.history]) == before[1]
                np.testing.assert_array_equal(table, before[0])
        except ConcmError:
            noticed += 1
        shutil.rmtree(copy)
    assert noticed > TRIALS // 3


# copies


def test_a_fit_that_was_killed_while_it_made_its_database_can_be_repeated(tmp_path):
    folder = tmp_path / "zoo"
    folder.mkdir()
    draft = f".draft-{secrets.token_hex(8)}"
    for name in (draft, f"{draft}-journal", f"{draft}-wal", "store.lock"):
        (folder / name).write_bytes(b"")
    Store.create(folder, {}).close()


def test_a_folder_with_a_letter_that_somebody_drafted_is_no_place_for_a_store(tmp_path):
    (tmp_path / ".draft-letter").write_text("Dear all")
    with pytest.raises(ConcmError, match="choose a new folder"):
        Store.create(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == [".draft-letter"]


def test_a_damaged_store_is_not_backed_up_until_it_has_stepped_back(used, tmp_path):
    state = used.path / "states" / "2.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    with pytest.raises(ConcmError, match=r"is damaged, and a copy would be as well: version 2"):
        used.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    used.undo()
    with opened(used.backup(tmp_path / "copy")) as copy:
        assert (copy.version, copy.verify()) == (1, [])


@pytest.mark.parametrize("call", [1, 3, 5])
def test_a_backup_that_runs_out_of_disk_leaves_nothing(used, tmp_path, monkeypatch, call):
    fsync, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    before = sorted(path.name for path in tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConcmError, match="No space left on device"):
            used.backup(tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    used.backup(tmp_path / "copy")
    with opened(tmp_path / "copy") as copy:
        assert copy.verify() == []


def test_a_read_only_copy_with_changes_of_a_killed_process_is_read(used, tmp_path, monkeypatch):
    with closing(sqlite3.connect(database.file(used.path))) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
    used.learn({"yak": pictures("yak", 2)})
    copy = shutil.copytree(used.path, tmp_path / "copy", ignore=shutil.ignore_patterns("*-shm"))  # while it is open
    assert (copy / "store.db-wal").stat().st_size
    connected = database._connected

    def without_shm(path: Path, name: str = "store.db", writable: bool = True) -> sqlite3.Connection:
        if path == copy:  # as where nothing may be written, which root cannot be told
            raise sqlite3.OperationalError("unable to open database file")
        return connected(path, name, writable)

    monkeypatch.setattr(database, "writable", lambda path: False)
    monkeypatch.setattr(database, "_connected", without_shm)
    with Store.open(copy) as store:
        assert [row.name for row in store.classes()][-2:] == ["okapi", "yak"]


@pytest.fixture
def corrected(used: Classifier) -> Path:
    """A store in which a photo was removed, one moved, and a class renamed."""
    first, second = (row.id for row in used.photos("cat")[:2])
    used.remove([first]).move([second], "okapi").rename("dog", "wolf").close()
    return used.path


def test_corrected_photos_still_prove_right_and_come_back(corrected):
    with opened(corrected) as zoo:
        assert zoo.verify() == []
        for _ in range(3):
            zoo.undo()
            assert zoo.verify() == []
    every_use(corrected)


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE photos SET gone = NULL WHERE gone IS NOT NULL",
        "UPDATE photos SET gone = 2 WHERE id = 9",
        "UPDATE photos SET class = 2 WHERE id = 9",
        "UPDATE corrections SET name = 'cow' WHERE name IS NOT NULL",
        "UPDATE corrections SET class = 3 WHERE photo IS NOT NULL",
        "DELETE FROM corrections",
    ],
)
def test_corrections_that_nobody_made_are_refused_at_once(corrected, edit):
    edited(corrected, edit, sealed=False)
    assert "it does not say what was written" in refused(corrected)
