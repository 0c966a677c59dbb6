"""Random damage to the files of a store: it is noticed, or it is harmless, or the store answers differently.

    PYTHONPATH=. python bench/damage.py [--trials 1000] [--seed 0] [--json docs/results/reliability_damage.json]

Each trial copies a small store of two versions, changes, cuts, drops or adds bytes in one of its files, opens it and
asks it everything: predictions, classes, history, evaluations and the features of all photos.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.support.mutation import with_other_bytes
from tests.support.reliability import Hang, about, answers, make_store, seconds

from concm.errors import ConcmError


def trial(store: Path, copy: Path, chance: random.Random, before: dict) -> tuple[str, str]:
    """The file that was damaged, and what came of it."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    file = chance.choice(sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size))
    file.write_bytes(with_other_bytes(file.read_bytes(), chance))
    name = file.relative_to(copy).as_posix()
    try:
        with seconds(60):
            return name, "harmless" if answers(copy) == before else "different"
    except ConcmError as error:
        return name, "noticed" if "\n" not in str(error) else "traceback"
    except Hang:
        return name, "hang"
    except Exception:
        traceback.print_exc()
        return name, "traceback"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chance, begun = random.Random(options.seed), time.perf_counter()
    found, by_file = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder, "store"))
        before = answers(store)
        for _ in range(options.trials):
            name, outcome = trial(store, Path(folder, "copy"), chance, before)
            found[outcome] += 1
            by_file[f"{name}: {outcome}"] += 1
    outcomes = {name: found[name] for name in ("noticed", "harmless", "different", "traceback", "hang")}
    print(json.dumps(outcomes))
    if options.json:
        taken = round(time.perf_counter() - begun, 1)
        told = about(trials=options.trials, seed=options.seed, seconds=taken)
        told |= {"outcomes": outcomes, "by_file": dict(sorted(by_file.items()))}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
