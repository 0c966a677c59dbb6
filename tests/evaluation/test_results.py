"""Results as files, the figures derived from them, and many runs side by side."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from concm import __version__
from concm.engine.concm import Engine
from concm.errors import ConcmError
from concm.evaluation import bench, results
from concm.evaluation.bench import Source, Task, collect, missing, run_all
from concm.evaluation.results import above, aggregate, head, load, place, save, summary, trade_off
from concm.features import bank as banks
from concm.methods import choose
from concm.report.bench import rows
from tests.support.data import make_bank

torch.set_num_threads(1)

QUICK = "concm:base_steps=2,steps=2,hidden=16,calibration.steps=2"
FIGURES = {"index", "classes", "acc", "acc_base", "acc_novel", "hm", "ber", "fpr", "fnr", "smr", "seconds", "confusion"}
SUMMARY = {"base_acc", "ahm", "fa", "pd", "nacc", "avg_acc", "seconds", "memory_bytes", "parameters"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank of 4 base classes and 3 sessions of 2 classes."""
    path = tmp_path_factory.mktemp("bank") / "tiny.safetensors"
    make_bank().save(path)
    return path


def task(file: Path, method: str = "ncm", draw: int = 0, seed: int = 0, splits: Path | None = None) -> Task:
    return Task(Source(file=file), method, draw, seed, splits, "cpu")


def silent(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def result(file: Path, tmp_path_factory: pytest.TempPathFactory) -> results.Result:
    """Of a run of Engine, as it is written."""
    out = tmp_path_factory.mktemp("out")
    tasks = [task(file, QUICK, draw=3, seed=4)]
    run_all(tasks, out, silent, jobs=1)
    return collect(tasks, out)[0]


def without_seconds(result: results.Result) -> results.Result:
    sessions = [{name: value for name, value in s.items() if name != "seconds"} for s in result["sessions"]]
    return {**result, "sessions": sessions, "summary": {**result["summary"], "seconds": None}}


# one file a run


def test_a_result_says_what_was_run(result):
    assert result["schema"] == results.SCHEMA
    assert result["scenario"] == {"name": "folder", "base": 4, "way": 2, "shot": 5, "sessions": 3}
    assert (result["method"], result["label"]) == ("concm", QUICK)
    assert (result["draw"], result["seed"], result["splits"]) == (3, 4, None)
    assert result["needs"] == ["class names", "views of the shots", "exemplars: 5 a novel class"]
    assert result["bank"]["name"] == "none"
    assert result["environment"]["concm"] == __version__
    assert {"code", "python", "torch", "device"} < result["environment"].keys()


def test_its_configuration_is_the_full_one(result):
    settings = choose(QUICK).settings
    assert result["settings"]["steps"] == result["settings"]["calibration"]["steps"] == 2
    assert result["settings"]["alpha"] == settings.alpha
    assert result["settings"].keys() == vars(settings).keys()
    assert result["settings"]["calibration"].keys() == vars(settings.calibration).keys()


def test_it_has_the_figures_of_every_session(result):
    assert [session["index"] for session in result["sessions"]] == [0, 1, 2, 3]
    assert [session["classes"] for session in result["sessions"]] == [4, 6, 8, 10]
    for session in result["sessions"]:
        assert session.keys() >= FIGURES
        matrix = np.array(session["confusion"])
        assert matrix.shape == (session["classes"],) * 2
        assert matrix.sum() == 8 * session["classes"]
        assert session["acc"] == pytest.approx(100 * matrix.trace() / matrix.sum())
        assert session["acc_novel"] == pytest.approx(100 * matrix.diagonal()[4:].sum() / max(1, matrix[4:].sum()))
        assert -1 <= session["smr"] <= 1
        assert session["seconds"] > 0
    assert ["trade_off" in session for session in result["sessions"]] == [False, False, False, True]


def test_its_summary_is_derived_from_the_sessions_and_the_method(result, file):
    assert result["summary"].keys() >= SUMMARY
    method = choose(QUICK).build(seed=4, device="cpu")
    assert isinstance(method, Engine)
    assert result["summary"] == {
        **summary(result["sessions"]),
        "memory_bytes": result["summary"]["memory_bytes"],
        "parameters": result["summary"]["parameters"],
    }
    assert result["summary"]["memory_bytes"] > 10 * 2 * 5 * 4
    assert result["summary"]["parameters"] > 5 * 16 + 16 * 128


def test_a_result_comes_back_as_it_was_written(result, tmp_path):
    save(tmp_path / "some" / "run.json", result)
    assert load(tmp_path / "some" / "run.json") == result
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["run.json"]


def test_a_result_of_another_schema_is_refused(result, tmp_path):
    save(tmp_path / "run.json", {**result, "schema": results.SCHEMA + 1})
    with pytest.raises(ConcmError, match=r"run\.json has result schema 2, this version reads 1"):
        load(tmp_path / "run.json")


def cut(text: str) -> bytes:
    return text[: len(text) // 2].encode()


def without_a_session(text: str) -> bytes:
    data = json.loads(text)
    return json.dumps({**data, "sessions": data["sessions"][:-1]}).encode()


def without(name: str) -> Callable[[str], bytes]:
    def lacking(text: str) -> bytes:
        return json.dumps({key: value for key, value in json.loads(text).items() if key != name}).encode()

    return lacking


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        without_a_session,
        without("schema"),
        without("scenario"),
        without("sessions"),
        without("summary"),
        lambda _: b"",
        lambda _: b"[]",
        lambda _: b"null",
        lambda _: b"\xff\xfe",
    ],
    ids=["cut", "session", "schema", "scenario", "sessions", "summary", "empty", "list", "null", "bytes"],
)
def test_a_damaged_result_is_refused_with_the_way_out(result, tmp_path, damage):
    path = tmp_path / "run.json"
    path.write_bytes(damage(json.dumps(result)))
    with pytest.raises(ConcmError, match=r"run\.json is not a whole result file; delete it") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_result_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConcmError, match=r"none\.json"):
        load(tmp_path / "none.json")


