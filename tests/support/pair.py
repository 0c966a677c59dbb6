"""One process and two, side by side: many runs, in double precision or not, for the price of starting Python twice.

Run as a script it is one of the two. The first of them also does what one process alone does, before and after.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

NETWORK = "tests.support.pair:network"
STARTED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")
"""The variables by which torchrun tells a process who it is."""


@dataclass(frozen=True)
class Run:
    """A command of so many processes; somebody may press Ctrl-C within a step, and some runs come after all others.

    In double precision nothing can be compiled, for it is made of single precision by other names.
    """

    words: list[str]
    processes: int = 1
    ctrl_c: int = 0
    last: bool = False
    double: bool = True


def network() -> Any:
    """A residual network that is quick to train and to trace."""
    from concm.backbones.resnet import ResNet

    return ResNet((4, 8, 8), depth=1, stem=3)


def ran(runs: list[Run], folder: Path, environment: dict[str, str]) -> list[tuple[int, str]]:
    """The exit code of each run, and what it said on standard error; of two processes, the first's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (folder / "runs.json").write_text(json.dumps([asdict(run) for run in runs]))
    where = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "tests.support.pair", str(folder)]
    pair = [subprocess.Popen([*words, str(rank)], env=where, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    try:
        said = [process.communicate(timeout=300)[1] for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [0, 0], said
    return [tuple(found) for found in json.loads((folder / "found.json").read_text())]


def _main(folder: Path, rank: int) -> None:
    import torch

    torch.set_num_threads(1)
    compiling = torch.nn.Module.compile

    def traced(module: torch.nn.Module, **_: Any) -> None:
        """As it is compiled, but for the last step, from one graph to machine code, which takes a minute."""
        compiling(module, dynamic=False, fullgraph=True, backend="aot_eager")

    torch.nn.Module.compile = traced  # type: ignore[method-assign, assignment]
    runs = [Run(**run) for run in json.loads((folder / "runs.json").read_text())]
    found: dict[int, tuple[int, str]] = {}
    for processes, last in ((1, False), (2, False), (1, True)):
        if processes == 2:
            values = (rank, rank, 2, 2, 0, "pair")
            os.environ |= dict(zip(STARTED, map(str, values), strict=True))
        for at, run in enumerate(runs):
            if (run.processes, run.last) == (processes, last) and (processes == 2 or rank == 0):
                found[at] = _done(run)
        if processes == 2:
            torch.distributed.destroy_process_group()
            for name in STARTED:
                del os.environ[name]
    if rank == 0:
        (folder / "found.json").write_text(json.dumps([found[at] for at in range(len(runs))]))


def _done(run: Run) -> tuple[int, str]:
    import torch

    from concm.training.loop import BaseRun
    from tests.support.tiny import call

    step, taken, single = BaseRun._step, list[int](), torch.Tensor.float
    if run.double:
        torch.set_default_dtype(torch.float64)
        torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign, assignment]

    def counted(*words: Any) -> Any:
        losses = step(*words)
        taken.append(1)
        if len(taken) == run.ctrl_c:
            signal.raise_signal(signal.SIGINT)
        return losses

    BaseRun._step = counted  # type: ignore[method-assign]
    said = StringIO()
    try:
        with redirect_stderr(said):
            return call(*run.words), said.getvalue()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.Tensor.float, BaseRun._step = single, step  # type: ignore[method-assign]
        sys.stderr.write(said.getvalue())


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
