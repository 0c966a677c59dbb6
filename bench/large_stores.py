"""Stores of many classes: time and memory to open one, to learn one more class, and to predict, with exponents.

    python bench/large_stores.py [--classes 1000 10000 100000] [--folder DIR] [--json FILE]
    python bench/large_stores.py --losses [--json FILE]

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from concm.backbones.encoder import Identity
from concm.backbones.references import load_encoder
from concm.classifier import confidence
from concm.classifier.classifier import Classifier
from concm.classifier.confidence import Confidence
from concm.classifier.lesson import Lesson
from concm.classifier.rehearsal import SHRINKAGE, TRUSTS
from concm.classifier.store import Store
from concm.classifier.stream import Encoded
from concm.data.scenarios import natural
from concm.engine import trial
from concm.engine.concm import NAMED, Engine, spaced
from concm.engine.prior import NamePrior
from concm.engine.settings import Settings
from concm.features.sessions import BaseSession, Session
from concm.semantics.kinship import kinship
from concm.semantics.semantics import Semantics
from concm.semantics.wordnet import nouns

DIMENSION, PHOTOS, SPREAD, ASKED = 512, 3, 0.03, 320


class NoBackbone:
    """Stands where a store has its encoder: nothing is ever encoded here."""

    name, source, meta, layout = "none", "none", {"recipe": None}, (DIMENSION,)
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


def photos(first: int, last: int, shots: int = PHOTOS, seed: int = 0, spread: float = SPREAD) -> torch.Tensor:
    """Features (classes, shots, d): each class has a centre of its own."""
    centre = torch.cat(
        [torch.randn(1, DIMENSION, generator=torch.Generator().manual_seed(at)) for at in range(first, last)]
    )
    random = torch.Generator().manual_seed(10**9 + 7 * first + seed)
    noise = spread * torch.randn(last - first, shots, DIMENSION, generator=random)
    return F.normalize(F.normalize(centre)[:, None] + noise, dim=-1)


def lesson(known: list[str], first: int, last: int, shots: int = PHOTOS) -> Lesson:
    every = photos(first, last, shots)
    return Lesson(
        {
            known[at]: [Encoded(f"{n}.jpg", f"{at}-{n}", b"", own[n]) for n in range(shots)]
            for at, own in zip(range(first, last), every, strict=True)
        },
        [],
    )


def opened(path: Path) -> Classifier:
    zoo = Classifier(path, device="cpu")
    zoo.__dict__["encoder"] = NoBackbone()
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
    opened(path).teach(lesson(known, base, classes), "refuse")
    return {"fit": fitted, "learn_half": time.perf_counter() - begun}


class Clock:
    """Seconds on the clock and of the processor, by name; the latter depend less on what else the machine does."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, each: int = 1) -> Iterator[None]:
        begun, used = time.perf_counter(), time.process_time()
        yield
        self.found[name] = (time.perf_counter() - begun) / each
        self.found[f"{name}_cpu"] = (time.process_time() - used) / each


