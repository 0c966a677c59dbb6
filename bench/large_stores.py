"""Stores of many classes: seconds and memory to open one, to learn one more class, and to predict, with exponents.

    python bench/large_stores.py [--classes 1000 10000 100000] [--folder DIR] [--json FILE]

Features are synthetic (512 dimensions, 3 photos of each class) and the names are WordNet's nouns; half of the classes
are base classes, and the others were learned later. Everything but the backbone runs as in a real store. Each size is
measured in a process of its own; an exponent of 1 is linear in the number of classes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from concm.backbones.encoder import Identity
from concm.classifier.classifier import Classifier
from concm.classifier.lesson import Lesson
from concm.classifier.rehearsal import SHRINKAGE, TRUSTS
from concm.classifier.store import Store
from concm.classifier.stream import Encoded
from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.semantics.wordnet import nouns

DIMENSION, PHOTOS, SPREAD, ASKED = 512, 3, 0.03, 320


class NoBackbone:
    """Stands where a store has its encoder: nothing is ever encoded here."""

    name, meta, layout = "none", {"recipe": None}, (DIMENSION,)
    identity = Identity("none", "none")


def names(count: int) -> list[str]:
    """WordNet's nouns, and where they do not suffice, numbered things."""
    table = nouns()
    found = dict.fromkeys(
        table.lemmas(int(synset))[0].replace("_", " ").lower()
        for synset in table._offsets
        if table.visible(int(synset))
    )
    return [*found, *(f"thing number {at}" for at in range(count))][:count]


def photos(first: int, last: int, shots: int = PHOTOS, seed: int = 0) -> torch.Tensor:
    """Features (classes, shots, d): each class has a centre of its own."""
    centre = torch.cat(
        [torch.randn(1, DIMENSION, generator=torch.Generator().manual_seed(at)) for at in range(first, last)]
    )
    random = torch.Generator().manual_seed(10**9 + 7 * first + seed)
    noise = SPREAD * torch.randn(last - first, shots, DIMENSION, generator=random)
    return F.normalize(F.normalize(centre)[:, None] + noise, dim=-1)


def lesson(known: list[str], first: int, last: int, shots: int = PHOTOS) -> Lesson:
    every = photos(first, last, shots)
    return Lesson(
        {
            known[at]: [Encoded(f"{n}.jpg", f"{at}-{n}", b"", own[n]) for n in range(shots)]
            for at, own in zip(range(first, last), every, strict=True)
        },
        [],
        (DIMENSION,),
    )


def opened(path: Path) -> Classifier:
    zoo = Classifier(path, device="cpu")
    zoo.__dict__["_encoder"] = NoBackbone()
    return zoo


def build(path: Path, classes: int) -> dict[str, float]:
    """A store that knows so many classes."""
    known, base = names(classes + 1), classes // 2
    zoo = opened(path)
    begun = time.perf_counter()
    first = lesson(known, 0, base)
    engine = Engine(Settings(prototypes=1.0, whitening=SHRINKAGE, trust=TRUSTS[0]))
    engine.fit_base(first.base_session())
    store = Store.create(path, zoo._meta())
    with store.writing() as change:
        zoo._write(change, first, new=list(first.photos), base=True)
        zoo._commit(change, "fit", "", engine, first=True)
    store.close()
    fitted = time.perf_counter() - begun
    del first, engine
    begun = time.perf_counter()
    opened(path)._taught(lesson(known, base, classes), "refuse")
    return {"fit": fitted, "learn_half": time.perf_counter() - begun}


def measure(path: Path, classes: int) -> dict[str, float]:
    """Open it, learn one more class, and predict."""
    known = names(classes + 1)
    one = lesson(known, classes, classes + 1, shots=5)
    begun = time.perf_counter()
    zoo = opened(path)
    zoo.known()
    seconds = {"open": time.perf_counter() - begun}
    begun = time.perf_counter()
    zoo._taught(one, "refuse")
    seconds["learn"] = time.perf_counter() - begun
    version = zoo.known()
    step = max(1, classes // ASKED)
    asked = torch.cat([photos(at, at + 1, 1, seed=1)[0] for at in range(0, classes, step)])[:ASKED]
    wanted = [known[at] for at in range(0, classes, step)][:ASKED]
    begun = time.perf_counter()
    found = [version.prediction("x", own, 0.05, 5) for own in asked[:64]]
    seconds["predict_one"] = (time.perf_counter() - begun) / len(found)
    begun = time.perf_counter()
    answers = [one for pile in asked.split(32) for one in version.predictions(["x"] * len(pile), pile, 0.05, 5)]
    seconds["predict_batch"] = (time.perf_counter() - begun) / len(asked)
    seconds["accuracy"] = sum(a.top[0][0] == w for a, w in zip(answers, wanted, strict=True)) / len(asked)
    seconds["unknown"] = sum(answer.unknown for answer in answers) / len(asked)
    seconds["memory_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds["store_gb"] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**30
    zoo.undo()
    zoo.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--folder", type=Path, help="keep the stores here, and use those that are there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=["build", "measure"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    if options.only:
        path = folder / str(options.classes[0])
        print(json.dumps((build if options.only == "build" else measure)(path, options.classes[0])))
        return
    rows: list[dict[str, Any]] = []
    for classes in options.classes:
        row: dict[str, Any] = {"classes": classes}
        for part in ["measure"] if Store.exists(folder / str(classes)) else ["build", "measure"]:
            words = [sys.executable, __file__, "--classes", str(classes), "--folder", str(folder), "--only", part]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            row |= {name: round(value, 5) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
        rows.append(row)
        print("  ".join(f"{name} {value:,.3g}" for name, value in row.items()), flush=True)
    exponents = {}
    for name in ("open", "learn", "predict_one", "predict_batch", "memory_gb", "store_gb"):
        if len(rows) > 1:
            steps = math.log(rows[-1]["classes"] / rows[0]["classes"])
            exponents[name] = round(math.log(rows[-1][name] / rows[0][name]) / steps, 2)
    print("exponents:", "  ".join(f"{name} {value}" for name, value in exponents.items()))
    if options.json:
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
        options.json.write_text(json.dumps({**about, "rows": rows, "exponents": exponents}, indent=1) + "\n")


if __name__ == "__main__":
    main()
