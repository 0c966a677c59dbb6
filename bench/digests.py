"""What it costs a prediction that the store is checked: its files, its database, its values.

    python bench/digests.py [--classes 10] [--photos 3] [--asked 30] [--json docs/results/reliability_digests.json]

One process makes a store with the default backbone, then opens it anew and predicts photos, as `concm predict` does
after its start: by turns with all checks and with none. Compared are the least times of all turns, of the processor and
on the clock, since whoever else uses the machine only adds to them. `open` is opening without a photo, where all checks
are; `one` is a single photo, the worst case; `command` is the whole of `concm predict` for it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from concm import files
from concm.classifier import known, store
from concm.classifier.classifier import Classifier
from learning import write


class Anything:
    """What equals everything: a seal that always fits."""

    def __ne__(self, other: object) -> bool:
        return False


def described(db: sqlite3.Connection, _: Path) -> Any:
    """What a store was made with, as it stands there."""
    return json.loads(db.execute("SELECT meta FROM store").fetchone()[0])


@contextmanager
def unchecked() -> Iterator[None]:
    """Digests of files and of the database are not computed, and values are not looked at."""
    load = files.load_tensors
    with (
        mock.patch.object(store, "load_tensors", new=lambda path, kind, expected=None: load(path, kind)),
        mock.patch.object(store, "described", new=described),
        mock.patch.object(files, "_seal", return_value=Anything()),
        mock.patch.object(known, "all_finite", return_value=True),
    ):
        yield


def predicted(path: Path, photos: list[Path]) -> tuple[float, float]:
    """Seconds of processor time to open a store and predict, if there are photos, and seconds on the clock."""
    begun, clock = time.process_time(), time.perf_counter()
    with Classifier(path, device="cpu") as zoo:
        zoo.predict(photos) if photos else zoo.known()
    return time.process_time() - begun, time.perf_counter() - clock


def compared(path: Path, photos: list[Path], repeats: int) -> dict[str, Any]:
    """What checks cost, by turns."""
    checked, plain = [], []
    for _ in range(repeats):
        checked.append(predicted(path, photos))
        with unchecked():
            plain.append(predicted(path, photos))
    row: dict[str, Any] = {"photos": len(photos)}
    for at, what in enumerate(("processor", "clock")):
        ours, theirs = (min(times[at] for times in every) for every in (checked, plain))
        row[what] = {"checked": ours, "unchecked": theirs, "ratio": ours / theirs}
        milliseconds = f"{1000 * ours:.0f} ms checked, {1000 * theirs:.0f} ms not"
        print(f"{len(photos)} photos, {what}: {milliseconds}, {ours / theirs:.3f}", flush=True)
    return row


def typed(path: Path, photo: Path) -> float:
    """Seconds of processor time of `concm predict`, from its start to its end."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    begun = spent()
    words = [Path(sys.executable).with_name("concm"), "predict", path, photo, "--device", "cpu"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return spent() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--photos", type=int, default=3)
    parser.add_argument("--asked", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CONCM_CACHE"] = folder
        work = Path(folder)
        for label in range(options.classes):
            write(work / "base" / f"class {label:04}", label, options.photos)
        with Classifier(work / "store", device="cpu") as zoo:
            zoo.fit(work / "base")
        asked = sorted((work / "base").rglob("*.jpg"))[: options.asked]
        predicted(work / "store", asked[:1])  # the first prediction of a process warms up
        bare = compared(work / "store", [], options.repeats)
        one = compared(work / "store", asked[:1], options.repeats)
        rows = {"open": bare, "one": one, "many": compared(work / "store", asked, options.repeats // 4)}
        command = statistics.median(typed(work / "store", asked[0]) for _ in range(5))
        share = (bare["processor"]["checked"] - bare["processor"]["unchecked"]) / command
        print(f"`concm predict` of one photo: {command:.2f} s, of which checks are {100 * share:.1f} %")
        size = sum(path.stat().st_size for path in (work / "store").rglob("*") if path.is_file())
    if options.json:
        told = {"machine": platform.machine(), "cores": os.cpu_count(), "classes": options.classes, "bytes": size}
        told |= {"repeats": options.repeats, "rows": rows, "command": command, "share": share}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
