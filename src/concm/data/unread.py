"""Pictures that are not read yet: known by their files, and decoded when and where they are asked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from concm.data.images import PIXELS_VERSION, decode
from concm.errors import ConcmError


@dataclass(frozen=True)
class Unread:
    """Stands for an array (n, side, side, 3) of bytes; asking for rows decodes them."""

    paths: Sequence[Path]
    side: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the array that it stands for."""
        return len(self.paths), self.side, self.side, 3

    def __getitem__(self, rows: Iterable[int]) -> NDArray[np.uint8]:
        return np.stack([decode(self.paths[row], self.side) for row in rows])

    def fingerprint(self) -> str:
        """A digest of what the files are by name, size and time, so that changed ones are not taken for the old."""
        state = hashlib.blake2b(f"{PIXELS_VERSION}:{self.side}".encode(), digest_size=16)
        for path in self.paths:
            try:
                status = path.stat()
            except OSError as error:
                raise ConcmError(f"no picture at {path}") from error
            state.update(os.fsencode(f"{path}:{status.st_size}:{status.st_mtime_ns}\n"))
        return state.hexdigest()
