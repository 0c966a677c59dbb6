"""The methods that need their own bank: base session, bank and table of each, from which the leaderboard is made.

    python bench/methods.py cifar100 --data DIR --work DIR --results DIR [--shared RUN]
        [--schedule fact:epochs=200 savc:epochs=50 facl:epochs=50,batch=128]

Methods with their own base session train the backbone and are compared with `ncm` and `concm` on its features; plain
cross-entropy is the control. With `--shared`, a run of `concm train`, methods that go on training the backbone begin
with that one. Whatever is in the work folder already is not done again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from concm.methods import PICTURES, choose, entries

CONCM = str(Path(sys.executable).with_name("concm"))
PLAIN = {"head": "cosine", "contrast": 0, "turned": 0, "smoothing": 0, "weight-decay": 5e-4, "lr": 0.1, "batch": 256}
VARIANTS = {
    "alice": ["alice:nearest=none"],
    "savc": ["savc:test_views=false"],
    "facl": ["facl:test_views=false", "facl:leak=true"],
}


def concm(*words: object) -> None:
    """Run a command."""
    subprocess.run([CONCM, *map(str, words)], check=True)


def spelled(settings: Mapping[str, object]) -> list[str]:
    """Settings as options of the command line."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def trained(options: argparse.Namespace, name: str, *how: str) -> Path:
    """The run folder of a base session, which is trained if it is not there."""
    run: Path = options.work / name
    if not (run / "backbone.safetensors").exists():
        resume = ["--resume"] if (run / "checkpoint.safetensors").exists() else []
        common = ("--data", options.data, "--backbone", options.backbone, "--out", run)
        concm("train", options.scenario, *common, *how, *resume)
    return run


def measured(options: argparse.Namespace, name: str, run: Path, methods: list[str], *how: str) -> None:
    """Measure some methods on a bank of that run, and write their table."""
    bank = options.work / f"{name}.safetensors"
    if not bank.exists():
        kept = ("--base-limit", options.base_limit, "--novel-limit", options.novel_limit)
        concm("features", options.scenario, "--data", options.data, "--backbone", run, "--out", bank, *kept, *how)
    asked = [word for method in methods for word in ("--method", method)]
    out = ("--out", options.work / "bench", "--json", options.results / f"{name}.json")
    concm("bench", options.scenario, "--bank", bank, *asked, "--draws", options.draws, *out)


def main() -> None:
    """Measure all methods that need their own bank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--schedule", nargs="*", default=[], metavar="METHOD:NAME=VALUE,…", help="changed schedules")
    parser.add_argument("--shared", type=Path, help="a run of `concm train` for methods that train it further")
    parser.add_argument("--backbone", default="resnet12")
    parser.add_argument("--plain-epochs", type=int, default=60)
    parser.add_argument("--base-limit", type=int, default=36)
    parser.add_argument("--novel-limit", type=int, default=34)
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    changed = dict(word.split(":") for word in options.schedule)
    for name, entry in entries().items():
        if entry.objective is not None and entry.meant_for(options.scenario):
            schedule = dict(change.split("=") for change in changed.get(name, "").split(",") if change)
            run = trained(options, name, "--method", name, *spelled(schedule))
            measured(options, name, run, [name, *VARIANTS.get(name, []), "concm"], "--views", "1")
    plain = trained(options, "plain", *spelled({**PLAIN, "epochs": options.plain_epochs}))
    measured(options, "plain", plain, ["ncm", "concm"], "--views", "1")
    if options.shared:
        tuned = [name for name in entries() if PICTURES in choose(name).needs]
        measured(options, "tuned", options.shared, tuned, "--keep-pictures")


if __name__ == "__main__":
    main()
