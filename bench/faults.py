"""An error, a kill or a loss of power at every call with which a command changes files, as SQLite tests itself.

    PYTHONPATH=. python bench/faults.py [--every 1] [--json docs/results/reliability_faults.json]

A shim (faults.c, built here with `cc`) stands between the process and the C library. It counts the calls that change
files below a folder, those of SQLite among them. For every command of changes.py and every one of its calls, the
command runs in a child on a copy of a small store while that call (1) fails with an I/O error, (2) finds the disk full,
(3) is where the process is killed, or (4), if it writes, is half done when it is killed. For a loss of power, the calls
are written down, and the disk is put together as it may look after each of them (power.py): synced data for certain,
unsynced data lost, or lost in part at random, names in a folder only after the folder was synced. Afterwards every
piece must be whole, as it was before or as it is after the command (after a command that returned: the latter); a
command that failed must have said so in one sentence, with exit code 1; and the same command, typed again, must lead to
where it leads undisturbed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from power import Disk, read_journal

HALF, POWER = "half a write, then kill", "loss of power"
MODES = {"I/O error": 1, "full disk": 2, "kill": 3, HALF: 4}
FINE, REFUSED, TRACEBACK = 0, 1, 3
GOOD = ("before", "after", "part", "after, told as failed")


def shim() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_char_p]
    library.faults_calls.restype = ctypes.c_long
    return library


def in_child(action: Callable[[], object], said: Path) -> int:
    """Run in a child, its output in a file; returns its exit status, or minus the signal that ended it."""
    from concm import progress

    child = os.fork()
    if child == 0:
        progress.SECONDS_BETWEEN_LINES, code = float("inf"), FINE
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            action()
        except SystemExit as end:
            code = int(end.code or FINE)
        except BaseException:
            traceback.print_exc()
            code = TRACEBACK
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def content(folder: Path) -> str:
    """A digest of all files; what has the same bytes need not be asked twice. Names of drafts are random."""
    state = hashlib.sha256()
    files = sorted((re.sub(r"draft-\w+", "draft", str(path)), path) for path in folder.rglob("*") if path.is_file())
    for name, path in files:
        if not name.endswith("-shm"):
            state.update(f"{name}:{path.stat().st_size}:".encode() + path.read_bytes())
    return state.hexdigest()


class Suite:
    """One command, tried with every accident; what came of it is counted."""

    def __init__(self, action: Callable[[Path], object], store: Path, work: Path) -> None:
        self.name, self.action, self.store, self.work = work.name, action, store, work
        self.found: dict[str, Counter[str]] = {mode: Counter() for mode in (*MODES, POWER)}
        self.asked: dict[str, tuple[str, str]] = {}
        self.log, self.said, self.told = work / "journal", work / "said", work / "told"
        self.folder = self.fresh()
        self.before, self.after = self.pieces(), None
        if self.armed(log=str(self.log)) != FINE:
            raise SystemExit(f"{self.name} fails without any accident: {self.said.read_text()}")
        self.usual = self.said.read_text().splitlines()
        self.calls = int((work / "calls").read_text())
        self.after = self.pieces()

    def fresh(self) -> Path:
        folder = self.work / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copytree(self.store, folder / "store")
        return folder

    def armed(self, at: int = 0, mode: int = 0, log: str = "") -> int:
        """Run the command in a child with the shim armed."""

        def run() -> None:
            shim().faults_arm(os.fsencode(self.folder), at, mode, log.encode())
            try:
                self.action(self.folder)
            finally:
                (self.work / "calls").write_text(str(shim().faults_calls()))

        return in_child(run, self.said)

    def pieces(self) -> dict[str, Any] | None:
        """What stands in the folder, asked in a child; none if a piece is not whole."""
        from changes import found

        status = in_child(lambda: self.told.write_text(json.dumps(found(self.folder))), self.work / "asked")
        return json.loads(self.told.read_text()) if status == FINE else None

    def left(self) -> tuple[str, str]:
        """What is left of the command, and what comes of it where it is typed again."""
        now = self.pieces()
        if now is None:
            return "damaged", (self.work / "asked").read_text()
        if now == self.after and self.before != self.after:
            return "after", ""
        mixed = {
            name for name in (*now, *self.before) if now.get(name) not in (self.before.get(name), self.after.get(name))
        }
        if mixed:
            return "neither", str(sorted(mixed))
        status = in_child(lambda: self.action(self.folder), self.work / "again")
        if status != FINE or self.pieces() != self.after:
            return "not repeatable", (self.work / "again").read_text()
        return "before" if now == self.before else "part", ""

    def judge(self, mode: str, at: int, status: int) -> None:
        """Count what an accident came to; after status 0 and no other complaint than ever, all must be there."""
        complaints = self.said.read_text().splitlines() if mode != POWER else []
        unusual = [line for line in complaints if line not in self.usual]
        key = content(self.folder)
        if key not in self.asked:
            self.asked[key] = self.left()
        outcome, why = self.asked[key]
        if status == TRACEBACK or any(line.startswith("Traceback") for line in unusual):
            outcome, why = "traceback", "\n".join(unusual)
        elif status > 0 and (status != REFUSED or len(unusual) != 1 or not unusual[0].startswith("concm: ")):
            outcome, why = "no sentence", f"{status}: {unusual}"
        elif outcome in ("before", "part") and status == FINE and not unusual and self.before != self.after:
            outcome = "lost"
        elif outcome == "after" and status == REFUSED:
            outcome = "after, told as failed"
        self.found[mode][outcome] += 1
        if outcome not in GOOD:
            print(f"{self.name}, {mode} at call {at} of {self.calls}: {outcome} (status {status})\n{why}", flush=True)

    def trial(self, mode: str, at: int, chance: random.Random) -> None:
        """One accident."""
        self.fresh()
        if mode != POWER:
            self.judge(mode, at, self.armed(at, MODES[mode]))
            return
        events = read_journal(self.log)
        disk = Disk(self.folder)
        for event in events[:at]:
            disk.apply(*event)
        disk.fail(chance if chance.random() < 0.5 else None)
        self.judge(mode, at, FINE if at == len(events) else -9)

    def trials(self, every: int) -> list[tuple[str, int]]:
        """All of them, or those at every n-th call; the power also fails before the first and after the last."""
        calls = [*range(1, self.calls + 1, every)]
        counted = [(mode, at) for mode in MODES for at in calls]
        if self.name.endswith("cache"):  # pixels are written through memory, past the journal
            return counted
        events = read_journal(self.log)
        halved = [(mode, at) for mode, at in counted if mode != HALF or events[at - 1][0] == "write"]
        return halved + [(POWER, at) for at in {*range(0, len(events) + 1, every), len(events)} for _ in range(2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="try only every n-th call")
    parser.add_argument("--sample", type=int, help="try only so many accidents of each command, at random")
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

    from changes import commands, write_inputs
    from concm import progress
    from concm.backbones import find_backbone

    progress.show()
    find_backbone(BACKBONE)  # so that stores may name it
    rows, chance = {}, random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        store, inputs = Path(folder, "first"), Path(folder, "inputs")
        in_child(lambda: make_store(store), Path(folder, "said"))
        write_inputs(inputs)
        for name, action in commands(inputs).items():
            if options.commands is not None and name not in options.commands:
                continue
            (work := Path(folder, name)).mkdir()
            suite = Suite(action, store, work)
            trials = suite.trials(options.every)
            if options.sample is not None:
                trials = chance.sample(trials, min(options.sample, len(trials)))
            for mode, at in progress.track(trials, name):
                suite.trial(mode, at, chance)
            tried = {mode: dict(own) for mode, own in suite.found.items()}
            rows[name] = {"calls": suite.calls, "every": options.every, **tried}
            print(name, json.dumps(rows[name]), flush=True)
    outcomes = [outcome for row in rows.values() for mode in (*MODES, POWER) for outcome in row[mode]]
    if options.json:  # commands that were tried before in another run stay in the file
        old = json.loads(options.json.read_text())["commands"] if options.json.exists() else {}
        options.json.write_text(json.dumps({**about(seed=options.seed), "commands": {**old, **rows}}, indent=1) + "\n")
    sys.exit(not set(outcomes) <= set(GOOD))


if __name__ == "__main__":
    main()
