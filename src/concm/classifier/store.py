"""The durable store behind the classifier: classes, photos' features, thumbnails, versions and opaque engine states.

A store is a folder: `store.db` (SQLite) says what there is in which version, `states/<version>.safetensors` what the
engine had learned by then, `states/lasting.safetensors` what all versions share. A commit writes the state first and
then makes one transaction: whatever kills the process leaves a whole version behind, the old one or the new one.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import Tensor

from concm.classifier import database
from concm.classifier.change import KEEP, KIND, Change
from concm.classifier.folder import KEPT, copied, is_state_file, new_folder, no_store, refuse_foreign
from concm.classifier.proof import CLASSES, DATABASE, EVALUATIONS, commit, described
from concm.classifier.rows import (
    LASTING,
    PHOTOS,
    ClassRow,
    EvaluationRow,
    PhotoRow,
    VersionRow,
    class_found,
    class_id,
    current,
    lines,
    now,
    owner,
    photo,
    rows_of,
    state_file,
)
from concm.errors import ConcmError, WrongKind, loading
from concm.files import load_tensors, replacing
from concm.progress import track


class Store:
    """One store, for any number of threads; processes that fork open it again."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.exists(self.path):
            raise ConcmError(no_store(self.path))
        if (self.path / "states").is_symlink():
            raise ConcmError(f"{self.path / 'states'} is a link; a store keeps its states in a folder of its own")
        self._mutex = threading.RLock()
        self._inode = database.inode(self.path)
        self._db, self._copy = database.opened(self.path)
        try:
            with self._reading() as db:
                old = database.schema(db, self.path) < len(database.MIGRATIONS)
            if old:
                with self._writer():
                    pass
            with self._reading() as db:
                self.meta: dict[str, Any] = described(db, self.path)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether there is a store in this folder."""
        return database.file(Path(path)).is_file()

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """The store in this folder, brought up to date where an older concm made it."""
        return cls(path)

    @classmethod
    def create(
        cls,
        path: str | Path,
        meta: Mapping[str, Any],
        waiting: Callable[[], None] | None = None,
        timeout: float | None = None,
    ) -> Store:
        """A new, empty store; `meta` (backbone, weights, transform: what features depend on) is fixed for good."""
        path = Path(path)
        refuse_foreign(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConcmError(f"cannot make a store at {path}: {error.strerror or error}") from error
        with database.sentences(path), database.locked(path, waiting, timeout):
            if cls.exists(path):
                with cls(path) as old:
                    if old.version:
                        raise ConcmError(f"there is already a store at {path}; open it, or choose another folder")
                with closing(database.connect(path)) as db:  # its making was interrupted, or goes on elsewhere
                    db.execute("BEGIN IMMEDIATE")
                    db.execute("UPDATE store SET meta = ?", (json.dumps(meta),))
                    commit(db)
                return cls(path)
            with replacing(database.file(path)) as draft, closing(database.connect(path, draft.name)) as db:
                db.execute("BEGIN")
                db.execute(f"PRAGMA application_id = {database.APPLICATION}")
                database.upgrade(db, 0)
                db.execute("INSERT INTO store (meta, identity) VALUES (?, ?)", (json.dumps(meta), uuid4().hex))
                commit(db)
                db.execute("PRAGMA journal_mode = WAL")  # after: now all is in the one file that takes its place
            database.sync(path)
            database.sync(path.absolute().parent)
        return cls(path)

    def close(self) -> None:
        """Let go of the files; versions that were committed are safe without."""
        if self._db is not None:
            self._db.close()
        if self._copy is not None:
            self._copy.cleanup()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def version(self) -> int:
        """The current version, 0 for an empty store; cheap, so that predicting processes can poll it."""
        with self._using() as db:
            return current(db)

    def classes(self) -> list[ClassRow]:
        """All classes in the order in which they were added, which is that of the engine's columns."""
        with self._reading() as db:
            return rows_of(db, ClassRow, CLASSES)

    def called(self, name: str) -> str:
        """The name of a class as it is kept; older stores have names as they were typed."""
        with self._reading() as db:
            return class_found(db, self.path, name)[1]

    def photos(self, name: str) -> list[PhotoRow]:
        """The photos of a class, in the order in which they were added."""
        with self._reading() as db:
            rows = db.execute(
                f"{PHOTOS} WHERE class = ? AND gone IS NULL ORDER BY id", (class_id(db, self.path, name),)
            )
            return [photo(*row) for row in rows]

    def every_photo(self) -> list[tuple[int, str, str, Tensor]]:
        """Number, class, file name and features (d,) of all photos, in the order in which they were added."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT name, photos.id, label, digest, rows, features, thumbnail, proof FROM photos"
                " JOIN classes ON classes.id = class WHERE removed IS NULL AND gone IS NULL ORDER BY photos.id"
            )
            found = [(name, photo(*row)) for name, *row in rows]
            return [(own.id, name, own.label, own.features[0]) for name, own in found]

    def taught(self, digests: Iterable[str]) -> int:
        """How many of these pictures the classes have."""
        with self._reading() as db:
            return sum(owner(db, digest) is not None for digest in digests)

    def thumbnail(self, number: int) -> bytes | None:
        """The small JPEG of a photo."""
        with self._reading() as db:
            row = db.execute(f"{PHOTOS} WHERE id = ? AND rows", (number,)).fetchone()
            return None if row is None else photo(*row).thumbnail

    def digests(self) -> set[str]:
        """What the pictures of all photos are known by."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT digest FROM photos JOIN classes ON classes.id = class WHERE removed IS NULL AND gone IS NULL"
            )
            return {digest for (digest,) in rows}

    def history(self) -> list[VersionRow]:
        """The versions that led to the current one, oldest first; what was undone is not among them."""
        with self._reading() as db:
            return lines(db)

    def state(self, version: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The engine's tensors and metadata as of a version (the current one), checked to be what was written."""
        while True:
            wanted = self._kept(version)
            try:
                return self._checked(wanted)
            except ConcmError as error:
                if self._kept(version) == wanted:  # else undone or pruned between the two reads
                    other = "it was made by another version of concm: fit it again"
                    way_out = other if isinstance(error, WrongKind) else "use a backup, or step back with undo"
                    raise ConcmError(f"version {wanted} of {self.path}: {error}; {way_out}") from error

    def _checked(self, version: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A version's state, if its files have the digests that the database names and belong to this store."""
        with self._reading() as db:
            described(db, self.path)
            identity, lasting = db.execute("SELECT identity, lasting FROM store").fetchone()
            row = db.execute("SELECT digest FROM versions WHERE version = ?", (version,)).fetchone()
        tensors, meta = load_tensors(state_file(self.path, version), KIND, row and row[0])
        if (meta.get("store"), meta.get("version")) != (identity, version):
            raise ConcmError(f"{state_file(self.path, version)} belongs to another store or version")
        if lasting is not None:
            tensors |= load_tensors(state_file(self.path, LASTING), KIND, lasting)[0]
        return tensors, meta.get("state") or {}

    def verify(self) -> list[str]:
        """What is wrong with the store, in sentences; an empty list means that all of it is sound."""
        wrong = []
        with self._reading() as db:
            wrong += [f"the database: {said}" for (said,) in db.execute("PRAGMA integrity_check") if said != "ok"]
            versions = [at for (at,) in db.execute("SELECT version FROM versions WHERE kept ORDER BY version")]
            beyond = "gone <= (SELECT min(version) FROM versions WHERE kept)"  # undo: these have their digest alone
            for row in db.execute(f"{PHOTOS} WHERE rows OR gone IS NULL OR NOT {beyond}"):
                try:
                    photo(*row)
                except ValueError as error:
                    wrong.append(f"photo {row[0]}: {error}")
        for version in versions:
            try:
                tensors, _ = self._checked(version)
            except ConcmError as error:
                with self._reading() as db:
                    kept = db.execute("SELECT 1 FROM versions WHERE version = ? AND kept", (version,)).fetchone()
                if kept:  # else undone or pruned between the two reads
                    wrong.append(f"version {version}: {error}")
                continue
            strange = sorted(name for name, value in tensors.items() if not bool(value.isfinite().all()))
            wrong += [f"version {version}: {name} has values that are no numbers" for name in strange]
        return wrong

    def backup(
        self, destination: str | Path, waiting: Callable[[], None] | None = None, timeout: float | None = None
    ) -> None:
        """A consistent copy in a new folder; others may read meanwhile, and who learns waits for it."""
        destination = Path(destination)
        if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
            raise ConcmError(f"cannot back up to {destination}: there is something already; choose a new folder")
        with self._writer(waiting, timeout) as db:
            db.execute("ROLLBACK")
            if wrong := self.verify():
                raise ConcmError(f"{self.path} is damaged, and a copy would be as well: {wrong[0]}")
            with new_folder(destination) as draft:
                (draft / "states").mkdir()
                own = [file for file in (self.path / "states").iterdir() if is_state_file(file)]
                for file in track([*own, self.path / KEPT], "copying"):
                    if file.is_file():
                        copied(file, draft / file.relative_to(self.path))
                with closing(sqlite3.connect(database.file(draft))) as copy:
                    db.backup(copy)
                database.sync(draft / "states")

    def evaluations(self) -> list[EvaluationRow]:
        """What was measured of the versions that led to the current one, oldest first."""
        with self._reading() as db:
            return rows_of(db, EvaluationRow, EVALUATIONS)

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
                row = (version, now(), source, json.dumps(result))
                db.execute("INSERT INTO evaluations VALUES (?, ?, ?, ?)", row)
                commit(db)

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
            db.execute("UPDATE photos SET gone = NULL WHERE gone = ?", last)
            found = "FROM corrections WHERE corrections.version = ? AND"
            db.execute(f"UPDATE photos SET class = corrections.class {found} photo = photos.id", last)
            db.execute(f"UPDATE classes SET name = corrections.name {found} class = id AND photo IS NULL", last)
            db.execute("DELETE FROM classes WHERE added = ?", last)
            db.execute("UPDATE classes SET removed = NULL WHERE removed = ?", last)
            db.execute("DELETE FROM versions WHERE version = ?", last)
            line = lines(db)[-1]
            commit(db)
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
            wanted = current(db) if version is None else version
            kept = db.execute("SELECT kept FROM versions WHERE version = ?", (wanted,)).fetchone()
        if wanted == 0:
            raise ConcmError(f"the store at {self.path} is empty: fit it first")
        if kept is None or not kept[0]:
            raise ConcmError(f"{self.path} has no version {wanted}, or not any more: the newest {KEEP} are kept")
        return wanted

    def _same(self) -> None:
        """Refuse to go on where another store has taken the place of the one that was opened."""
        if database.inode(self.path) != self._inode:
            raise ConcmError(f"the store at {self.path} was replaced or removed since it was opened; open it again")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One read transaction: all that is read in it is of one version."""
        with self._using() as db:
            try:
                db.execute("BEGIN")
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """A connection to read from, for one thread at a time."""
        with self._mutex, database.sentences(self.path), loading(database.file(self.path), *DATABASE):
            self._same()
            db = self._db or database.connect(self.path, writable=False)
            try:
                yield db
            finally:
                if self._db is None:
                    db.close()

    @contextmanager
    def _writer(
        self, waiting: Callable[[], None] | None = None, timeout: float | None = None
    ) -> Iterator[sqlite3.Connection]:
        """A write transaction under the lock; what the block does not commit is rolled back."""
        if not database.writable(self.path):
            self._same()
            raise ConcmError(f"cannot write to the store at {self.path}: it is read-only; work on a copy of it")
        if self._copy is not None:
            why = "SQLite could write nothing there when it was opened"
            raise ConcmError(f"cannot write to the store at {self.path}: {why}; make room and try again")
        with (
            database.locked(self.path, waiting, timeout),
            database.sentences(self.path),
            closing(database.connect(self.path)) as db,
        ):
            self._same()
            if (version := database.schema(db, self.path)) < len(database.MIGRATIONS):
                db.execute("BEGIN IMMEDIATE")
                database.upgrade(db, version)
                commit(db)
            _sweep(db, self.path)
            db.execute("BEGIN IMMEDIATE")
            failed = False
            try:
                described(db, self.path)  # what is damaged is not made valid by the next change
                yield db
            except sqlite3.Error:
                failed = True
                raise
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if not failed:  # else the next to open it may find the commit in the WAL, and needs its state
                    _sweep(db, self.path)


def _sweep(db: sqlite3.Connection, path: Path) -> None:
    """Remove the states of killed writers and of versions that are no longer kept; what fails is left to the next."""
    states = path / "states"
    with suppress(sqlite3.Error, OSError):
        if states.is_symlink():
            return
        kept = {state_file(path, version) for (version,) in db.execute("SELECT version FROM versions WHERE kept")}
        kept.add(state_file(path, LASTING))
        for file in states.iterdir():
            if file not in kept and is_state_file(file):
                file.unlink(missing_ok=True)
