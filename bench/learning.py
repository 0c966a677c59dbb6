"""Seconds to learn one more class from five photos, through the command line, and predicted photos per second.

    python bench/learning.py [--classes 100 1000] [--photos 3] [--json FILE]

The photos are coloured noise: what matters here is how many there are. `seconds` is what the command reports (reading,
backbone, learning, writing), `clock` adds the start of Python and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CONCM = str(Path(sys.executable).with_name("concm"))
REPEATS = 3
PREDICTED = 300


def concm(*words: object) -> tuple[str, float]:
    """Run a command; returns what it printed, and seconds on the clock."""
    begun = time.perf_counter()
    done = subprocess.run([CONCM, *map(str, words), "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout, time.perf_counter() - begun


def write(folder: Path, label: int, count: int, side: int = 320) -> None:
    """Write photos of a class: its own texture, with noise."""
    folder.mkdir(parents=True)
    texture = np.random.default_rng(label).integers(0, 256, (8, 8, 3), np.uint8)
    for number in range(count):
        random = np.random.default_rng((label, number))
        large = np.asarray(Image.fromarray(texture).resize((side, side), Image.Resampling.BICUBIC), np.int16)
        noisy = (large + random.integers(-40, 40, large.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number}.jpg", quality=90)


def measure(classes: int, photos: int, work: Path) -> dict[str, Any]:
    for label in range(classes):
        write(work / "base" / f"class {label:04}", label, photos)
    write(work / "new" / "one more", classes, 5)
    fitted, _ = concm("fit", work / "store", work / "base")
    found = []
    for _ in range(REPEATS):
        shutil.rmtree(work / "copy", ignore_errors=True)
        shutil.copytree(work / "store", work / "copy")
        told, clock = concm("learn", work / "copy", "one more", work / "new" / "one more")
        found.append((json.loads(told)["seconds"], clock))
    seconds, clock = sorted(found)[REPEATS // 2]
    some = sorted((work / "base").rglob("*.jpg"))[:PREDICTED]
    _, one = concm("predict", work / "copy", some[0])
    _, many = concm("predict", work / "copy", *some)
    rate = (len(some) - 1) / (many - one)
    return {
        "classes": classes,
        "fit": json.loads(fitted)["seconds"],
        "learn": seconds,
        "clock": clock,
        "photos_s": rate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--photos", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for classes in options.classes:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["CONCM_CACHE"] = str(Path(folder, "cache"))
            rows.append(measure(classes, options.photos, Path(folder)))
        row = rows[-1]
        print(
            f"{classes:5} classes known: learn one more {row['learn']:.2f} s ({row['clock']:.2f} s on the clock), "
            f"fit {row['fit']:.0f} s, predict {row['photos_s']:.0f} photos/s"
        )
    if options.json:
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "photos": options.photos}
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
