"""`concm:released` beside the authors' released code, session by session, base and novel accuracy apart.

    concm bench --bank ten.safetensors --method concm:released,episodes=1000,align_epochs=12 \\
        --method concm:released --csv docs/results/released.csv
    python bench/released.py docs/results/released.csv

The bank should have ten views of shots and base images (docs/how-to/run-the-bench.md has the commands). The released
code was run once, on a backbone of `concm train cifar100 --seed 1` and one draw of the shots, with 1,000 episodes and
12 alignment epochs instead of 10,000 and 100; its last two sessions were cut off. So the first of our two forms has
these numbers too, and the second those of the code.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from concm.evaluation.paired import deviation

RELEASED = {
    "base": [66.58, 59.63, 59.83, 57.80, 68.77, 70.63],
    "novel": [83.00, 67.30, 57.13, 51.10, 44.88, 42.43],
    "hm": [73.89, 63.24, 58.45, 54.24, 54.31, 53.02],
}
"""What the released code measured after each of six sessions; after the base session it had 82.90."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="what `concm bench --csv` wrote")
    with parser.parse_args().runs.open(newline="") as file:
        runs = list(csv.DictReader(file))
    for method in dict.fromkeys(run["method"] for run in runs if run["method"].startswith("concm:released")):
        own = [run for run in runs if run["method"] == method]
        print(f"\n{method}: {len(own)} draws, mean ± deviation; in brackets the first draw and the released code")
        for what, released in RELEASED.items():
            found = np.array([[float(run[f"{what}_{at}"]) for at in range(1, len(released) + 1)] for run in own])
            cells = [
                f"{mean:5.1f} ± {deviation(list(column)):3.1f} ({first:4.1f}, {there:4.1f})"
                for mean, column, first, there in zip(found.mean(0), found.T, found[0], released, strict=True)
            ]
            rms = np.sqrt(np.square(found.mean(0) - released).mean())
            print(f"{what:>5}  {'  '.join(cells)}  root mean square {rms:.2f}")


if __name__ == "__main__":
    main()
