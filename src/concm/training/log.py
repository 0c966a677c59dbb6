"""What a running base session tells, and how it is told to stop."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from concm.errors import Misuse
from concm.progress import console


class Log:
    """A JSONL row an epoch, the same rows for TensorBoard, and a line now and then where no bar is shown."""

    def __init__(self, out: Path, writes: bool, tensorboard: bool, append: bool) -> None:
        self.out, self.writes, self.append = out, writes, append
        self.board: Any = None
        if tensorboard and writes:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise Misuse("--tensorboard needs the package tensorboard: pip install tensorboard") from error
            self.board = SummaryWriter(str(out / "tensorboard"))
        self.spoke = time.perf_counter()

    def __enter__(self) -> None:
        if self.writes:
            self.out.mkdir(parents=True, exist_ok=True)
            self.file = (self.out / "log.jsonl").open("a" if self.append else "w")

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
        if not sys.stderr.isatty() and time.perf_counter() - self.spoke > 10:
            self.spoke = time.perf_counter()
            speed = f"{row['images_per_second']:,.0f} images/s"
            console.print(
                f"epoch {row['epoch']}: loss {row['loss']:.3f}, {speed}, {row['seconds']:.0f} s", highlight=False
            )


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
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return " ".join(words if "--resume" in words else [*words, "--resume"])
