"""Photos as people give them (folders, zips, files, globs, PIL images, arrays, bytes), grouped by class and named."""

from __future__ import annotations

import glob
import hashlib
import io
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from concm.classifier.archive import Archive, Zipped, is_zip
from concm.classifier.folders import Nested, class_folders, listed_photos, zipped_classes
from concm.data.images import BrokenPicture, decode
from concm.data.lists import is_list
from concm.data.sources import SUFFIXES, pictures_under
from concm.errors import ConcmError, Misuse

Picture = str | os.PathLike[str] | bytes | Image.Image | NDArray[Any] | Zipped
UNKNOWN = "unknown"
"""The label of a photo of no known class; no class may have this name."""
NO_PHOTOS = (
    "photos come as a folder or zip of class folders, as a CSV file, or as a mapping of class names to photos; "
    "features and labels are what `concm.ConCM` takes"
)
LONGEST_NAME = 100
THUMBNAIL = 128


@dataclass(frozen=True)
class Photo:
    """The central square (side, side, 3) of a picture, and its name."""

    name: str
    pixels: NDArray[np.uint8]

    @classmethod
    def read(cls, picture: Picture, side: int, name: str) -> Photo:
        """Decode a picture in any form; one that cannot be read raises a BrokenPicture that begins with `name`."""
        try:
            pixels = decode(_openable(picture), side)
        except BrokenPicture as error:
            raise BrokenPicture(name, error.reason) from error
        return cls(name, pixels)

    @cached_property
    def digest(self) -> str:
        """Of its pixels; two files of one picture have the same."""
        return hashlib.blake2b(np.ascontiguousarray(self.pixels).data, digest_size=16).hexdigest()

    def thumbnail(self) -> bytes:
        """A small JPEG."""
        file = io.BytesIO()
        Image.fromarray(self.pixels).resize((THUMBNAIL, THUMBNAIL), reducing_gap=1.0).save(file, "JPEG", quality=85)
        return file.getvalue()


def _openable(picture: Picture) -> bytes | Path | Image.Image:
    if isinstance(picture, bytes | Image.Image):
        return picture
    if isinstance(picture, str | os.PathLike):
        return Path(picture)
    if isinstance(picture, Zipped):
        return picture.read()
    try:
        pixels = np.asarray(picture)
    except ValueError as error:
        raise BrokenPicture("", "is neither a file, nor an image, nor an array") from error
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))) or not pixels.size:
        raise BrokenPicture("", f"has the shape {pixels.shape}; an array should be (height, width[, 3])")
    if pixels.dtype != np.uint8:
        if not (np.issubdtype(pixels.dtype, np.floating) and pixels.min() >= 0 and pixels.max() <= 1):
            raise BrokenPicture("", f"is of {pixels.dtype}; an array should be of uint8, or of floats from 0 to 1")
        pixels = (pixels * 255).round().astype(np.uint8)
    return Image.fromarray(pixels)


def called(picture: Picture, number: int) -> str:
    """The name of a picture: its path, or its number among those given."""
    if isinstance(picture, Zipped):
        return printable(str(picture))
    return printable(picture) if isinstance(picture, str | os.PathLike) else f"picture {number + 1}"


def printable(path: str | os.PathLike[str]) -> str:
    """A path as a line of text that can be printed, whatever its bytes are."""
    text = os.fsencode(path).decode(errors="replace")
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "�" for letter in text)


def checked_name(name: object) -> str:
    """The class name in its normal form (NFC), checked to be one that can be printed, typed and used for a folder."""
    if not isinstance(name, str) or not name.strip():
        raise Misuse(f"a class name is text that is not empty, not {name!r}")
    name = unicodedata.normalize("NFC", name.strip())
    if len(name) > LONGEST_NAME:
        raise Misuse(f"the class name {name[:20]!r}… has {len(name)} characters; at most {LONGEST_NAME} are taken")
    if any(letter in "/\\" or not letter.isprintable() for letter in name) or name.startswith("."):
        raise Misuse(f"{name!r} cannot name a class: no slashes, no control characters, no dot at the beginning")
    if name.lower() == UNKNOWN:
        raise Misuse(f"no class can be called {name!r}: photos of no known class are called so")
    return name


def spelling(known: Iterable[str]) -> Callable[[str], str]:
    """What gives a known name as it is kept, however its letters are composed; older stores have names as typed."""
    exactly = dict.fromkeys(known)
    composed = {unicodedata.normalize("NFC", name): name for name in exactly}
    return lambda name: name if name in exactly else composed.get(unicodedata.normalize("NFC", name), name)


def find_photos(words: Iterable[str | os.PathLike[str]]) -> list[Path | Zipped]:
    """The pictures that files, folders (with subfolders), zips and globs stand for, in order, without repetition."""
    found: dict[Path | Zipped, None] = {}
    for word in words:
        if not os.fspath(word):
            raise Misuse("an empty word is no photo; the current folder is `.`")
        path, inside = Path(word), list[Path | Zipped]()
        if is_zip(path):
            inside += Archive.of(path).photos
        elif os.path.isdir(path):  # unlike Path.is_dir, no name is too long to be asked for
            inside += pictures_under(path)
            if not inside:
                raise ConcmError(f"no pictures in {path}; these are read: {' '.join(sorted(SUFFIXES))}")
        elif os.path.exists(path):
            inside.append(path)
        else:
            inside += [
                Path(name) for name in sorted(glob.glob(os.fspath(word), recursive=True)) if Path(name).is_file()
            ]
            if not inside:
                raise ConcmError(f"no picture {'matches' if glob.has_magic(os.fspath(word)) else 'at'} {path}")
        found |= dict.fromkeys(inside)
    return list(found)


def by_class(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    taught: bool = True,
    nested: Nested = "refuse",
    alone: bool = False,
) -> dict[str, list[Picture]]:
    """Pictures by class name, from a folder or zip of class folders, a CSV file or a mapping; no class is empty.

    If they are not `taught`, there may also be photos of unknown classes, under the name "unknown". `alone` is as in
    `class_folders`.
    """
    given: Mapping[str, Any]
    if not isinstance(source, str | os.PathLike | Mapping):
        raise Misuse(NO_PHOTOS)
    if isinstance(source, Mapping):
        given = source
    elif is_zip(source):
        given = zipped_classes(Path(source), nested)
    else:
        given = listed_photos(Path(source)) if is_list(source) else class_folders(Path(source), nested, alone)
    groups: dict[str, list[Picture]] = {}
    for key, value in given.items():
        name = key if not taught and key == UNKNOWN else checked_name(key)
        if name in groups:
            raise Misuse(f"class {name!r} is given twice")
        groups[name] = _pictures(value)
        if not groups[name]:
            raise Misuse(f"class {name!r} comes without a picture")
    if not groups:
        raise Misuse("no class was given")
    return groups


def _pictures(value: Any) -> list[Picture]:
    if isinstance(value, str | os.PathLike):
        return list(find_photos([value]))
    if isinstance(value, np.ndarray) and value.ndim == 4:
        return list(value)
    if isinstance(value, bytes | Image.Image | np.ndarray):
        return [value]
    if not isinstance(value, Iterable):
        raise Misuse(f"pictures of a class come as a list, not as {type(value).__name__}")
    return list(value)
