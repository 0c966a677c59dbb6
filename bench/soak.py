"""One that learns and eight that predict, for minutes: all see whole versions, and memory and files stay flat.

    PYTHONPATH=. python bench/soak.py [--minutes 10] [--readers 8] [--json docs/results/reliability_soak.json]

The writer teaches a class, gives it more photos, forgets it and steps back, again and again. Every reader predicts the
same photos all the time and checks that an answer is of one whole version: its classes are those that the writer had
said this version has. Memory (resident, in MB) and open files of every process are noted along the way; they are flat
if the second half has no more than the first by more than a twentieth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.support.photographs import BACKBONE, pictures
from tests.support.reliability import about, make_store
from tests.support.zoo import new_photos

from concm.backbones import find_backbone
from concm.classifier.classifier import Classifier
from concm.errors import ConcmError


def used() -> dict[str, float]:
    """Resident memory and open files of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"megabytes": pages * resource.getpagesize() / 1e6, "files": len(os.listdir("/proc/self/fd"))}


def write(path: Path, until: float, pipe: Connection) -> None:
    """Learn, learn more, forget and undo until the time is up."""
    versions, notes, count = dict[int, list[str]](), list[dict[str, float]](), 0
    with Classifier(path, device="cpu") as zoo:
        while time.time() < until:
            name = f"class {count}"
            for change in (
                lambda name=name: zoo.learn({name: pictures(name, 3)}),
                lambda name=name: zoo.learn({name: pictures(name, 2, first=9)}),
                lambda name=name: zoo.forget(name),
                lambda: zoo.undo(),
                lambda: zoo.undo(),
                lambda: zoo.undo(),
            ):
                change()
                versions[zoo.version] = [row.name for row in zoo.classes]
                count += 1
            notes.append(used())
    pipe.send({"changes": count, "versions": versions, "notes": notes, "errors": []})


def read(path: Path, until: float, pipe: Connection) -> None:
    """Predict until the time is up."""
    seen, notes, errors, count = dict[int, list[str]](), list[dict[str, float]](), list[str](), 0
    photos = new_photos("cat", "okapi", count=2)
    with Classifier(path, device="cpu") as zoo:
        while time.time() < until:
            try:
                for found in zoo.predict(photos, top=99):
                    names = sorted(name for name, _ in found.top)
                    if seen.setdefault(found.version, names) != names:
                        errors.append(f"version {found.version} has two sets of classes")
            except ConcmError as error:
                errors.append(str(error))
            count += 1
            if count % 50 == 0:
                notes.append(used())
    pipe.send({"reads": count, "versions": seen, "notes": notes, "errors": errors})


def growth(notes: list[dict[str, float]], name: str) -> float:
    """How much more the second half used at most than the first, as a share."""
    half = len(notes) // 2
    first, second = (max((note[name] for note in part), default=0.0) for part in (notes[:half], notes[half:]))
    return round(second / first - 1, 4) if first else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    find_backbone(BACKBONE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CONCM_CACHE"] = folder
        context = multiprocessing.get_context("fork")
        child = context.Process(target=make_store, args=(Path(folder, "store"),))
        child.start()
        child.join()
        until, jobs = time.time() + 60 * options.minutes, []
        for action in (write, *([read] * options.readers)):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=action, args=(Path(folder, "store"), until, theirs))
            process.start()
            jobs.append((process, ours))
        told: list[dict[str, Any]] = [pipe.recv() for _, pipe in jobs]
        for process, _ in jobs:
            process.join()
    writer, readers = told[0], told[1:]
    errors = [error for one in told for error in one["errors"]]
    for one in readers:
        for version, names in one["versions"].items():
            known = writer["versions"].get(version)
            if known is not None and sorted(known) != names:
                errors.append(f"a reader saw {names} in version {version}, which has {sorted(known)}")
    report = about(
        minutes=options.minutes,
        readers=options.readers,
        changes=writer["changes"],
        reads=sum(one["reads"] for one in readers),
        errors=len(errors),
        first_errors=errors[:5],
        versions_checked=len({version for one in readers for version in one["versions"]}),
        growth_of_memory={"writer": growth(writer["notes"], "megabytes")}
        | {"readers, at most": max(growth(one["notes"], "megabytes") for one in readers)},
        growth_of_files={"writer": growth(writer["notes"], "files")}
        | {"readers, at most": max(growth(one["notes"], "files") for one in readers)},
        megabytes={"writer": writer["notes"][-1]["megabytes"] if writer["notes"] else None},
    )
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
