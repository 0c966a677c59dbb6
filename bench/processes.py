"""The base session in one process and in two, plain and compiled: what each costs, and whether losses are the same.

    python bench/processes.py [--backbone resnet20] [--batch 64] [--device cpu] [--backend nccl] [--json FILE]

Pictures are random, as speed does not depend on them. Two processes on CPUs speak through gloo, on two GPUs through
NCCL. Where there is one GPU, they share it: NCCL refuses that (`Duplicate GPU detected`), `--backend gloo` does not.
The first of three epochs compiles; the seconds of a step are those of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from base_training import pictures
from concm.cli.options import Machine
from concm.training.loop import BaseRun
from concm.training.recipe import Recipe

EPOCHS, STEPS = 3, 4


def train(out: Path, options: argparse.Namespace) -> None:
    """One of the four runs, in this process and those that it starts."""
    if options.device == "cuda" and 0 < torch.cuda.device_count() < options.processes:
        one = [torch.device("cuda", 0)] * options.processes
        strategy = DDPStrategy(parallel_devices=one, process_group_backend=options.backend)
        fabric = Fabric(strategy=strategy, precision="bf16-mixed")
        fabric.launch()
    else:
        fabric = Machine(device=options.device, devices=options.processes).fabric()
    recipe = Recipe(epochs=EPOCHS, batch=options.batch, warmup=1, lr=0.01)
    data = pictures(options.batch * STEPS)
    BaseRun(data, options.backbone, recipe, out, fabric, compiled=options.compiled).run()


def measured(processes: int, compiled: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Losses by epoch, seconds of a step, and seconds of the first epoch, in which the step is compiled."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--run", folder, "--processes", str(processes), *(["--compiled"] if compiled else [])]
        kind = {name: getattr(options, name) for name in ("backbone", "batch", "device", "backend")}
        own = [word for name, value in kind.items() for word in (f"--{name}", str(value))]
        subprocess.run([sys.executable, __file__, *words, *own], check=True, stdout=sys.stderr)
        rows = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
    taken = (rows[-1]["seconds"] - rows[0]["seconds"]) / (rows[-1]["step"] - rows[0]["step"])
    about = {"processes": processes, "compiled": compiled, "losses": [row["loss"] for row in rows]}
    return {**about, "step": round(taken, 4), "first epoch": round(rows[0]["seconds"], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet20")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl", help="of processes that share a GPU")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        train(options.run, options)
        return
    rows = [measured(processes, compiled, options) for processes in (1, 2) for compiled in (False, True)]
    for row in rows:
        losses = ", ".join(f"{loss:.5f}" for loss in row["losses"])
        kind = "compiled" if row["compiled"] else "plain"
        print(f"{row['processes']} × {kind:8}  {row['step']:.3f} s a step, {row['first epoch']} s at first: {losses}")
    apart = max(abs(one - other) for row in rows for one, other in zip(row["losses"], rows[0]["losses"], strict=True))
    print(f"losses differ by {apart:.1e} at most")
    if options.json:
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
        done = {**about, "backbone": options.backbone, "batch": options.batch, "device": options.device, "rows": rows}
        options.json.write_text(json.dumps({**done, "apart": apart}, indent=1) + "\n")


if __name__ == "__main__":
    main()
