"""Many runs: side by side or one after the other, from files or in memory, finished ones never again."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from concm.errors import ConcmError, Misuse
from concm.evaluation import bench, workers
from concm.evaluation.bench import BankSource, Task, finish, run_in_memory, tasks_of
from concm.evaluation.results import Result
from concm.evaluation.workers import Here
from concm.methods import Learner
from concm.methods.ncm import NCM
from concm.records import to_json
from tests.support.data import make_bank

torch.set_num_threads(1)
METHODS = ("ncm", "ncm_bias")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank of 4 base classes and 3 sessions of 2 classes."""
    path = tmp_path_factory.mktemp("bank") / "tiny.safetensors"
    make_bank().save(path)
    return path


def four(splits: Path | None = None) -> list[Task]:
    return tasks_of(METHODS, draws=2, seeds=1, seed=0, splits=splits, device="cpu")


def done(file: Path, out: Path, tasks: list[Task] | None = None, jobs: int = 1) -> list[Result]:
    source = BankSource(file=file)
    return finish(four() if tasks is None else tasks, source, source.bank(), out, Here(jobs))


def figures(result: Result) -> str:
    """All of it but the time it took."""
    sessions = [replace(one, seconds=0.0) for one in result.sessions]
    return json.dumps(to_json(replace(result, sessions=sessions, summary=replace(result.summary, seconds=0.0))))


@pytest.fixture(scope="module")
def finished(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, one after the other."""
    out = tmp_path_factory.mktemp("finished")
    done(file, out)
    return out


def test_two_processes_find_what_one_finds(file, finished, tmp_path):
    both = done(file, tmp_path, jobs=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in finished.iterdir())
    assert [figures(one) for one in both] == [figures(one) for one in done(file, finished)]


def test_results_come_in_the_order_of_their_tasks(file, finished):
    backwards = four()[::-1]
    found = done(file, finished, backwards)
    assert [(r.heading.label, r.heading.draw) for r in found] == [(t.method, t.draw) for t in backwards]


def test_what_is_finished_is_not_done_again_and_what_was_deleted_is(file, tmp_path):
    done(file, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    deleted = sorted(before)[2]
    old = Result.load(deleted)
    deleted.unlink()
    done(file, tmp_path, jobs=2)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert after.keys() == before.keys()
    assert [path for path in after if after[path] != before[path]] == [deleted]
    assert figures(Result.load(deleted)) == figures(old)


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_to_do_is_no_mistake(file, tmp_path, jobs):
    assert done(file, tmp_path, [], jobs) == []
    assert list(tmp_path.iterdir()) == []


def test_a_bank_is_read_once(file, tmp_path, monkeypatch):
    read = []
    load = bench.Bank.load
    monkeypatch.setattr(bench.Bank, "load", lambda *words: read.append(words) or load(*words))
    done(file, tmp_path)
    assert len(read) == 1


def test_a_result_does_not_depend_on_how_many_threads_there_are(file, finished, tmp_path):
    torch.set_num_threads(2)
    try:
        [one] = done(file, tmp_path, four()[:1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert figures(one) == figures(done(file, finished)[0])


def wait_for_no_children() -> None:
    while multiprocessing.active_children():
        time.sleep(0.05)


def test_published_lists_that_are_not_there_are_refused_before_anything_runs(file, tmp_path):
    with pytest.raises(ConcmError, match=f"no index list at {tmp_path / 'none' / 'session_2.txt'}"):
        done(file, tmp_path / "out", four(tmp_path / "none"))
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_mistake_in_a_run_reaches_the_caller_and_other_runs_end(file, tmp_path, jobs):
    words = ["concm:structure=fixed,total=5,base_steps=1,steps=1,calibrate=none", "concm:steps=2000"]
    tasks = tasks_of(words, draws=1, seeds=1, seed=0, splits=None, device="cpu")
    with pytest.raises(Misuse, match="has room for total=5 classes"):
        done(file, tmp_path / "out", tasks, jobs)
    wait_for_no_children()
    assert not list(tmp_path.glob("out/*"))


def test_a_run_that_is_killed_is_told_in_a_sentence(file, tmp_path, monkeypatch):
    def kill_one_and_wait(*words, **options):
        for worker in multiprocessing.active_children()[:1]:
            os.kill(worker.pid, signal.SIGKILL)
        return wait(*words, **options)

    monkeypatch.setattr(workers, "wait", kill_one_and_wait)
    with pytest.raises(ConcmError, match="a run was killed, probably because memory ran out; try again with `jobs=1`"):
        done(file, tmp_path, jobs=2)
    wait_for_no_children()


# in memory


class Own:
    """The least that a method can be: three verbs."""

    def fit_base(self, base):
        self.means = base.mean

    def learn(self, session):
        self.means = torch.cat([self.means, session.class_means()])

    def scores(self, features):
        return features @ self.means.T


class Curious(Learner):
    """Looks at what it has not declared."""

    def fit_base(self, base):
        self.seen = [base.total, base.pool, base.pictures, base.backbone]
        self.begin(base)

    def learn(self, session):
        self.seen += [session.total, session.pool, session.pictures]

    def scores(self, features):
        assert self.seen == [None] * len(self.seen)
        return torch.zeros(len(features), 10)


def memory(*methods, draws: int = 2) -> list[Result]:
    return run_in_memory(methods, make_bank(), draws=draws, seeds=1, seed=0, device="cpu", splits=None)


@pytest.mark.promise
def test_names_classes_and_objects_run_alike():
    by_name, by_class, by_object = (memory(given) for given in ("ncm", NCM, NCM()))
    for one, other in zip(by_name, by_class, strict=True):
        assert [s.confusion for s in one.sessions] == [s.confusion for s in other.sessions]
    for one, other in zip(by_name, by_object, strict=True):
        assert [s.confusion for s in one.sessions] == [s.confusion for s in other.sessions]


def test_an_object_is_copied_for_every_run():
    method = NCM()
    memory(method)
    assert not method._buffers


def test_three_verbs_are_enough():
    [one, _] = memory(Own)
    assert one.heading.label == "Own"
    assert one.summary.memory_bytes is None


@pytest.mark.promise
def test_what_is_not_declared_is_not_handed_out():
    memory(Curious, draws=1)


@pytest.mark.parametrize(
    ("given", "words"), [((object(),), "is no method"), (("ncm", NCM), "given twice"), (("icarl",), "on pictures")]
)
def test_what_cannot_run_is_refused_before_anything_runs(given, words):
    with pytest.raises(Misuse, match=words):
        memory(*given)
