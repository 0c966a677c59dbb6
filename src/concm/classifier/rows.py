"""What a store's database holds, row by row, and the questions that reading and changing it share."""

from __future__ import annotations

import difflib
import hashlib
import json
import sqlite3
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from concm.errors import ConcmError
from concm.records import from_json

LASTING = "lasting"
PHOTOS = "SELECT id, label, digest, rows, features, thumbnail, proof FROM photos"
Row = TypeVar("Row")


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
    return rows_of(
        db, VersionRow, "SELECT version, action, detail, created, classes, photos FROM versions ORDER BY version"
    )


def rows_of(db: sqlite3.Connection, kind: type[Row], question: str) -> list[Row]:
    """The answers to a question as records, whose values are checked to be of their kinds and fit to be printed."""
    found = db.execute(question)
    names = [str(column[0]) for column in found.description]
    rows = []
    for values in found:
        row = dict(zip(names, values, strict=True))
        for name, value in row.items():
            if isinstance(value, str) and not value.isprintable():
                raise ValueError(f"{name} is {value!r:.50}, which cannot be printed")
        if row.get("base") in (0, 1):
            row["base"] = bool(row["base"])
        if "result" in row:
            row["result"] = json.loads(row["result"])
        rows.append(from_json(kind, row))
    return rows


def class_id(db: sqlite3.Connection, path: Path, name: str) -> int:
    """The row of a living class, or a refusal that names the nearest."""
    return class_found(db, path, name)[0]


def class_found(db: sqlite3.Connection, path: Path, name: str) -> tuple[int, str]:
    """The row and name of a living class, however the letters of its name are composed, or a refusal."""
    row = db.execute("SELECT id, name FROM classes WHERE name = ? AND removed IS NULL", (name,)).fetchone()
    if row is None:
        rows = db.execute("SELECT id, name FROM classes WHERE removed IS NULL").fetchall()
        row = next((row for row in rows if _composed(row[1]) == _composed(name)), None)
    if row is None:
        known = [own for _, own in rows]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {len(known)} others"
        raise ConcmError(f"the store at {path} has no class called {name!r}; {hint}")
    return int(row[0]), str(row[1])


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def owner(db: sqlite3.Connection, digest: str) -> str | None:
    """The living class that has this picture."""
    row = db.execute(
        "SELECT name FROM photos JOIN classes ON classes.id = class"
        " WHERE digest = ? AND removed IS NULL AND gone IS NULL",
        (digest,),
    ).fetchone()
    return None if row is None else str(row[0])


def photo_proof(label: str, digest: str, rows: int, features: bytes, thumbnail: bytes) -> str:
    """A digest of a photo's row, so that damage to it is noticed."""
    state = hashlib.blake2b(repr((label, digest, rows, len(features))).encode(), digest_size=16)
    state.update(features)
    state.update(thumbnail)
    return state.hexdigest()


def photo(
    at: int, label: str, digest: str, rows: int, features: bytes, thumbnail: bytes, proof: str | None
) -> PhotoRow:
    """A photo's row, checked to be what was written; rows of older stores have no proof."""
    if not all(isinstance(value, bytes) for value in (features, thumbnail)) or not isinstance(label, str):
        raise ValueError("a photo is not stored as one")
    if proof is not None and proof != photo_proof(label, digest, rows, features, thumbnail):
        raise ValueError(f"the photo {label} is not what was written")
    if not features:
        raise ValueError(f"the photo {label} has no features")
    values = torch.frombuffer(bytearray(features), dtype=torch.float32)
    if not values.isfinite().all():
        raise ValueError(f"the photo {label} has values that are no numbers")
    return PhotoRow(at, label, digest, values.reshape(rows, -1), thumbnail)