# figures of a whole run, by hand


def session(index: int, acc: float, base: float, novel: float, hm: float, *, seconds: float = 1.0, **more) -> dict:
    figures = {"acc": acc, "acc_base": base, "acc_novel": novel, "hm": hm, "ber": novel / 2}
    return {
        "index": index,
        **figures,
        "smr": None,
        "seconds": seconds,
        "class_means": {**figures, "hm": hm / 2},
        **more,
    }


RUN = [
    session(0, 80.0, 80.0, 0.0, 0.0, seconds=4.0),
    session(1, 70.0, 75.0, 40.0, 50.0),
    session(2, 66.0, 71.0, 20.0, 30.0, seconds=2.0),
]


def test_the_summary_is_that_of_a_calculation_by_hand():
    found = summary(RUN)
    assert (found["base_acc"], found["fa"], found["pd"]) == (80.0, 66.0, 14.0)
    assert (found["ahm"], found["nacc"], found["ber"]) == (40.0, 30.0, 15.0)
    assert found["avg_acc"] == 72.0
    assert found["seconds"] == 7.0
    assert found["class_means"] == {"ahm": 20.0, "fa": 66.0}


def test_a_base_session_alone_has_a_summary_too():
    found = summary(RUN[:1])
    assert (found["base_acc"], found["fa"], found["pd"], found["ahm"], found["nacc"]) == (80.0, 80.0, 0.0, 0.0, 0.0)


def made(label: str, *sessions: dict) -> results.Result:
    size = {"memory_bytes": 100, "parameters": 10}
    found = {"sessions": list(sessions), "summary": {**summary(list(sessions)), **size}}
    return {"label": label, "environment": {"device": "cpu"}, **found}


CURVE = {"bias": [0.0, 0.1, 0.2], "base": [80.0, 70.0, 60.0], "novel": [10.0, 40.0, 50.0]}
OTHER = {"bias": [0.0, 0.1, 0.2], "base": [84.0, 74.0, 60.0], "novel": [20.0, 40.0, 60.0]}


def test_two_results_are_averaged_and_their_spread_is_told():
    one = made("some", *RUN[:2], {**RUN[2], "trade_off": CURVE})
    worse = session(2, 62.0, 65.0, 30.0, 20.0, seconds=6.0, trade_off=OTHER)
    row = aggregate([one, made("some", RUN[0], session(1, 72.0, 77.0, 50.0, 60.0), worse)])
    assert (row["method"], row["runs"]) == ("some", 2)
    assert (row["ahm"], row["ahm_std"]) == (40.0, 0.0)
    assert (row["fa"], row["fa_std"]) == (64.0, 2.0)
    assert (row["base_acc"], row["pd"], row["nacc"], row["seconds"]) == (80.0, 16.0, 35.0, 9.0)
    assert row["hm"] == [55.0, 25.0]
    assert (row["last_base"], row["last_novel"]) == (68.0, 25.0)
    assert row["trade_off"] == {"bias": [0.0, 0.1, 0.2], "base": [82.0, 72.0, 60.0], "novel": [15.0, 40.0, 55.0]}
    assert row["smr"] is None
    assert (row["memory_bytes"], row["parameters"]) == (100.0, 10.0)


