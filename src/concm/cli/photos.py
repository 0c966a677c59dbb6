"""Teaching a classifier one's own photos, and asking it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

from concm.cli.options import complain
from concm.cli.stores import Access, Changing, Reading, Teaching, print_json
from concm.errors import ConcmError, Misuse


def fit(
    store: Path,
    photos: Path,
    /,
    *,
    teaching: Teaching = Teaching(),  # noqa: B008
    lean: Literal["base", "even", "novel"] = "even",
    blocks: int | None = None,
    looks: int | None = None,
    size: int | None = None,
    seed: int = 0,
    on: str = "here",
    access: Changing = Changing(),  # noqa: B008
) -> None:
    """Make a new classifier from photos, one folder per class.

    Parameters
    ----------
    store
        The folder to make; it holds all that the classifier knows.
    photos
        A folder or a zip file that holds one folder of photos for each class, two classes or more; or a CSV file of
        paths and labels, or a folder of such files.
    lean
        Which accuracy to favour: over all classes (`base`), the harmonic mean of base and new classes (`novel`), or
        both (`even`).
    blocks
        How many of the network's last blocks are read; by default 2 of EfficientNet-Lite and 1 of other networks.
    looks
        How many looks at a photo are averaged, each a forward pass: 1 by default, 2 adds the mirror image, up to 10 add
        shifts.
    size
        Side of the square that the network sees, in pixels. Larger is slower and often more accurate. By default 288
        with EfficientNet-Lite0, 320 with Lite1 and Lite2, and what other networks were trained with.
    seed
        Seed of all random choices.
    on
        Where photos are encoded: `here`; `ray`, a Ray cluster that is started for this command, or the one that
        RAY_ADDRESS names; or `ray://HOST:PORT`. Workers read the same paths, and what was interrupted goes on.
    """
    with access.changing(store, made=False, seed=seed, blocks=blocks, looks=looks, size=size) as classifier:
        classifier.fit(photos, lean=lean, on=on, **asdict(teaching))


def learn(
    store: Path,
    what: str,
    /,
    *images: str,
    by_name: bool = False,
    teaching: Teaching = Teaching(),  # noqa: B008
    access: Changing = Changing(),  # noqa: B008
) -> None:
    """Teach a classifier new classes, or give it more photos of known ones.

    Parameters
    ----------
    store
        The classifier's folder.
    what
        A folder or a zip file that holds one folder of photos for each class; a CSV file of paths and labels; or a
        class name, followed by its photos.
    images
        Photos of that class: files, folders, zip files and globs.
    by_name
        Teach the class by its name alone, before its first photo; its look is estimated from related classes.
    """
    from concm.classifier.archive import is_zip
    from concm.data.lists import is_list

    if by_name and images:
        raise Misuse("`by_name` teaches a class without photos, and photos are given")
    if not by_name and not images and not (Path(what).is_dir() or is_list(what) or is_zip(what)):
        raise Misuse(
            f"no folder at {what}; give a folder of class folders, or a class name and then its photos "
            "(or `by_name` instead of these)"
        )
    with access.changing(store) as classifier:
        from concm.classifier.photos import find_photos

        if by_name:
            classifier.learn_name(what, similar_names=teaching.similar_names)
        else:
            classifier.learn({what: find_photos(images)} if images else what, **asdict(teaching))


def predict(
    store: Path,
    /,
    *images: str,
    top: int = 3,
    unknown_rate: float = 0.05,
    csv: Path | None = None,
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Say what photos show, one line each as they come, or "unknown".

    Parameters
    ----------
    store
        The classifier's folder.
    images
        Files, folders, zip files and globs.
    top
        How many guesses to give.
    unknown_rate
        The share of photos of known classes that may be called unknown; 0 never says unknown.
    csv
        Write the answers into this file too, as a table.
    json
        Print one JSON object per line.
    """
    if not images:
        raise Misuse("concm predict takes photos after the store: files, folders or globs")
    from concm.classifier.folders import left_out
    from concm.classifier.photos import find_photos
    from concm.data.images import BrokenPicture
    from concm.report.classifier import show_prediction, write_predictions

    broken, answers = 0, []
    for sentence in left_out(images):
        complain(sentence)
    with access.open(store) as classifier:
        for found in classifier.stream(find_photos(images), unknown_rate=unknown_rate, top=top):
            if isinstance(found, BrokenPicture):
                broken += 1
                complain(str(found))
                continue
            answers.append(found)
            if json:
                print_json(asdict(found), lines=True)
            else:
                show_prediction(found)
    if csv is not None:
        write_predictions(csv, answers)
    if broken:
        raise ConcmError(f"files that could not be read: {broken}")


def calibrate(
    store: Path,
    photos: Path,
    /,
    *,
    reading: Reading = Reading(),  # noqa: B008
    access: Changing = Changing(),  # noqa: B008
) -> None:
    """Adapt probabilities and the rate of "unknown" to labelled photos of new conditions; no class is changed.

    Parameters
    ----------
    store
        The classifier's folder.
    photos
        A folder or a zip file with one folder of photos for each known class that it shows; or a CSV file of paths and
        labels.
    """
    with access.changing(store) as classifier:
        classifier.calibrate(photos, **asdict(reading))
