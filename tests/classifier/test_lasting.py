"""What lasts: on disk, with several at once, and through accidents."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from concm.classifier import change as store_module
from concm.classifier.classifier import Classifier
from concm.classifier.proof import commit
from concm.classifier.store import Store
from concm.engine import matching
from concm.engine.concm import Engine
from concm.errors import ConcmError, Misuse
from concm.files import load_tensors
from tests.support import photographs
from tests.support.photographs import BACKBONE, OTHER_WEIGHTS, TinyBackbone, picture, pictures
from tests.support.zoo import (
    BASE,
    COUNT,
    NEW,
    QUICK,
    base_photos,
    everything,
    labels,
    made,
    names,
    new_photos,
    opened,
    probabilities,
    right,
)

# from disk


def test_what_is_opened_again_predicts_the_same_bit_for_bit(zoo):
    zoo.learn({"okapi": pictures("okapi", 3), "cat": pictures("cat", 1, first=20)})
    again = opened(zoo.path)
    np.testing.assert_array_equal(probabilities(again), probabilities(zoo))
    assert again.predict(new_photos("cat", "yak")) == zoo.predict(new_photos("cat", "yak"))
    assert everything(again) == everything(zoo)


def test_what_is_opened_again_goes_on_as_if_it_had_never_been_closed(zoo, tmp_path):
    path = shutil.copytree(zoo.path, tmp_path / "closed")
    steps = [
        lambda zoo: zoo.learn({"okapi": pictures("okapi", 3)}),
        lambda zoo: zoo.learn({"yak": pictures("yak", 2), "cat": pictures("cat", 2, first=20)}),
        lambda zoo: zoo.forget("fox"),
        lambda zoo: zoo.undo(),
        lambda zoo: zoo.learn({"elk": pictures("elk", 1), "okapi": pictures("okapi", 1, first=20)}),
    ]
    for step in steps:
        step(zoo)
        step(opened(path))
    assert everything(opened(path)) == everything(zoo)
    np.testing.assert_array_equal(probabilities(opened(path)), probabilities(zoo))


def test_a_store_can_be_moved_and_copied(zoo, tmp_path):
    table = probabilities(zoo)
    zoo.store.close()
    shutil.move(zoo.path, tmp_path / "elsewhere")
    np.testing.assert_array_equal(probabilities(opened(tmp_path / "elsewhere")), table)


def test_the_metric_is_written_once(zoo):
    zoo.learn({"okapi": pictures("okapi", 2)})
    states = zoo.path / "states"
    assert {file.name for file in states.iterdir()} == {"1.safetensors", "2.safetensors", "lasting.safetensors"}
    assert set(load_tensors(states / "lasting.safetensors", "concm-state-2")[0]) == {
        "engine.metric.matrix0",
        "engine.metric.weights",
    }
    own = load_tensors(states / "2.safetensors", "concm-state-2")[0]
    assert not any(name.startswith("engine.metric") for name in own)


def test_the_generator_of_the_process_is_neither_used_nor_moved(zoo):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    zoo.learn({"okapi": pictures("okapi", 2)})
    zoo.predict(picture("cat"))
    zoo.forget("cat")
    assert torch.equal(torch.random.get_rng_state(), before)


# several at once


def test_what_one_learns_another_sees_at_once(zoo):
    other = opened(zoo.path)
    assert other.predict(picture("okapi", NEW))[0].unknown
    zoo.learn({"okapi": pictures("okapi", 3)})
    (found,) = other.predict(picture("okapi", NEW))
    assert (found.label, found.version) == ("okapi", 2)
    other.learn({"yak": pictures("yak", 3)})
    assert names(zoo) == names(other) == [*BASE, "okapi", "yak"]
    np.testing.assert_array_equal(probabilities(zoo), probabilities(other))
    zoo.undo()
    assert other.predict(picture("yak", NEW))[0].unknown
    assert other.version == 2


def test_a_stream_goes_by_the_newest_version_as_it_goes(zoo):
    found = zoo.stream([picture("okapi", NEW)] * 70)
    assert next(found).version == 1
    opened(zoo.path).learn({"okapi": pictures("okapi", 3)})
    assert [(item.label, item.version) for item in found] == [("okapi", 2)] * 69


def test_what_another_process_fitted_is_used(fitted, tmp_path):
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE)
    with pytest.raises(Misuse, match=r"no store at .* yet: fit it with two classes or more first"):
        zoo.predict(picture("cat"))
    program = f"""