def test_matching_rates_are_averaged_by_session():
    runs = [
        [{**figures, "smr": rate + step} for figures, step in zip(RUN, (0.0, 0.1, 0.2), strict=True)]
        for rate in (0.2, 0.4)
    ]
    assert aggregate([made("some", *sessions) for sessions in runs])["smr"] == pytest.approx([0.4, 0.5])


@pytest.mark.parametrize(
    ("base", "novel", "points"),
    [(70.0, 40.0, 0.0), (75.0, 30.0, 5.0), (65.0, 40.0, -5.0), (90.0, 15.0, None), (50.0, 50.0, None)],
)
def test_points_above_the_curve_are_counted_at_the_rows_own_base_accuracy(base, novel, points):
    row = {"last_base": base, "last_novel": novel}
    assert above(row, {"trade_off": CURVE}) == (None if points is None else pytest.approx(points))
    assert above(row, {"trade_off": None}) is None


def test_without_a_last_session_there_is_no_trade_off():
    assert trade_off([made("some", RUN[0])]) is None
    assert aggregate([made("some", RUN[0])])["trade_off"] is None


def test_rows_keep_the_order_of_the_methods_and_stand_against_the_control():
    last = {**RUN[2], "trade_off": CURVE}
    better = session(2, 66.0, 70.0, 43.0, 30.0, trade_off=CURVE)
    found = rows([made("ours", *RUN[:2], better), made("ncm", *RUN[:2], last), made("ours", *RUN[:2], better)])
    assert [(row["method"], row["runs"]) for row in found] == [("ours", 2), ("ncm", 1)]
    assert found[0]["above_curve"] == pytest.approx(3.0)
    assert found[1]["above_curve"] == pytest.approx(20.0 - 37.0)
    assert rows([made("ours", *RUN[:2], better)])[0]["above_curve"] is None


# where a result belongs


def whereabouts(file: Path, words: str = "concm", *, draw=0, seed=0, splits=None, device="cpu", **cut) -> Path:
    bank = banks.Bank.load(file).vary(**cut)
    return place(Path("out"), head(choose(words), bank, draw=draw, seed=seed, splits=splits, device=device))


def test_a_run_belongs_to_the_same_place_whenever_it_is_asked_for(file, tmp_path):
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(file.read_bytes())
    assert whereabouts(file) == whereabouts(copy)
    assert whereabouts(file).parent == Path("out")
    assert whereabouts(file, draw=3, seed=4).name.startswith("folder-concm-draw3-seed4-")


def test_whatever_decides_a_run_changes_its_place(file, tmp_path, monkeypatch):
    found = [
        whereabouts(file),
        whereabouts(file, "concm:alpha=0.5"),
        whereabouts(file, "concm:calibration.steps=50"),
        whereabouts(file, "ncm"),
        whereabouts(file, draw=1),
        whereabouts(file, seed=1),
        whereabouts(file, splits=tmp_path),
        whereabouts(file, way=1),
        whereabouts(file, shot=1),
        whereabouts(file, sessions=2),
    ]
    monkeypatch.setattr(results, "code", lambda: "of another version")
    found.append(whereabouts(file))
    assert len(set(found)) == len(found)


def another(bank: banks.Bank, kind: str) -> banks.Bank:
    if kind == "dimension":
        return make_bank(dimension=6)
    if kind == "encoder":
        return replace(bank, encoder={"name": "some"})
    if kind == "names":
        names = (*bank.scenario.names[:-1], "class xx")
        return replace(bank, scenario=replace(bank.scenario, names=names))
    return replace(bank, novel=replace(bank.novel, features=bank.novel.features.flip(0)))


@pytest.mark.parametrize("kind", ["dimension", "encoder", "names", "features"])
def test_a_result_of_another_bank_is_not_taken_for_one_of_this(file, tmp_path, kind):
    other = tmp_path / "other.safetensors"
    another(make_bank(), kind).save(other)
    assert whereabouts(other) != whereabouts(file)


