"""Every command that changes files, as it is typed, and what stands in its folder afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_agg  # noqa: F401  # once, and not in every child
from tests.support.data import make_bank
from tests.support.photographs import BACKBONE, write_class, write_world
from tests.support.reliability import answers
from tests.support.tiny import CUT, write_tiny
from tests.support.zoo import BASE, QUICK

from concm.backbones import encoder
from concm.classifier import classifier, structure
from concm.classifier.classifier import Classifier
from concm.classifier.rehearsal import Plan
from concm.cli.app import main
from concm.evaluation.results import Result
from concm.features.bank import Bank
from concm.files import digest, load_tensors
from concm.records import to_json
from concm.training import loop

Command = Callable[[Path], object]
loop.CHECKPOINT_SECONDS = 0.0  # after every step
classifier.rehearse = lambda *_, **__: Plan(QUICK)  # type: ignore[attr-defined]  # what is written stays the same


def write_inputs(root: Path) -> None:
    """All that commands read and do not change: photos, pictures to train on, and a bank."""
    write_world(root / "base", BASE, 3)
    write_class(root / "yak", 3)
    write_class(root / "more" / "okapi", 2, first=20)
    write_world(root / "test", ("cat", "dog"), 10, first=60)
    write_tiny(root / "data", train=6, test=1)
    make_bank().save(root / "bank.safetensors")


def commands(inputs: Path) -> dict[str, Command]:
    """What is typed, on the store in a folder or into files of that folder."""

    def typed(*words: object) -> Command:
        return lambda folder: main([str(word).replace("HERE", str(folder)) for word in words])

    def trained(folder: Path) -> None:
        words = ["train", "folder", "--data", inputs / "data", "--out", folder / "run", *CUT, "--backbone", BACKBONE]
        words += ["--epochs", 2, "--batch", 12, "--warmup", 1, "--held-out", 0]
        main([*map(str, words), *(["--resume"] if (folder / "run" / "checkpoint.safetensors").exists() else [])])

    def caching(command: Command) -> Command:
        def run(folder: Path) -> None:
            os.environ["CONCM_CACHE"] = str(folder / "cache")
            command(folder)

        return run

    pictures = ("folder", "--data", inputs / "data", *CUT, "--backbone", BACKBONE)
    bench = ("--bank", inputs / "bank.safetensors", "--method", "ncm", "--draws", 2, "--jobs", 1, "--out", "HERE/out")
    store = "HERE/store"
    fit = typed("fit", "HERE/new", inputs / "base", "--backbone", BACKBONE)
    features = typed("features", *pictures, "--out", "HERE/bank.safetensors")
    return {
        "fit": fit,
        "learn": typed("learn", store, "yak", inputs / "yak"),
        "learn more": typed("learn", store, inputs / "more"),
        "forget": typed("forget", store, "okapi"),
        "remove": typed("remove", store, 1),
        "move": typed("move", store, 1, "--to", "dog"),
        "rename": typed("rename", store, "okapi", "kudu"),
        "merge": typed("merge", store, "okapi", "--into", "cat"),
        "undo": typed("undo", store),
        "calibrate": typed("calibrate", store, inputs / "test"),
        "evaluate": typed("evaluate", store, inputs / "test"),
        "export": typed("export", store, "--structure", "HERE/structure.safetensors"),
        "card": typed("show", store, "--card", "HERE/card.md"),
        "backup": typed("backup", store, "HERE/copy"),
        "features": features,
        "train": trained,
        "bench": typed("bench", *bench, "--json", "HERE/out/table.json", "--figure", "HERE/out/bench.png"),
        "fit and its cache": caching(fit),
        "features and their cache": caching(features),
    }


def found(folder: Path) -> dict[str, Any]:
    """What each piece in a folder says; one that is not whole is an error."""
    pieces: dict[str, Any] = {}
    for name in ("store", "new", "copy"):
        if (folder / name).exists():
            with Classifier(folder / name, device="cpu") as zoo:
                made = zoo._store is not None and zoo.version > 0
                wrong = zoo.verify() if made else []
            if wrong:
                raise ValueError(wrong[0])
            if made:
                pieces[name] = answers(folder / name)
    if (file := folder / "structure.safetensors").exists():
        pieces[file.name] = digest(load_tensors(file, structure.KIND)[0])
    if (file := folder / "run" / "backbone.safetensors").exists():
        pieces[file.name] = digest(load_tensors(file, encoder.KIND)[0])
    if (file := folder / "bank.safetensors").exists():
        pieces[file.name] = Bank.load(file).digest
    for file in sorted((folder / "out").glob("*.json")):
        pieces[file.name] = file.read_text()[-1] if file.name == "table.json" else figures(Result.load(file))
    for name in ("card.md", "out/bench.png"):
        if (file := folder / name).exists():
            pieces[name] = file.stat().st_size
    return pieces


def figures(result: Result) -> Any:
    """All of a result but the time it took."""
    sessions = [replace(one, seconds=0.0) for one in result.sessions]
    return to_json(replace(result, sessions=sessions, summary=replace(result.summary, seconds=0.0)))
