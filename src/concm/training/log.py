"""The log of a running base session."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concm.errors import ConcmError, Misuse
from concm.files import write_whole


class Meter:
    """Sums losses on the device, so that only the end of an epoch waits for them, and counts pictures."""

    def __init__(self, start: int, an_epoch: int, batch: int, before: float, losses: dict[str, float]) -> None:
        self.start, self.an_epoch, self.batch, self.before = start, an_epoch, batch, before
        self._begun = time.perf_counter()
        self._sums = {name: torch.tensor(value) for name, value in losses.items()}
        self._count = start % an_epoch if losses else 0

    def losses(self) -> dict[str, float]:
        """The sums since the last row, with which an interrupted epoch goes on."""
        return {name: float(value) for name, value in self._sums.items()}

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of one step."""
        for name, value in losses.items():
            self._sums[name] = value.detach() + self._sums.get(name, 0)
        self._count += 1

    @property
    def seconds(self) -> float:
        """Seconds spent on the run, earlier parts of it included."""
        return self.before + time.perf_counter() - self._begun

    def row(self, step: int, mean: Callable[[Tensor], Any]) -> dict[str, float]:
        """Mean losses since the last row over all processes, with speed and time."""
        losses = {name: float(mean(value)) / self._count for name, value in self._sums.items()}
        self._sums, self._count = {}, 0
        speed = (step - self.start) * self.batch / (self.seconds - self.before)
        row = {"epoch": step // self.an_epoch, "step": step, **losses}
        return {**row, "images_per_second": speed, "seconds": self.seconds}


class Log:
    """Writes one JSONL row per epoch, and the same rows for TensorBoard."""

    def __init__(self, out: Path, writes: bool, tensorboard: bool, start: int) -> None:
        self.out, self.path, self.writes, self.start = out, out / "log.jsonl", writes, start
        self.board: Any = None
        if tensorboard and writes:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise Misuse("`tensorboard` needs the package tensorboard: pip install tensorboard") from error
            self.board = SummaryWriter(str(out / "tensorboard"))

    def __enter__(self) -> None:
        if self.writes:
            self.out.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, "".join(self._kept()).encode())
            self.file = self.path.open("a", encoding="utf-8")

    def __exit__(self, *error: object) -> None:
        if self.writes:
            self.file.close()
        if self.board is not None:
            self.board.close()

    def _kept(self) -> Iterator[str]:
        """Rows of earlier parts of this run up to its checkpoint; later epochs are run again."""
        if not self.start or not self.path.is_file():
            return
        for row in self.path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            with suppress(ValueError, LookupError, TypeError, RecursionError):  # a row that a crash cut off
                if 0 < json.loads(row)["step"] <= self.start:
                    yield row.rstrip("\n") + "\n"

    def write(self, row: dict[str, Any]) -> None:
        """Write the row of one epoch."""
        if not self.writes:
            return
        try:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
        except OSError as error:
            raise ConcmError(f"cannot write {self.path}: {error.strerror or error}") from error
        if self.board is not None:
            for name, value in row.items():
                self.board.add_scalar(name, value, row["step"])
