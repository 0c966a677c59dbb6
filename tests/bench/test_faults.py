"""An accident at some of the calls with which commands change files; bench/faults.py has them at all calls."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny import environment

BENCH = Path(__file__).parents[2] / "bench"
TRIED = ("fit", "undo", "features", "bench")


@pytest.mark.slow
def test_after_an_accident_every_piece_is_whole_and_the_same_command_works(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler for the shim")
    words = [sys.executable, str(BENCH / "faults.py"), "--commands", *TRIED, "--sample", "2", "--seed", "1"]
    reach = os.pathsep.join(filter(None, [str(BENCH.parent), os.environ.get("PYTHONPATH")]))
    surroundings = {**environment(), "PYTHONPATH": reach}
    done = subprocess.run(
        [*words, "--json", tmp_path / "found.json"],
        capture_output=True,
        text=True,
        env=surroundings,
        cwd=BENCH.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["commands"]
    assert sorted(found) == sorted(TRIED)
    assert all(row["calls"] >= 5 for row in found.values())


@pytest.fixture
def disk(tmp_path):
    """What stands on a disk before anything happens: one file, `old`."""
    spec = importlib.util.spec_from_file_location("power", BENCH / "power.py")
    power = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(power)
    (tmp_path / "old").write_bytes(b"before")
    return power.Disk(tmp_path)


def test_a_disk_that_loses_power_keeps_what_was_synced(disk, tmp_path):
    draft, old = str(tmp_path / "draft"), str(tmp_path / "old")
    disk.apply("create", draft, "", 0, b"")
    disk.apply("write", draft, "", 0, b"after")
    disk.apply("sync", draft, "", 0, b"")
    disk.apply("rename", draft, old, 0, b"")
    disk.apply("sync", str(tmp_path), "", 0, b"")
    disk.fail(None)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("old", b"after")]


def test_a_disk_that_loses_power_forgets_names_and_data_that_were_not_synced(disk, tmp_path):
    draft, old = str(tmp_path / "draft"), str(tmp_path / "old")
    disk.apply("write", old, "", 0, b"AFTER")
    disk.apply("create", draft, "", 0, b"")
    disk.apply("rename", draft, old, 0, b"")
    disk.fail(None)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("old", b"before")]


def test_a_disk_that_loses_power_may_keep_some_of_what_was_not_synced(disk, tmp_path):
    disk.apply("write", str(tmp_path / "old"), "", 0, b"AFTER!")
    left = set()
    for seed in range(20):
        disk.content[0] = b"before"
        disk.fail(random.Random(seed))
        left.add((tmp_path / "old").read_bytes())
    assert left == {b"before", b"AFTER!", b"AFTore"}