def measure(path: Path, classes: int) -> dict[str, float]:
    """Open it, learn one more class, and predict, beside an encoder on pixels that lie ready."""
    known, clock = names(classes + 1), Clock()
    one = lesson(known, classes, classes + 1, shots=5)
    with clock("open"):
        zoo = opened(path)
        zoo.known()
    with clock("learn"):
        zoo.teach(one, "refuse")
    version = zoo.known()
    found = clock.found
    found["memory_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    step = max(1, classes // ASKED)
    asked = torch.cat([photos(at, at + 1, 1, seed=1)[0] for at in range(0, classes, step)])[:ASKED]
    wanted = [known[at] for at in range(0, classes, step)][:ASKED]
    with clock("predict_one", 64):
        for own in asked[:64]:
            version.prediction("x", own, 0.05, 5)
    with clock("predict_batch", len(asked)):
        answers = [one for pile in asked.split(32) for one in version.predictions(["x"] * len(pile), pile, 0.05, 5)]
    found["accuracy"] = sum(a.top[0][0] == w for a, w in zip(answers, wanted, strict=True)) / len(asked)
    found["unknown"] = sum(answer.unknown for answer in answers) / len(asked)
    encoder = load_encoder("efficientnet_lite0", natural(224), blocks=2).to(torch.device("cpu"))
    side = encoder.transform.resize
    pixels = torch.randint(256, (32, side, side, 3), dtype=torch.uint8)
    encoder(pixels)
    with clock("encoder_one", 16):
        for own in pixels[:16]:
            encoder(own[None])
    with clock("encoder_batch", 32):
        encoder(pixels)
    found["store_gb"] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**30
    zoo.undo()
    zoo.close()
    return found


def losses(classes: int = 10_000) -> dict[str, Any]:
    """What it costs to compute less: names from some base classes, fewer photos tried, fewer classes counted."""
    random = torch.Generator().manual_seed(0)
    known, count = names(5500), 5000
    kin = kinship(Semantics.of_names(known[:count]).learn(known[count:]), known, known)
    centres = (
        torch.linalg.cholesky(kin + 0.05 * torch.eye(len(kin))) @ torch.randn(len(kin), 64, generator=random).double()
    )
    centres = F.normalize(centres)
    missed = {}
    for some in (spaced(count, most) for most in (count, NAMED, 512)):
        predicted, _ = NamePrior.of(kin[some][:, some], centres[some]).predict(kin[count:][:, some])
        missed[len(some)] = round(float((predicted - centres[count:]).square().sum(1).mean()), 4)
    spread, base = 0.14, classes // 2
    every = photos(0, classes, 13, spread=spread)
    engine = Engine(Settings(prototypes=1.0, whitening=SHRINKAGE, trust=TRUSTS[0]))
    labels = torch.arange(classes).repeat_interleave(PHOTOS)
    taught, told = every[:, :PHOTOS].flatten(0, 1), tuple(f"thing number {at}" for at in range(classes))
    old = labels < base
    engine.fit_base(BaseSession.of(Session(0, range(base), told[:base], taught[old], labels[old])))
    engine.learn(Session(1, range(base, classes), told[base:], taught[~old], labels[~old]))
    asked, truth = every[::5, PHOTOS:].flatten(0, 1), torch.arange(0, classes, 5).repeat_interleave(10)
    rows = []
    for few, counted in (
        (10**9, 10**9),
        (10**9, confidence.EVERY),
        (trial.FEW, confidence.EVERY),
        (410, confidence.EVERY),
    ):
        trial.FEW, confidence.EVERY = few, counted
        engine._operate()
        usual, scores = Confidence.of(engine), engine.scores(asked)
        right = scores.argmax(1) == truth
        row = {
            "photos_tried": round(trial.MOST * min(1.0, few / classes) ** 0.5),
            "classes_counted": "all" if counted > classes else "some",
            "base": 100 * float(right[truth < base].float().mean()),
            "novel": 100 * float(right[truth >= base].float().mean()),
            "temperature": float(usual.temperature),
            "refused": 100 * float((usual.familiarity(scores) < usual.threshold(0.05)).float().mean()),
        }
        rows.append({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()})
        print(rows[-1], flush=True)
    print("squared miss of a new name's prototype, by base classes that names are learned from:", missed)
    return {"names": missed, "tried": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--folder", type=Path, help="keep the stores here, and use those that are there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--losses", action="store_true", help="measure what it costs to compute less, and nothing else")
    parser.add_argument("--only", choices=["build", "measure"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.losses:
        found = losses()
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        return
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
    for name in ("open_cpu", "learn_cpu", "predict_one_cpu", "predict_batch_cpu", "memory_gb", "store_gb"):
        if len(rows) > 1:
            steps = math.log(rows[-1]["classes"] / rows[0]["classes"])
            exponents[name] = round(math.log(rows[-1][name] / rows[0][name]) / steps, 2)
    print("exponents:", "  ".join(f"{name} {value}" for name, value in exponents.items()))
    if options.json:
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
        options.json.write_text(json.dumps({**about, "rows": rows, "exponents": exponents}, indent=1) + "\n")


if __name__ == "__main__":
    main()
