"""What `concm fit` takes on cores that run something else, beside what it takes on idle ones.

    python bench/sharing.py --photos DIR [--json docs/results/sharing.json]

DIR holds one folder of photos per class. Both runs begin with an empty cache; the busy one runs beside one process per
core that never rests. Fair sharing would take twice the time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUSY = "while True: sum(range(100_000))"


def seconds(photos: Path, busy: int) -> float:
    """Seconds of one `concm fit` beside so many busy processes."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            command = [str(Path(sys.executable).with_name("concm")), "fit", f"{folder}/store", str(photos)]
            subprocess.run(command, env={**os.environ, "CONCM_CACHE": f"{folder}/cache"}, check=True)
            return time.perf_counter() - begun
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    idle, busy = seconds(options.photos, 0), seconds(options.photos, cores)
    count = sum(path.is_file() for path in options.photos.rglob("*"))
    found = {
        "photos": count,
        "cores": cores,
        "machine": platform.processor() or platform.machine(),
        "idle_seconds": round(idle, 1),
        "busy_seconds": round(busy, 1),
        "ratio": round(busy / idle, 2),
    }
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
