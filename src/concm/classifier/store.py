"""The durable store behind the classifier: classes, photos' features, thumbnails, versions and opaque engine states.

A store is a folder: `store.db` (SQLite) says what there is in which version, `states/<version>.safetensors` what the
engine had learned by then, `states/lasting.safetensors` what all versions share. A commit writes the state first and
then makes one transaction: whatever kills the process leaves a whole version behind, the old one or the new one.
"""

from __future__ import annotations

import difflib
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concm.classifier import database
from concm.errors import ConcmError
from concm.files import load_tensors, replacing, save_tensors

KEEP = 20  # how many versions, the current one among them, keep their state: undo goes back as far as these
LASTING = "lasting"
KIND = "concm-state-2"
_STORE_FILE = re.compile(r"store\.db(-wal|-shm|-journal)?|store\.lock")
_STATE_FILE = re.compile(r"([0-9]+|lasting)\.safetensors")
_DRAFT = re.compile(r"\.draft-\w+")


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


class Store:
    """One store, for any number of threads; processes that fork open it again."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.exists(self.path):
            raise ConcmError(_nothing(self.path))
        if (self.path / "states").is_symlink():
            raise ConcmError(f"{self.path / 'states'} is a link; a store keeps its states in a folder of its own")
        self._mutex = threading.RLock()
        # Where nothing may be written, every read makes a connection of its own.
        self._db = database.connect(self.path) if database.writable(self.path) else None
        try:
            with self._reading() as db:
                old = database.schema(db, self.path) < len(database.MIGRATIONS)
            if old:
                with self._writer():
                    pass
            with self._reading() as db:
                self.meta: dict[str, Any] = json.loads(db.execute("SELECT meta FROM store").fetchone()[0])
        except BaseException:
            self.close()
            raise

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether there is a store in this folder."""
        return database.file(Path(path)).is_file()

    @staticmethod
    def refuse_foreign(path: str | Path) -> None:
        """A new store moves into an empty folder, or one where making a store was interrupted; nowhere else."""
        path = Path(path)
        if path.is_file() or (path.is_dir() and not all(map(_ours, path.iterdir()))):
            raise ConcmError(f"{_nothing(path)}; choose a new folder")

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """The store in this folder, brought up to date where an older concm made it."""
        return cls(path)

    @classmethod
    def create(cls, path: str | Path, meta: Mapping[str, Any]) -> Store:
        """A new, empty store; `meta` (backbone, weights, transform: what features depend on) is fixed for good."""
        path = Path(path)
        cls.refuse_foreign(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConcmError(f"cannot make a store at {path}: {error.strerror or error}") from error
        with database.sentences(path), database.locked(path, None, None):
            if cls.exists(path):
                with cls(path) as old:
                    if old.version:
                        raise ConcmError(f"there is already a store at {path}; open it, or choose another folder")
                with closing(database.connect(path)) as db:  # its making was interrupted, or goes on elsewhere
                    db.execute("UPDATE store SET meta = ?", (json.dumps(meta),))
                return cls(path)
            with replacing(database.file(path)) as draft, closing(database.connect(path, draft.name)) as db:
                db.execute("BEGIN")
                db.execute(f"PRAGMA application_id = {database.APPLICATION}")
                database.upgrade(db, 0)
                db.execute("INSERT INTO store VALUES (?)", (json.dumps(meta),))
                db.execute("COMMIT")
                db.execute("PRAGMA journal_mode = WAL")  # after: now all is in the one file that takes its place
            database.sync(path)
            database.sync(path.absolute().parent)
        return cls(path)

    def close(self) -> None:
        """Let go of the files; versions that were committed are safe without."""
        if self._db is not None:
            self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def version(self) -> int:
        """The current version, 0 for an empty store; cheap, so that predicting processes can poll it."""
        with self._reading() as db:
            return _current(db)

    def classes(self) -> list[ClassRow]:
        """All classes in the order in which they were added, which is that of the engine's columns."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT name, base, (SELECT count(*) FROM photos WHERE class = classes.id), added"
                " FROM classes WHERE removed IS NULL ORDER BY id"
            )
            return [ClassRow(name, bool(base), photos, added) for name, base, photos, added in rows]

    def photos(self, name: str) -> list[PhotoRow]:
        """The photos of a class, in the order in which they were added."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT id, label, digest, rows, features, thumbnail FROM photos WHERE class = ? ORDER BY id",
                (_class(db, self.path, name),),
            )
            return [
                PhotoRow(at, label, digest, _unpacked(features, count), thumbnail)
                for at, label, digest, count, features, thumbnail in rows
            ]

    def history(self) -> list[VersionRow]:
        """The versions that led to the current one, oldest first; what was undone is not among them."""
        with self._reading() as db:
            return _lines(db)

    def state(self, version: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The engine's tensors and metadata as of a version (the current one)."""
        while True:
            wanted = self._kept(version)
            try:
                tensors, meta = load_tensors(_state(self.path, wanted), KIND)
                lasting = load_tensors(_state(self.path, LASTING), KIND)[0] if meta["lasting"] else {}
                return lasting | tensors, meta["state"]
            except ConcmError as error:
                if self._kept(version) == wanted:  # else undone or pruned between the two reads
                    raise ConcmError(f"version {wanted} of {self.path}: {error}; or step back with undo") from error

    def evaluations(self) -> list[EvaluationRow]:
        """What was measured of the versions that led to the current one, oldest first."""
        with self._reading() as db:
            rows = db.execute("SELECT version, created, source, result FROM evaluations ORDER BY rowid")
            return [EvaluationRow(at, created, source, json.loads(found)) for at, created, source, found in rows]

    def keep_evaluation(
        self,
        version: int,
        source: str,
        result: Mapping[str, Any],
        waiting: Callable[[], None] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Remember how a version did, if it has not been undone meanwhile."""
        with self._writer(waiting, timeout) as db:
            if db.execute("SELECT 1 FROM versions WHERE version = ?", (version,)).fetchone():
                row = (version, _now(), source, json.dumps(result))
                db.execute("INSERT INTO evaluations VALUES (?, ?, ?, ?)", row)
                db.execute("COMMIT")

    def undo(self, waiting: Callable[[], None] | None = None, timeout: float | None = None) -> VersionRow:
        """Step back one version exactly; its number is not used again."""
        with self._writer(waiting, timeout) as db:
            newest = db.execute("SELECT version, kept FROM versions ORDER BY version DESC LIMIT 2").fetchall()
            if len(newest) < 2:
                raise ConcmError(f"nothing to undo: the store at {self.path} is as it was first made")
            if not newest[1][1]:
                raise ConcmError(f"nothing more to undo in {self.path}: only the newest {KEEP} versions are kept")
            last = newest[0][:1]
            db.execute("DELETE FROM photos WHERE added = ?", last)
            db.execute("DELETE FROM classes WHERE added = ?", last)
            db.execute("UPDATE classes SET removed = NULL WHERE removed = ?", last)
            db.execute("DELETE FROM versions WHERE version = ?", last)
            line = _lines(db)[-1]
            db.execute("COMMIT")
            return line

    @contextmanager
    def writing(self, waiting: Callable[[], None] | None = None, timeout: float | None = None) -> Iterator[Change]:
        """Make one version: nothing of the block is visible before `change.commit`, or ever without it.

        One writer at a time over all processes; `waiting` is called once where another has to finish first.
        """
        with self._writer(waiting, timeout) as db:
            yield Change(db, self.path)

    def _kept(self, version: int | None) -> int:
        with self._reading() as db:
            wanted = _current(db) if version is None else version
            kept = db.execute("SELECT kept FROM versions WHERE version = ?", (wanted,)).fetchone()
        if wanted == 0:
            raise ConcmError(f"the store at {self.path} is empty: fit it first")
        if kept is None or not kept[0]:
            raise ConcmError(f"{self.path} has no version {wanted}, or not any more: the newest {KEEP} are kept")
        return wanted

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One read transaction: all that is read in it is of one version."""
        with self._mutex, database.sentences(self.path):
            db = self._db or database.connect(self.path, writable=False)
            try:
                db.execute("BEGIN")
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if self._db is None:
                    db.close()

    @contextmanager
    def _writer(
        self, waiting: Callable[[], None] | None = None, timeout: float | None = None
    ) -> Iterator[sqlite3.Connection]:
        """A write transaction under the lock; what the block does not commit is rolled back."""
        if not database.writable(self.path):
            raise ConcmError(f"cannot write to the store at {self.path}: it is read-only; work on a copy of it")
        with (
            database.locked(self.path, waiting, timeout),
            database.sentences(self.path),
            closing(database.connect(self.path)) as db,
        ):
            db.execute("BEGIN IMMEDIATE")
            database.upgrade(db, database.schema(db, self.path))
            db.execute("COMMIT")
            _sweep(db, self.path)
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                _sweep(db, self.path)


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
        self._db.execute(
            "INSERT INTO photos (class, added, label, digest, rows, features, thumbnail) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (_class(self._db, self._path, class_name), self.version, label, digest, len(features), packed, thumbnail),
        )

    def remove_class(self, name: str) -> None:
        """Remove a class and its photos; they stay in the file for as long as undo can bring them back."""
        which = _class(self._db, self._path, name)
        self._db.execute("UPDATE classes SET removed = ? WHERE id = ?", (self.version, which))

    def has_photo(self, digest: str) -> str | None:
        """The class that already has this picture, also one added by this change."""
        row = self._db.execute(
            "SELECT name FROM photos JOIN classes ON classes.id = class WHERE digest = ? AND removed IS NULL", (digest,)
        ).fetchone()
        return None if row is None else str(row[0])

    def commit(
        self,
        action: str,
        detail: str,
        state_tensors: Mapping[str, Tensor],
        state_meta: Mapping[str, Any],
        lasting: Mapping[str, Tensor] | None = None,
    ) -> VersionRow:
        """Make the change the current version: durable and visible to all when this returns.

        The first version may leave `lasting` tensors, which are then part of every later state without being repeated.
        """
        db = self._db
        has = _state(self._path, LASTING).exists()
        if lasting is not None:
            if db.execute("SELECT count(*) FROM versions").fetchone()[0] > 1:
                raise ValueError("only the first version can leave lasting tensors")
            save_tensors(_state(self._path, LASTING), KIND, lasting, {})
        meta = {"state": state_meta, "lasting": has or lasting is not None}
        save_tensors(_state(self._path, self.version), KIND, state_tensors, meta)
        database.sync(self._path / "states")
        database.sync(self._path)
        db.execute("DELETE FROM classes WHERE added = removed")
        db.execute(
            "UPDATE versions SET action = ?, detail = ?, created = ?,"
            " classes = (SELECT count(*) FROM classes WHERE removed IS NULL),"
            " photos = (SELECT count(*) FROM photos JOIN classes ON classes.id = class WHERE removed IS NULL)"
            " WHERE version = ?",
            (action, detail, _now(), self.version),
        )
        newest = "SELECT version FROM versions WHERE kept ORDER BY version DESC LIMIT ?"
        db.execute(f"UPDATE versions SET kept = 0 WHERE kept AND version NOT IN ({newest})", (KEEP,))
        db.execute("DELETE FROM classes WHERE removed <= (SELECT min(version) FROM versions WHERE kept)")
        line = _lines(db)[-1]
        db.execute("COMMIT")
        return line


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _state(path: Path, version: int | str) -> Path:
    return path / "states" / f"{version}.safetensors"


def _ours(entry: Path) -> bool:
    """Whether a store whose making was interrupted may have left this: exact names, and no link to elsewhere."""
    if entry.is_symlink():
        return False
    if entry.name == "states":
        return database.file(entry.parent).is_file() and entry.is_dir() and all(map(_state_file, entry.iterdir()))
    if entry.name == "backbone.safetensors":
        return database.file(entry.parent).is_file()
    return entry.is_file() and bool(_STORE_FILE.fullmatch(entry.name) or _DRAFT.fullmatch(entry.name))


def _state_file(file: Path) -> bool:
    """Whether a store wrote this into its folder of states."""
    named = _STATE_FILE.fullmatch(file.name) or _DRAFT.fullmatch(file.name)
    return named is not None and file.is_file() and not file.is_symlink()


def _nothing(path: Path) -> str:
    if path.is_file():
        return f"{path} is a file; a store is a folder"
    if path.is_dir() and any(path.iterdir()):
        return f"{path} is not a store: the folder belongs to another program or holds something else"
    return f"there is no store at {path}; `fit` makes one"


def _current(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(version), 0) FROM versions").fetchone()[0])


def _lines(db: sqlite3.Connection) -> list[VersionRow]:
    rows = db.execute("SELECT version, action, detail, created, classes, photos FROM versions ORDER BY version")
    return [VersionRow(*row) for row in rows]


def _class(db: sqlite3.Connection, path: Path, name: str) -> int:
    row = db.execute("SELECT id FROM classes WHERE name = ? AND removed IS NULL", (name,)).fetchone()
    if row is None:
        known = [known for (known,) in db.execute("SELECT name FROM classes WHERE removed IS NULL")]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {len(known)} others"
        raise ConcmError(f"the store at {path} has no class called {name!r}; {hint}")
    return int(row[0])


def _unpacked(features: bytes, rows: int) -> Tensor:
    return torch.frombuffer(bytearray(features), dtype=torch.float32).reshape(rows, -1)


def _sweep(db: sqlite3.Connection, path: Path) -> None:
    """Remove the states of killed writers and of versions that are no longer kept; what fails is left to the next."""
    states = path / "states"
    with suppress(sqlite3.Error, OSError):
        if states.is_symlink():
            return
        kept = {_state(path, version) for (version,) in db.execute("SELECT version FROM versions WHERE kept")}
        kept.add(_state(path, LASTING))
        for file in states.iterdir():
            if file not in kept and _state_file(file):
                file.unlink(missing_ok=True)
