"""`concm:released` beside the authors' released code, session by session, base and novel accuracy apart.

    python bench/released.py --bank ten.safetensors [--draws 5] [--device cuda] [--json docs/results/released.json]

The bank should have ten views of shots and base images (docs/how-to/run-the-bench.md has the commands). The released
code was run once, on a backbone of `concm train cifar100 --seed 1` and one draw of the shots, with 1,000 episodes and
12 alignment epochs instead of 10,000 and 100; its last two sessions were cut off. So the first of our two forms has
these numbers too, and the second those of the code.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import concm
from concm import progress
from concm.evaluation.statistics import deviation

FORMS = ("concm:released,episodes=1000,align_epochs=12", "concm:released")
RELEASED = {
    "acc_base": [82.90, 66.58, 59.63, 59.83, 57.80, 68.77, 70.63],
    "acc_novel": [0.0, 83.00, 67.30, 57.13, 51.10, 44.88, 42.43],
    "hm": [0.0, 73.89, 63.24, 58.45, 54.24, 54.31, 53.02],
}
"""What the released code measured after the base session and each of six sessions."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    progress.show()
    bank = concm.Bank.load(options.bank)
    table = concm.bench(list(FORMS), bank, draws=options.draws, device=options.device)
    found = {}
    for form in FORMS:
        runs = [result for result in table.results if result.heading.label == form]
        seconds = float(np.mean([run.summary.seconds for run in runs]))
        print(f"\n{form}: {len(runs)} draws, {seconds:.1f} s each")
        rows = {}
        for name, released in RELEASED.items():
            values = [[getattr(run.sessions[at], name) for run in runs] for at in range(len(runs[0].sessions))]
            rows[name] = {"mean": [float(np.mean(own)) for own in values], "std": [deviation(own) for own in values]}
            for at, own in enumerate(values):
                there = f"{released[at]:6.2f}" if at < len(released) else "     –"
                ours = f"{np.mean(own):6.2f} ± {deviation(own):4.2f}"
                away = f"{np.mean(own) - released[at]:+6.2f}" if at < len(released) else ""
                print(f"{name:9} session {at}: released {there}, here {ours} {away}")
            apart = [np.mean(own) - there for own, there in zip(values[1:], released[1:], strict=False)]
            rows[name]["rms"] = float(np.sqrt(np.mean(np.square(apart))))
            print(f"{name:9} root mean square over {len(apart)} sessions: {rows[name]['rms']:.2f}")
        found[form] = {"seconds": seconds, **rows}
    if options.json:
        about = {"bank": bank.digest, "draws": options.draws, "device": options.device, "released": RELEASED}
        options.json.write_text(json.dumps({**about, "forms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
