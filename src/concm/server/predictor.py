"""Photos of many requests through the backbone together: whoever asks while it is busy goes with the next batch."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import torch
from torch import Tensor

from concm.backbones.encoder import Encoder
from concm.classifier.photos import Photo
from concm.classifier.stream import BATCH, Encoded


@dataclass(frozen=True)
class Seen:
    """A photo and its features (d,)."""

    photo: Photo
    features: Tensor

    def kept(self) -> Encoded:
        """What is kept of it: a small JPEG is made anew."""
        return Encoded(self.photo.name, self.photo.digest, self.photo.thumbnail(), self.features)


Waiting = tuple[Photo, Future[Seen]]


class Predictor:
    """Decodes photos on all cores, and encodes what is ready on a thread of its own."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "decode")
        self._thread = threading.Thread(target=self._work, name="encode", daemon=True)
        self._thread.start()

    def see(self, content: bytes, name: str) -> Future[Seen]:
        """The features of a picture; one that cannot be read gives a `BrokenPicture`."""
        found: Future[Seen] = Future()
        self._pool.submit(self._read, content, name, found)
        return found

    def close(self) -> None:
        """Finish what was begun."""
        self._pool.shutdown()
        self._queue.put(None)
        self._thread.join()

    def _read(self, content: bytes, name: str, found: Future[Seen]) -> None:
        try:
            self._queue.put((Photo.read(content, self._encoder.transform.resize, name), found))
        except BaseException as error:
            found.set_exception(error)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch: list[Waiting] = [first]
            while len(batch) < BATCH:
                try:
                    more = self._queue.get_nowait()
                except Empty:
                    break
                if more is None:
                    self._queue.put(None)
                    break
                batch.append(more)
            try:
                pixels = torch.from_numpy(np.stack([photo.pixels for photo, _ in batch])).to(self._encoder.device)
                features = self._encoder(pixels).clone()
                for (photo, found), own in zip(batch, features, strict=True):
                    found.set_result(Seen(photo, own))
            except BaseException as error:
                for _, found in batch:
                    if not found.done():
                        found.set_exception(error)
