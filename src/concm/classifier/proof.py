"""Proofs: digests of what the database of a store says, so that damage to it is noticed before it is used."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from concm.classifier import database
from concm.classifier.rows import ClassRow, EvaluationRow, lines, rows_of
from concm.errors import ConcmError, loading

CLASSES = (
    "SELECT name, base, (SELECT count(*) FROM photos WHERE class = classes.id AND gone IS NULL) AS photos, added"
    " FROM classes WHERE removed IS NULL ORDER BY id"
)
EVALUATIONS = "SELECT version, created, source, result FROM evaluations ORDER BY rowid"
DATABASE = ("database of a store", "restore the folder from a backup")
_CONTENTS = (
    "SELECT meta, identity, lasting FROM store",
    "SELECT version, action, detail, created, classes, photos, kept, digest FROM versions ORDER BY version",
    "SELECT id, name, base, added, removed FROM classes ORDER BY id",
    "SELECT class, gone, count(*) FROM photos GROUP BY class, gone ORDER BY class, gone",
    "SELECT version, photo, class, name FROM corrections ORDER BY rowid",
    EVALUATIONS,
)


def commit(db: sqlite3.Connection) -> None:
    """End a change, with a digest of what the database says from now on."""
    db.execute("UPDATE store SET proof = ?", (_digest(db),))
    db.execute("COMMIT")


def _digest(db: sqlite3.Connection) -> str:
    """Of all that the database says, but for its photos, each of which has a digest of its own."""
    state = hashlib.blake2b(digest_size=16)
    for question in _CONTENTS:
        state.update(repr(db.execute(question).fetchall()).encode())
    return state.hexdigest()


def described(db: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """What a store was made with; one whose database does not say what was last committed is refused."""
    rows = db.execute("SELECT meta, proof FROM store").fetchall()
    if len(rows) != 1 or rows[0][1] != _digest(db):
        raise ConcmError(database.damaged(path, "it does not say what was written"))
    with loading(database.file(path), *DATABASE):
        rows_of(db, ClassRow, CLASSES)
        rows_of(db, EvaluationRow, EVALUATIONS)
        lines(db)
        meta = json.loads(rows[0][0])
        if not isinstance(meta, dict):
            raise ValueError(f"its description is a {type(meta).__name__}")
        return meta
