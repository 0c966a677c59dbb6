"""What a Ray cluster costs and gains: overhead against the local pool, one worker against two, and a killed worker.

    python bench/cluster.py [--draws 4] [--method concm] [--json FILE]

A head without cores and then one and two workers with a core each are started on this machine with `ray start`. The
same runs go to the local pool, to one worker and to two; a method that kills its own process once, at the end of its
base session, shows what that costs, beside the longest of its runs. Results must be equal, bit for bit, wherever they
were found. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from concm.evaluation.results import Result

MORTAL = """
import os, signal
from pathlib import Path
from concm.methods.{module} import {name}

class Mortal({name}):
    def fit_base(self, base):
        super().fit_base(base)
        mark = Path({mark!r})
        if {kill} and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def shell(*words: object) -> None:
    """A command that must succeed, quietly."""
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@contextmanager
def node(cores: int, *words: object) -> Iterator[None]:
    """A node of a cluster, which ends with the block."""
    start = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--num-cpus",
        str(cores),
        *map(str, words),
    ]
    process = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ray runtime started" in line:
                break
        time.sleep(2)  # until the head has heard of it
        yield
    finally:
        process.terminate()
        process.wait()


def bench(folder: Path, method: str, draws: int, on: str, jobs: int | None) -> float:
    """Seconds of `concm bench`, with the start of Python in it."""
    words = [
        "-m",
        "concm",
        "bench",
        "--method",
        method,
        "--draws",
        draws,
        "--device",
        "cpu",
        "--out",
        folder,
        "--on",
        on,
    ]
    words += [] if jobs is None else ["--jobs", jobs]
    begun = time.perf_counter()
    shell(sys.executable, *words)
    taken = time.perf_counter() - begun
    print(f"{folder.name}: {taken:.1f} s", flush=True)
    return taken


def figures(folder: Path) -> dict[str, Result]:
    """All results but the time they took."""
    found = {}
    for file in folder.glob("*-draw*.json"):
        one = Result.load(file)
        sessions = [replace(session, seconds=0.0) for session in one.sessions]
        found[file.name] = replace(one, sessions=sessions, summary=replace(one.summary, seconds=0.0))
    return found


def measured(work: Path, method: str, draws: int) -> dict[str, Any]:
    """All runs, and what they say."""
    seconds: dict[str, float] = {}
    seconds["local, 1 job"] = bench(work / "one", method, draws, "here", 1)
    seconds["local, 2 jobs"] = bench(work / "two", method, draws, "here", 2)
    seconds["ray, started for it"] = bench(work / "started", method, draws, "ray", None)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of this cluster alone
    os.environ |= {"RAY_ADDRESS": "127.0.0.1:6399", **token}
    with ExitStack() as nodes:
        nodes.enter_context(node(0, "--head", "--port", 6399, "--include-dashboard", "false"))
        nodes.enter_context(node(1, "--address", "127.0.0.1:6399"))
        seconds["ray, 1 worker"] = bench(work / "ray1", method, draws, "ray", None)
        nodes.enter_context(node(1, "--address", "127.0.0.1:6399"))
        seconds["ray, 2 workers"] = bench(work / "ray2", method, draws, "ray", None)
        own = {"module": "teen", "name": "TEEN", "mark": str(work / "mark")}
        for kill in (False, True):
            file = work / f"mortal{kill}.py"
            file.write_text(MORTAL.format(kill=kill, **own))
            name = "a worker killed once" if kill else "no worker killed"
            seconds[name] = bench(work / file.stem, f"{file}:Mortal", draws, "ray", None)
    longest = max(Result.load(file).summary.seconds for file in (work / "mortalFalse").glob("*-draw*.json"))
    equal = all(figures(work / "one") == figures(work / name) for name in ("two", "started", "ray1", "ray2"))
    rows: list[dict[str, Any]] = [{"where": where, "seconds": round(value, 1)} for where, value in seconds.items()]
    for row in rows:
        print(f"{row['where']:24} {row['seconds']:8.1f} s")
    print(f"results are {'equal, bit for bit' if equal else 'DIFFERENT'}")
    local, started = seconds["local, 2 jobs"], seconds["ray, started for it"]
    found = {
        "overhead": round(started - local, 1),
        "allowed": round(10 + 0.05 * local, 1),
        "two workers against one": round(seconds["ray, 1 worker"] / seconds["ray, 2 workers"], 2),
        "a killed worker costs": round(seconds["a worker killed once"] - seconds["no worker killed"], 1),
        "a run of it takes": round(longest, 1),
    }
    for what, value in found.items():
        print(f"{what:24} {value:8}")
    about = {"machine": platform.machine(), "cores": os.cpu_count(), "load": round(os.getloadavg()[2], 1)}
    return {**about, "method": method, "draws": draws, "equal": equal, **found, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--method", default="concm")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as folder:
        told = measured(Path(folder), options.method, options.draws)
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
