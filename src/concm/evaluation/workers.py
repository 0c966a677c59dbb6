"""Worker processes for many runs: they report as they go, leave Ctrl-C to the parent, and never outlive it."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from concm.errors import ConcmError

Work = Callable[..., None]
"""Called in a worker with one job's arguments and, last, a function to report by."""


def in_processes(work: Work, jobs: Sequence[tuple[Any, ...]], report: Callable[..., None], *, at_once: int) -> None:
    """Do all jobs, some at a time, each in one of several processes; `report` is called here with what they report."""
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    pool = ProcessPoolExecutor(min(at_once, len(jobs)), context, _begin, (events,))
    try:
        pending: set[Future[None]] = {pool.submit(_job, work, job) for job in jobs}
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            _pass_on(events, report)
            for future in done:
                future.result()
        _pass_on(events, report)
    except BrokenProcessPool as error:
        raise ConcmError("a run was killed, perhaps for want of memory; try again with `jobs=1`") from error
    finally:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pass_on(events: Any, report: Callable[..., None]) -> None:
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


def _job(work: Work, job: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # told to end, it takes its draft along
    try:
        work(*job, lambda *event: _events.put(event))
    except SystemExit:
        os._exit(1)  # else the pool would hand it the next job
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
