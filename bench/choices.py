"""Compares settings of ConCM on validation banks: base classes alone, with novel ones that the backbone has not seen.

    python bench/choices.py --banks VAL.safetensors ... [--draws 3] [--json docs/results/choices.json] [SPEC ...]

Such a bank is made by `concm train cifar100 --validate --seed S` and `concm features cifar100 --validate`. Each SPEC is
a change of the defaults (`alpha=0.8`); without any, the list below. No test image and no novel class is looked at.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from concm.evaluation.bench import BankSource, finish, tasks_of
from concm.evaluation.statistics import rows
from concm.evaluation.workers import place
from concm.features.bank import Bank, Part

CHANGES = [
    "whitening=none",
    "whitening=1",
    "whitening=10",
    "calibrate=none",
    "calibrate=network",
    "named=false",
    "trust=0.5",
    "pull=0",
    "pull=1",
    "reach=0",
    "reach=2",
    "reach=5",
    "pull=0,reach=0",
    "views=false",
    "noise=3",
    "heads=1",
    "prototypes=1",
    "prototypes=0.7",
    "lean=base",
    "lean=novel",
]


def _first_reading(path: Path, out: Path) -> Path:
    """A bank with the first reading alone, as if one block had been read."""
    bank = Bank.load(path)
    width = bank.layout[0]

    def cut(part: Part) -> Part:
        views = None if part.views is None else part.views[..., :width]
        return replace(part, features=part.features[:, :width], views=views)

    parts = {name: cut(part) for name, part in bank.parts.items()}
    encoder = replace(bank.encoder, blocks=1, turns=1, layout=())
    cut_path = out / f"{path.stem}-last-block.safetensors"
    replace(bank, encoder=encoder, mean=bank.mean[:, :width], std=bank.std[:, :width], **parts).save(cut_path)
    return cut_path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--banks", type=Path, nargs="+", required=True)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep the result files here")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--last-block", action="store_true", help="leave out all readings but the first")
    parser.add_argument("--on", default="here", help="here, ray or ray://HOST:PORT, as for `concm bench`")
    parser.add_argument("changes", nargs="*", default=CHANGES)
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    labels = ["concm", *(f"concm:{change}" for change in options.changes), "ncm_metric", "ncm"]
    found = []
    with place(options.on, "cpu") as where:
        for path in options.banks:
            source = BankSource(file=_first_reading(path, out) if options.last_block else path)
            tasks = tasks_of(labels, draws=options.draws, seeds=1, seed=0, splits=None, device="cpu")
            found.append(rows(finish(tasks, source, source.bank(), out, where)))
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
