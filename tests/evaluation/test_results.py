"""Results as files: what they say, where they belong, and how damaged ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from concm import __version__
from concm.backbones.encoder import Identity
from concm.errors import ConcmError
from concm.evaluation import results
from concm.evaluation.bench import BankSource, finish, tasks_of
from concm.evaluation.results import Heading, Result, Summary, machine
from concm.evaluation.statistics import Table
from concm.features.bank import Bank
from concm.methods import choose
from concm.report.bench import show
from tests.support.data import make_bank
from tests.support.runs import RUN

torch.set_num_threads(1)

QUICK = "concm:base_steps=2,steps=2,hidden=16,calibration.steps=2"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank of 4 base classes and 3 sessions of 2 classes."""
    path = tmp_path_factory.mktemp("bank") / "tiny.safetensors"
    make_bank().save(path)
    return path


@pytest.fixture(scope="module")
def result(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run of ConCM, as it is written."""
    source = BankSource(file=file)
    tasks = tasks_of([QUICK], draws=1, seeds=1, seed=3, splits=None, device="cpu")
    return finish(tasks, source, source.bank(), tmp_path_factory.mktemp("out"))[0]


def test_a_result_says_what_was_run(result):
    heading = result.heading
    assert heading.schema == results.SCHEMA
    assert (heading.scenario, asdict(heading.cut)) == ("folder", {"base": 4, "way": 2, "shot": 5, "sessions": 3})
    assert (heading.method, heading.label, heading.draw, heading.seed) == ("concm", QUICK, 3, 3)
    assert heading.needs == ["class names", "views of the shots", "exemplars: 5 per novel class, base images held out"]
    assert heading.bank["name"] == "none"
    assert heading.environment["concm"] == __version__
    assert {"code", "python", "torch", "device"} < heading.environment.keys()


def test_its_configuration_is_the_full_one(result):
    settings, recorded = choose(QUICK).settings, result.heading.settings
    assert recorded["steps"] == recorded["calibration"]["steps"] == 2
    assert recorded["alpha"] == settings.alpha
    assert recorded.keys() == vars(settings).keys()
    assert recorded["calibration"].keys() == vars(settings.calibration).keys()


def test_it_says_how_often_the_backbone_saw_each_picture(result, capsys):
    bank = replace(make_bank(), encoder=Identity("none", "", turns=2, looks=3, layout=(2, 3)))
    heading = Heading.of(choose("ncm"), bank, draw=0, seed=0, machine=machine("cpu"))
    assert (result.heading.passes, heading.passes) == (1, 6)
    table = Table.of(bank, [result], 1)
    assert table.passes == 6
    show(table)
    assert "forward passes per picture: 6\n" in capsys.readouterr().out


def test_it_has_the_figures_of_every_session(result):
    assert [figures.index for figures in result.sessions] == [0, 1, 2, 3]
    assert [figures.classes for figures in result.sessions] == [4, 6, 8, 10]
    for figures in result.sessions:
        matrix = np.array(figures.confusion)
        assert matrix.shape == (figures.classes,) * 2
        assert matrix.sum() == 8 * figures.classes
        assert figures.acc == pytest.approx(100 * matrix.trace() / matrix.sum())
        assert figures.acc_novel == pytest.approx(100 * matrix.diagonal()[4:].sum() / max(1, matrix[4:].sum()))
        assert -1 <= figures.smr <= 1
        assert figures.seconds > 0
    assert [figures.trade_off is not None for figures in result.sessions] == [False, False, False, True]


def test_its_summary_is_derived_from_the_sessions_and_the_method(result):
    size = {"memory_bytes": result.summary.memory_bytes, "parameters": result.summary.parameters}
    assert result.summary == replace(Summary.of(result.sessions), **size)
    assert result.summary.memory_bytes > 10 * 2 * 5 * 4
    assert result.summary.parameters > 5 * 16 + 16 * 128


@pytest.mark.promise
def test_a_result_comes_back_as_it_was_written(result, tmp_path):
    result.save(tmp_path / "some" / "run.json")
    assert Result.load(tmp_path / "some" / "run.json") == result
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["run.json"]


def test_a_result_of_another_schema_is_refused(result, tmp_path):
    replace(result, heading=replace(result.heading, schema=1)).save(tmp_path / "run.json")
    with pytest.raises(ConcmError, match=r"run\.json has result schema 1, this version reads 2"):
        Result.load(tmp_path / "run.json")


def cut(text: str) -> bytes:
    return text[: len(text) // 2].encode()


def without_a_session(text: str) -> bytes:
    data = json.loads(text)
    return json.dumps({**data, "sessions": data["sessions"][:-1]}).encode()


def without(name: str) -> Callable[[str], bytes]:
    def lacking(text: str) -> bytes:
        return json.dumps({key: value for key, value in json.loads(text).items() if key != name}).encode()

    return lacking


def embellished(text: str) -> bytes:
    data = json.loads(text)
    return json.dumps({**data, "summary": {**data["summary"], "ahm": data["summary"]["ahm"] + 1}}).encode()


def without_any_session(text: str) -> bytes:
    data = json.loads(text)
    data["heading"]["cut"]["sessions"] = -1
    return json.dumps({**data, "sessions": []}).encode()


def with_a_short_curve(text: str) -> bytes:
    data = json.loads(text)
    data["sessions"][-1]["trade_off"]["base"].pop()
    return json.dumps(data).encode()


@pytest.mark.promise
@pytest.mark.parametrize(
    "damage",
    [
        cut,
        without_a_session,
        without("heading"),
        without("sessions"),
        without("summary"),
        embellished,
        without_any_session,
        with_a_short_curve,
        lambda _: b"[" * 100_000,
        lambda _: b"",
        lambda _: b"[]",
        lambda _: b"null",
        lambda _: b"\xff\xfe",
    ],
    ids=[
        "cut",
        "session",
        "heading",
        "sessions",
        "summary",
        "embellished",
        "none",
        "curve",
        "deep",
        "empty",
        "list",
        "null",
        "bytes",
    ],
)
def test_a_damaged_result_is_refused_with_the_way_out(result, tmp_path, damage):
    path = tmp_path / "run.json"
    result.save(path)
    path.write_bytes(damage(path.read_text()))
    with pytest.raises(ConcmError, match=r"run\.json is damaged or not a whole result file .*; delete it") as caught:
        Result.load(path)
    assert "\n" not in str(caught.value)


def test_a_result_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConcmError, match=r"none\.json"):
        Result.load(tmp_path / "none.json")


def test_the_summary_is_that_of_a_calculation_by_hand():
    found = Summary.of(RUN)
    assert (found.base_acc, found.fa, found.pd) == (80.0, 66.0, 14.0)
    assert (found.ahm, found.nacc, found.ber) == (40.0, 30.0, 15.0)
    assert (found.avg_acc, found.seconds) == (72.0, 7.0)
    assert (found.class_means.ahm, found.class_means.fa) == (20.0, 66.0)


def test_a_base_session_alone_has_a_summary_too():
    found = Summary.of(RUN[:1])
    assert (found.base_acc, found.fa, found.pd, found.ahm, found.nacc) == (80.0, 80.0, 0.0, 0.0, 0.0)


# where a result belongs


def whereabouts(file: Path, words: str = "concm", *, draw=0, seed=0, shots=None, **cut) -> Path:
    bank = Bank.load(file).vary(**cut)
    return Heading.of(choose(words), bank, draw=draw, seed=seed, machine=machine("cpu"), shots=shots).place(Path("out"))


def test_a_run_belongs_to_the_same_place_whenever_it_is_asked_for(file, tmp_path):
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(file.read_bytes())
    assert whereabouts(file) == whereabouts(copy)
    assert whereabouts(file).parent == Path("out")
    assert whereabouts(file, draw=3, seed=4).name.startswith("folder-concm-draw3-seed4-")


def test_whatever_decides_a_run_changes_its_place(file, monkeypatch):
    found = [
        whereabouts(file),
        whereabouts(file, "concm:alpha=0.5"),
        whereabouts(file, "concm:calibration.steps=50"),
        whereabouts(file, "ncm"),
        whereabouts(file, draw=1),
        whereabouts(file, seed=1),
        whereabouts(file, shots={4: [0, 1]}),
        whereabouts(file, way=1),
        whereabouts(file, shot=1),
        whereabouts(file, sessions=2),
    ]
    monkeypatch.setattr(results, "code", lambda: "of another version")
    found.append(whereabouts(file))
    assert len(set(found)) == len(found)


def test_a_name_inside_a_bank_is_never_a_path(result):
    heading = replace(result.heading, scenario="../../etc/some", method="a/b:C")
    assert heading.place(Path("out")).parent == Path("out")


def another(bank: Bank, kind: str) -> Bank:
    if kind == "dimension":
        return make_bank(dimension=6)
    if kind == "encoder":
        return replace(bank, encoder=Identity("some", ""))
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
    (copy / "errors.py").write_text("# other code")
    assert whole() != same
