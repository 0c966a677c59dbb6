"""Seconds of a session against the number of classes: synthetic features, ImageNet's class names, 50-way sessions.

    python bench/scaling.py [--device auto] [--classes 500 1000 2000 4000] [--json FILE]

The last 400 classes come in eight sessions, the others are base classes. Reports the exponent of growth: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from concm.cli.options import Machine
from concm.data import scenarios
from concm.engine.concm import Engine
from concm.features.sessions import BaseSession, Session

DIMENSION, IMAGES, SHOTS, VIEWS, WAY, SESSIONS = 512, 30, 5, 3, 50, 8


def features(classes: int, images: int, generator: torch.Generator, spread: float = 0.06) -> tuple[torch.Tensor, ...]:
    centres = F.normalize(torch.randn(classes, DIMENSION, generator=generator))
    labels = torch.arange(classes).repeat_interleave(images)
    noise = torch.randn(len(labels), 1 + VIEWS, DIMENSION, generator=generator)
    around = centres[labels, None] + spread * noise
    return around[:, 0], around[:, 1:], labels, centres


def measure(classes: int, device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    base, way = classes - SESSIONS * WAY, WAY
    known = scenarios.load_scenario("imagenet1k").names
    names = [*known, *(f"thing {at}" for at in range(classes - len(known)))][:classes]
    seen, views, labels, centres = features(classes, IMAGES, generator)
    test = centres + 0.06 * torch.randn(centres.shape, generator=generator)
    chosen = labels < base
    std, counts = torch.full((base, DIMENSION), 0.06), torch.full((base,), IMAGES)
    begun = time.perf_counter()
    method = Engine(device=device)
    method.fit_base(
        BaseSession(
            0,
            range(base),
            tuple(names[:base]),
            seen[chosen],
            labels[chosen],
            views[chosen],
            mean=centres[:base],
            std=std,
            counts=counts,
        )
    )
    seconds = [time.perf_counter() - begun]
    for index in range(1, SESSIONS + 1):
        first = base + (index - 1) * way
        span = range(first, first + way)
        rows = torch.cat([torch.arange(label * IMAGES, label * IMAGES + SHOTS) for label in span])
        begun = time.perf_counter()
        method.learn(Session(index, span, tuple(names[first : first + way]), seen[rows], labels[rows], views[rows]))
        right = (method.scores(test[: span.stop]).argmax(1).cpu() == torch.arange(span.stop)).float().mean()
        seconds.append(time.perf_counter() - begun)
    row = {"classes": base + SESSIONS * way, "seconds": sum(seconds), "base": seconds[0], "last": seconds[-1]}
    row |= {"session": float(np.median(seconds[1:])), "accuracy": 100 * float(right)}
    print(
        f"{row['classes']:6} classes: {row['seconds']:6.2f} s in all, base session {row['base']:.2f}, "
        f"per session {row['session']:.3f} (the last {row['last']:.3f}), accuracy {row['accuracy']:.1f}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--classes", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = Machine(device=options.device).accelerator()
    measure(450, device)  # warms the device up
    table = [measure(classes, device) for classes in options.classes]
    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    sizes, times = (np.log([row[key] for row in table]) for key in ("classes", "session"))
    exponent = float(np.polyfit(sizes, times, 1)[0]) if len(table) > 1 else None
    if exponent is not None:
        print(f"seconds per session grow with the {exponent:.2f}th power of the number of classes, on {name}")
    if options.json:
        options.json.write_text(json.dumps({"device": name, "exponent": exponent, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
