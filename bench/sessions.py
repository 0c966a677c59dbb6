"""Seconds of one draw (all sessions with evaluation) and the accuracy they give, as ratios in one run on one device.

    python bench/sessions.py [--device auto] [--draws 3] [--full] [--json FILE]

On a GPU also the same steps launched one by one with the loss read at each, as plain loops do. `--full` adds the full
schedule (2048 hidden units, 100 samples of each base class and 50 of each novel class per step, five times the steps);
without a GPU it takes most of an hour per draw.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from concm.cli.options import Machine
from concm.engine import matching
from concm.engine.descent import SGD, AdamW
from concm.evaluation.protocol import run
from concm.evaluation.results import Summary
from concm.features.bank import Bank
from concm.features.sessions import draw
from concm.methods import choose


def plain_loop(
    parameters: Iterable[Tensor],
    loss: Callable[[], Tensor],
    rates: Iterable[float],
    optimiser: SGD | AdamW,
    *,
    random: torch.Generator | None = None,
) -> None:
    """Descend as most repositories do, with torch's own classes."""
    optimizer = torch.optim.AdamW(list(parameters), weight_decay=optimiser.weight_decay)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        value.item()


def measure(label: str, device: str, draws: int) -> dict[str, Any]:
    bank = Bank.bundled()
    seconds, ahm, fa = [], [], []
    for at in range(-1, draws):  # the first one warms the device up
        begun = time.perf_counter()
        found = Summary.of(list(run(choose(label).build(seed=max(at, 0), device=device), bank, draw(bank, max(at, 0)))))
        if device == "cuda":
            torch.cuda.synchronize()
        if at >= 0:
            seconds.append(time.perf_counter() - begun)
            ahm.append(found.ahm)
            fa.append(found.fa)
    row = {"run": label, "seconds": float(np.median(seconds)), "ahm": float(np.mean(ahm)), "fa": float(np.mean(fa))}
    print(f"{label:28} {row['seconds']:8.2f} s per draw   AHM {row['ahm']:.2f}   FA {row['fa']:.2f}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = Machine(device=options.device).accelerator()
    labels = ["ncm", "concm", *(["concm:full"] if options.full else [])]
    table = [measure(label, device, options.draws) for label in labels]
    if device == "cuda":
        with patch.object(matching, "descend", plain_loop):
            table += [{**measure(label, device, options.draws), "run": f"{label}, plain loop"} for label in labels[1:]]
    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(f"on {name}, torch {torch.__version__}")
    if options.json:
        data = {"device": name, "torch": torch.__version__, "draws": options.draws, "rows": table}
        options.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
