"""How near few-shot prototypes are to the true class centres, before and after calibration (mean cosine).

    python bench/calibration.py [--banks BANK ...] [--draws 5] [--json FILE] [SPEC ...]

A centre is the mean of a novel class's test images; no method sees it. Measured on the bundled bank and on BANKS.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from concm.engine.calibration import agreement
from concm.engine.concm import Engine
from concm.features.bank import Bank
from concm.features.sessions import draw, sessions
from concm.methods import choose, teach


def measure(bank: Bank, label: str, draws: int) -> tuple[float, float]:
    settings = replace(choose(label).settings, prototypes=1.0)  # nobody looks at the structure, so none is trained
    before, after = [], []
    for at in range(draws):
        method = Engine(settings, seed=at)
        for session in sessions(bank, draw(bank, at)):
            teach(method, session)
            if session.index:
                own = slice(session.classes.start, session.classes.stop)
                test = bank.test.features if method.metric is None else method.metric(bank.test.features)
                centres = torch.stack([test[bank.test.labels == label].mean(0) for label in session.classes])
                before.append(agreement(method.memory.shown[own], centres))
                after.append(agreement(method.memory.mean[own], centres))
    return float(np.mean(before)), float(np.mean(after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--banks", type=Path, nargs="*", default=[])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("specs", nargs="*", default=["concm", "concm:calibrate=network"])
    options = parser.parse_args()
    banks = {"cifar100": Bank.bundled(), **{path.stem: Bank.load(path) for path in options.banks}}
    table = []
    for name, bank in banks.items():
        for label in options.specs:
            before, after = measure(bank, label, options.draws)
            table.append({"bank": name, "settings": label, "before": before, "after": after})
            print(f"{name:12} {label:32} {before:.3f} → {after:.3f} ({after - before:+.3f})", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"draws": options.draws, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
