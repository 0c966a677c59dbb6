"""Zip files of photos: read where they lie and never unpacked, with bounds on all that they claim to hold."""

from __future__ import annotations

import os
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath

from concm.data.pixels import BrokenPicture
from concm.data.sources import SUFFIXES
from concm.errors import ConcmError, in_a_line

MOST_FILES = 100_000
MOST_BYTES = 100_000_000
"""Of one photo, unpacked."""
MOST_TOTAL = 50_000_000_000
"""Of all photos of one zip file, unpacked."""
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How files may be packed: what these unpack to is never longer than was asked for."""


@dataclass(frozen=True)
class Zipped:
    """A photo in a zip file, by its place there; it is read when it is needed, and only into memory."""

    archive: Path
    place: PurePosixPath
    _info: zipfile.ZipInfo = field(repr=False, compare=False)
    _file: zipfile.ZipFile = field(repr=False, compare=False)
    _lock: threading.Lock = field(repr=False, compare=False)

    def __str__(self) -> str:
        """Its path, as if the zip file were a folder."""
        return f"{self.archive}/{self.place}"

    def read(self) -> bytes:
        """Its bytes; what is encrypted, damaged, too large or oddly packed is refused."""
        if self._info.flag_bits & 1:
            raise BrokenPicture(str(self), "is encrypted")
        if self._info.compress_type not in PACKED:
            raise BrokenPicture(str(self), "is packed in a way that is not read; pack it the usual way")
        if self._info.file_size > MOST_BYTES:
            raise BrokenPicture(
                str(self), f"has {self._info.file_size:,} bytes; at most {MOST_BYTES // 10**6} million are read"
            )
        try:
            with self._lock, self._file.open(self._info) as file:
                return file.read(MOST_BYTES)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
            raise BrokenPicture(str(self), f"cannot be unpacked ({in_a_line(error)})") from error


def is_zip(source: object) -> bool:
    """Whether this is a zip file, by its name."""
    return isinstance(source, str | os.PathLike) and Path(source).suffix.lower() == ".zip" and os.path.isfile(source)


@dataclass(frozen=True)
class Archive:
    """The photos of a zip file in order, and how many other files of which kind it holds; hidden ones are left alone.

    Folders around all photos together do not count: `photos/cat/1.jpg` is in the folder `cat`.
    """

    path: Path
    photos: list[Zipped]
    others: Counter[str]

    @classmethod
    def of(cls, path: Path) -> Archive:
        """What a zip file lists; no photo of it is read yet."""
        try:
            file = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
            raise ConcmError(f"{path} is damaged or no zip file ({in_a_line(error)}); pack it again") from error
        lock, photos, others = threading.Lock(), list[Zipped](), Counter[str]()
        for info in file.infolist():
            place = PurePosixPath(info.filename.replace("\\", "/"))
            parts = [part for part in place.parts if part != "/"]
            if info.is_dir() or not parts or any(part.startswith((".", "__MACOSX")) for part in parts):
                continue
            if place.suffix.lower() in SUFFIXES:
                photos.append(Zipped(path, PurePosixPath(*parts), info, file, lock))
            else:
                others[place.suffix.lower() or "without a suffix"] += 1
        if len(photos) > MOST_FILES:
            raise ConcmError(f"{path} holds {len(photos):,} photos; at most {MOST_FILES:,} are read from a zip file")
        if sum(photo._info.file_size for photo in photos) > MOST_TOTAL:
            raise ConcmError(f"{path} would unpack to more than {MOST_TOTAL // 10**9} GB")
        if not photos:
            raise ConcmError(f"no pictures in {path}; these are read: {' '.join(sorted(SUFFIXES))}")
        return cls(path, sorted(photos, key=lambda photo: photo.place), others)

    @cached_property
    def around(self) -> int:
        """How many folders stand around all photos together, those that name a class not among them."""
        folders = [photo.place.parts[:-1] for photo in self.photos]
        shared = takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
        return max(0, min(sum(1 for _ in shared), min(map(len, folders)) - 1))

    @property
    def loose(self) -> list[Zipped]:
        """The photos that lie in no class folder."""
        return [photo for photo in self.photos if len(photo.place.parts) == self.around + 1]

    def classes(self) -> dict[str, list[Zipped]]:
        """The photos by the folder that they lie in, or that their folders lie in."""
        found: dict[str, list[Zipped]] = {}
        for photo in self.photos:
            if len(photo.place.parts) > self.around + 1:
                found.setdefault(photo.place.parts[self.around], []).append(photo)
        return found

    def inner(self, photos: Iterable[Zipped]) -> list[str]:
        """The folders within their class folder that photos lie in."""
        deep = [photo.place.parts[self.around + 1] for photo in photos if len(photo.place.parts) > self.around + 2]
        return list(dict.fromkeys(deep))
