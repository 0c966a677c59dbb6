"""Corrections of what a classifier was taught: each is one version, which `concm undo` takes back."""

from __future__ import annotations

import time
from pathlib import Path

from concm.cli.photos import Access, told


def rename(store: Path, name: str, to: str, /, *, json: bool = False, access: Access = Access()) -> None:  # noqa: B008
    """Give a class another name.

    Parameters
    ----------
    store
        The classifier's folder.
    name
        The class.
    to
        Its new name.
    json
        Print what was done as JSON.
    """
    with access.open(store) as classifier:
        begun = time.perf_counter()
        told(classifier.rename(name, to), begun, json)


def merge(
    store: Path,
    /,
    *names: str,
    into: str,
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Make one class of several.

    Parameters
    ----------
    store
        The classifier's folder.
    names
        The classes whose photos go to the other.
    into
        The class that they become part of. It is a base class afterwards if one of them is.
    json
        Print what was done as JSON.
    """
    with access.open(store) as classifier:
        begun = time.perf_counter()
        told(classifier.merge(names, into), begun, json)


def move(
    store: Path,
    /,
    *photos: str,
    to: str,
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Move photos to another class.

    Parameters
    ----------
    store
        The classifier's folder.
    photos
        Photos that it was taught, by file name, as class/file, or by the number that `concm show STORE CLASS` lists.
    to
        The class, which may be a new one.
    json
        Print what was done as JSON.
    """
    with access.open(store) as classifier:
        begun = time.perf_counter()
        told(classifier.move(photos, to), begun, json)


def remove(store: Path, /, *photos: str, json: bool = False, access: Access = Access()) -> None:  # noqa: B008
    """Remove photos from their classes.

    Parameters
    ----------
    store
        The classifier's folder.
    photos
        Photos that it was taught, by file name, as class/file, or by the number that `concm show STORE CLASS` lists.
    json
        Print what was done as JSON.
    """
    with access.open(store) as classifier:
        begun = time.perf_counter()
        told(classifier.remove(photos), begun, json)
