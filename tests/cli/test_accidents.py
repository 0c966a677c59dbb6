"""A store that others use, and accidents: whatever happens, a whole version is left."""

from __future__ import annotations

import errno
import gc
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from concm.backbones import find_backbone
from concm.classifier.store import Store
from tests.support.photographs import BACKBONE, TinyBackbone, write_class, write_world
from tests.support.shell import (
    BASE,
    INTERRUPTED,
    KILLS,
    KNOWN,
    LATER,
    answers,
    classes,
    contents,
    refusal,
    right,
    shown,
    told,
    unchanged,
)
from tests.support.tiny import CONCM, call, environment, sentence


def test_a_store_that_is_being_changed_can_be_read_and_not_be_changed(zoo, world, capsys):
    with Store.open(zoo) as holder, holder.writing():
        for words in (["learn", zoo, world / "heron"], ["forget", zoo, "bear"], ["undo", zoo]):
            assert call(*words, "--wait", 0.2) == 1
            out, err = capsys.readouterr()
            waiting, refused = map(sentence, err.splitlines())
            assert out == ""
            assert waiting == f"another process is changing {zoo}; waiting for it, 0.2 seconds at most"
            assert refused == f"the store at {zoo} is being changed by another; try again later"
        assert right(answers(capsys, zoo, world / "asked" / "bear")) == [True] * 4
        assert shown(capsys, zoo)["version"] == 2
        assert call("evaluate", zoo, world / "asked", "--wait", 0.2) == 0
        out, err = capsys.readouterr()
        assert out.startswith("version 2: 24 photos")
        assert sentence(err.splitlines()[-1]).startswith("the figures were not kept: ")
    assert shown(capsys, zoo)["evaluations"] == []
    assert list(classes(capsys, zoo)) == KNOWN
    assert told(capsys, "undo", zoo, "--wait", 0.2).startswith("back at version 1")


@contextmanager
def started(*commands: list[object], stdout: Any = subprocess.PIPE) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are gone afterwards, whatever happens; each is told the code that sees its photos."""
    children = [
        subprocess.Popen(
            [str(CONCM), *map(str, words), *([] if "--backbone" in words else ["--backbone", BACKBONE])],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for words in commands
    ]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()
            for stream in filter(None, (child.stdout, child.stderr)):
                stream.close()


@pytest.mark.slow
def test_two_processes_that_learn_at_once_do_so_one_after_the_other(zoo, tmp_path, capsys):
    write_world(tmp_path / "photos", ["gnu", "heron"], 5)
    lessons = [["learn", zoo, name, tmp_path / "photos" / name] for name in ("gnu", "heron")]
    with started(*lessons) as children:
        with Store.open(zoo) as holder, holder.writing():  # until both stand in front of the door
            for child in children:
                assert (
                    child.stderr.readline()
                    == f"concm: another process is changing {zoo}; waiting for it, 60 seconds at most\n"
                )
        said = [child.communicate(timeout=300) for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    assert [err for _, err in said] == ["", ""]
    found = shown(capsys, zoo)
    assert [line["version"] for line in found["history"]] == [1, 2, 3, 4]
    assert sorted(line["detail"] for line in found["history"][2:]) == ["gnu (5)", "heron (5)"]
    assert classes(capsys, zoo) == {**dict.fromkeys(BASE, 24), **dict.fromkeys([*LATER, "gnu", "heron"], 5)}
    assert right(answers(capsys, zoo, tmp_path / "photos", "--unknown-rate", 0)) == [True] * 10


def forked() -> multiprocessing.context.ForkServerContext:
    """Where processes begin with torch imported, so that many can be started and killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["concm.classifier", "concm.report.classifier", "pytest"])
    return context


def _carry_out(lines: list[list[str]], pipe: Connection) -> None:
    """Run commands one after the other, and say of each when it begins and with which code it has ended."""
    find_backbone(BACKBONE)  # as the user of this process would name it
    torch.set_num_threads(1)
    with redirect_stdout(io.StringIO()):
        for at, words in enumerate(lines):
            pipe.send(("begins", at))
            pipe.send((call(*words), at))


