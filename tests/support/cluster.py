"""A cluster without Ray: everything is done in this process, in another order than it was asked for."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from typing import Any


class Inline:
    """What `concm.cluster.Cluster` offers; `done` counts the jobs, and after `most` of them somebody types Ctrl-C."""

    def __init__(self, most: int | None = None) -> None:
        self.most, self.done = most, 0

    def resource(self, name: str) -> float:
        return 2.0 if name == "CPU" else 0.0

    def device(self, wanted: str) -> str:
        return "cpu"

    def ask(self, question: Any, *words: Any, gpus: float = 0) -> Any:
        return question(*words)

    def each(
        self, work: Any, shared: Any, jobs: Any, *, gpus: float = 0, at_once: int | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        shared = pickle.loads(pickle.dumps(shared))
        for at in reversed(range(len(jobs))):
            if self.done == self.most:
                raise KeyboardInterrupt
            self.done += 1
            yield at, work(shared, *pickle.loads(pickle.dumps(jobs[at])))
