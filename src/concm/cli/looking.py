"""What a classifier knows, how well it does, and what is wrong with what it was taught."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from concm.cli.options import complain
from concm.cli.stores import Access, Reading, print_json
from concm.errors import at_least
from concm.records import to_json

if TYPE_CHECKING:
    from concm.classifier.evaluation import Evaluation


def show(
    store: Path,
    name: str | None = None,
    /,
    *,
    card: Path | None = None,
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Show classes and history, or the photos of a class.

    Parameters
    ----------
    store
        The classifier's folder.
    name
        A class, to list its photos with the numbers by which they can be removed or moved.
    card
        Write a Markdown card: backbone, classes, photos, evaluation, versions, how to load it.
    json
        Print classes, history and evaluations as JSON.
    """
    from concm.files import is_stream, write_whole
    from concm.report import classifier as report
    from concm.report.tables import say

    with access.open(store) as classifier:
        about = {"store": str(store), "version": classifier.version}
        if card is not None:
            write_whole(card, report.card(classifier).encode(errors="backslashreplace"))
            if not is_stream(card):
                say(f"wrote {card}")
        elif name is not None:
            rows = [{"number": row.id, "photo": row.label, "digest": row.digest} for row in classifier.photos(name)]
            if json:
                print_json({**about, "class": name, "photos": rows})
            else:
                report.show_photos(name, rows)
        elif json:
            listed = {
                "classes": [asdict(row) for row in classifier.classes],
                "history": [asdict(row) for row in classifier.history],
                "evaluations": [asdict(row) for row in classifier.store.evaluations()],
            }
            print_json({**about, "made_with": classifier.store.meta, **listed})
        else:
            report.show_classes(classifier)


def evaluate(
    store: Path,
    photos: Path,
    /,
    *,
    unknown_rate: float = 0.05,
    reading: Reading = Reading(),  # noqa: B008
    wrong: Path | None = None,
    confusion: Path | None = None,
    html: Path | None = None,
    json: bool = False,
    on: str = "here",
    access: Access = Access(),  # noqa: B008
) -> None:
    """Measure a classifier on labelled photos; folders of classes that it does not know test its "unknown".

    Parameters
    ----------
    store
        The classifier's folder; the figures are kept there, for its card.
    photos
        A folder or a zip file that holds one folder of photos for each class; or a CSV file of paths and labels.
    unknown_rate
        The share of photos of known classes that may be called unknown.
    wrong
        Write the photos whose best guess was wrong into this file, as a table.
    confusion
        Write the confusion matrix into this file, as a table: a row per class, a column per best guess.
    html
        Write a page of all this into this file, with small copies of the photos whose best guess was wrong.
    json
        Print the figures as JSON.
    on
        Where photos are encoded, as in `concm fit`: `here`, `ray` or `ray://HOST:PORT`.
    """
    from concm.report.classifier import show_evaluation, write_confusion, write_wrong

    with access.open(store) as classifier:
        result = classifier.evaluate(photos, unknown_rate=unknown_rate, on=on, **asdict(reading))
    if wrong is not None:
        write_wrong(wrong, result)
    if confusion is not None:
        write_confusion(confusion, result)
    if html is not None:
        _write_page(html, store, result, photos, reading)
    for remark in classifier.remarks:
        complain(remark)
    if json:
        print_json(to_json(result))
    else:
        show_evaluation(result)


def _write_page(page: Path, store: Path, result: Evaluation, photos: Path, reading: Reading) -> None:
    from concm.classifier.photos import by_class, called
    from concm.files import write_whole
    from concm.report.evaluation import evaluation_page

    every = [photo for own in by_class(photos, taught=False, nested=reading.nested).values() for photo in own]
    pictures = {called(photo, at): photo for at, photo in enumerate(every)}
    text = evaluation_page(store.resolve().name, result, pictures)
    write_whole(page, text.encode(errors="backslashreplace"))


def check(store: Path, /, *, most: int = 10, json: bool = False, access: Access = Access()) -> None:  # noqa: B008
    """Say which classes need more photos, which photos are likely mislabelled or do harm, and what is confused.

    Parameters
    ----------
    store
        The classifier's folder; nothing in it is changed.
    most
        How many photos and confusions of each kind to list.
    json
        Print all that was found as JSON.
    """
    from concm.report.check import show_check

    at_least(1, most=most)
    with access.open(store) as classifier:
        found = classifier.check()
    if json:
        print_json(to_json(found))
    else:
        show_check(found, most)
