"""Lists of labelled pictures: a CSV file of paths and labels, or a folder of such files that are read as one."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from concm.errors import ConcmError


@dataclass(frozen=True)
class Line:
    """A picture of a list: its path as it is written there and as it is opened, its label, and what else is said."""

    name: str
    path: Path
    label: str
    part: str


def is_list(source: object) -> bool:
    """Whether this is a CSV file, or a folder that holds CSV files of pictures and no folders."""
    if not isinstance(source, str | os.PathLike):
        return False
    if os.path.isfile(source):
        return Path(source).suffix.lower() == ".csv"
    return bool(files := _files(Path(source))) and _begins(files[0])


def lines(source: Path) -> Iterator[Line]:
    """The pictures of a list, file by file; paths count from where their file lies."""
    for file in [source] if source.is_file() else _files(source):
        try:
            with file.open(newline="", encoding="utf-8-sig") as text:
                rows = csv.DictReader(text)
                if not {"path", "label"} <= set(rows.fieldnames or ()):
                    raise ConcmError(f"{file} should begin with the line path,label")
                yield from (_line(file, number, row) for number, row in enumerate(rows, 2))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise ConcmError(f"{file} is no CSV file of UTF-8 text ({error})") from error


def _line(file: Path, number: int, row: dict[str, str | None]) -> Line:
    name, label, part = row["path"], (row["label"] or "").strip(), (row.get("part") or "").strip()
    if not name or not label:
        raise ConcmError(f"line {number} of {file} lacks a path or a label")
    return Line(name, file.parent / name, label, part)


def _files(folder: Path) -> list[Path]:
    """The CSV files of a folder, in order; none if it has folders, for then those are its classes."""
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        inside = [entry for entry in entries if not entry.name.startswith(".")]
    if any(entry.is_dir() for entry in inside):
        return []
    return sorted(Path(entry) for entry in inside if entry.name.lower().endswith(".csv") and entry.is_file())


def _begins(file: Path) -> bool:
    """Whether a file begins as a list of pictures does; others have lists of other columns."""
    with suppress(OSError), file.open("rb") as raw:
        head = raw.readline(1000).removeprefix(b"\xef\xbb\xbf").decode(errors="replace")
        return {"path", "label"} <= {word.strip().strip('"') for word in head.split(",")}
    return False
