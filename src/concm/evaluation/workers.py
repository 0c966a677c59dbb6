"""Where runs go: one after the other, into processes of this machine, or to a Ray cluster; results come back here."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from concm.cluster import Cluster, joined
from concm.errors import ConcmError

Jobs = Sequence[tuple[Any, ...]]
Results = Generator[tuple[int, Any], None, None]
Report = Callable[..., None]
Work = Callable[..., Any]
"""Called with what all jobs share, one job's arguments and, last, a function to report by; its result comes back."""


@dataclass(frozen=True)
class Shared:
    """What all jobs share, and a function by which another process of this machine makes it again."""

    value: Any
    make: Callable[[], Any]


class Place(Protocol):
    """Where runs go."""

    @property
    def device(self) -> str:
        """On what they compute there: `cpu` or `cuda`."""

    @property
    def at_once(self) -> int | None:
        """How many at a time, if that is known."""

    def ask(self, question: Callable[..., Any], *words: Any) -> Any:
        """What a function returns there."""

    def results(self, work: Work, shared: Shared, jobs: Jobs, report: Report) -> Results:
        """The number and the result of each job, as it is done; `report` is called here with what they report."""


@dataclass(frozen=True)
class Here:
    """One job after the other in this process, or several at a time in others of this machine."""

    at_once: int = 1
    device: str = "cpu"

    def ask(self, question: Callable[..., Any], *words: Any) -> Any:
        """What a function returns."""
        return question(*words)

    def results(self, work: Work, shared: Shared, jobs: Jobs, report: Report) -> Results:
        """Each job and its result."""
        if self.at_once > 1 and len(jobs) > 1:
            yield from _in_processes(work, shared, jobs, report, self.at_once)
        else:
            for at, job in enumerate(jobs):
                yield at, work(shared.value, *job, report)


@dataclass(frozen=True)
class OnRay:
    """A Ray cluster; what a job reports comes with its result, and a job whose worker was killed runs again."""

    cluster: Cluster
    device: str = "cpu"
    at_once: int | None = None

    def ask(self, question: Callable[..., Any], *words: Any) -> Any:
        """What a function returns on one of the machines."""
        return self.cluster.ask(question, *words, gpus=self._gpus)

    def results(self, work: Work, shared: Shared, jobs: Jobs, report: Report) -> Results:
        """Each job and its result."""
        told = [(work, job) for job in jobs]
        for at, (events, result) in self.cluster.each(
            _with_events, shared.value, told, gpus=self._gpus, at_once=self.at_once
        ):
            for event in events:
                report(*event)
            yield at, result

    @property
    def _gpus(self) -> int:
        return int(self.device == "cuda")


@contextmanager
def place(on: str, device: Literal["auto", "cpu", "cuda"], jobs: int | None = None) -> Iterator[Place]:
    """The place that is called `here`, `ray` or `ray://HOST:PORT`, with so many jobs at a time."""
    with joined(on) as cluster:
        if cluster is None:
            yield Here(jobs or (1 if device == "cuda" else cores()), "cuda" if device == "cuda" else "cpu")
        else:
            yield OnRay(cluster, cluster.device(device), jobs)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _with_events(shared: Any, work: Work, job: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], Any]:
    """On a cluster: the result, behind all that was reported."""
    events: list[tuple[Any, ...]] = []
    return events, work(shared, *job, lambda *event: events.append(event))


def _in_processes(work: Work, shared: Shared, jobs: Jobs, report: Report, at_once: int) -> Results:
    """Do all jobs, some at a time, in processes that leave Ctrl-C to this one and never outlive it."""
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    pool = ProcessPoolExecutor(min(at_once, len(jobs)), context, _begin, (events,))
    try:
        pending = {pool.submit(_job, work, shared.make, job): at for at, job in enumerate(jobs)}
        while pending:
            done, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            _pass_on(events, report)
            for future in done:
                yield pending.pop(future), future.result()
        _pass_on(events, report)
    except BrokenProcessPool as error:
        raise ConcmError("a run was killed, probably because memory ran out; try again with `jobs=1`") from error
    finally:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()


def _pass_on(events: Any, report: Report) -> None:
    while True:
        try:
            report(*events.get_nowait())
        except queue.Empty:
            return


_events: Any = None


def _begin(events: Any) -> None:
    """In each worker: Ctrl-C is the parent's business, who ends it; nor does it outlive a parent that was killed."""
    global _events
    _events = events
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _job(work: Work, make: Callable[[], Any], job: tuple[Any, ...]) -> Any:
    return work(_made(make), *job, lambda *event: _events.put(event))


@cache
def _made(make: Callable[[], Any]) -> Any:
    """In a worker: made once, however many jobs it does."""
    return make()
