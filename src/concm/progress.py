"""Long jobs: their progress on standard error (a live bar, a line now and then in a log, or nothing), and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")
_shown = False
_listener: ContextVar[Callable[[float], None] | None] = ContextVar("listener", default=None)
SECONDS_BETWEEN_LINES = 10.0
_console = Console(stderr=True)


class _Lines(Progress):
    """The same progress where nothing can be redrawn."""

    def __init__(self) -> None:
        super().__init__(console=_console, disable=True)
        self._spoke = time.monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._speak(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._speak(task_id)

    def _speak(self, task_id: TaskID) -> None:
        if first_process() and time.monotonic() - self._spoke > SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            task = self._tasks[task_id]
            total = f" of {task.total:,.0f}" if task.total is not None else ""
            line = f"{task.description}: {task.completed:,.0f}{total}  {task.fields['note']}"
            sys.stderr.write(line.rstrip() + "\n")


def show(on: bool = True) -> None:
    """Show the progress of long jobs on standard error, or keep it to oneself; a library is silent unless asked."""
    global _shown
    _shown = on


def first_process() -> bool:
    """Whether to speak: of several processes that do the same, one is enough."""
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"


def bar(*, transient: bool = True) -> Progress:
    """A display of tasks, each with a `note` of its own beside the time that is left."""
    if not _shown:
        return Progress(disable=True)
    if not sys.stderr.isatty() or not first_process():
        return _Lines()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=_console,
        transient=transient,
    )


@contextmanager
def heard(listener: Callable[[float], None]) -> Iterator[None]:
    """Tell `listener` which share of a job is done, whether it is shown or not; of this thread's jobs alone."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def track(items: Iterable[T], title: str, total: int | None = None) -> Generator[T]:
    """The items, with a bar; `total` says how many there are where they do not."""
    total, listener = len(items) if isinstance(items, Sized) else total, _listener.get()
    with bar() as progress:
        task = progress.add_task(title, total=total, note="")
        for done, item in enumerate(items, 1):
            yield item
            progress.advance(task)
            if listener is not None and total:
                listener(done / total)


@contextmanager
def steps(title: str, count: int) -> Iterator[Callable[[], object]]:
    """The same for a job of so many steps that are no loop: the function that this gives is called after each."""
    ticks = track(range(count), title)
    next(ticks)
    try:
        yield lambda: next(ticks, None)
    finally:
        ticks.close()


@contextmanager
def interruptible(*signals: signal.Signals) -> Iterator[list[int]]:
    """Ctrl-C, or a request to end, is put on a list, so that a job stops where it can; a second one breaks it off.

    What this process was told to ignore, as in the background of a shell, stays ignored.
    """
    pressed: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, press) for number in heard}
    try:
        yield pressed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
