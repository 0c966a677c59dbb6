"""The share of a prediction's time that goes into checking the store: digests of its files and of its database.

    python bench/digests.py [--classes 20] [--photos 3] [--asked 60] [--json docs/results/reliability_digests.json]

One process makes a store with the default backbone, then opens it anew and predicts photos, as `concm predict` does
after its start; what the checks take is measured within that same run. `one` is a single photo, the worst case.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from concm import files
from concm.classifier import made, proof, store
from concm.classifier.classifier import Classifier
from concm.engine.settings import Settings
from learning import write


class Watch:
    """Adds up the time that some functions take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*words: Any, **more: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*words, **more)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed


def predicted(path: Path, photos: list[Path]) -> float:
    """Seconds to open a store and predict."""
    begun = time.perf_counter()
    with Classifier(path, device="cpu") as zoo:
        zoo.predict(photos)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--photos", type=int, default=3)
    parser.add_argument("--asked", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CONCM_CACHE"] = folder
        work = Path(folder)
        for label in range(options.classes):
            write(work / "base" / f"class {label:04}", label, options.photos)
        with Classifier(work / "store", device="cpu") as zoo:
            zoo.fit(work / "base", settings=Settings(base_steps=10))  # without a rehearsal, which takes minutes
        asked = sorted((work / "base").rglob("*.jpg"))[: options.asked]
        predicted(work / "store", asked[:1])  # the first prediction of a process warms up
        rows, plain = {}, files.has_digest
        for name, photos in (("one", asked[:1]), ("many", asked)):
            found = []
            for _ in range(options.repeats):
                watch = Watch()
                for module in (files, made):
                    module.has_digest = watch.on(plain)  # type: ignore[attr-defined]
                store.described = watch.on(proof.described)  # type: ignore[attr-defined]
                total = predicted(work / "store", photos)
                found.append((watch.seconds / total, watch.seconds, total))
            share, checks, total = sorted(found)[options.repeats // 2]
            rows[name] = {"photos": len(photos), "seconds": total, "checks": checks, "share": share}
            print(f"{len(photos)} photos: {1000 * checks:.2f} ms of {1000 * total:.0f} ms, {100 * share:.2f} %")
        size = sum(path.stat().st_size for path in (work / "store").rglob("*") if path.is_file())
    if options.json:
        told = {"machine": platform.machine(), "cores": os.cpu_count(), "classes": options.classes, "bytes": size}
        options.json.write_text(json.dumps({**told, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
