"""What the derived operating point costs at each number of shots: the last session's HM on validation banks.

    python bench/shots.py --bank FILE [FILE ...] [--shots 1 2 3 5 10 15] [--draws 2] [--json FILE]

It compares the lift of novel scores that the engine finds without test images (with `lean=novel`, which asks for HM)
with the one constant that would have been best on them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.errors import Misuse
from concm.features.bank import Bank
from concm.features.sessions import draw, sessions
from concm.methods import teach
from concm.metrics import harmonic, trade_off

GRID = np.round(np.linspace(-0.3, 0.3, 121), 3)


def measure(bank: Bank, seed: int) -> dict[str, float]:
    engine = Engine(Settings(lean="novel"), seed=seed)
    for session in sessions(bank, draw(bank, seed)):
        teach(engine, session)
    old, new = trade_off(engine.scores(bank.test.features), bank.test.labels, bank.scenario.base, GRID)
    hm = np.array([harmonic(*pair) for pair in zip(old, new, strict=True)])
    lift, beside = float(engine.head.bias[bank.scenario.base :].mean()), float(GRID[hm.argmax()])
    return {"lift": lift, "hm": float(hm[GRID == 0][0]), "best_lift": lift + beside, "best": float(hm.max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, nargs="+", required=True)
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 2, 3, 5, 10, 15])
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    banks = [Bank.load(path) for path in options.bank]
    if not all(bank.scenario.name.endswith("-validation") for bank in banks):
        raise Misuse("this is for validation banks: nothing is chosen on test images")
    rows = []
    for shot in options.shots:
        found = [measure(bank.vary(shot=shot), seed) for bank in banks for seed in range(options.draws)]
        rows.append({"shots": shot} | {key: float(np.mean([one[key] for one in found])) for key in found[0]})
        print("  ".join(f"{key} {value:.3f}" for key, value in rows[-1].items()))
    if options.json:
        options.json.write_text(json.dumps({"banks": len(banks), "draws": options.draws, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
