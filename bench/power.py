"""A disk that loses power: what a command asked of it, call by call, and what may be left of that."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path


def read_journal(path: Path) -> list[tuple[str, str, str, int, bytes]]:
    """The calls that the shim wrote down."""
    data, events = path.read_bytes(), []
    while data:
        line, _, data = data.partition(b"\n")
        what, name, other, at, length = line.decode().split("\t")
        events.append((what, name, other, int(at), data[: int(length)]))
        data = data[int(length) :]
    return events


class Disk:
    """A disk that keeps what was synced, and of the rest what chance leaves: the content of files, and their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.content: dict[int, bytes] = {}
        self.pending: dict[int, list[tuple[int, bytes | None]]] = {}
        self.names: dict[str, int] = {}
        self.folders = {str(path) for path in folder.rglob("*") if path.is_dir()} | {str(folder)}
        for number, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
            self.content[number], self.pending[number], self.names[str(path)] = path.read_bytes(), [], number
        self.now = dict(self.names)
        self.unsynced: list[tuple[str, str, str, int]] = []

    def apply(self, what: str, name: str, other: str, at: int, data: bytes) -> None:
        """A call of the program."""
        if what in ("create", "rename", "unlink", "mkdir"):
            number = self.now.get(name, len(self.content))
            if what == "create":
                self.content[number], self.pending[number] = b"", []
            self.unsynced.append((what, name, other, number))
            self._named(self.now, what, name, other, number)
        elif what == "sync" and name in self.folders:
            kept = [event for event in self.unsynced if name not in (os.path.dirname(event[1]), name)]
            for event in self.unsynced:
                if event not in kept:
                    self._named(self.names, *event)
            self.unsynced = kept
        elif what == "sync":
            number = self.now[name]
            for change in self.pending[number]:
                self.content[number] = changed(self.content[number], *change)
            self.pending[number] = []
        else:
            self.pending[self.now[name]].append((at, data if what == "write" else None))

    def _named(self, names: dict[str, int], what: str, name: str, other: str, number: int) -> None:
        if what == "create":
            names[name] = number
        elif what == "mkdir":
            self.folders.add(name)
        elif what == "unlink":
            names.pop(name, None)
        else:
            for old in [old for old in names if old == name or old.startswith(f"{name}/")]:
                names[other + old[len(name) :]] = names.pop(old)
            self.folders |= {other + old[len(name) :] for old in self.folders if old.startswith(name)}

    def fail(self, chance: random.Random | None) -> None:
        """The power goes: what is left is written into the folder; without chance, nothing that was not synced."""
        if chance is not None:
            for event in self.unsynced[: chance.randrange(len(self.unsynced) + 1)]:
                self._named(self.names, *event)
            for number, changes in self.pending.items():
                for at, data in changes:
                    if chance.random() < 0.5:
                        some = data if data is None or chance.random() < 0.7 else data[: len(data) // 2]
                        self.content[number] = changed(self.content[number], at, some)
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, number in self.names.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(self.content[number])


def changed(content: bytes, at: int, data: bytes | None) -> bytes:
    """Content after a write at a place, or after it was cut off there."""
    if data is None:
        return content[:at].ljust(at, b"\0")
    return content[:at].ljust(at, b"\0") + data + content[at + len(data) :]
