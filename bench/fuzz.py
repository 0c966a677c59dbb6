"""Inputs from a seed that no program should stumble over: pictures, stores, banks, checkpoints, results, arguments.

    PYTHONPATH=. python bench/fuzz.py [--inputs 10000] [--seed 0] [--json docs/results/reliability_fuzz.json]

Every input is a whole one with something changed: bytes, a value of its JSON, a tensor. It is given to the command or
loader that reads it. It may be refused in one sentence, or used; a traceback, a hang of more than a minute, or a wrong
answer (a store that predicts otherwise than before although nobody sealed it again) is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tests.support.data import make_bank, write_cifar
from tests.support.mutation import rewrite, with_other_bytes, with_other_value
from tests.support.photographs import BACKBONE, picture
from tests.support.reliability import Hang, about, answers, make_store, seconds
from torch import nn

from concm.backbones import find_backbone
from concm.classifier.classifier import Classifier
from concm.cli.app import app
from concm.cli.app import main as concm
from concm.data.sources import find_source
from concm.errors import ConcmError
from concm.evaluation.bench import BankSource, finish, tasks_of
from concm.evaluation.controls import nearest_mean
from concm.evaluation.results import Result
from concm.evaluation.statistics import Table
from concm.features.bank import Bank
from concm.features.sessions import draw, published
from concm.semantics.vectors import TextFile
from concm.training import checkpoint

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
MODES = ("RGB", "L", "RGBA", "P", "LA", "I;16", "F", "1", "CMYK")
Run = Callable[[random.Random], str | None]
"""Give one input; returns a wrong answer, if there is one."""


@dataclass
class Kinds:
    """All kinds of inputs, made of whole ones in a folder."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.store = make_store(self.folder / "store")
        self.before = answers(self.store)
        shutil.copytree(self.store, self.folder / "toys")  # which some arguments change
        self.zoo = Classifier(self.store, device="cpu")
        bank = make_bank()
        bank.save(self.folder / "bank.safetensors", "int8")
        task = tasks_of(["ncm"], draws=1, seeds=1, seed=0, splits=None, device="cpu")
        source = BankSource(None, self.folder / "bank.safetensors")
        results = finish(task, source, source.bank(), self.folder / "results")
        self.result = next((self.folder / "results").glob("*.json"))
        Table.of(source.bank(), results, 1).save(self.folder / "table.json")
        self.bank = source.bank()
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        state = {"step": 3, "seconds": 1.5, "losses": {"loss": 1.0}}
        checkpoint.save(self.folder / "checkpoint.safetensors", self.model, self.optimizer, state)
        write_cifar(self.folder / "cifar", ["ant", "bee"], [0, 1, 0], [1])

    @property
    def runs(self) -> dict[str, Run]:
        return {
            "pictures": self.a_picture,
            "stores": self.a_store,
            "banks": self.a_bank,
            "checkpoints": self.a_checkpoint,
            "results": self.a_result,
            "tables": self.a_table,
            "batches": self.a_batch,
            "lists": self.a_list,
            "word vectors": self.words,
            "arguments": self.arguments,
        }

    def a_picture(self, chance: random.Random) -> str | None:
        side = chance.choice((1, 8, 32, 300))
        pixels = np.asarray(Image.fromarray(picture("cat", chance.randrange(9))).resize((side, side)))
        image, file = Image.fromarray(pixels), io.BytesIO()
        mode = chance.choice(MODES)
        with contextlib.suppress(OSError, ValueError, KeyError):
            image = image.convert("L").convert(mode) if mode in ("I;16", "F") else image.convert(mode)
            image.save(file, chance.choice(FORMATS))
        found = self.zoo.stream([with_other_bytes(file.getvalue() or b"?", chance)])
        for item in found:
            if isinstance(item, ConcmError):
                raise item
            if not 0 <= item.score <= 1:
                return f"a score of {item.score}"
        return None

    def a_store(self, chance: random.Random) -> str | None:
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.store, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size)
        for file in chance.sample(files, chance.choice((1, 1, 2))):
            if file.suffix == ".safetensors" and chance.random() < 0.5:
                rewrite(file, file, chance)
            else:
                file.write_bytes(with_other_bytes(file.read_bytes(), chance))
        now = answers(copy)
        differs = [name for name, value in now.items() if value != self.before[name]]
        return f"the store answers differently: {', '.join(differs)}" if differs else None

    def a_bank(self, chance: random.Random) -> str | None:
        rewrite(self.folder / "bank.safetensors", self.folder / "odd.safetensors", chance)
        bank = Bank.load(self.folder / "odd.safetensors")
        for run in nearest_mean(bank, [draw(bank, 0)]):
            if not all(0 <= figures.acc <= 100 for figures in run):
                return "an accuracy beyond 100"
        return None

    def a_checkpoint(self, chance: random.Random) -> str | None:
        rewrite(self.folder / "checkpoint.safetensors", self.folder / "odd.safetensors", chance)
        step, *_ = checkpoint.load(self.folder / "odd.safetensors", self.model, self.optimizer, {}, 8)
        return None if 0 < step <= 8 else f"step {step} of 8"

    def a_json(self, whole: Path, chance: random.Random) -> Path:
        odd = self.folder / "odd.json"
        if chance.random() < 0.5:
            odd.write_bytes(with_other_bytes(whole.read_bytes(), chance))
        else:
            odd.write_text(json.dumps(with_other_value(json.loads(whole.read_text()), chance)))
        return odd

    def a_result(self, chance: random.Random) -> str | None:
        Table.of(self.bank, [Result.load(self.a_json(self.result, chance))], 1)
        return None

    def a_table(self, chance: random.Random) -> str | None:
        Table.load(self.a_json(self.folder / "table.json", chance))
        return None

    def a_batch(self, chance: random.Random) -> str | None:
        shutil.rmtree(self.folder / "odd", ignore_errors=True)
        shutil.copytree(self.folder / "cifar", self.folder / "odd")
        file = self.folder / "odd" / chance.choice(("train", "test", "meta"))
        file.write_bytes(with_other_bytes(file.read_bytes(), chance))
        source = find_source(self.folder / "odd")
        fits = source.train.pixels is not None and len(source.train.pixels) == len(source.train.keys)
        return None if fits else "pictures without labels"

    def a_list(self, chance: random.Random) -> str | None:
        folder = self.folder / "lists"
        folder.mkdir(exist_ok=True)
        for session in range(1, self.bank.scenario.sessions + 1):
            labels = zip(self.bank.novel.ids, self.bank.novel.labels.tolist(), strict=True)
            own = [name for name, label in labels if label in self.bank.scenario.classes_of(session)]
            text = "\n".join(own).encode()
            (folder / f"session_{session + 1}.txt").write_bytes(with_other_bytes(text, chance))
        published(self.bank, folder)
        return None

    def words(self, chance: random.Random) -> str | None:
        text = b"".join(f"{word} 0.1 0.2 0.3\n".encode() for word in ("cat", "dog", "okapi"))
        (self.folder / "words.txt").write_bytes(with_other_bytes(text, chance))
        found = TextFile(self.folder / "words.txt").find(["cat", "okapi"])
        return None if all(np.isfinite(vector).all() for vector in found.values()) else "a vector of no numbers"

    def arguments(self, chance: random.Random) -> str | None:
        names = [name for name in app if not name.startswith("-") and name not in ("demo", "train", "bench", "fit")]
        options = [f"--{word}" for word in ("json", "top", "unknown-rate", "draws", "seed", "splits", "way", "shot")]
        odd = ["", "-", "--", "\x1b[2J", "[/bold]", "é", "\udcff", "9" * 400, "-1", "nan", "1e309", "a" * 5000, "\x00"]
        places = [str(self.folder / name) for name in ("toys", "bank.safetensors", "none", "results", "table.json")]
        words = [chance.choice((*options, *odd, *places)) for _ in range(chance.randrange(6))]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                concm([chance.choice(names), *words])
            except SystemExit as end:
                if end.code not in (0, 1, 2, None):
                    return f"exit code {end.code}"
        return "a traceback" if "Traceback" in said.getvalue() else None


def tried(run: Run, chance: random.Random) -> str:
    """What came of one input."""
    try:
        with seconds(60):
            wrong = run(chance)
    except ConcmError as error:
        return "refused" if "\n" not in str(error) else "more than a sentence"
    except Hang:
        return "hang"
    except Exception:
        traceback.print_exc()
        return "traceback"
    if wrong is not None:
        print(wrong, flush=True)
    return "used" if wrong is None else "wrong answer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    find_backbone(BACKBONE)
    begun, found = time.perf_counter(), dict[str, Counter[str]]()
    with tempfile.TemporaryDirectory() as folder:
        runs = Kinds(Path(folder)).runs
        chosen = options.kinds or list(runs)
        for number in range(options.inputs):
            kind = chosen[number % len(chosen)]
            found.setdefault(kind, Counter())[tried(runs[kind], random.Random(f"{options.seed}:{number}"))] += 1
    rows = {kind: dict(sorted(own.items())) for kind, own in found.items()}
    print(json.dumps(rows, indent=1))
    if options.json:
        taken = round(time.perf_counter() - begun, 1)
        told = about(inputs=options.inputs, seed=options.seed, seconds=taken)
        options.json.write_text(json.dumps({**told, "kinds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
