"""The database file of a store: opening, upgrading, locking, and sentences for what SQLite runs into."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from concm import files
from concm.errors import ConcmError, in_a_line

APPLICATION = 0x436F6E43  # marks a SQLite file as ours
BUSY = 30.0  # seconds; only recovery after a crash makes SQLite itself wait

# Step i brings a database from schema version i (`PRAGMA user_version`; 0 is empty) to i + 1. A class lives in versions
# added <= v < removed, so that undo can bring it back; photos come in a version of their own, and are gone in one
# or go with their class. Those that are gone beyond undo have their digest alone. `corrections` has what a version
# found: the class of a photo that it moved, or the name of a class that it renamed.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        "CREATE TABLE store (meta TEXT NOT NULL)",
        "CREATE TABLE versions (version INTEGER PRIMARY KEY AUTOINCREMENT, action TEXT NOT NULL, detail TEXT NOT NULL,"
        " created TEXT NOT NULL, classes INTEGER NOT NULL, photos INTEGER NOT NULL, kept INTEGER NOT NULL DEFAULT 1)",
        "CREATE TABLE classes (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, base INTEGER NOT NULL,"
        " added INTEGER NOT NULL REFERENCES versions, removed INTEGER REFERENCES versions)",
        "CREATE UNIQUE INDEX living ON classes (name) WHERE removed IS NULL",
        "CREATE TABLE photos (id INTEGER PRIMARY KEY AUTOINCREMENT, class INTEGER NOT NULL REFERENCES classes"
        " ON DELETE CASCADE, added INTEGER NOT NULL REFERENCES versions, label TEXT NOT NULL, digest TEXT NOT NULL,"
        " rows INTEGER NOT NULL, features BLOB NOT NULL, thumbnail BLOB NOT NULL)",
        "CREATE INDEX photos_class ON photos (class)",
        "CREATE INDEX photos_digest ON photos (digest)",
    ),
    (
        "CREATE TABLE evaluations (version INTEGER NOT NULL REFERENCES versions ON DELETE CASCADE,"
        " created TEXT NOT NULL, source TEXT NOT NULL, result TEXT NOT NULL)",
    ),
    (
        "ALTER TABLE store ADD COLUMN identity TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE store ADD COLUMN lasting TEXT",
        "ALTER TABLE versions ADD COLUMN digest TEXT",
    ),
    (
        "ALTER TABLE photos ADD COLUMN gone INTEGER REFERENCES versions",
        "CREATE TABLE corrections (version INTEGER NOT NULL REFERENCES versions ON DELETE CASCADE,"
        " photo INTEGER REFERENCES photos ON DELETE CASCADE, class INTEGER NOT NULL REFERENCES classes"
        " ON DELETE CASCADE, name TEXT)",
    ),
    (
        "ALTER TABLE store ADD COLUMN proof TEXT",
        "ALTER TABLE photos ADD COLUMN proof TEXT",
        "CREATE INDEX photos_living ON photos (class, gone)",  # so that counting them reads no features
        "DROP INDEX photos_class",
    ),
]
OURS = {"store", "versions", "classes", "photos", "evaluations", "corrections", "sqlite_sequence", "living"}
OURS |= {"photos_class", "photos_digest", "photos_living"}


def file(path: Path) -> Path:
    """The database of the store in this folder."""
    return path / "store.db"


def inode(path: Path) -> tuple[int, int] | None:
    """Which file the database is, so that one that took its place is noticed; none if there is none."""
    try:
        status = file(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def writable(path: Path) -> bool:
    """Whether this process may change the store."""
    return os.access(path, os.W_OK) and os.access(file(path), os.W_OK)


def opened(path: Path) -> tuple[sqlite3.Connection | None, tempfile.TemporaryDirectory[str] | None]:
    """A connection to go on with, and the private copy that it is of, where the store cannot be read in place.

    There is no connection where nothing may be written: every read then makes one of its own.
    """
    with sentences(path):
        with suppress(sqlite3.OperationalError):  # as on a full disk, where SQLite cannot coordinate with writers
            if writable(path):
                return _tried(path), None
        with suppress(sqlite3.OperationalError):  # to read a WAL, as after a killed process, takes a file beside it
            if (path / "store.db-wal").exists():
                _tried(path, writable=False).close()
            return None, None
        return _copied(path)


def _copied(path: Path) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str]]:
    """A private copy of a database and its WAL, and a connection to it."""
    copy = tempfile.TemporaryDirectory(prefix="concm-")
    try:
        for name in ("store.db", "store.db-wal"):
            shutil.copyfile(path / name, Path(copy.name, name))
        return _tried(Path(copy.name)), copy
    except OSError as error:
        copy.cleanup()
        why = f"its database cannot be copied to {copy.name} ({error.strerror or error})"
        raise ConcmError(f"cannot use the store at {path}: {why}") from error
    except sqlite3.Error:
        copy.cleanup()
        raise


def connect(path: Path, name: str = "store.db", writable: bool = True) -> sqlite3.Connection:
    """A connection without transactions of its own; one that only reads leaves no file behind."""
    with sentences(path):
        return _connected(path, name, writable)


def _connected(path: Path, name: str = "store.db", writable: bool = True) -> sqlite3.Connection:
    address = (path / name).absolute().as_uri() + "?mode=" + ("rw" if writable else "ro")
    if not writable and not (path / f"{name}-wal").exists():
        address += "&immutable=1"  # without it SQLite wants to make files in the folder, to coordinate with writers
    db = sqlite3.connect(address, BUSY, isolation_level=None, check_same_thread=False, uri=True)
    try:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _tried(path: Path, writable: bool = True) -> sqlite3.Connection:
    """A connection by which something was read."""
    db = _connected(path, writable=writable)
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        db.close()
        raise
    return db


def schema(db: sqlite3.Connection, path: Path) -> int:
    """The schema version of a database, if it is one of ours that this program can handle."""
    if not file(path).stat().st_size:
        raise ConcmError(damaged(path, "it is empty"))
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise ConcmError(f"{file(path)} belongs to another program; {path} is not a store")
    for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_master"):
        if (
            name not in OURS
            or kind not in ("table", "index")
            or not sql.startswith(("CREATE TABLE", "CREATE UNIQUE", "CREATE INDEX"))
        ):
            raise ConcmError(damaged(path, f"it has a {kind} {name!r:.50} that no store has"))
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise ConcmError(
            f"the store at {path} was made by a newer concm (schema {version}, this one knows {len(MIGRATIONS)}); "
            "upgrade concm"
        )
    return version


def upgrade(db: sqlite3.Connection, version: int) -> None:
    """Bring the tables from a schema version to the newest."""
    for step in MIGRATIONS[version:]:
        for statement in step:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def sync(folder: Path) -> None:
    """Make the names in a folder durable, or refuse."""
    try:
        files.sync(folder)
    except OSError as error:
        raise ConcmError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None, timeout: float | None) -> Iterator[None]:
    """Hold the writers' lock, which the system frees if this process dies."""
    lock = FileLock(path / "store.lock")
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting is not None:
                waiting()
            lock.acquire(timeout=-1 if timeout is None else timeout, poll_interval=0.01)
    except Timeout:
        raise ConcmError(f"the store at {path} is being changed by another; try again later") from None
    except OSError as error:
        raise ConcmError(f"cannot write to the store at {path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def damaged(path: Path, why: object) -> str:
    """The sentence for a file that SQLite cannot read."""
    return f"{file(path)} is damaged, or belongs to another program ({why}); restore the folder from a backup"


@contextmanager
def sentences(path: Path) -> Iterator[None]:
    """Say what SQLite ran into; mistakes of this program stay as they are."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise
    except UnicodeDecodeError as error:  # SQLite's own message quotes the damaged text
        raise ConcmError(damaged(path, "it has text that is no UTF-8")) from error
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise ConcmError(f"the disk is full: the store at {path} is unchanged; make room and try again") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise ConcmError(damaged(path, in_a_line(error))) from error
        raise ConcmError(f"cannot use the store at {path}: {in_a_line(error)}") from error