def test_whoever_predicts_while_others_learn_sees_whole_versions(zoo, world, tmp_path, capsys):
    names = [f"class {at}" for at in range(6)]
    write_world(tmp_path / "photos", names, 4)
    versions, history, lines = {2: KNOWN}, [2], []
    for at, name in enumerate(names):
        lines.append(["learn", str(zoo), name, str(tmp_path / "photos" / name)])
        versions[max(versions) + 1] = [*versions[history[-1]], name]
        history.append(max(versions))
        if at in (1, 3):
            lines.append(["undo", str(zoo)])
            history.pop()
        if at in (2, 4):
            lines.append(["forget", str(zoo), KNOWN[at]])
            versions[max(versions) + 1] = [known for known in versions[history[-1]] if known != KNOWN[at]]
            history.append(max(versions))
    ours, theirs = forked().Pipe(duplex=False)
    asked = world / "asked" / "bear"
    seen = answers(capsys, zoo, asked, "--top", 99)
    child = forked().Process(target=_carry_out, args=(lines, theirs))
    child.start()
    theirs.close()
    while child.is_alive():
        seen += answers(capsys, zoo, asked, "--top", 99)
    child.join()
    seen += answers(capsys, zoo, asked, "--top", 99)
    codes = []
    with suppress(EOFError):
        while True:
            codes.append(ours.recv()[0])
    ours.close()
    assert codes == ["begins", 0] * len(lines)
    for one in seen:
        assert {name for name, _ in one["top"]} == set(versions[one["version"]])
        assert one["top"][0][0] == "bear"
    assert {seen[0]["version"], seen[-1]["version"]} == {2, history[-1]}
    assert list(classes(capsys, zoo)) == versions[history[-1]]


def test_a_version_that_is_undone_while_it_is_opened_gives_the_one_before(zoo, world, capsys, monkeypatch):
    told(capsys, "learn", zoo, world / "heron")
    opened = torch.UntypedStorage.from_file

    def slow(*given: Any, **more: Any) -> Any:
        with Store.open(zoo) as other:
            if other.version == 3:  # its state is gone when safetensors opens it for the second time
                other.undo()
        return opened(*given, **more)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", staticmethod(slow))
    found = answers(capsys, zoo, world / "asked" / "bear", "--top", 99)
    assert [one["version"] for one in found] == [2] * 4
    assert {name for one in found for name, _ in one["top"]} == set(KNOWN)


def killed(lines: list[list[str]], seconds: float) -> tuple[list[int], int]:
    """Kill -9 a process that carries out these commands; returns those that had ended, and the last one begun."""
    ours, theirs = forked().Pipe(duplex=False)
    child = forked().Process(target=_carry_out, args=(lines, theirs))
    child.start()
    theirs.close()
    said = [ours.recv()]
    time.sleep(seconds)
    child.kill()
    child.join()
    with suppress(EOFError):
        while True:
            said.append(ours.recv())
    ours.close()
    assert {word for word, _ in said} <= {"begins", 0}
    return [at for word, at in said if word == 0], max(at for word, at in said if word == "begins")


def test_kill_9_while_learning_leaves_a_whole_version_and_loses_nothing(zoo, world, tmp_path, capsys):
    choose = random.Random(0)
    folders = {name: world / ("base" if name in BASE else "later") / name for name in KNOWN}
    for turn in range(KILLS):
        names = [f"class {turn} {at}" for at in range(12)]
        fresh = {name: tmp_path / "photos" / name for name in names}
        write_world(tmp_path / "photos", names, 3)
        lines = [["learn", str(zoo), name, str(folder)] for name, folder in fresh.items()]
        ended, begun = killed(lines, choose.uniform(0, 0.6))
        now, sure = list(classes(capsys, zoo)), [*folders, *(names[at] for at in ended)]
        assert now in (sure, [*sure, names[begun]])
        folders |= {name: fresh[name] for name in now if name not in folders}
        found = answers(capsys, zoo, *folders.values(), "--unknown-rate", 0, "--top", 999)
        assert all(right(found))
        assert all({name for name, _ in one["top"]} == set(now) for one in found)
        line = shown(capsys, zoo)["history"][-1]
        assert (line["classes"], line["photos"]) == (len(now), len(found))
        told(capsys, "learn", zoo, "gnu", *write_class(tmp_path / f"gnu {turn}", 2, name="gnu"))
        told(capsys, "undo", zoo)


def test_kill_9_while_fitting_leaves_all_or_nothing_and_fit_can_be_repeated(world, tmp_path, capsys):
    choose = random.Random(1)
    for turn in range(KILLS):
        store = tmp_path / f"zoo {turn}"
        fit = ["fit", str(store), str(world / "base"), "--backbone", BACKBONE]
        killed([fit], choose.uniform(0, 1.2))
        capsys.readouterr()
        if call("show", store) == 2:
            assert sentence(capsys.readouterr().err).endswith("fit it with two classes or more first")
            told(capsys, *fit)
        assert classes(capsys, store) == dict.fromkeys(BASE, 24)
        assert right(answers(capsys, store, world / "base", "--unknown-rate", 0)) == [True] * 96


