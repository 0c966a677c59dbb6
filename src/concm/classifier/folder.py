"""The folder of a store: where one may be made, and which files in it are the store's own."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from concm.classifier import database
from concm.errors import ConcmError

KEPT = "backbone.safetensors"
"""The file in which a store keeps a network that it could not find again."""
_STORE_FILE = re.compile(r"(store|inbox)\.db(-wal|-shm|-journal)?|store\.lock")
_STATE_FILE = re.compile(r"([0-9]+|lasting)\.safetensors")
_DRAFT = re.compile(r"\.draft-[0-9a-f]{16}(-wal|-shm|-journal)?")


def refuse_foreign(path: str | Path) -> None:
    """A new store moves into an empty folder, or one where making a store was interrupted; nowhere else."""
    path = Path(path)
    if path.is_file() or (path.is_dir() and not all(map(_ours, path.iterdir()))):
        raise ConcmError(f"{no_store(path)}; choose a new folder")


def refuse_unwritable(path: str | Path) -> None:
    """Find out before any work whether a store can be made here."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise ConcmError(f"cannot make a store at {path}: nothing may be written to {place}")


def _ours(entry: Path) -> bool:
    """Whether a store whose making was interrupted may have left this: exact names, and no link to elsewhere."""
    if entry.is_symlink():
        return False
    if entry.name == "states":
        return database.file(entry.parent).is_file() and entry.is_dir() and all(map(is_state_file, entry.iterdir()))
    if entry.name == KEPT:
        return database.file(entry.parent).is_file()
    return entry.is_file() and bool(_STORE_FILE.fullmatch(entry.name) or _DRAFT.fullmatch(entry.name))


def is_state_file(file: Path) -> bool:
    """Whether a store wrote this into its folder of states."""
    named = _STATE_FILE.fullmatch(file.name) or _DRAFT.fullmatch(file.name)
    return named is not None and file.is_file() and not file.is_symlink()


def no_store(path: Path) -> str:
    """Why there is no store here, in words."""
    if path.is_file():
        return f"{path} is a file; a store is a folder"
    if path.is_dir() and any(path.iterdir()):
        return f"{path} is not a store: the folder belongs to another program or holds something else"
    return f"there is no store at {path}; `fit` makes one"


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A draft beside `path` that becomes that folder in one step on success, and disappears on failure."""
    draft = path.absolute().parent / f".draft-{secrets.token_hex(8)}"
    try:
        draft.mkdir(parents=True)
        yield draft
        database.sync(draft)
        os.rename(draft, path)
        database.sync(path.absolute().parent)
    except (OSError, sqlite3.Error) as error:
        raise ConcmError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def copied(file: Path, target: Path) -> None:
    """Copy a file durably, with its rights."""
    with file.open("rb") as old, target.open("xb") as new:
        shutil.copyfileobj(old, new)
        new.flush()
        os.fsync(new.fileno())
    shutil.copymode(file, target)
