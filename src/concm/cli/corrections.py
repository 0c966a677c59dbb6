"""Corrections of what a classifier was taught: each is one version, which `concm undo` takes back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from concm.cli.stores import Access, Changing, Naming, print_json


def rename(
    store: Path,
    name: str,
    to: str,
    /,
    *,
    naming: Naming = Naming(),  # noqa: B008
    access: Changing = Changing(),  # noqa: B008
) -> None:
    """Give a class another name.

    Parameters
    ----------
    store
        The classifier's folder.
    name
        The class.
    to
        Its new name.
    """
    with access.changing(store) as classifier:
        classifier.rename(name, to, **asdict(naming))


def merge(store: Path, /, *names: str, into: str, access: Changing = Changing()) -> None:  # noqa: B008
    """Merge several classes into one.

    Parameters
    ----------
    store
        The classifier's folder.
    names
        The classes whose photos go to the other.
    into
        The class that they become part of. It is a base class afterwards if one of them is.
    """
    with access.changing(store) as classifier:
        classifier.merge(names, into)


def move(
    store: Path,
    /,
    *photos: str,
    to: str,
    naming: Naming = Naming(),  # noqa: B008
    access: Changing = Changing(),  # noqa: B008
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
    """
    with access.changing(store) as classifier:
        classifier.move(photos, to, **asdict(naming))


def remove(store: Path, /, *photos: str, access: Changing = Changing()) -> None:  # noqa: B008
    """Remove photos from their classes.

    Parameters
    ----------
    store
        The classifier's folder.
    photos
        Photos that it was taught, by file name, as class/file, or by the number that `concm show STORE CLASS` lists.
    """
    with access.changing(store) as classifier:
        classifier.remove(photos)


def forget(store: Path, name: str, /, *, access: Changing = Changing()) -> None:  # noqa: B008
    """Drop a class; `concm undo` brings it back.

    Parameters
    ----------
    store
        The classifier's folder.
    name
        The class.
    """
    with access.changing(store) as classifier:
        classifier.forget(name)


def undo(store: Path, /, *, json: bool = False, access: Access = Access()) -> None:  # noqa: B008
    """Step back one version.

    Parameters
    ----------
    store
        The classifier's folder.
    json
        Print the version that is current now as JSON.
    """
    from concm.report.tables import say

    with access.open(store) as classifier:
        line = classifier.undo()
    if json:
        print_json(asdict(line))
    else:
        say(f"back at version {line.version}: {line.classes} classes, {line.photos} photos")