class Gated(TinyBackbone):
    """Lets some batches pass; says that it has the next, and waits to be let on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.free = Path(os.environ["GATE"]), int(os.environ["GATE_FREE"])

    def forward(self, images):
        if self.free == 0:
            (self.gate / "waiting").touch()
            while not (self.gate / "open").exists():
                time.sleep(0.01)
        self.free -= 1
        with (self.gate / "seen").open("a") as file:
            file.write(f"{len(images)}\n")
        return super().forward(images)


GATED = f"{__name__}:Gated"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a gated backbone says what it has seen; closed after one batch."""
    folder = tmp_path / "gate"
    folder.mkdir()
    monkeypatch.setenv("GATE", str(folder))
    monkeypatch.setenv("GATE_FREE", "1")
    return folder


def wait_until_waiting(gate: Path, child: subprocess.Popen[str]) -> None:
    while not (gate / "waiting").exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)


def fitted_before(gate: Path, capsys, store: Path, photos: Path) -> None:
    """Fit a store while the gate is open, and close it."""
    (gate / "open").touch()
    told(capsys, "fit", store, photos, "--backbone", GATED)
    for file in gate.iterdir():
        file.unlink()


def interrupted(gate: Path, words: list[object]) -> None:
    """Press Ctrl-C when a command is at the closed gate."""
    with started(words) as (child,):
        wait_until_waiting(gate, child)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=300)
    assert (child.returncode, out, sentence(err)) == (1, "", INTERRUPTED)


@pytest.mark.slow
def test_a_fit_that_is_interrupted_while_encoding_goes_on_from_what_it_remembers(gate, tmp_path, capsys):
    write_world(tmp_path / "photos", ["ant", "bat", "cat", "dog", "emu"], 24)
    words = ["fit", tmp_path / "zoo", tmp_path / "photos", "--backbone", GATED]
    interrupted(gate, words)
    assert not (tmp_path / "zoo").exists()
    assert (gate / "seen").read_text() == "32\n"
    (gate / "open").touch()
    told(capsys, *words)
    assert (gate / "seen").read_text() == "32\n" + "32\n32\n24\n"
    assert sum(classes(capsys, tmp_path / "zoo").values()) == 120


@pytest.mark.slow
def test_ctrl_c_while_learning_leaves_the_store_as_it_was(gate, world, tmp_path, capsys):
    fitted_before(gate, capsys, tmp_path / "zoo", world / "base")
    write_class(tmp_path / "photos" / "gnu", 40)
    with unchanged(capsys, tmp_path / "zoo"):
        interrupted(gate, ["learn", tmp_path / "zoo", tmp_path / "photos", "--backbone", GATED])
    (gate / "open").touch()
    told(capsys, "learn", tmp_path / "zoo", tmp_path / "photos")
    assert classes(capsys, tmp_path / "zoo") == {**dict.fromkeys(BASE, 24), "gnu": 40}


@pytest.mark.slow
def test_answers_come_while_others_are_still_awaited(gate, world, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    fitted_before(gate, capsys, tmp_path / "zoo", world / "base")
    photos = write_class(tmp_path / "bear", 40, first=100)
    asked = ["predict", tmp_path / "zoo", tmp_path / "bear"]
    with (
        (tmp_path / "answers").open("w") as file,
        started([*asked, "--json", "--backbone", GATED], stdout=file) as (child,),
    ):
        wait_until_waiting(gate, child)
        assert len((tmp_path / "answers").read_text().splitlines()) == 32
        (gate / "open").touch()
        _, err = child.communicate(timeout=300)
    assert (child.returncode, err) == (0, "")
    found = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [one["photo"] for one in found] == sorted(map(str, photos))


ACCIDENTS = {
    "Ctrl-C": (KeyboardInterrupt, INTERRUPTED),
    "a full disk": (partial(OSError, errno.ENOSPC, os.strerror(errno.ENOSPC)), os.strerror(errno.ENOSPC)),
}


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize("command", ["learn", "forget"])
def test_an_accident_while_a_version_is_written_leaves_the_old_one(
    zoo, world, capsys, monkeypatch, command, accident, turn
):
    error, why = ACCIDENTS[accident]
    fsync, calls = os.fsync, []

    def fail(handle: int) -> None:
        calls.append(handle)
        if len(calls) >= turn:
            raise error()
        fsync(handle)

    words = ["learn", zoo, world / "heron"] if command == "learn" else ["forget", zoo, "bear"]
    with unchanged(capsys, zoo):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            said = refusal(capsys, *words, code=1)
        assert why in said
    told(capsys, *words)
    assert ("heron" in classes(capsys, zoo)) == (command == "learn")


@contextmanager
def file_size(limit: int) -> Iterator[None]:
    """No file of this process can grow beyond `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [1000, 50_000, 120_000])
def test_a_file_that_cannot_grow_leaves_the_old_version(zoo, world, tmp_path, capsys, limit):
    new = ["fit", tmp_path / "new", world / "base", "--backbone", BACKBONE]
    more = ["learn", zoo, world / "heron"]
    with unchanged(capsys, zoo):
        gc.collect()
        with file_size(limit):
            said = [refusal(capsys, *words, code=1) for words in (more, new)]
            gc.collect()
    assert all(str(store) in one for store, one in zip((zoo, tmp_path / "new"), said, strict=True))
    for words in (more, new):
        told(capsys, *words)
    assert list(classes(capsys, zoo)) == [*KNOWN, "heron"]
    assert classes(capsys, tmp_path / "new") == dict.fromkeys(BASE, 24)


@pytest.fixture
def disk(tmp_path: Path):
    """A disk of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        gc.collect()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, left: int) -> Path:
    """A file that leaves so many kilobytes."""
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(free - 1024 * left))
    return disk / "filler"