from concm.classifier.classifier import Classifier
from concm.engine.settings import Settings
from tests.support.photographs import BACKBONE, pictures
settings = Settings(calibrate="none", base_steps={QUICK.base_steps}, steps={QUICK.steps}, hidden={QUICK.hidden})
zoo = Classifier({str(tmp_path / "zoo")!r}, BACKBONE, device="cpu")
zoo.fit({{name: pictures(name, {COUNT}) for name in {BASE}}}, settings=settings)
zoo.learn({{"okapi": pictures("okapi", 3)}})
"""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)
    assert zoo.predict(picture("okapi", NEW))[0].label == "okapi"
    assert [line.action for line in zoo.history] == ["fit", "learn"]
    reference = opened(shutil.copytree(fitted, tmp_path / "reference")).learn({"okapi": pictures("okapi", 3)})
    np.testing.assert_allclose(probabilities(zoo), probabilities(reference), atol=1e-3)


def test_of_two_that_fit_the_same_folder_the_second_is_refused(tmp_path):
    one, other = (opened(tmp_path / "zoo", backbone=BACKBONE) for _ in range(2))
    one.fit(base_photos(2), settings=QUICK)
    before = everything(one)
    with pytest.raises(ConcmError, match="already"):
        other.fit(base_photos(3), settings=QUICK)
    assert everything(one) == before
    assert other.predict(picture("cat", NEW), unknown_rate=0)[0].label == "cat"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_of_two_that_make_the_store_at_the_same_time_the_second_is_refused(tmp_path, monkeypatch, moment):
    one, other = (opened(tmp_path / "zoo", backbone=BACKBONE) for _ in range(2))
    create = Store.create

    def meanwhile(*how) -> Store:
        monkeypatch.setattr(Store, "create", create)
        made = [create(*how)] if moment == "after" else []
        other.fit({name: pictures(name, 2) for name in ("yak", "elk", "gnu")}, settings=QUICK)
        return made[0] if made else create(*how)

    monkeypatch.setattr(Store, "create", meanwhile)
    with pytest.raises(ConcmError):
        one.fit(base_photos(2), settings=QUICK)
    for zoo in (one, other, opened(tmp_path / "zoo")):
        assert names(zoo) == ["yak", "elk", "gnu"]
        assert labels(zoo, "elk", unknown_rate=0) == ["elk"] * 6
    one.learn({"okapi": pictures("okapi", 2)})
    assert names(other) == ["yak", "elk", "gnu", "okapi"]


def test_while_one_thread_learns_others_predict_by_whole_versions(zoo, tmp_path):
    photos = new_photos("cat", "okapi", "yak", count=2)
    lessons = [{name: pictures(name, 2)} for name in ("okapi", "yak", "elk", "gnu")]
    reference = opened(shutil.copytree(zoo.path, tmp_path / "reference"))
    expected = {1: reference.predict(photos)}
    for lesson in lessons:
        reference.learn(lesson)
        expected[reference.version] = reference.predict(photos)
    over, found, failures = threading.Event(), [], []
    begun = threading.Semaphore(0)

    def watch(own: Classifier) -> None:
        try:
            while not over.is_set():
                found.extend(zip(range(len(photos)), own.predict(photos), strict=True))
                begun.release()
        except BaseException as error:
            failures.append(error)
            begun.release()

    watchers = [threading.Thread(target=watch, args=(own,)) for own in (zoo, opened(zoo.path))]
    for watcher in watchers:
        watcher.start()
    try:
        for lesson in lessons:
            for _ in range(2):
                begun.acquire()
            zoo.learn(lesson)
    finally:
        over.set()
        for watcher in watchers:
            watcher.join()
    assert not failures
    found += enumerate(zoo.predict(photos))
    assert {item.version for _, item in found} >= {1, 5}
    assert all(item == expected[item.version][at] for at, item in found)


def test_who_comes_second_waits_is_told_and_gives_up_in_a_sentence(zoo):
    told = []
    other = opened(zoo.path, wait=0, waiting=lambda: told.append("wait"))
    changes = [
        lambda: other.learn({"okapi": pictures("okapi", 2)}),
        lambda: other.forget("cat"),
        lambda: other.undo(),
    ]
    with zoo.store.writing():
        for change in changes:
            with pytest.raises(ConcmError, match="being changed by another; try again later"):
                change()
        assert other.predict(picture("cat", NEW))[0].label == "cat"
    assert told == ["wait"] * 3
    changes[0]()
    assert names(other)[-1] == "okapi"


def test_what_was_learned_meanwhile_counts_for_who_waited(zoo):
    other = opened(zoo.path)
    probabilities(other)  # so that it has a version in mind
    zoo.learn({"okapi": pictures("okapi", 3)})
    with pytest.raises(Misuse, match="already known as a photo of 'okapi'"):
        other.learn({"giraffe": pictures("okapi", 1)})
    other.learn({"okapi": pictures("okapi", 1, first=20)})
    assert [row.photos for row in zoo.classes] == [COUNT] * 5 + [4]


# accidents


CHANGES = {
    "learn": lambda zoo: zoo.learn({"yak": pictures("yak", 2), "cat": pictures("cat", 2, first=40)}),
    "forget": lambda zoo: zoo.forget("dog"),
}


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["before", "amidst", "committing"])
def test_an_interruption_leaves_all_as_it_was(used, tmp_path, monkeypatch, change, moment):
    uninterrupted = opened(shutil.copytree(used.path, tmp_path / "uninterrupted"))
    before, table = everything(used), probabilities(used)
    with monkeypatch.context() as then:
        if moment == "before":
            for verb in ("learn", "revise", "forget"):
                then.setattr(Engine, verb, interrupted)
        elif moment == "amidst":
            then.setattr(matching, "descend", interrupted)
        else:
            then.setattr(store_module, "save_tensors", interrupted)
        with pytest.raises(KeyboardInterrupt):
            CHANGES[change](used)
    assert everything(used) == everything(opened(used.path)) == before
    np.testing.assert_array_equal(probabilities(used), table)
    CHANGES[change](used)
    CHANGES[change](uninterrupted)
    assert everything(used).tensors == everything(uninterrupted).tensors


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["draft", "sync", "rename"])
def test_a_full_disk_leaves_all_as_it_was(used, tmp_path, monkeypatch, change, place):
    before, table = everything(used), probabilities(used)
    states = sorted((used.path / "states").iterdir())
    with monkeypatch.context() as then:
        then.setattr(
            *{"draft": (secrets, "token_hex"), "sync": (os, "fsync"), "rename": (os, "replace")}[place], no_room
        )
        with pytest.raises(ConcmError, match="No space left on device"):
            CHANGES[change](used)
    assert sorted((used.path / "states").iterdir()) == states
    assert everything(used) == everything(opened(used.path)) == before
    np.testing.assert_array_equal(probabilities(used), table)
    CHANGES[change](used)
    assert used.version > before.version


@pytest.mark.parametrize("reopen", [False, True], ids=["an interruption", "a full disk, reopened"])
def test_a_fit_that_failed_can_be_made_again(fitted, tmp_path, monkeypatch, reopen):
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE)
    with monkeypatch.context() as then:
        then.setattr(os, "replace", no_room) if reopen else then.setattr(store_module, "save_tensors", interrupted)
        with pytest.raises(ConcmError if reopen else KeyboardInterrupt):
            zoo.fit(base_photos(), settings=QUICK)
    with pytest.raises(Misuse, match="fit it with two classes or more first"):
        zoo.predict(picture("cat"))
    zoo = opened(tmp_path / "zoo", backbone=BACKBONE) if reopen else zoo
    zoo.fit(base_photos(), settings=QUICK)
    assert everything(zoo).tensors == everything(opened(fitted)).tensors
    assert [row.photos for row in zoo.classes] == [COUNT] * 5


def test_a_fit_that_failed_may_be_made_again_with_another_backbone_and_seed(tmp_path, monkeypatch):
    with monkeypatch.context() as then:
        then.setattr(store_module, "save_tensors", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "zoo", base_photos(2))
    zoo = opened(tmp_path / "zoo", backbone=OTHER_WEIGHTS, seed=3)
    zoo.fit(base_photos(2), settings=QUICK)
    assert zoo.store.meta["backbone"] == OTHER_WEIGHTS
    assert zoo.store.meta["seed"] == 3
    assert right(opened(tmp_path / "zoo"), "cat") == 1


def test_an_interruption_while_photos_are_read_leaves_all_as_it_was(used, monkeypatch):
    before = everything(used)
    with monkeypatch.context() as then:
        then.setattr(TinyBackbone, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            used.learn({"yak": pictures("yak", 2)})
    assert everything(used) == before
    used.learn({"yak": pictures("yak", 2)})


def test_a_version_whose_state_is_damaged_is_told_and_undone(used):
    table = probabilities(used)
    used.learn({"yak": pictures("yak", 2)})
    (used.path / "states" / "3.safetensors").write_bytes(b"scratched")
    damaged = opened(used.path)
    for action in (partial(damaged.predict, picture("cat")), partial(damaged.forget, "cat")):
        with pytest.raises(ConcmError, match=r"version 3 of .*or step back with undo"):
            action()
    damaged.undo()
    np.testing.assert_array_equal(probabilities(damaged), table)


def test_a_store_is_one_for_its_readers_too(used):
    with Store.open(used.path) as store:
        assert [row.name for row in store.classes()] == names(used)
        assert store.meta["backbone"] == BACKBONE
        assert store.meta["encoder"]["transform"]["size"] == photographs.SIDE


@pytest.mark.promise
def test_a_store_cannot_make_code_run(fitted, tmp_path, monkeypatch):
    mark = tmp_path / "called"
    (tmp_path / "store_trap.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    copy = shutil.copytree(fitted, tmp_path / "zoo")
    with closing(sqlite3.connect(copy / "store.db", isolation_level=None)) as db:
        meta = json.loads(db.execute("SELECT meta FROM store").fetchone()[0])
        db.execute("BEGIN")
        db.execute("UPDATE store SET meta = ?", (json.dumps({**meta, "backbone": "store_trap:build"}),))
        commit(db)
    with pytest.raises(Misuse, match="name it yourself"):
        Classifier(copy, device="cpu").predict(picture("cat"))
    assert not mark.exists()
