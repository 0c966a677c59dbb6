"""One budget of threads for all that is done with pictures: a thread per core, and none of them waits for another."""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 2
"""How many pieces of work lie ready for each thread."""
AGAIN, TRIES = 300, 3
"""How often two ways to one result are compared anew, once in so many times, and how often each is taken for that."""
GAIN = 0.9
"""Several cores are taken if the time that they take is below this share of that of one, since all of them are busy."""
_lent = threading.local()


def budget() -> int:
    """The cores that this process may use, as far as torch may use them; one on a thread that has its share already."""
    return min(len(usable()) or os.cpu_count() or 1, torch.get_num_threads())


def usable() -> list[int]:
    """The numbers of the cores that this thread may use; none where the system does not tell them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def lend(threads: int) -> Iterator[None]:
    """So many cores for the one picture that this thread computes, because no other one is asked for."""
    before, _lent.threads = lent(), threads
    try:
        yield
    finally:
        _lent.threads = before


def lent() -> int:
    """How many cores this thread has for what it computes now."""
    return getattr(_lent, "threads", 1)


def others(threads: int) -> list[int]:
    """Cores for all but one of so many threads, not always the same ones; none where the system does not tell them."""
    known = usable()
    return sorted(random.sample(known, threads - 1)) if len(known) >= threads else []


@contextmanager
def apart(from_cores: Collection[int]) -> Iterator[None]:
    """The calling thread keeps away from these cores, if it may."""
    known = usable()
    rest = set(known).difference(from_cores)
    if not from_cores or not rest or not hasattr(os, "sched_setaffinity"):
        yield
        return
    with suppress(OSError):
        os.sched_setaffinity(0, rest)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, known)


class Sooner:
    """Of two ways to one result, the first if that was lately much sooner done, else the second.

    Whether cores that work together are faster than one depends on what else they have to do, which nobody tells.
    """

    def __init__(self) -> None:
        self._took: tuple[deque[float], deque[float]] = deque(maxlen=TRIES), deque(maxlen=TRIES)
        self._turn = count()

    def __call__(self, one: Callable[[], T], other: Callable[[], T]) -> T:
        """The result by one of them; now and then both are tried anew."""
        turn = next(self._turn) % AGAIN
        way = turn % 2 if turn < 2 * TRIES else int(median(self._took[0]) > GAIN * median(self._took[1]))
        begun = perf_counter()
        try:
            return (one, other)[way]()
        finally:
            self._took[way].append(perf_counter() - begun)


@contextmanager
def one_thread() -> Iterator[None]:
    """What is too small to be shared is not: threads that wait for each other take longer than the work."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def together(work: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Results of `work` in order, each computed by one of so many threads, which uses no others for it."""
    if workers < 2:
        yield from map(work, items)
        return
    before, ahead = torch.get_num_threads(), deque[Future[R]]()  # bounded, so that memory does not grow with the items
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                if len(ahead) > AHEAD * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            torch.set_num_threads(before)
