"""Runs on a Ray cluster: what they find is what this machine finds, and nobody needs Ray who does not ask for it."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from concm import cluster
from concm.errors import ConcmError, Misuse
from concm.evaluation.bench import BankSource, finish, tasks_of
from concm.evaluation.results import Result, machine
from concm.evaluation.workers import Here, OnRay, place
from concm.features.bank import Bank
from tests.support.cluster import Inline
from tests.support.data import make_bank
from tests.support.tiny import CONCM, CUT, call, complaints, environment, sentence, wait_until, write_tiny

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'concm[ray]'")
OWN = """
import os, signal
from pathlib import Path
from concm.methods.ncm import NCM

class Mortal(NCM):
    def fit_base(self, base):
        if not Path({mark!r}).exists():
            Path({mark!r}).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().fit_base(base)

class Slow(NCM):
    def learn(self, session):
        Path({mark!r}).touch()
        import time
        time.sleep(600)
"""


ACCIDENTS = """
import os, signal, time
from pathlib import Path
from concm.cluster import Cluster
from concm.errors import ConcmError

def wait_for(name):
    while not Path({folder!r}, name).exists():
        time.sleep(0.05)

def work(shared, at):
    if at == 0 and not Path({folder!r}, "killed").exists():
        Path({folder!r}, "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if at > 0:
        wait_for("first result")
        Path({folder!r}, "failed").touch()
        raise ConcmError("nobody waits for this")

with Cluster() as cluster:
    done = cluster.each(work, None, [(0,), (1,)])
    next(done)
    Path({folder!r}, "first result").touch()
    wait_for("failed")
    time.sleep(2)  # until that is known here
    done.close()
    del done
    time.sleep(1)
"""


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bank") / "tiny.safetensors"
    make_bank().save(path)
    return path


def figures(folder: Path) -> dict[str, Result]:
    """Every result but the time it took, by file."""
    found = {}
    for file in folder.glob("folder-*.json"):
        one = Result.load(file)
        sessions = [replace(session, seconds=0.0) for session in one.sessions]
        found[file.name] = replace(one, sessions=sessions, summary=replace(one.summary, seconds=0.0))
    return found


def concm(folder: Path, *words: object) -> subprocess.Popen[str]:
    asked = [str(CONCM), *map(str, words)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(asked, cwd=folder, env=environment(), text=True, start_new_session=True, **pipes)


def test_nothing_of_ray_is_imported_unless_it_is_asked_for():
    program = (
        "import sys\n"
        "import concm.cli.app, concm.cluster, concm.evaluation.bench, concm.features.extract\n"
        "import concm.classifier.classifier\n"
        "from concm.cli.app import main\n"
        "main(['methods'])\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_where_ray_is_not_installed_one_sentence_says_how_to_get_it(bank, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert call("bench", "--bank", bank, "--out", tmp_path, "--on", "ray") == 2
    assert "a cluster needs the extra 'ray'" in sentence(capsys.readouterr().err)


def test_a_place_that_there_is_not_is_refused():
    with pytest.raises(Misuse, match=r"`on` is here, ray or ray://HOST:PORT, not 'slurm'"), place("slurm", "cpu"):
        pass


def tasks(*methods: str):
    return tasks_of(methods, draws=2, seeds=1, seed=0, splits=None, device="cpu")


def test_results_belong_to_their_tasks_in_whatever_order_they_come(bank, tmp_path):
    source = BankSource(file=bank)
    here = finish(tasks("ncm", "ncm_bias"), source, source.bank(), tmp_path / "here", Here())
    there = finish(tasks("ncm", "ncm_bias"), source, source.bank(), tmp_path / "there", OnRay(Inline()))
    assert [one.heading for one in here] == [one.heading for one in there]
    assert figures(tmp_path / "here") == figures(tmp_path / "there")


def test_a_worker_of_another_kind_is_refused(bank, tmp_path):
    class Older(Inline):
        def ask(self, question, *words, gpus=0):
            return {**machine("cpu"), "torch": "1.0"}

    source = BankSource(file=bank)
    with pytest.raises(ConcmError, match=r"a worker has torch .* and not 1.0: all need the same"):
        finish(tasks("ncm"), source, source.bank(), tmp_path, OnRay(Older()))
    assert not list(tmp_path.iterdir())


def test_a_machine_that_has_not_the_user_s_file_gets_it_with_the_task(bank, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from concm.methods.ncm import NCM\n\n\nclass Mine(NCM):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    [task, _] = tasks("mine.py:Mine")
    before = task.choice().source
    (tmp_path / "mine.py").unlink()
    assert task.choice().source == before


class FakeRay:
    """Ray, in this process: it loses Ctrl-C as it starts, and does a job when its result is asked for."""

    def __init__(self, running: bool = False) -> None:
        self.running, self.handed = running, 0

    def is_initialized(self) -> bool:
        return self.running

    def init(self, *_: object, **__: object) -> None:
        self.running = True
        with suppress(KeyboardInterrupt):  # as in what Python does after a fork
            signal.raise_signal(signal.SIGINT)

    def shutdown(self) -> None:
        self.running = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, value: object) -> object:
        return value

    def remote(self, **_: object):
        return lambda work: SimpleNamespace(remote=self._handed)

    def _handed(self, *job: object) -> object:
        self.handed += 1
        return self.handed

    def wait(self, asked: list) -> tuple[list, list]:
        return asked[:1], asked[1:]

    def get(self, job: object) -> object:
        return None


def test_ctrl_c_while_ray_starts_is_not_lost_and_ray_ends(monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(cluster, "_imported", lambda: fake)
    with pytest.raises(KeyboardInterrupt):
        cluster.Cluster()
    assert not fake.running


def test_a_cluster_that_was_there_before_is_not_left_with_many_jobs(monkeypatch):
    fake = FakeRay(running=True)
    monkeypatch.setattr(cluster, "_imported", lambda: fake)
    fake.exceptions = SimpleNamespace(RayTaskError=(), RayError=())
    with cluster.Cluster() as joined, closing(joined.each(print, None, [(at,) for at in range(100)])) as done:
        next(done)
    assert fake.handed <= 5
    assert fake.running


@needs_ray
@pytest.mark.slow
def test_ctrl_c_ends_what_runs_on_a_cluster_and_keeps_what_is_finished(bank, tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(OWN.format(mark=str(mark)))
    asked = ["--method", "ncm", "--method", "mine.py:Slow", "--draws", 1, "--out", "out", "--on", "ray"]
    process = concm(tmp_path, "bench", "--bank", bank, *asked, "--device", "cpu")
    try:
        wait_until(lambda: mark.exists() and any((tmp_path / "out").glob("folder-ncm-*.json")))
        os.killpg(process.pid, signal.SIGINT)
        code, said = process.wait(120), process.communicate()[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert code == 1
    own = re.sub(r"(?m)^\[[^]]+\] [\w.]+:\d+: .*\n", "", said)  # Ray's core tells of a job that it lost just then
    assert sentence(own) == "interrupted; finished runs are in out, the same command does the rest"
    assert all(Result.load(file).summary for file in (tmp_path / "out").glob("folder-*.json"))


@needs_ray
@pytest.mark.slow
def test_ray_itself_says_nothing_of_killed_workers_and_of_jobs_that_nobody_waits_for(tmp_path):
    program = ACCIDENTS.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment(), check=True)
    assert (tmp_path / "killed").exists()
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.fixture(scope="module")
def ray():
    """A cluster of two cores that several tests join, as it is started only once."""
    module = pytest.importorskip("ray", reason="Ray is not installed: pip install 'concm[ray]'")
    before = signal.getsignal(signal.SIGTERM)
    module.init("local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    yield
    module.shutdown()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Pictures, and the run folder of a backbone that was trained on them."""
    root = tmp_path_factory.mktemp("trained")
    data = write_tiny(root / "data")
    run = ["train", "folder", "--data", data, *CUT, "--backbone", "resnet20", "--epochs", 1, "--batch", 16]
    assert call(*run, "--out", root / "run") == 0
    return data, root / "run"


@pytest.mark.usefixtures("ray")
@pytest.mark.slow
def test_a_cluster_finds_what_this_machine_finds_and_a_killed_worker_costs_one_task(
    bank, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "mark"
    Path("mine.py").write_text(OWN.format(mark=str(mark)))
    asked = ["bench", "--bank", bank, "--draws", 2, "--method", "mine.py:Mortal", "--device", "cpu"]
    assert call(*asked, "--out", "there", "--on", "ray") == 0
    assert complaints(capsys.readouterr().err) == []
    assert mark.exists()
    assert call(*asked, "--out", "here", "--jobs", 1) == 0
    found = figures(tmp_path / "here")
    assert len(found) >= 4
    assert found == figures(tmp_path / "there")


@pytest.mark.usefixtures("ray")
@pytest.mark.slow
def test_features_of_lists_on_a_cluster_are_those_of_folders_on_this_machine(trained, tmp_path, capsys):
    data, run = trained
    (tmp_path / "lists").mkdir()
    for part in ("train", "test"):
        rows = [f"{path},{path.parent.name},{part}" for path in sorted((data / part).rglob("*.png"))]
        (tmp_path / "lists" / f"{part}.csv").write_text("\n".join(["path,label,part", *rows]))
    asked = ["features", "folder", *CUT, "--backbone", run, "--batch", 4]
    there = ["--data", tmp_path / "lists", "--out", tmp_path / "there", "--on", "ray", "--shards", 3]
    assert call(*asked, *there) == 0
    assert complaints(capsys.readouterr().err) == []
    assert call(*asked, "--data", data, "--out", tmp_path / "here.safetensors") == 0
    one, other = Bank.load(tmp_path / "here.safetensors"), Bank.load(tmp_path / "there")
    assert torch.allclose(one.test.features, other.test.features, atol=1e-3)
    assert [f"{data}/train/{name}" for name in one.base.ids] == other.base.ids
    assert not (tmp_path / "there.shards").exists()


@pytest.mark.usefixtures("ray", "cache")
@pytest.mark.slow
def test_a_store_of_a_cluster_knows_what_one_of_this_machine_knows(trained, tmp_path, monkeypatch, capsys):
    data, run = trained
    for on in ("ray", "here"):
        monkeypatch.setenv("CONCM_CACHE", str(tmp_path / f"cache of {on}"))
        assert call("fit", tmp_path / on, data / "train", "--backbone", run, "--device", "cpu", "--on", on) == 0
        assert call("evaluate", tmp_path / on, data / "test", "--device", "cpu", "--json", "--on", on) == 0
    told = [json.loads(text) for text in re.findall(r"^\{.*?^\}", capsys.readouterr().out, flags=re.M | re.S)]
    assert told[0]["acc"] == pytest.approx(told[1]["acc"])
    assert told[0]["ece"] == pytest.approx(told[1]["ece"], abs=0.01)
