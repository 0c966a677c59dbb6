"""Many runs: methods × draws × seeds, side by side where cores allow; what is finished is not done again."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from concm.cli.options import complain
from concm.errors import ConcmError
from concm.evaluation import results
from concm.evaluation.protocol import run
from concm.evaluation.results import Result
from concm.features.bank import Bank, bundled, load
from concm.features.sessions import Shots, draw, published
from concm.methods import PICTURES, Choice, choose
from concm.progress import bar

Listener = Callable[[str, int, dict[str, float]], None]
"""Told the run, its number of the session just done, and that session's figures."""


@dataclass(frozen=True)
class Source:
    """Where a bank comes from and how it is cut, so that every process can get it for itself."""

    scenario: str | None = None
    file: Path | None = None
    way: int | None = None
    shot: int | None = None
    sessions: int | None = None

    def bank(self) -> Bank:
        """The bank."""
        whole = load(self.file, self.scenario) if self.file else bundled(self.scenario or "cifar100")
        return whole.vary(way=self.way, shot=self.shot, sessions=self.sessions)


@dataclass(frozen=True)
class Task:
    """One run."""

    source: Source
    method: str
    draw: int
    seed: int
    splits: Path | None
    device: str

    def head(self, bank: Bank) -> Result:
        """All that decides it; of published lists also what they say."""
        start = results.head(
            choose(self.method), bank, draw=self.draw, seed=self.seed, splits=self.splits, device=self.device
        )
        return {**start, "shots": list(self.shots(bank).items())} if self.splits else start

    def shots(self, bank: Bank) -> Shots:
        """Drawn, or published."""
        return published(bank, self.splits) if self.splits else draw(bank, self.draw)

    def run(self, bank: Bank, listen: Listener) -> Result:
        """Do it, on one thread: the result must not depend on what else the machine is doing."""
        choice = choose(self.method)
        method = choice.build(seed=self.seed, device=self.device)
        sessions: list[dict[str, Any]] = []
        with _one_thread():
            for figures in run(method, bank, self.shots(bank), needs=choice.needs):
                sessions.append(figures)
                listen(f"{self.method} draw {self.draw}", figures["index"], figures)
        return results.finished(self.head(bank), sessions, method)


def unfit(choice: Choice, bank: Bank) -> str | None:
    """Why a method cannot run on a bank, if it cannot."""
    name = choice.entry.name
    objective = choice.entry.objective
    if objective is not None and bank.base_session != name:
        return f"{name} has a base session of its own: run it on a bank of `concm train --method {name}`"
    if objective is not None:
        trained = bank.card["training"]["recipe"]["settings"]
        for setting, value in json.loads(json.dumps(choice.recorded)).items():
            had = trained.get(setting, value)
            if setting not in objective.later and value != had:
                return f"this bank's base session had {setting}={had}, not {value}: write {name}:{setting}={had}"
    if PICTURES in choice.needs and not bank.weights:
        return f"{name} trains the backbone on pictures: run it on a bank of `concm features --keep-pictures`"
    return None


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def finish(tasks: list[Task], out: Path, *, jobs: int) -> list[Result]:
    """The results of all tasks: those that are found in `out`, and the others after they have been run."""
    todo = missing(tasks, out)
    if len(todo) < len(tasks):
        complain(f"{len(tasks) - len(todo)} of {len(tasks)} runs are finished in {out}")
    with bar() as progress:
        sessions = tasks[0].source.bank().scenario.sessions + 1
        shown = progress.add_task("bench", total=len(todo) * sessions, note="")

        def listen(name: str, index: int, found: dict[str, float]) -> None:
            note = f"{name}, session {index}: " + (f"HM {found['hm']:.1f}" if index else f"accuracy {found['acc']:.1f}")
            progress.update(shown, advance=1, note=note)

        try:
            run_all(todo, out, listen, jobs=jobs)
        except KeyboardInterrupt as error:
            raise ConcmError(f"interrupted; finished runs are in {out}, the same command does the rest") from error
    return collect(tasks, out)


def missing(tasks: list[Task], out: Path) -> list[Task]:
    """Those that no file in `out` answers."""
    bank = tasks[0].source.bank()
    return [task for task in tasks if not results.place(out, task.head(bank)).exists()]


def collect(tasks: list[Task], out: Path) -> list[Result]:
    """The results of finished tasks, in their order."""
    bank = tasks[0].source.bank()
    return [results.load(results.place(out, task.head(bank))) for task in tasks]


def run_all(tasks: list[Task], out: Path, listen: Listener, *, jobs: int) -> None:
    """Run the tasks, `jobs` at a time, and write each result as it is done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConcmError(f"cannot write results to {out}: {error.strerror or error}") from error
    if not tasks:
        return
    bank = tasks[0].source.bank()
    places = [results.place(out, task.head(bank)) for task in tasks]
    if jobs == 1 or len(tasks) == 1:
        for task, path in zip(tasks, places, strict=True):
            results.save(path, task.run(bank, listen))
        return
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, _begin, (events,))
    try:
        pending: set[Future[None]] = {pool.submit(_work, *pair) for pair in zip(tasks, places, strict=True)}
        while pending:
            done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
            _pass_on(events, listen)
            for future in done:
                future.result()
        _pass_on(events, listen)
    except BrokenProcessPool as error:
        raise ConcmError("a run was killed, perhaps for want of memory; try again with --jobs 1") from error
    finally:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()


def _pass_on(events: Any, listen: Listener) -> None:
    while True:
        try:
            listen(*events.get_nowait())
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
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(task: Task, path: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # told to end, it takes its draft along
    try:
        results.save(path, task.run(_bank(task.source), lambda *event: _events.put(_brief(event))))
    except SystemExit:
        os._exit(1)  # else the pool would hand it the next task
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _brief(event: tuple[str, int, dict[str, Any]]) -> tuple[str, int, dict[str, float]]:
    name, index, figures = event
    return name, index, {key: figures[key] for key in ("acc", "hm")}


@cache
def _bank(source: Source) -> Bank:
    return source.bank()


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
