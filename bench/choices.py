"""Compares settings of ConCM on validation banks: base classes alone, with novel ones that the backbone has not seen.

    python bench/choices.py --banks VAL.safetensors ... [--draws 3] [--json docs/results/choices.json] [SPEC ...]

Such a bank is made by `concm train cifar100 --validate --seed S` and `concm features cifar100 --validate`. Each SPEC is
a change of the defaults (`alpha=0.8`); without any, the list below. No test image and no novel class is looked at.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from concm.evaluation.bench import BankSource, finish, tasks_of
from concm.evaluation.statistics import rows
from concm.evaluation.workers import cores

CHANGES = [
    "whitening=none",
    "whitening=3",
    "whitening=30",
    "calibrate=false",
    "alpha=0.5",
    "alpha=0.6",
    "alpha=0.8",
    "alpha=0.9",
    "calibration.own_logit=1",
    "calibration.steps=30",
    "calibration.steps=300",
    "views=false",
    "spread=own",
    "noise=1",
    "noise=2",
    "noise=4",
    "around=prototype",
    "replay=0",
    "replay=1",
    "structure=learned",
    "structure=random",
    "structure=greedy",
    "structure=fixed,total=60",
    "loss=match+scl",
    "loss=match+contrast",
    "scale=1",
    "scale=8",
    "scale=32",
    "hidden=2048",
    "base_steps=10",
    "base_steps=100",
    "steps=10",
    "steps=40",
    "steps=100",
    "prototypes=0",
    "prototypes=0.5",
    "prototypes=1",
    "novel_bias=0",
    "novel_bias=0.03",
    "novel_bias=0.05",
    "novel_bias=0.09",
    "novel_bias=0.11",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--banks", type=Path, nargs="+", required=True)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep the result files here")
    parser.add_argument("--json", type=Path)
    parser.add_argument("changes", nargs="*", default=CHANGES)
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp())
    labels = ["concm", *(f"concm:{change}" for change in options.changes), "ncm", "ncm_bias"]
    found = []
    for path in options.banks:
        source = BankSource(file=path)
        tasks = tasks_of(labels, draws=options.draws, seeds=1, seed=0, splits=None, device="cpu")
        found.append(rows(finish(tasks, source, source.bank(), out, jobs=cores())))
    table: list[dict[str, Any]] = []
    for same in zip(*found, strict=True):
        row: dict[str, Any] = {"change": same[0].method}
        for name in ("ahm", "fa", "last_base", "last_novel", "above_curve", "seconds"):
            values = [getattr(entry, name) for entry in same]
            row[name] = None if None in values else round(float(np.mean(values)), 2)
        table.append(row)
        above = "" if row["above_curve"] is None else f"  above the curve {row['above_curve']:+.2f}"
        print(f"{row['change']:38} AHM {row['ahm']:5.2f}  FA {row['fa']:5.2f}{above}")
    if options.json:
        options.json.write_text(
            json.dumps({"draws": options.draws, "banks": len(found), "rows": table}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
