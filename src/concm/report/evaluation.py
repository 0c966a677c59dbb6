"""An evaluation as one HTML page: figures, accuracy per class, what is confused, and the photos that went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath

from concm.classifier.evaluation import Evaluation, Wrong
from concm.classifier.photos import Photo, Picture
from concm.data.images import BrokenPicture
from concm.report.classifier import figures
from concm.report.page import Chapter, Shown, render

MOST_PHOTOS = 300
MOST_CLASSES = 30
"""Classes of the confusion matrix, those that take part in most mistakes: a larger one shows nothing."""
SIDE = 160


def evaluation_page(title: str, result: Evaluation, pictures: Mapping[str, Picture]) -> str:
    """The page as text; `pictures` has the photos by their names: small copies of the wrong ones are put into it."""
    lead = f"Version {result.version} on {result.photos} photos of known classes; {result.classes} classes are known."
    chapters = [
        Chapter("Figures", table=(("figure", "value"), *figures(result))),
        Chapter("Every class", "The worst first.", table=_classes(result)),
        *_confusion(result),
        *_wrong(result, pictures),
    ]
    return render(f"{title}, measured", lead, chapters)


def _classes(result: Evaluation) -> tuple[tuple[str, ...], ...]:
    order = sorted(result.by_class.items(), key=lambda item: (item[1][0] / item[1][1], item[0]))
    rows = [(name, f"{100 * right / count:.0f} %", f"{right} of {count}") for name, (right, count) in order]
    return (("class", "right", "photos"), *rows)


def _confusion(result: Evaluation) -> list[Chapter]:
    """The confusion matrix of the classes that take part in most mistakes."""
    if not result.confused:
        return []
    often = Counter[str]()
    for one, other, count in result.confused:
        often[one] += count
        often[other] += count
    names = [name for name, _ in often.most_common(MOST_CLASSES)]
    taken = {(one, other): count for one, other, count in result.confused}
    taken |= {(name, name): right for name, (right, _) in result.by_class.items()}
    rows = [
        (f"{at}. {name}", *(str(taken.get((name, other), "")) for other in names))
        for at, name in enumerate(names, 1)
        if name in result.by_class
    ]
    left = len(often) - len(names)
    more = f" Of the {len(often)} classes that are confused, the {MOST_CLASSES} most often." if left else ""
    text = f"A row per class, a column per best guess, under the number of its class.{more}"
    return [Chapter("Confusion matrix", text, table=(("class", *map(str, range(1, len(names) + 1))), *rows))]


def _wrong(result: Evaluation, pictures: Mapping[str, Picture]) -> list[Chapter]:
    shown = []
    for wrong in sorted(result.wrong, key=lambda one: (one.truth, one.guess, -one.score))[:MOST_PHOTOS]:
        small = _small(wrong, pictures)
        if small is not None:
            file = PurePath(wrong.photo).name
            shown.append(Shown(small, truth=wrong.truth, said=wrong.guess, score=wrong.score, right=False, file=file))
    if not shown:
        return []
    text = f"{len(shown)} of {len(result.wrong)} photos whose best guess was wrong." if result.wrong else ""
    return [Chapter("Wrong photos", text, shown=tuple(shown))]


def _small(wrong: Wrong, pictures: Mapping[str, Picture]) -> bytes | None:
    """A small copy, made anew; a photo that is not there any more has none."""
    try:
        picture = pictures.get(wrong.photo)
        return None if picture is None else Photo.read(picture, SIDE, wrong.photo).thumbnail()
    except BrokenPicture:
        return None
