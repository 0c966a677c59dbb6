"""A data folder small enough to train on in a second, and the command line called in process or as users call it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from concm.cli.app import main
from tests.support.data import write_picture

torch.set_num_threads(1)  # bit for bit only holds for one number of threads, and tests share the machine

CONCM = Path(sys.executable).with_name("concm")
CUT = ("--base", "4", "--way", "1", "--shot", "5", "--image-size", "32", "--device", "cpu")


def write_tiny(root: Path, *, base: int = 4, novel: int = 2, train: int = 8, test: int = 2, other: int = 0) -> Path:
    """`base` and `novel` class folders of 32 px noise; `other` changes all pictures but the base training ones."""
    for at in range(base + novel):
        key = f"{'base' if at < base else 'novel'}_{at}"
        for part, count in (("train", train), ("test", test)):
            moved = other if part == "test" or at >= base else 0
            for number in range(count):
                seed = 1000 * at + 100 * (part == "test") + number + 100_000 * moved
                write_picture(root / part / key / f"{number}.png", seed, 32)
    return root


def call(*words: object) -> int:
    """Run a command in this process; returns its exit code."""
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def environment() -> dict[str, str]:
    """One thread a process, whatever this machine has."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def typed(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `concm` as users do, in a process of its own."""
    command = [str(CONCM), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment(), check=False)


def wait_until(happened: Callable[[], bool], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def complaints(text: str) -> list[str]:
    """The lines on standard error, but for the progress that a slow machine has time for."""
    progress = re.compile(r"(?!concm: )[\w ]+: [\d,]+ of [\d,]+\b")
    return [line for line in text.splitlines() if not progress.match(line)]


def sentence(text: str) -> str:
    """The one line that a mistake prints on standard error."""
    lines = complaints(text)
    assert len(lines) == 1, text
    assert lines[0].startswith("concm: "), text
    return lines[0].removeprefix("concm: ")


def weights(run: Path) -> dict[str, Tensor]:
    """The trained backbone of a run folder."""
    return load_file(run / "backbone.safetensors")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two state dicts agree bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest absolute difference of two state dicts."""
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)
