"""A change of a store: one version in the making, which nobody sees before it is committed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concm.classifier import database
from concm.classifier.proof import commit
from concm.classifier.rows import LASTING, VersionRow, class_id, lines, now, owner, photo_proof, state_file
from concm.errors import ConcmError
from concm.files import save_tensors

KEEP = 20  # how many versions, the current one among them, keep their state: undo goes back as far as these
KIND = "concm-state-2"


class Change:
    """A version in the making: an open transaction that only its own process can see."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._open, self._path = db, path
        row = db.execute("INSERT INTO versions (action, detail, created, classes, photos) VALUES ('', '', '', 0, 0)")
        self.version = int(row.lastrowid or 0)

    @property
    def _db(self) -> sqlite3.Connection:
        if not self._open.in_transaction:  # a statement would now stand alone, and be visible at once
            raise RuntimeError("this change is over; begin another with store.writing()")
        return self._open

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Say what features depend on, as `create` did: another process may have said otherwise since."""
        if self._db.execute("SELECT count(*) FROM versions").fetchone()[0] > 1:
            raise ConcmError(f"the store at {self._path} has been made by another process meanwhile")
        self._db.execute("UPDATE store SET meta = ?", (json.dumps(meta),))

    def add_class(self, name: str, base: bool) -> None:
        """Add a class, as the engine's last column."""
        if self._db.execute("SELECT 1 FROM classes WHERE name = ? AND removed IS NULL", (name,)).fetchone():
            raise ConcmError(f"the store at {self._path} already has a class called {name!r}; forget it first")
        self._db.execute("INSERT INTO classes (name, base, added) VALUES (?, ?, ?)", (name, base, self.version))

    def add_photo(self, class_name: str, label: str, digest: str, features: Tensor, thumbnail: bytes) -> None:
        """Add a photo to a class, old or new; `features` (1 + views, d) are those of the photo and its views."""
        if features.ndim != 2:
            raise ValueError(f"features must be (1 + views, d), not {tuple(features.shape)}")
        packed = features.detach().to("cpu", torch.float32).numpy().tobytes()
        row = (label, digest, len(features), packed, thumbnail)
        self._db.execute(
            "INSERT INTO photos (class, added, label, digest, rows, features, thumbnail, proof)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (class_id(self._db, self._path, class_name), self.version, *row, photo_proof(*row)),
        )

    def remove_class(self, name: str) -> None:
        """Remove a class and its photos; they stay in the file for as long as undo can bring them back."""
        which = class_id(self._db, self._path, name)
        self._db.execute("UPDATE classes SET removed = ? WHERE id = ?", (self.version, which))

    def rename_class(self, name: str, to: str) -> None:
        """Give a class another name; it keeps its place."""
        which = class_id(self._db, self._path, name)
        self._db.execute("INSERT INTO corrections VALUES (?, NULL, ?, ?)", (self.version, which, name))
        self._db.execute("UPDATE classes SET name = ? WHERE id = ?", (to, which))

    def remove_photos(self, photos: Iterable[int]) -> None:
        """Remove photos, by number; like classes, they stay in the file for as long as undo can bring them back.

        Their digests stay for as long as their class, so that they are not taught again with the rest of their folder.
        """
        self._db.executemany("UPDATE photos SET gone = ? WHERE id = ?", [(self.version, at) for at in photos])

    def move_photos(self, photos: Iterable[int], class_name: str) -> None:
        """Move photos, by number, to another class."""
        to = class_id(self._db, self._path, class_name)
        for at in photos:
            found = "INSERT INTO corrections SELECT ?, id, class, NULL FROM photos WHERE id = ?"
            self._db.execute(found, (self.version, at))
            self._db.execute("UPDATE photos SET class = ? WHERE id = ?", (to, at))

    def merge_class(self, name: str, into: str) -> None:
        """Move all photos of a class to another, also those that were removed from it, and remove the class."""
        which, to = (class_id(self._db, self._path, own) for own in (name, into))
        found = "INSERT INTO corrections SELECT ?, id, class, NULL FROM photos WHERE class = ?"
        self._db.execute(found, (self.version, which))
        self._db.execute("UPDATE photos SET class = ? WHERE class = ?", (to, which))
        self.remove_class(name)

    def has_photo(self, digest: str) -> str | None:
        """The class that already has this picture, also one added by this change."""
        return owner(self._db, digest)

    def was_removed(self, class_name: str, digest: str) -> bool:
        """Whether this picture was removed from this class, and has not come back to it."""
        found = "SELECT 1 FROM photos JOIN classes ON classes.id = class WHERE digest = ? AND name = ?"
        row = self._db.execute(f"{found} AND removed IS NULL AND gone IS NOT NULL", (digest, class_name)).fetchone()
        return row is not None and self.has_photo(digest) != class_name

    def commit(
        self,
        action: str,
        detail: str,
        state_tensors: Mapping[str, Tensor],
        state_meta: Mapping[str, Any],
        lasting: Mapping[str, Tensor] | None = None,
        names: Sequence[str] | None = None,
    ) -> VersionRow:
        """Make the change the current version: durable and visible to all when this returns.

        The first version may leave `lasting` tensors, which are then part of every later state without being repeated.
        `names` are the classes as the state has them: a change whose state and database disagree is refused.
        """
        db = self._db
        known = [name for (name,) in db.execute("SELECT name FROM classes WHERE removed IS NULL ORDER BY id")]
        if names is not None and list(names) != known:
            raise ConcmError(f"the store at {self._path} has other classes than its engine now; nothing was changed")
        identity = db.execute("SELECT identity FROM store").fetchone()[0]
        if lasting is not None:
            if db.execute("SELECT count(*) FROM versions").fetchone()[0] > 1:
                raise ValueError("only the first version can leave lasting tensors")
            digest = save_tensors(state_file(self._path, LASTING), KIND, lasting, {"store": identity})
            db.execute("UPDATE store SET lasting = ?", (digest,))
        meta = {"state": state_meta, "store": identity, "version": self.version}
        digest = save_tensors(state_file(self._path, self.version), KIND, state_tensors, meta)
        db.execute("UPDATE versions SET digest = ? WHERE version = ?", (digest, self.version))
        database.sync(self._path / "states")
        database.sync(self._path)
        db.execute("DELETE FROM classes WHERE added = removed")
        db.execute(
            "UPDATE versions SET action = ?, detail = ?, created = ?,"
            " classes = (SELECT count(*) FROM classes WHERE removed IS NULL),"
            " photos = (SELECT count(*) FROM photos JOIN classes ON classes.id = class"
            " WHERE removed IS NULL AND gone IS NULL)"
            " WHERE version = ?",
            (action, detail, now(), self.version),
        )
        newest = "SELECT version FROM versions WHERE kept ORDER BY version DESC LIMIT ?"
        db.execute(f"UPDATE versions SET kept = 0 WHERE kept AND version NOT IN ({newest})", (KEEP,))
        db.execute("DELETE FROM classes WHERE removed <= (SELECT min(version) FROM versions WHERE kept)")
        beyond = "SELECT id FROM photos WHERE gone <= (SELECT min(version) FROM versions WHERE kept)"
        nothing = "label = '', rows = 0, features = x'', thumbnail = x'', proof = NULL"
        db.execute(f"UPDATE photos SET {nothing} WHERE id IN ({beyond}) AND rows")  # digests stay: see `was_removed`
        line = lines(db)[-1]
        commit(db)
        return line
