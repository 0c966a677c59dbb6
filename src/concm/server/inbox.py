"""The photos that were asked about: what was called unknown or unsure waits here for a name.

Of a photo it keeps what a store would keep: features, and a thumbnail that was made anew; never the file itself.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from concm.classifier import database
from concm.classifier.rows import now
from concm.classifier.stream import Encoded
from concm.errors import ConcmError, in_a_line, loading

ROOM = 2000
"""So many photos are kept, the newest."""
_TABLE = (
    "CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL,"
    " digest TEXT NOT NULL UNIQUE, added TEXT NOT NULL, shown INTEGER NOT NULL, taught INTEGER,"
    " features BLOB NOT NULL, thumbnail BLOB NOT NULL)"
)


@dataclass(frozen=True)
class Item:
    """A photo that waits; `features` are (d,)."""

    id: int
    name: str
    added: str
    features: Tensor


class Inbox:
    """Photos in a file beside the store, `inbox.db`, or in memory where nothing may be written."""

    def __init__(self, store: Path) -> None:
        self._file = store / "inbox.db"
        self._mutex = threading.Lock()
        if self._file.is_symlink() or (self._file.exists() and not self._file.is_file()):
            raise ConcmError(f"{self._file} is no file of a store's own; remove it")
        place = str(self._file) if database.writable(store) else ":memory:"
        with self._using():
            self._db = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(_TABLE)
            except sqlite3.Error:
                self._db.close()
                raise

    def close(self) -> None:
        """Close the file."""
        with self._mutex:
            self._db.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """One thread at a time; what is wrong with the file is told in a sentence."""
        with self._mutex:
            try:
                with loading(self._file, "inbox", "delete it: only photos that wait for a name are lost"):
                    yield
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.Error as error:
                why = in_a_line(error)
                raise ConcmError(
                    f"cannot use {self._file} ({why}); if it is damaged, delete it: only photos that wait are lost"
                ) from error

    def add(self, photo: Encoded, shown: bool) -> int:
        """Keep a photo, which may be there already; `shown` says that it waits for a name."""
        packed = photo.features.numpy().tobytes()
        with self._using():
            (number,) = self._db.execute(
                "INSERT INTO items (name, digest, added, shown, features, thumbnail) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (digest) DO UPDATE SET shown = max(shown, excluded.shown) RETURNING id",
                (photo.name, photo.digest, now(), shown, packed, photo.thumbnail),
            ).fetchone()
            self._db.execute("DELETE FROM items WHERE id <= (SELECT max(id) FROM items) - ?", (ROOM,))
        return int(number)

    def waiting(self, versions: Iterable[int]) -> list[Item]:
        """The photos that wait for a name, oldest first; one that was taught waits again once that is undone."""
        living = set(versions)
        with self._using():
            rows = self._db.execute("SELECT id, name, added, features, taught FROM items WHERE shown ORDER BY id")
            return [
                Item(number, name, added, _unpacked(features))
                for number, name, added, features, taught in rows
                if taught not in living
            ]

    def photos(self, numbers: Sequence[int]) -> list[Encoded]:
        """What a lesson needs of these photos."""
        with self._using():
            found = []
            for number in dict.fromkeys(numbers):
                row = self._db.execute(
                    "SELECT name, digest, thumbnail, features FROM items WHERE id = ?", (number,)
                ).fetchone()
                if row is None:
                    raise ConcmError(f"photo {number} is not in the inbox any more")
                found.append(Encoded(row[0], row[1], row[2], _unpacked(row[3])))
        return found

    def thumbnail(self, number: int) -> bytes | None:
        """A small JPEG."""
        with self._using():
            row = self._db.execute("SELECT thumbnail FROM items WHERE id = ?", (number,)).fetchone()
        return None if row is None else bytes(row[0])

    def taught(self, numbers: Iterable[int], version: int) -> None:
        """These photos were taught in a version."""
        with self._using():
            self._db.executemany("UPDATE items SET taught = ? WHERE id = ?", [(version, at) for at in numbers])

    def dismiss(self, numbers: Iterable[int]) -> None:
        """Drop photos that need no name."""
        with self._using():
            self._db.executemany("DELETE FROM items WHERE id = ?", [(at,) for at in numbers])


def _unpacked(features: bytes) -> Tensor:
    return torch.frombuffer(bytearray(features), dtype=torch.float32)
