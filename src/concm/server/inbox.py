"""The photos that were asked about: what was called unknown or unsure waits here for a name.

Of a photo it keeps what a store would keep: features, and a thumbnail that was made anew; never the file itself.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
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
"""So many photos that wait are kept, the newest, and so many of the others, which never take their room."""
# `shown` is 0 for a photo that does not wait, else its turn: one that was known first may begin to wait later.
_TABLE = (
    "CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL,"
    " digest TEXT NOT NULL UNIQUE, added TEXT NOT NULL, shown INTEGER NOT NULL,"
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
    """Photos in a file beside the store, `inbox.db`, or in memory where nothing may be written.

    `taught` gives the digests of the photos that the store has: these do not wait. One that is undone, removed or
    forgotten is not among them any more, and waits again. `dropped` counts those that waited, and had no room left.
    """

    def __init__(self, store: Path, taught: Callable[[], Set[str]] = frozenset) -> None:
        self._taught, self.dropped = taught, 0
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
        taught = self._taught()
        with self._using():
            turn = self._db.execute("SELECT coalesce(max(shown), 0) + 1 FROM items").fetchone()[0] if shown else 0
            found = self._db.execute("SELECT id FROM items WHERE digest = ?", (photo.digest,)).fetchone()
            if found is not None:
                number = int(found[0])
                self._db.execute("UPDATE items SET shown = ? WHERE id = ? AND NOT shown", (turn, number))
            else:
                row = (photo.name, photo.digest, now(), turn, photo.features.numpy().tobytes(), photo.thumbnail)
                added = self._db.execute(
                    "INSERT INTO items (name, digest, added, shown, features, thumbnail) VALUES (?, ?, ?, ?, ?, ?)", row
                )
                number = int(added.lastrowid or 0)
            self._make_room(taught)
            return number

    def _make_room(self, taught: Set[str]) -> None:
        """Drop the oldest photos that do not wait, if there are too many of them, and so for those that wait."""
        if self._db.execute("SELECT count(*) FROM items").fetchone()[0] <= ROOM:
            return
        waiting: list[tuple[int, int]] = []
        others: list[tuple[int, int]] = []
        for number, digest, turn in self._db.execute("SELECT id, digest, shown FROM items"):
            waits = turn and digest not in taught
            (waiting if waits else others).append((turn if waits else 0, number))
        self.dropped += max(0, len(waiting) - ROOM)
        gone = sorted(waiting)[: max(0, len(waiting) - ROOM)] + sorted(others)[: max(0, len(others) - ROOM)]
        self._db.executemany("DELETE FROM items WHERE id = ?", [(number,) for _, number in gone])

    def waiting(self) -> list[Item]:
        """The photos that wait for a name, oldest first."""
        taught = self._taught()
        with self._using():
            found = "SELECT id, name, added, features, digest FROM items WHERE shown ORDER BY shown, id"
            return [
                Item(number, name, added, _unpacked(features))
                for number, name, added, features, digest in self._db.execute(found)
                if digest not in taught
            ]

    def told(self) -> dict[str, int]:
        """How many photos wait, how many may, and how many were dropped since the server was started."""
        taught = self._taught()
        with self._using():
            rows = self._db.execute("SELECT digest FROM items WHERE shown")
            count = sum(digest not in taught for (digest,) in rows)
        return {"inbox": count, "inbox_room": ROOM, "inbox_dropped": self.dropped}

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

    def dismiss(self, numbers: Iterable[int]) -> None:
        """Drop photos that need no name."""
        with self._using():
            self._db.executemany("DELETE FROM items WHERE id = ?", [(at,) for at in numbers])


def _unpacked(features: bytes) -> Tensor:
    return torch.frombuffer(bytearray(features), dtype=torch.float32)
