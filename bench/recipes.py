"""Compares recipes of the base session by validation on base classes: no test image, no novel class is looked at.

    python bench/recipes.py --data DIR [--scenario cifar100] [--epochs 100] [--seconds 540] NAME=VALUE[,NAME=VALUE] ...

Each argument is one run, as changes to the default recipe (`default` for none). Each run prints one row of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch

from concm.cli.options import Machine, PictureOptions
from concm.errors import did_you_mean
from concm.evaluation.protocol import run
from concm.features.extract import extract
from concm.features.sessions import draw
from concm.methods.ncm import NCM
from concm.records import to_json
from concm.training.loop import BaseRun
from concm.training.recipe import Recipe


def parse(changes: str, recipe: Recipe) -> Recipe:
    kinds = {field.name: type(getattr(recipe, field.name)) for field in fields(Recipe)}
    pairs = [change.split("=") for change in changes.split(",") if change != "default"]
    for name, *_ in pairs:
        if name not in kinds:
            raise SystemExit(f"no setting called {name!r}; {did_you_mean(name, kinds)}")
    return replace(recipe, **{name: kinds[name](value) for name, value in pairs})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scenario", default="cifar100")
    parser.add_argument("--backbone", default="resnet12")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after this many seconds")
    parser.add_argument("recipes", nargs="+")
    options = parser.parse_args()
    fabric = Machine().fabric()
    dataset = PictureOptions(options.data).load(options.scenario, None).validation()
    begun = time.perf_counter()
    longest = 0.0
    for changes in options.recipes:
        started = time.perf_counter()
        if started - begun + longest > options.seconds:
            break
        torch._dynamo.reset()
        out = Path(tempfile.mkdtemp())
        recipe = parse(changes, Recipe(epochs=options.epochs))
        session = BaseRun(dataset, options.backbone, recipe, out, fabric, compiled=fabric.device.type == "cuda")
        encoder = session.run()
        figures = {"base_accuracy": encoder.meta["base_accuracy"]}
        for mirror in (False, True):
            encoder.mirror = mirror
            bank = extract(encoder, dataset, fabric, novel_limit=100)
            last = [list(run(NCM(), bank, draw(bank, seed)))[-1] for seed in range(5)]
            for name in ("acc_base", "acc_novel", "hm", "acc"):
                figures[f"{name}{'_mirror' if mirror else ''}"] = round(
                    float(np.mean([getattr(row, name) for row in last])), 2
                )
        shutil.rmtree(out)
        longest = max(longest, time.perf_counter() - started)
        row = {"changes": changes, "recipe": to_json(recipe), **figures, "seconds": encoder.meta["seconds"]}
        print(json.dumps({**row, "images_per_second": encoder.meta["images_per_second"]}), flush=True)


if __name__ == "__main__":
    main()
