"""Brings batches of pixels to the device: from its own memory if they fit, otherwise streamed from the memory map."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concm.data.dataset import ImageSet
from concm.errors import enough_memory
from concm.training.distributed import processes

HOST = 8 * 2**30
"""Bytes of memory that all processes on CPUs together may fill by half with pixels."""
_AHEAD = 3
"""Number of batches that are read ahead while the device works."""


class Feed:
    """Pixels (n, h, w, 3) and labels (n,) of chosen images, on the device."""

    def __init__(self, images: ImageSet, device: torch.device, *, resident: bool | None = None) -> None:
        self.images = images
        self.device = device
        self.labels = torch.from_numpy(images.labels).to(device)
        self.resident = _fits(images, device) if resident is None else resident
        self._pixels: Tensor | None = None
        if self.resident:
            with enough_memory("the pictures do not fit into memory: read them with `stream`"):
                self._pixels = torch.from_numpy(images.pixels[images.rows]).to(device)

    def batches(self, order: Iterable[NDArray[np.int64]]) -> Iterator[tuple[Tensor, Tensor]]:
        """One pair of pixels and labels for each array of positions."""
        if self._pixels is not None:
            for chosen in order:
                at = torch.from_numpy(chosen).to(self.device, non_blocking=True)
                yield self._pixels[at], self.labels[at]
            return
        with ThreadPoolExecutor(_AHEAD) as pool:
            ahead: deque[tuple[NDArray[np.int64], object]] = deque()
            for chosen in order:
                ahead.append((chosen, pool.submit(self._read, chosen)))
                if len(ahead) > _AHEAD:
                    yield self._deliver(*ahead.popleft())
            while ahead:
                yield self._deliver(*ahead.popleft())

    def _read(self, chosen: NDArray[np.int64]) -> Tensor:
        """Read in the order of the file, deliver in the order asked for."""
        rows = self.images.rows[chosen]
        order = np.argsort(rows)
        pixels = torch.empty(len(rows), *self.images.pixels.shape[1:], dtype=torch.uint8)
        pixels.numpy()[order] = self.images.pixels[rows[order]]
        return pixels.pin_memory() if self.device.type == "cuda" else pixels

    def _deliver(self, chosen: NDArray[np.int64], future: object) -> tuple[Tensor, Tensor]:
        pixels: Tensor = future.result()  # type: ignore[attr-defined]
        at = torch.from_numpy(chosen).to(self.device, non_blocking=True)
        return pixels.to(self.device, non_blocking=True), self.labels[at]


def _fits(images: ImageSet, device: torch.device) -> bool:
    """Whether the pixels take less than half of the GPU's free memory, or of what processes on CPUs share."""
    size = len(images) * int(np.prod(images.pixels.shape[1:]))
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else HOST // processes()
    return size < free / 2
