"""What a running base session tells, and how it is told to stop."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor

from concm.errors import Misuse


class Meter:
    """Sums losses on the device, so that nothing waits for them but an epoch's end, and counts pictures."""

    def __init__(self, start: int, an_epoch: int, batch: int) -> None:
        self.start, self.an_epoch, self.batch = start, an_epoch, batch
        self.begun = time.perf_counter()
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, losses: dict[str, Tensor]) -> None:
        """One step's losses."""
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0) + value.detach()
        self._count += 1

    def row(self, step: int) -> dict[str, float]:
        """Mean losses since the last row, and speed and time since the start."""
        losses = {name: float(value) / self._count for name, value in self._sums.items()}
        self._sums, self._count = {}, 0
        seconds = time.perf_counter() - self.begun
        speed = (step - self.start) * self.batch / seconds
        return {"epoch": step // self.an_epoch, "step": step, **losses, "images_per_second": speed, "seconds": seconds}


class Log:
    """A JSONL row an epoch, and the same rows for TensorBoard."""

    def __init__(self, out: Path, writes: bool, tensorboard: bool, start: int) -> None:
        self.out, self.writes, self.start = out, writes, start
        self.board: Any = None
        if tensorboard and writes:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise Misuse("--tensorboard needs the package tensorboard: pip install tensorboard") from error
            self.board = SummaryWriter(str(out / "tensorboard"))

    def __enter__(self) -> None:
        if self.writes:
            self.out.mkdir(parents=True, exist_ok=True)
            path = self.out / "log.jsonl"
            # Rows after the checkpoint are of epochs that are run again.
            rows = path.read_text().splitlines(keepends=True) if self.start and path.exists() else []
            self.file = path.open("w")
            self.file.writelines(row for row in rows if json.loads(row)["step"] <= self.start)

    def __exit__(self, *error: object) -> None:
        if self.writes:
            self.file.close()
        if self.board is not None:
            self.board.close()

    def write(self, row: dict[str, Any]) -> None:
        """One epoch."""
        if not self.writes:
            return
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        if self.board is not None:
            for name, value in row.items():
                self.board.add_scalar(name, value, row["step"])


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Ctrl-C between two steps: the first one asks the loop to stop, a second one breaks off at once."""
    pressed: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    try:
        before = signal.signal(signal.SIGINT, press)
    except ValueError:  # not in the main thread
        yield pressed
        return
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def resume_command() -> str:
    """The command that was typed, with --resume."""
    program = Path(sys.argv[0]).name
    words = [*(["python", "-m", "concm"] if program == "__main__.py" else [program]), *sys.argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])
