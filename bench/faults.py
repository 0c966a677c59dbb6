"""An error, a kill or a loss of power at every call with which a command changes files, as SQLite tests itself.

    PYTHONPATH=. python bench/faults.py [--every 1] [--json docs/results/reliability_faults.json]

A shim (faults.c, built here with `cc`) stands between the process and the C library. It counts the calls that change
files below the store, those of SQLite among them. For every changing command and every one of its calls, the command
runs in a child on a copy of a small store while that call (1) fails with an I/O error, (2) finds the disk full, (3) is
where the process is killed, or (4) is half done when it is killed. For a loss of power, the calls are written down, and
the disk is put together as it may look after each of them: synced data for certain, unsynced data lost, or lost in part
at random, names in a folder only after the folder was synced. Afterwards the store must be whole, as it was before or
as it is after the command (after a command that returned: the latter), and the same command must work.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODES = {"I/O error": 1, "full disk": 2, "kill": 3, "half a call, then kill": 4}
FINE, REFUSED, TRACEBACK = 0, 1, 3


def commands() -> dict[str, Callable[[Path], object]]:
    """Every command that changes something, on the store in a folder."""
    from tests.support.photographs import BACKBONE, pictures
    from tests.support.zoo import QUICK, base_photos

    from concm.classifier.classifier import Classifier
    from concm.errors import ConcmError

    def on(action: Callable[[Any], object]) -> Callable[[Path], object]:
        def run(folder: Path) -> None:
            with Classifier(folder / "store", device="cpu") as zoo:
                action(zoo)

        return run

    def evaluate(zoo: Classifier) -> None:
        zoo.evaluate({"dog": pictures("dog", 2, first=60)})
        if zoo.remarks:  # the figures were shown, but could not be kept
            raise ConcmError(zoo.remarks[0])

    def fit(folder: Path) -> None:
        with Classifier(folder / "new", BACKBONE, device="cpu") as zoo:
            zoo.fit(base_photos(3), settings=QUICK)

    return {
        "fit": fit,
        "learn": on(lambda zoo: zoo.learn({"yak": pictures("yak", 3)})),
        "learn more": on(lambda zoo: zoo.learn({"okapi": pictures("okapi", 2, first=20)})),
        "forget": on(lambda zoo: zoo.forget("okapi")),
        "undo": on(lambda zoo: zoo.undo()),
        "evaluate": on(evaluate),
        "export": on(lambda zoo: zoo.export(structure=zoo.path.parent / "structure.safetensors")),
        "backup": on(lambda zoo: zoo.backup(zoo.path.parent / "copy")),
    }


def shim() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_char_p]
    library.faults_calls.restype = ctypes.c_long
    return library


def in_child(action: Callable[[], object]) -> int:
    """Run in a child; returns its exit status, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = FINE
        try:
            action()
        except BaseException as error:
            from concm.errors import ConcmError

            code = REFUSED if isinstance(error, ConcmError) else TRACEBACK
            if code == TRACEBACK:
                traceback.print_exc()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def armed(folder: Path, command: Callable[[Path], object], at: int = 0, mode: int = 0, log: str = "") -> int:
    """Run a command in a child with the shim armed."""

    def run() -> None:
        shim().faults_arm(os.fsencode(folder), at, mode, log.encode())
        try:
            command(folder)
        finally:
            (folder.parent / "calls").write_text(str(shim().faults_calls()))

    return in_child(run)


def asked(folder: Path) -> dict[str, Any] | None:
    """What the stores in a folder say, asked in a child; none if one is not whole."""
    from tests.support.reliability import answers

    from concm.classifier.classifier import Classifier

    told = folder.parent / "told"
    told.unlink(missing_ok=True)

    def ask() -> None:
        found = {}
        for name in ("store", "new", "copy"):
            if (folder / name).exists():
                with Classifier(folder / name, device="cpu") as zoo:
                    made = zoo._store is not None
                    wrong = zoo.verify() if made else []
                if wrong:
                    raise SystemExit(wrong[0])
                if made:
                    found[name] = answers(folder / name)
        told.write_text(json.dumps(found))

    return json.loads(told.read_text()) if in_child(ask) == FINE and told.exists() else None


class Suite:
    """One command, tried with every accident; what came of it is counted."""

    def __init__(self, name: str, action: Callable[[Path], object], store: Path, work: Path) -> None:
        self.name, self.action, self.store, self.work = name, action, store, work
        self.found: dict[str, Counter[str]] = {mode: Counter() for mode in (*MODES, "loss of power")}
        self.folder = self.fresh()
        self.before = asked(self.folder)
        self.log = work / "journal"
        if armed(self.folder, action, log=str(self.log)) != FINE:
            raise SystemExit(f"{name} fails without any accident")
        self.calls = int((work / "calls").read_text())
        self.after = asked(self.folder)

    def fresh(self) -> Path:
        folder = self.work / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copytree(self.store, folder / "store")
        return folder

    def judge(self, mode: str, status: int, done: bool) -> None:
        """Count what an accident came to."""
        now = asked(self.folder)
        if status == TRACEBACK:
            outcome = "traceback"
        elif now is None:
            outcome = "damaged"
        elif same(now, self.after) and not same(self.before, self.after):
            outcome = "after, told as failed" if status == REFUSED else "after"
        elif same(now, self.before):
            outcome = "lost" if done and not same(self.before, self.after) else "before"
        else:
            outcome = "neither"
        if outcome == "before" and in_child(lambda: self.action(self.folder)) != FINE:
            outcome = "not repeatable"
        self.found[mode][outcome] += 1
        if outcome not in ("before", "after", "after, told as failed"):
            print(f"{self.name}, {mode}: {outcome} (status {status})", flush=True)

    def calls_one_by_one(self, every: int) -> None:
        for mode, number in MODES.items():
            for at in range(1, self.calls + 1, every):
                self.fresh()
                status = armed(self.folder, self.action, at, number)
                self.judge(mode, status, done=status == FINE)

    def power(self, every: int, chance: random.Random) -> None:
        events = read_journal(self.log)
        for at in range(0, len(events) + 1, every):
            for partly in (False, True):
                disk = Disk(self.fresh())
                for event in events[:at]:
                    disk.apply(*event)
                disk.fail(chance if partly else None)
                self.judge("loss of power", -9, done=at == len(events))


