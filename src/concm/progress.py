"""Progress for long jobs: one rich bar, on standard error, silent where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
console = Console(stderr=True)


def bar(*, transient: bool = True) -> Progress:
    """A progress display; in a log file it prints nothing, so that logs stay readable."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=transient,
        disable=not sys.stderr.isatty(),
    )


def track(items: Iterable[T], title: str) -> Iterator[T]:
    """The items, with a bar."""
    total = len(items) if isinstance(items, Sized) else None
    with bar() as progress:
        task = progress.add_task(title, total=total, note="")
        for item in items:
            yield item
            progress.advance(task)
