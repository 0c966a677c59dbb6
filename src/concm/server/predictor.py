"""Photos of many requests through the backbone: each goes all the way on one thread, with those that wait beside it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from concm.backbones.cores import lend
from concm.backbones.encoder import Encoder
from concm.classifier.photos import Photo
from concm.classifier.stream import BATCH, PILE, Encoded

T = TypeVar("T")
SHARED = 4
"""Cores that one photo is lent at most; two were measured, and its layers are small."""


@dataclass(frozen=True)
class Seen:
    """A photo and its features (d,)."""

    photo: Photo
    features: Tensor

    def kept(self) -> Encoded:
        """What is kept of it: a small JPEG is made anew."""
        return Encoded(self.photo.name, self.photo.digest, self.photo.thumbnail(), self.features)


@dataclass(frozen=True)
class _Asked:
    """A picture, what is asked of it once it is seen, and where the answer is waited for."""

    content: bytes
    name: str
    question: Callable[[Seen], Any]
    answer: Future[Any]


class Predictor:
    """A thread per core of a CPU, which decodes, encodes and answers what waits, a single photo at once.

    A photo that is alone is lent other cores while they have nothing else to do, where the runtime can use them
    (`concm.backbones.fast`). A GPU has one thread, which takes more at a time, and others that decode for it.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._busy, self._mutex = 0, threading.Lock()
        self._queue: SimpleQueue[_Asked | None] = SimpleQueue()
        self._most = PILE if encoder.device.type == "cpu" else BATCH
        self._decoders = None if encoder.device.type == "cpu" else ThreadPoolExecutor(os.cpu_count() or 1, "decode")
        self._threads = [threading.Thread(target=self._work, name="see", daemon=True) for _ in range(encoder.workers)]
        for thread in self._threads:
            thread.start()

    def see(self, content: bytes, name: str, question: Callable[[Seen], T]) -> Future[T]:
        """What the question finds in a picture; one that cannot be read gives a `BrokenPicture`."""
        answer: Future[T] = Future()
        self._queue.put(_Asked(content, name, question, answer))
        return answer

    def close(self) -> None:
        """Finish what was begun."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._decoders is not None:
            self._decoders.shutdown()

    def _work(self) -> None:
        if len(self._threads) > 1:
            torch.set_num_threads(1)  # each has its share of the cores
        while (first := self._queue.get()) is not None:
            pile = [first, *self._waiting()]
            with self._mutex:
                self._busy += 1
                alone = self._busy == len(pile) == 1
            try:
                with lend(min(len(self._threads), SHARED) if alone else 1):
                    self._answer(pile)
            except BaseException as error:
                for asked in pile:
                    if not asked.answer.done():
                        asked.answer.set_exception(error)
            finally:
                with self._mutex:
                    self._busy -= 1

    def _waiting(self) -> Iterator[_Asked]:
        """The share of one thread of what waits by now."""
        share = -(-self._queue.qsize() // len(self._threads))
        with suppress(Empty):
            for _ in range(min(share, self._most - 1)):
                if (more := self._queue.get_nowait()) is None:
                    self._queue.put(None)
                    return
                yield more

    def _answer(self, pile: list[_Asked]) -> None:
        read = list(map(self._read, pile) if self._decoders is None else self._decoders.map(self._read, pile))
        sound = [(asked, photo) for asked, photo in zip(pile, read, strict=True) if photo is not None]
        if not sound:
            return
        pixels = torch.from_numpy(np.stack([photo.pixels for _, photo in sound])).to(self._encoder.device)
        for (asked, photo), features in zip(sound, self._encoder(pixels).clone(), strict=True):
            try:
                asked.answer.set_result(asked.question(Seen(photo, features)))
            except Exception as error:
                asked.answer.set_exception(error)

    def _read(self, asked: _Asked) -> Photo | None:
        try:
            return Photo.read(asked.content, self._encoder.transform.resize, asked.name)
        except Exception as error:
            asked.answer.set_exception(error)
            return None