@pytest.mark.parametrize("left", [0, 40, 100, 150])
def test_a_full_disk_is_told_in_a_sentence_and_leaves_the_old_version(disk, taught, world, capsys, left):
    zoo = shutil.copytree(taught, disk / "zoo")
    before = contents(zoo)
    filler = fill(disk, left)
    assert "bear" in told(capsys, "predict", zoo, world / "asked" / "bear", "--backbone", BACKBONE)
    refusal(capsys, "learn", zoo, world / "heron", code=1)
    refusal(capsys, "fit", disk / "new", world / "base", "--backbone", BACKBONE, code=1)
    filler.unlink()
    after = contents(zoo)
    assert {name: after[name] for name in after if not name.startswith("store.db-")} == before
    told(capsys, "learn", zoo, world / "heron")
    assert list(classes(capsys, zoo)) == [*KNOWN, "heron"]
    told(capsys, "fit", disk / "new", world / "base", "--backbone", BACKBONE)


READ_ONLY = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from tests.support.tiny import call
lines = json.loads(sys.argv[1])
results = []
for words in lines:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = call(*words)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps([os.access(lines[0][1], os.W_OK), results]))
"""
# Root writes everywhere, unless a program is begun without that right (PR_CAPBSET_DROP of CAP_DAC_OVERRIDE).
WITHOUT_RIGHTS = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.mark.slow
def test_a_read_only_store_answers_and_cannot_be_taught(zoo, world, tmp_path, capsys):
    lines = [
        ["predict", zoo, world / "asked" / "bear", "--json", "--backbone", BACKBONE],
        ["show", zoo, "--json"],
        ["evaluate", zoo, world / "asked"],
        ["export", zoo, "--structure", tmp_path / "structure"],
        ["learn", zoo, world / "heron"],
        ["forget", zoo, "bear"],
        ["undo", zoo],
        ["fit", zoo / "inner", world / "base", "--backbone", BACKBONE],
    ]
    words = json.dumps([[str(word) for word in line] for line in lines])
    with unchanged(capsys, zoo):
        gc.collect()
        for path in (*zoo.rglob("*"), zoo):
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            done = subprocess.run(
                [sys.executable, "-c", WITHOUT_RIGHTS, "-c", READ_ONLY, words],
                capture_output=True,
                text=True,
                env=environment(),
                check=True,
            )
        finally:
            for path in (zoo, *zoo.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
    writable, (predict, show, evaluate, export, *others) = json.loads(done.stdout)
    if writable:
        pytest.skip("this user may write everywhere")
    assert predict[::2] == [0, ""]
    assert right([json.loads(line) for line in predict[1].splitlines()]) == [True] * 4
    assert show == [0, told(capsys, "show", zoo, "--json"), ""]
    assert evaluate[:2] == [0, told(capsys, "evaluate", zoo, world / "asked")]
    assert sentence(evaluate[2]).startswith(f"the figures were not kept: cannot write to the store at {zoo}")
    assert export[::2] == [0, ""]
    for code, out, err in others[:3]:
        assert (code, out) == (1, "")
        assert sentence(err) == f"cannot write to the store at {zoo}: it is read-only; work on a copy of it"
    assert others[3][:2] == [1, ""]
    assert sentence(others[3][2]).startswith(f"cannot make a store at {zoo / 'inner'}: ")
