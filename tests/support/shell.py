"""Photo commands as people type them, and what they say."""

from __future__ import annotations

import gc
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.tiny import call, sentence

KILLS = int(os.environ.get("CONCM_TEST_KILLS", "3"))
ROOT = Path(__file__).parents[2]
COMMANDS = ("fit", "learn", "predict", "show", "forget", "undo", "evaluate", "export", "demo")
BASE = ["apple", "bear", "crane", "daisy"]
LATER = ["eagle", "fox"]
KNOWN = BASE + LATER
INTERRUPTED = "interrupted; nothing half-written was left behind"


def told(capsys, *words: object) -> str:
    """What a command prints that has nothing to complain about."""
    capsys.readouterr()
    code, said = call(*words), capsys.readouterr()
    assert (code, said.err) == (0, "")
    return said.out


def refusal(capsys, *words: object, code: int) -> str:
    """The sentence with which a command refuses, and nothing else that it prints."""
    capsys.readouterr()
    given, said = call(*words), capsys.readouterr()
    assert (given, said.out) == (code, "")
    return sentence(said.err)


def shown(capsys, store: Path) -> dict[str, Any]:
    return json.loads(told(capsys, "show", store, "--json"))


def classes(capsys, store: Path) -> dict[str, int]:
    """How many photos each class has."""
    return {row["name"]: row["photos"] for row in shown(capsys, store)["classes"]}


def answers(capsys, store: Path, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told(capsys, "predict", store, *words, "--json").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    gc.collect()  # whoever still holds the database open lets go of it
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def unchanged(capsys, store: Path) -> Iterator[None]:
    """Byte for byte, and to whoever looks at it."""
    before = shown(capsys, store), contents(store)
    yield
    assert (shown(capsys, store), contents(store)) == before


def right(found: list[dict[str, Any]]) -> list[bool]:
    """Whether each photo is called by the name of its folder."""
    return [one["label"] == Path(one["photo"]).parent.name for one in found]


def other_sqlite(folder: Path) -> None:
    with sqlite3.connect(folder / "store.db") as db:
        db.execute("CREATE TABLE bookmarks (address TEXT)")
    db.close()


FOREIGN = {
    "other files": lambda folder: (folder / "letter.txt").write_text("Dear all"),
    "other database": other_sqlite,
    "garbage": lambda folder: (folder / "store.db").write_bytes(b"not a database, " * 500),
    "empty file": lambda folder: (folder / "store.db").write_bytes(b""),
}