def test_the_fingerprint_of_the_code_is_that_of_the_source(monkeypatch, tmp_path):
    source = Path(results.__file__).parents[1]
    copy = tmp_path / "copy"
    for path in source.rglob("*.py"):
        target = copy / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    monkeypatch.setattr(results, "files", lambda _: copy)
    whole = results.code.__wrapped__
    same = whole()
    assert whole() == same
    (copy / "concm.py").write_text("# other code")
    assert whole() != same


# many runs


def tasks_of(file: Path) -> list[Task]:
    return [task(file, method, draw) for method in ("ncm", "ncm_bias") for draw in (0, 1)]


@pytest.fixture(scope="module")
def finished(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs, one after the other."""
    out = tmp_path_factory.mktemp("finished")
    run_all(tasks_of(file), out, silent, jobs=1)
    return out


def test_two_processes_find_what_one_finds(file, finished, tmp_path):
    heard = []
    run_all(tasks_of(file), tmp_path, lambda *event: heard.append(event), jobs=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in finished.iterdir())
    for one, other in zip(collect(tasks_of(file), finished), collect(tasks_of(file), tmp_path), strict=True):
        assert json.dumps(without_seconds(one)) == json.dumps(without_seconds(other))
    names = [f"{task.method} draw {task.draw}" for task in tasks_of(file)]
    assert sorted((name, index) for name, index, _ in heard) == [
        (name, index) for name in sorted(names) for index in range(4)
    ]


def test_every_session_is_told_while_it_runs(file, tmp_path):
    heard = []
    run_all([task(file)], tmp_path, lambda *event: heard.append(event), jobs=2)
    assert [(name, index) for name, index, _ in heard] == [("ncm draw 0", index) for index in range(4)]
    assert all({"acc", "hm"} <= figures.keys() for *_, figures in heard)


def test_results_come_in_the_order_of_their_tasks(file, finished):
    backwards = tasks_of(file)[::-1]
    assert [(r["label"], r["draw"]) for r in collect(backwards, finished)] == [(t.method, t.draw) for t in backwards]


def test_what_is_finished_is_not_done_again_and_what_was_deleted_is(file, tmp_path):
    tasks = tasks_of(file)
    assert missing(tasks, tmp_path / "none yet") == tasks
    run_all(tasks, tmp_path, silent, jobs=1)
    assert missing(tasks, tmp_path) == []
    deleted = place(tmp_path, tasks[2].head(tasks[2].source.bank()))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    old = load(deleted)
    deleted.unlink()
    assert missing(tasks, tmp_path) == [tasks[2]]
    run_all(missing(tasks, tmp_path), tmp_path, silent, jobs=2)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert after.keys() == before.keys()
    assert [path for path in after if after[path] != before[path]] == [deleted]
    assert without_seconds(load(deleted)) == without_seconds(old)


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_to_do_is_no_mistake(tmp_path, jobs):
    run_all([], tmp_path, silent, jobs=jobs)
    assert list(tmp_path.iterdir()) == []


def test_a_result_does_not_depend_on_how_many_threads_there_are(file, finished, tmp_path):
    torch.set_num_threads(2)
    try:
        run_all(tasks_of(file)[:1], tmp_path, silent, jobs=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    [one], [other] = collect(tasks_of(file)[:1], finished), collect(tasks_of(file)[:1], tmp_path)
    assert without_seconds(one) == without_seconds(other)


def wait_for_no_children() -> None:
    until = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_mistake_in_a_run_reaches_the_caller_and_other_runs_end(file, tmp_path, jobs):
    tasks = [task(file, splits=tmp_path / "none"), *(task(file, "concm:steps=2000", draw) for draw in range(4))]
    with pytest.raises(ConcmError, match=f"no index list at {tmp_path / 'none' / 'session_2.txt'}"):
        run_all(tasks, tmp_path / "out", silent, jobs=jobs)
    wait_for_no_children()
    assert not list(tmp_path.glob("out/*"))


def test_a_run_that_is_killed_is_told_in_a_sentence(file, tmp_path, monkeypatch):
    def kill_one_and_wait(*words, **options):
        for worker in multiprocessing.active_children()[:1]:
            os.kill(worker.pid, signal.SIGKILL)
        return wait(*words, **options)

    monkeypatch.setattr(bench, "wait", kill_one_and_wait)
    with pytest.raises(ConcmError, match="a run was killed, perhaps for want of memory; try again with --jobs 1"):
        run_all(tasks_of(file), tmp_path, silent, jobs=2)
    wait_for_no_children()
