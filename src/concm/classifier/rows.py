"""What a store's database holds, row by row, and the questions that reading and changing it share."""

from __future__ import annotations

import difflib
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concm.errors import ConcmError

LASTING = "lasting"


@dataclass(frozen=True)
class ClassRow:
    """A class, how many photos it has, and the version that added it."""

    name: str
    base: bool
    photos: int
    added: int


@dataclass(frozen=True)
class PhotoRow:
    """A photo as it is remembered; `label` is its file name, `features` (1 + views, d) float32."""

    id: int
    label: str
    digest: str
    features: Tensor
    thumbnail: bytes


@dataclass(frozen=True)
class VersionRow:
    """A line of history: what was done, when (UTC), and how many classes and photos there were afterwards."""

    version: int
    action: str
    detail: str
    created: str
    classes: int
    photos: int


@dataclass(frozen=True)
class EvaluationRow:
    """How a version did on photos from `source`, as the classifier put it."""

    version: int
    created: str
    source: str
    result: dict[str, Any]


def now() -> str:
    """The time, as history has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def state_file(path: Path, version: int | str) -> Path:
    """Where the engine's state of a version lies."""
    return path / "states" / f"{version}.safetensors"


def current(db: sqlite3.Connection) -> int:
    """The newest version."""
    return int(db.execute("SELECT coalesce(max(version), 0) FROM versions").fetchone()[0])


def lines(db: sqlite3.Connection) -> list[VersionRow]:
    """The history, oldest first."""
    rows = db.execute("SELECT version, action, detail, created, classes, photos FROM versions ORDER BY version")
    return [VersionRow(*row) for row in rows]


def class_id(db: sqlite3.Connection, path: Path, name: str) -> int:
    """The row of a living class, or a refusal that names the nearest."""
    row = db.execute("SELECT id FROM classes WHERE name = ? AND removed IS NULL", (name,)).fetchone()
    if row is None:
        known = [known for (known,) in db.execute("SELECT name FROM classes WHERE removed IS NULL")]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {len(known)} others"
        raise ConcmError(f"the store at {path} has no class called {name!r}; {hint}")
    return int(row[0])


def unpacked(features: bytes, rows: int) -> Tensor:
    """Features (rows, d) as they were packed."""
    return torch.frombuffer(bytearray(features), dtype=torch.float32).reshape(rows, -1)
