"""Results: one JSON file for each run, from which every table and picture is derived."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from concm import __version__
from concm.data.scenarios import Scenario
from concm.errors import ConcmError, loading
from concm.features.bank import Bank
from concm.files import write_whole
from concm.methods import Choice
from concm.metrics import Accuracies
from concm.records import from_json, to_json

SCHEMA = 2
Machine = dict[str, str]
"""What a result depends on of the machine that made it."""


@dataclass(frozen=True)
class Cut:
    """How a scenario was cut into sessions."""

    base: int
    way: int
    shot: int
    sessions: int

    @classmethod
    def of(cls, scenario: Scenario) -> Cut:
        """The cut of a scenario."""
        return cls(scenario.base, scenario.way, scenario.shot, scenario.sessions)


@dataclass(frozen=True)
class Curve:
    """Base and novel accuracy after the last session for each constant (`bias`) that is added to novel scores."""

    bias: list[float]
    base: list[float]
    novel: list[float]


@dataclass(frozen=True)
class Figures(Accuracies):
    """What was measured after one session; `class_means` has the same with every class counting alike.

    `smr` is the structure's matching rate, where the method has a structure. `seconds` is learning and scoring.
    """

    index: int
    classes: int
    class_means: Accuracies
    seconds: float
    confusion: list[list[int]]
    smr: float | None = None
    trade_off: Curve | None = None


@dataclass(frozen=True)
class Heading:
    """All that decides a run, so that a finished one can be found again.

    `passes` is how often the backbone saw each picture, and `knowledge` has a digest of attributes and word vectors
    that a user gave.
    """

    scenario: str
    cut: Cut
    bank: dict[str, Any]
    method: str
    label: str
    settings: dict[str, Any]
    needs: list[str]
    draw: int
    seed: int
    environment: dict[str, Any]
    shots: dict[str, list[int]] | None = None
    passes: int = 1
    knowledge: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    @classmethod
    def of(
        cls,
        choice: Choice,
        bank: Bank,
        *,
        draw: int,
        seed: int,
        machine: Machine,
        shots: dict[int, list[int]] | None = None,
    ) -> Heading:
        """Of a run that is about to be made; `shots` are those of published lists, which no seed decides."""
        return cls(
            scenario=bank.scenario.name,
            cut=Cut.of(bank.scenario),
            bank={**to_json(bank.encoder), "precision": bank.card.precision, "digest": bank.digest},
            method=choice.entry.name,
            label=choice.label,
            settings=choice.recorded,
            needs=list(choice.needs),
            draw=draw,
            seed=seed,
            shots=None if shots is None else {str(label): rows for label, rows in shots.items()},
            passes=bank.passes,
            environment=environment(choice, machine),
        )

    def place(self, out: Path) -> Path:
        """Where the run belongs: the name tells people what it is, and its last part everything that decides it."""
        key = blake2b(json.dumps(to_json(self), sort_keys=True).encode(), digest_size=6).hexdigest()
        words = "-".join(
            "".join(c if c.isalnum() or c in "_-" else "_" for c in w) for w in (self.scenario, self.method)
        )
        return out / f"{words}-draw{self.draw}-seed{self.seed}-{key}.json"


@dataclass(frozen=True)
class ClassMeans:
    """Figures of a whole run with every class counting alike."""

    ahm: float
    fa: float


@dataclass(frozen=True)
class Summary:
    """Figures of a whole run; docs/concepts/scenarios.md defines them."""

    base_acc: float
    ahm: float
    fa: float
    pd: float
    nacc: float
    ber: float
    avg_acc: float
    seconds: float
    class_means: ClassMeans
    memory_bytes: int | None = None
    parameters: int | None = None

    @classmethod
    def of(cls, sessions: list[Figures], method: Any = None) -> Summary:
        """Of all sessions, and of the method's size where it says it."""
        later = sessions[1:]

        def mean(values: list[float]) -> float:
            return float(np.mean(values)) if values else 0.0

        return cls(
            base_acc=sessions[0].acc,
            ahm=mean([session.hm for session in later]),
            fa=sessions[-1].acc,
            pd=sessions[0].acc - sessions[-1].acc,
            nacc=mean([session.acc_novel for session in later]),
            ber=mean([session.ber for session in later]),
            avg_acc=mean([session.acc for session in sessions]),
            seconds=sum(session.seconds for session in sessions),
            class_means=ClassMeans(mean([session.class_means.hm for session in later]), sessions[-1].class_means.acc),
            memory_bytes=getattr(method, "memory_bytes", None),
            parameters=getattr(method, "parameter_count", None),
        )


@dataclass(frozen=True)
class Result:
    """One run: what decided it, its figures session by session, their summary, and what the method had to remark."""

    heading: Heading
    sessions: list[Figures]
    summary: Summary
    remarks: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it whole."""
        write_whole(path, (json.dumps(to_json(self)) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read it back; one whose summary does not follow from its sessions is refused."""
        with loading(path, "whole result file", "delete it, and the run is done again"):
            data = json.loads(path.read_text(encoding="utf-8"))
            schema = data["heading"]["schema"]
            if schema != SCHEMA:
                raise ConcmError(f"{path} has result schema {schema}, this version reads {SCHEMA}")
            result = from_json(cls, data)
            if len(result.sessions) != result.heading.cut.sessions + 1 or not result.sessions:
                raise ValueError(f"it has {len(result.sessions)} sessions")
            if not all(map(_whole, result.sessions)) or not _follows(result):
                raise ValueError("its figures do not fit each other")
            return result


def _whole(session: Figures) -> bool:
    """Whether the figures of a session are of as many classes as it says."""
    curve = session.trade_off
    return len(session.confusion) == session.classes and (
        curve is None or len(curve.bias) == len(curve.base) == len(curve.novel) > 0
    )


def _follows(result: Result) -> bool:
    """Whether the summary is that of the sessions, so that an edited figure is not believed."""
    again, told = Summary.of(result.sessions), result.summary
    return "device" in result.heading.environment and all(
        abs(getattr(again, name) - getattr(told, name)) < 1e-6
        for name in ("base_acc", "ahm", "fa", "pd", "nacc", "ber")
    )


def machine(device: str) -> Machine:
    """The one that this runs on, as headings record it."""
    return {
        "concm": __version__,
        "code": code(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }


def environment(choice: Choice, machine: Machine) -> Machine:
    """A machine, with the user's own file where the method is in one."""
    return machine if choice.source is None else {**machine, "code": f"{machine['code']}-{choice.source}"}


@cache
def code() -> str:
    """A fingerprint of this package's source and tables: a result of others is not taken for one of these."""
    state = blake2b(digest_size=8)
    root = Path(str(files("concm")))
    for path in sorted(path for kind in ("*.py", "*.toml", "*.txt", "*.npz") for path in root.rglob(kind)):
        state.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return state.hexdigest()
