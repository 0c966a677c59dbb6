"""Folders, zip files and lists of labelled photos: one folder per class, or a CSV file of paths and labels.

What a folder holds beside photos is counted, folders within class folders are asked about, and so are names that differ
in nothing but their spelling.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

from concm.classifier.archive import Archive, Zipped, is_zip
from concm.data.lists import is_list, lines
from concm.data.sources import SUFFIXES, pictures_under
from concm.errors import ConcmError, Misuse

Nested = Literal["refuse", "flatten"]
Similar = Literal["refuse", "keep"]


def class_folders(root: Path, nested: Nested = "refuse", alone: bool = False) -> dict[str, Path]:
    """The class folders in a folder; one that holds folders of photos itself is refused, unless they are flattened.

    Where one class `alone` could be given in another way, a folder of photos is refused with that way.
    """
    if not os.path.isdir(root):
        raise Misuse(f"no folder at {root}; photos of classes come as one folder per class, named after it")
    folders = _folders(root)
    if not folders:
        loose = alone and next(pictures_under(root), None)
        hint = f"; to teach one class, give its name and then its photos: {root.resolve().name} {root}" if loose else ""
        raise ConcmError(
            f"no class folders in {root}: it should hold one folder per class, with its photos inside{hint}"
        )
    for folder in folders:
        inner = [inside.name for inside in _folders(folder) if next(pictures_under(inside), None) is not None]
        _flat(folder, inner, nested, f"give {folder}")
    return {folder.name: folder for folder in folders}


def zipped_classes(file: Path, nested: Nested = "refuse") -> dict[str, list[Zipped]]:
    """The class folders in a zip file, as those in a folder."""
    archive = Archive.of(file)
    groups = archive.classes()
    if not groups:
        raise ConcmError(f"no class folders in {file}: it should hold one folder per class, with its photos inside")
    for name, photos in groups.items():
        _flat(file / name, archive.inner(photos), nested, "pack that folder alone")
    return groups


def _flat(folder: Path, inner: list[str], nested: Nested, instead: str) -> None:
    """Refuse a class folder with folders of photos in it, unless they are flattened."""
    if nested not in get_args(Nested):
        raise Misuse(f"`nested` is one of {', '.join(get_args(Nested))}, not {nested!r}")
    if inner and nested == "refuse":
        named = ", ".join(inner[:3]) + (" …" if len(inner) > 3 else "")
        raise ConcmError(
            f"{folder} holds folders of photos itself ({named}): if these are the classes, {instead}; if all of them "
            f'are {folder.name!r}, say `nested="flatten"`'
        )


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def listed_photos(source: Path) -> dict[str, list[Path]]:
    """Photos by class, from a list."""
    groups: dict[str, list[Path]] = {}
    for line in lines(source):
        groups.setdefault(line.label, []).append(line.path)
    return groups


def left_out(words: Iterable[object]) -> list[str]:
    """What folders and zip files hold beside photos, in a sentence each: how many files of which kind."""
    sentences = []
    for word in words:
        if not isinstance(word, str | os.PathLike):
            continue
        kinds = Archive.of(Path(word)).others if is_zip(word) else _others(word)
        if kinds:
            order = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
            counted = ", ".join(f"{count} {kind}" for kind, count in order)
            sentences.append(f"left out in {os.fsdecode(word)}, for they are no photos by their names: {counted}")
    return sentences


def _others(folder: str | os.PathLike[str]) -> Counter[str]:
    return Counter(
        os.path.splitext(name)[1].lower() or "without a suffix"
        for at, _, names in os.walk(os.fsdecode(folder))
        if not any(part.startswith(".") for part in Path(at).relative_to(folder).parts)
        for name in names
        if not name.startswith(".") and os.path.splitext(name)[1].lower() not in SUFFIXES
    )


def loose_photos(root: object) -> list[str]:
    """A sentence about photos that lie beside class folders, of no class."""
    if not isinstance(root, str | os.PathLike):
        return []
    if is_zip(root):
        beside = [photo.place.name for photo in Archive.of(Path(root)).loose]
    elif os.path.isdir(root):
        beside = [path.name for path in Path(root).iterdir() if path.is_file() and path.suffix.lower() in SUFFIXES]
    else:
        beside = []
    if not beside:
        return []
    return [
        f"left out, for they lie in no class folder of {os.fspath(root)}: {len(beside)} photos, such as {min(beside)}"
    ]


def beside(source: object) -> list[str]:
    """What a folder of class folders holds that was not read, in sentences."""
    return [] if is_list(source) else loose_photos(source) + left_out([source])


def refuse_similar(new: Iterable[str], known: Iterable[str], similar: Similar) -> None:
    """Ask about new names that differ from others in nothing but capitals, spaces, hyphens and underscores."""
    if similar not in get_args(Similar):
        raise Misuse(f"`similar_names` is one of {', '.join(get_args(Similar))}, not {similar!r}")
    for name, other in almost_the_same(new, known) if similar == "refuse" else ():
        raise Misuse(
            f"{name!r} and {other!r} are almost the same name: use one for both, or say "
            '`similar_names="keep"` if they are two classes'
        )


def almost_the_same(new: Iterable[str], known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names that are not known but almost, or almost the same as one before them, each with that other name."""
    exactly = dict.fromkeys(known)
    seen = {_plain(name): name for name in reversed(exactly)}
    for name in new:
        if name not in exactly and (other := seen.setdefault(_plain(name), name)) != name:
            yield name, other


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFC", name.casefold())).strip()
