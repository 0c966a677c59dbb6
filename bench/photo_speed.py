"""How near `predict` and `fit` of a folder come to the speed of the encoder alone, on a CPU, in one run.

    python bench/photo_speed.py [--photos 400] [--classes 8] [--width 500] [--rounds 5] [--size 224] [--json FILE]

The encoder alone sees pictures that lie ready in memory, on all cores, in torch and in the faster runtime if that is
installed. `predict` and `fit` begin with JPEG files; `reading` is the part of `fit` in which photos become features.
With 12 classes or more, `fit` also rehearses on them how far their names can be trusted. All take turns, so that
whatever else the machine does falls on each of them; ratios are of the clock and, where the machine is shared, better
taken from processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from concm import Classifier
from concm.backbones.encoder import Encoder
from concm.classifier.lesson import Lesson
from concm.classifier.photos import by_class
from concm.classifier.sight import Sight
from concm.data.images import decode


def write(folder: Path, label: int, count: int, width: int) -> None:
    """JPEGs with the detail of photographs: noise at several scales, the coarsest of which is the class's own."""
    folder.mkdir(parents=True)
    height = width * 3 // 4
    for number in range(count):
        random = [np.random.default_rng(seed) for seed in (label, (label, number, 1), (label, number, 2))]
        layers = [
            Image.fromarray(own.integers(0, 256, (side, side, 3), dtype=np.uint8)).resize((width, height))
            for own, side in zip(random, (4, 32, 128), strict=True)
        ]
        mixed = np.mean([np.asarray(layer) for layer in layers], 0).astype(np.uint8)
        Image.fromarray(mixed).save(folder / f"{number}.jpg", "JPEG", quality=90)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the clock and of processor time."""
    clock, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - used


def measure(work: Path, count: int, rounds: int, size: int | None) -> dict[str, Any]:
    """Photos per second and milliseconds of processor time per photo of each, and the medians of their ratios."""
    photos = work / "photos"
    files = sorted(photos.rglob("*.jpg"))
    ready, plain = (Sight(work / "none", size=size).encoder(None, "cpu") for _ in "ab")
    plain.__dict__["_fast"] = plain.network  # in torch, whatever else is installed
    pixels = torch.from_numpy(np.stack([decode(file, ready.transform.resize) for file in files[: min(count, 256)]]))
    number = 0

    def alone(encoder: Encoder) -> None:
        for start in range(0, count, 32):
            encoder(pixels[start % len(pixels) :][: min(32, count - start)])

    def fresh() -> Path:
        nonlocal number
        number += 1
        os.environ["CONCM_CACHE"] = str(work / f"cache{number}")
        return work / f"store{number}"

    def fit() -> None:
        Classifier(fresh(), device="cpu", size=size).fit(photos).close()

    def reading() -> None:
        fresh()
        Lesson.of(ready, by_class(photos), broken="refuse", remember=True)

    fit()
    zoo = Classifier(work / "store1", device="cpu")
    jobs: dict[str, Callable[[], Any]] = {
        "encoder, torch": lambda: alone(plain),
        "encoder": lambda: alone(ready),
        "predict": lambda: zoo.predict(photos),
        "reading": reading,
        "fit": fit,
    }
    zoo.predict(files[:8])
    alone(plain)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            found[name].append(timed(job))
    rows = {}
    for name, times in found.items():
        against = [(e[0] / own[0], e[1] / own[1]) for e, own in zip(found["encoder"], times, strict=True)]
        rows[name] = {
            "photos_s": count / statistics.median(clock for clock, _ in times),
            "cpu_ms": 1000 * statistics.median(used for _, used in times) / count,
            "clock_ratio": statistics.median(clock for clock, _ in against),
            "cpu_ratio": statistics.median(used for _, used in against),
        }
    return rows


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=400)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--width", type=int, default=500, help="pixels; the height is three quarters of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, help="pixels that the network sees; those of a new store otherwise")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    about = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "onnxruntime": installed("onnxruntime"),
        "photos": given.photos,
        "classes": given.classes,
        "width": given.width,
        "rounds": given.rounds,
        "size": given.size,
        "load_before": round(os.getloadavg()[0], 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        each = given.photos // given.classes
        for label in range(given.classes):
            write(Path(folder, "photos", f"class {label}"), label, each, given.width)
        rows = measure(Path(folder), each * given.classes, given.rounds, given.size)
    print(f"{'':16}{'photos/s':>10}{'cpu ms':>10}{'of the encoder: clock':>24}{'cpu':>8}")
    for name, row in rows.items():
        figures = f"{row['photos_s']:>10.0f}{row['cpu_ms']:>10.1f}{row['clock_ratio']:>24.2f}{row['cpu_ratio']:>8.2f}"
        print(f"{name:16}{figures}")
    print(f"load before and after: {about['load_before']}, {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if given.json:
        given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
