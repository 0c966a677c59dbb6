"""Jobs: what takes longer than an answer may take, one after the other, on a thread with a store handle of its own."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from concm import progress
from concm.classifier.classifier import Classifier
from concm.errors import ConcmError, Misuse
from concm.server.sentences import refusal

KEPT = 50
Work = Callable[[Classifier], dict[str, Any]]


@dataclass
class Job:
    """A piece of work: `state` is waiting, running, done or failed; `percent` is done, where that can be known."""

    id: int
    title: str
    work: Work = field(repr=False)
    state: str = "waiting"
    result: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    percent: int | None = None
    status: int = 200
    over: threading.Event = field(default_factory=threading.Event, repr=False)

    def at(self, share: float) -> None:
        """So much of it is done."""
        self.percent = int(100 * share)

    def told(self) -> dict[str, Any]:
        """The job as JSON."""
        said = {"job": self.id, "title": self.title, "state": self.state, **self.result}
        if self.state == "running" and self.percent is not None:
            said["percent"] = self.percent
        return said if self.error is None else {**said, **refusal(self.error)}


class Jobs:
    """The worker, and the jobs that it was given."""

    def __init__(self, opened: Callable[[], Classifier]) -> None:
        self._opened = opened
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._adding = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="learn", daemon=True)
        self._thread.start()

    def add(self, title: str, work: Work) -> Job:
        """Queue a piece of work."""
        with self._adding:  # requests add from several threads
            job = Job(next(self._numbers), title, work)
            self._jobs[job.id] = job
            self._queue.put(job)
            for old in [known for known in self._jobs.values() if known.over.is_set()][:-KEPT]:
                del self._jobs[old.id]
        return job

    def get(self, number: int) -> Job | None:
        """A job, if it is still remembered."""
        return self._jobs.get(number)

    def all(self) -> list[Job]:
        """The jobs that are still remembered, oldest first."""
        with self._adding:
            return list(self._jobs.values())

    def close(self) -> None:
        """Finish what was begun."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        with self._opened() as classifier:
            while (job := self._queue.get()) is not None:
                job.state = "running"
                try:
                    with progress.heard(job.at):
                        job.result = job.work(classifier)
                    job.state = "done"
                except ConcmError as error:
                    job.state, job.error = "failed", str(error)
                    job.status = 400 if isinstance(error, Misuse) else 409
                except Exception:
                    logging.getLogger("concm").exception("%s failed", job.title)
                    job.state, job.error, job.status = "failed", "something went wrong; the server's log says what", 500
                job.over.set()
