"""Ray as a place for work: the one module that knows of it, and imports it only when it is asked for."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from concm.errors import ConcmError, Misuse, extra_needed
from concm.progress import interruptible

AHEAD = 1000
"""Jobs that are handed to Ray at a time, unless fewer are asked for."""
RETRIES = 3
"""How often a job runs again whose worker was killed."""

Work = Callable[..., Any]
"""Called in a worker with what all jobs share and one job's arguments; what it returns comes back."""


class Cluster:
    """A connection to Ray, to be closed: `ray://HOST:PORT` is another machine's, `ray` one that is started for it.

    Where the variable RAY_ADDRESS names a cluster, as Ray's users know it, `ray` joins that one instead.
    What jobs share is put into Ray's object store once, and a worker takes it from there once, however many it does.
    """

    def __init__(self, address: str = "ray") -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # else news of killed workers go to standard output
        self._ray = ray = _imported()
        self._begun = not ray.is_initialized()
        if not self._begun:
            return
        named = os.environ.get("RAY_ADDRESS") if address == "ray" else address
        # Ray logs failures of jobs that nobody waits for any more, as after Ctrl-C; all others come as exceptions.
        quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
        try:
            with interruptible(signal.SIGINT) as stop, warnings.catch_warnings():  # Ray may lose it as it starts
                warnings.simplefilter("ignore")  # what goes wrong is told below, in a sentence
                if named:
                    ray.init(named, **quiet)
                else:
                    ray.init("local", include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            ray.shutdown()
            raise ConcmError(f"cannot reach Ray at {address}: {error}".splitlines()[0]) from error
        if stop:
            self.__exit__()
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of the cluster; one that was started here ends."""
        if self._begun:
            with interruptible(signal.SIGINT):
                self._ray.shutdown()

    def resource(self, name: str) -> float:
        """How much the cluster has of a resource: `CPU`, `GPU`."""
        return float(self._ray.cluster_resources().get(name, 0))

    def device(self, wanted: str) -> str:
        """On what its workers compute: `cpu` or `cuda`, where a GPU is wanted (`auto` too) and there is one."""
        has = bool(self.resource("GPU"))
        if wanted == "cuda" and not has:
            raise Misuse("`device=cuda`, but the cluster has no GPU")
        return "cuda" if has and wanted != "cpu" else "cpu"

    def ask(self, question: Callable[..., Any], *words: Any, gpus: float = 0) -> Any:
        """What a function returns on the first of the workers to answer.

        As many are asked as may work at a time: so all begin to import what their jobs need, and at once.
        """
        task, workers = self._task(question, gpus), self.resource("GPU" if gpus else "CPU")
        asked = [task.remote(*words) for _ in range(max(1, round(workers)))]
        return self._got(self._ray.wait(asked)[0][0])

    def each(
        self, work: Work, shared: Any, jobs: Sequence[tuple[Any, ...]], *, gpus: float = 0, at_once: int | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """The number and the result of each job as it is done.

        What is not done when the caller leaves ends with the connection, or runs on where Ray was there before; then
        little is handed out at a time. It is not cancelled: Ray 2.60 aborts the process if a job is done just then.
        """
        ray, task = self._ray, self._task(_run, gpus)
        most = at_once or (AHEAD if self._begun else ahead(self, "cuda" if gpus else "cpu"))
        held = [ray.put(shared)]  # in a list Ray hands over the reference, so that a worker takes the object only once
        waiting, pending = deque(enumerate(jobs)), dict[Any, int]()
        while waiting or pending:
            while waiting and len(pending) < most:
                at, job = waiting.popleft()
                pending[task.remote(work, held, job)] = at
            done, _ = ray.wait(list(pending))
            for one in done:
                yield pending.pop(one), self._got(one)

    def _task(self, work: Callable[..., Any], gpus: float) -> Any:
        # A process that had a GPU is used again too: what it shares is already there.
        return self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES, max_calls=0)(work)

    def _got(self, one: Any) -> Any:
        """The result of a job; a sentence of ours stays one."""
        failures = self._ray.exceptions
        try:
            return self._ray.get(one)
        except failures.RayTaskError as error:
            if isinstance(error.cause, ConcmError):
                raise error.cause from None
            raise
        except failures.RayError as error:
            said = str(error).strip().splitlines()[0]
            raise ConcmError(
                f"a job was killed {RETRIES + 1} times, probably because memory ran out ({said})"
            ) from error


@contextmanager
def joined(on: str) -> Iterator[Cluster | None]:
    """The cluster that is called `ray` or `ray://HOST:PORT`, for as long as the block takes; none if it is `here`."""
    if on == "here":
        yield None
    elif on == "ray" or on.startswith("ray://"):
        with Cluster(on) as cluster:
            yield cluster
    else:
        raise Misuse(f"`on` is here, ray or ray://HOST:PORT, not {on!r}")


def ahead(cluster: Cluster, device: str) -> int:
    """Jobs to hand out at a time: two for each worker, so that neither memory nor the cluster's queue fills up."""
    return max(1, round(2 * cluster.resource("GPU" if device == "cuda" else "CPU")))


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise extra_needed("a cluster", "ray") from error
    return ray


_here: dict[str, Any] = {}


def _run(work: Work, held: list[Any], job: tuple[Any, ...]) -> Any:
    """In a worker: one job, with what all jobs share."""
    key = held[0].hex()
    if key not in _here:
        _here.clear()
        _here[key] = _imported().get(held[0])
    return work(_here[key], *job)
