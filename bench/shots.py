"""Which bias on novel scores each number of shots needs: the last session's HM on validation banks.

    python bench/shots.py --bank FILE [FILE ...] [--draws 2] [--json FILE]

It compares the default bias, which grows as shots get fewer, with a constant one (0.07) and with the best one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from concm.engine.concm import Engine
from concm.errors import Misuse
from concm.features.bank import Bank
from concm.features.sessions import draw, sessions
from concm.methods import teach
from concm.metrics import harmonic, trade_off

SHOTS = (1, 2, 3, 5, 10, 15)
GRID = np.round(np.linspace(-0.1, 0.3, 81), 3)


def measure(bank: Bank, seed: int) -> dict[str, float]:
    engine = Engine(seed=seed)
    for session in sessions(bank, draw(bank, seed)):
        teach(engine, session)
    own = float(engine.head.bias[-1])
    old, new = trade_off(engine.scores(bank.test.features), bank.test.labels, bank.scenario.base, GRID - own)
    hm = np.array([harmonic(*pair) for pair in zip(old, new, strict=True)])

    def at(bias: float) -> float:
        return float(hm[np.abs(GRID - bias).argmin()])

    return {"bias": own, "hm": at(own), "constant": at(0.07), "best_bias": float(GRID[hm.argmax()]), "best": hm.max()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, nargs="+", required=True)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    banks = [Bank.load(path) for path in options.bank]
    if not all(bank.scenario.name.endswith("-validation") for bank in banks):
        raise Misuse("this is for validation banks: nothing is chosen on test images")
    rows = []
    for shot in SHOTS:
        found = [measure(bank.vary(shot=shot), seed) for bank in banks for seed in range(options.draws)]
        rows.append({"shots": shot} | {key: float(np.mean([one[key] for one in found])) for key in found[0]})
        print("  ".join(f"{key} {value:.3f}" for key, value in rows[-1].items()))
    if options.json:
        options.json.write_text(json.dumps({"banks": len(banks), "draws": options.draws, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