def same(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether stores say the same; an evaluation is kept or not, and a copy is made or not, without harm."""
    return one is not None and one == other


def read_journal(path: Path) -> list[tuple[str, str, str, int, bytes]]:
    """The calls that the shim wrote down."""
    data, events = path.read_bytes(), []
    while data:
        line, _, data = data.partition(b"\n")
        what, name, other, at, length = line.decode().split("\t")
        events.append((what, name, other, int(at), data[: int(length)]))
        data = data[int(length) :]
    return events


class Disk:
    """A disk that keeps what was synced, and of the rest what chance leaves: the content of files, and their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.content: dict[int, bytes] = {}
        self.pending: dict[int, list[tuple[int, bytes | None]]] = {}
        self.names: dict[str, int] = {}
        self.folders = {str(path) for path in folder.rglob("*") if path.is_dir()} | {str(folder)}
        for number, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
            self.content[number], self.pending[number], self.names[str(path)] = path.read_bytes(), [], number
        self.now = dict(self.names)
        self.unsynced: list[tuple[str, str, str, int]] = []

    def apply(self, what: str, name: str, other: str, at: int, data: bytes) -> None:
        """A call of the program."""
        if what in ("create", "rename", "unlink", "mkdir"):
            number = self.now.get(name, len(self.content))
            if what == "create":
                self.content[number], self.pending[number] = b"", []
            self.unsynced.append((what, name, other, number))
            self._named(self.now, what, name, other, number)
        elif what == "sync" and name in self.folders:
            kept = [event for event in self.unsynced if name not in (os.path.dirname(event[1]), name)]
            for event in self.unsynced:
                if event not in kept:
                    self._named(self.names, *event)
            self.unsynced = kept
        elif what == "sync":
            number = self.now[name]
            for change in self.pending[number]:
                self.content[number] = changed(self.content[number], *change)
            self.pending[number] = []
        else:
            self.pending[self.now[name]].append((at, data if what == "write" else None))

    def _named(self, names: dict[str, int], what: str, name: str, other: str, number: int) -> None:
        if what == "create":
            names[name] = number
        elif what == "mkdir":
            self.folders.add(name)
        elif what == "unlink":
            names.pop(name, None)
        else:
            for old in [old for old in names if old == name or old.startswith(f"{name}/")]:
                names[other + old[len(name) :]] = names.pop(old)
            self.folders |= {other + old[len(name) :] for old in self.folders if old.startswith(name)}

    def fail(self, chance: random.Random | None) -> None:
        """The power goes: what is left is written into the folder; without chance, nothing that was not synced."""
        if chance is not None:
            for event in self.unsynced[: chance.randrange(len(self.unsynced) + 1)]:
                self._named(self.names, *event)
            for number, changes in self.pending.items():
                for at, data in changes:
                    if chance.random() < 0.5:
                        some = data if data is None or chance.random() < 0.7 else data[: len(data) // 2]
                        self.content[number] = changed(self.content[number], at, some)
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, number in self.names.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(self.content[number])


def changed(content: bytes, at: int, data: bytes | None) -> bytes:
    """Content after a write at a place, or after it was cut off there."""
    if data is None:
        return content[:at].ljust(at, b"\0")
    return content[:at].ljust(at, b"\0") + data + content[at + len(data) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="try only every n-th call")
    parser.add_argument("--commands", nargs="+", help="only these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library = f"{folder}/faults.so"
            source = str(Path(__file__).with_suffix(".c"))
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
            surroundings = {**os.environ, "LD_PRELOAD": library, "OMP_NUM_THREADS": "1", "CONCM_CACHE": folder}
            sys.exit(subprocess.run([sys.executable, *sys.argv], env=surroundings, check=False).returncode)
    from tests.support.photographs import BACKBONE
    from tests.support.reliability import about, make_store

    from concm.backbones import find_backbone

    find_backbone(BACKBONE)  # so that stores may name it
    begun, rows = time.perf_counter(), {}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "first")
        in_child(lambda: make_store(store))
        for name, action in commands().items():
            if options.commands is None or name in options.commands:
                (work := Path(folder, name)).mkdir()
                suite = Suite(name, action, store, work)
                suite.calls_one_by_one(options.every)
                suite.power(options.every, random.Random(options.seed))
                rows[name] = {
                    "calls": suite.calls,
                    "every": options.every,
                    **{mode: dict(own) for mode, own in suite.found.items()},
                }
                print(name, json.dumps(rows[name]), flush=True)
    if options.json:  # commands that were tried before in another run stay in the file
        old = json.loads(options.json.read_text()) if options.json.exists() else {"commands": {}, "seconds": 0}
        taken = round(old["seconds"] + time.perf_counter() - begun, 1)
        told = about(seed=options.seed, seconds=taken)
        options.json.write_text(json.dumps({**told, "commands": {**old["commands"], **rows}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
