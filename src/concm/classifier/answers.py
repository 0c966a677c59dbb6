"""Answers: what a classifier says of photos, and in which forms it is asked; without torch, as exported ones are."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from concm.classifier.archive import Zipped, is_zip
from concm.classifier.folders import left_out
from concm.classifier.photos import Picture, find_photos
from concm.data.images import BrokenPicture
from concm.errors import Misuse

UNKNOWN_RATE = 0.05
"""The share of photos of known classes that may be called unknown, unless another is asked for."""


@dataclass(frozen=True)
class Prediction:
    """What a photo shows, according to one version of a classifier.

    Attributes
    ----------
    label
        The class, or "unknown" if the photo is like none that is known.
    score
        The probability of the best guess.
    top
        The best guesses with their probabilities.
    unknown
        Whether the photo was called unknown.
    novel
        Whether the best guess is a class that was learned after the base classes.
    version
        The version of the classifier that said so.
    photo
        What the photo is called: its path, or its place among those given.
    familiarity
        The share of photos of known classes that look stranger than this one; a photo that is called unknown has less
        than the unknown rate that was asked for. None where so few photos were taught that nothing is called unknown.

    Examples
    --------
    >>> import concm
    >>> concm.Prediction("okapi", 0.9, [("okapi", 0.9), ("zebra", 0.1)], False, True, 2, "x.jpg").label
    'okapi'
    """

    label: str
    score: float
    top: list[tuple[str, float]]
    unknown: bool
    novel: bool
    version: int
    photo: str
    familiarity: float | None = None


class Predictions(list[Prediction]):
    """The answers of one call, the pictures that could not be read, and `remarks` on what is no picture by its name."""

    failures: list[BrokenPicture]
    remarks: list[str]

    @classmethod
    def of(cls, found: Iterable[Prediction | BrokenPicture], pictures: object) -> Predictions:
        """Answers and failures apart; `pictures` are what was asked about."""
        every = list(found)
        answers = cls(item for item in every if isinstance(item, Prediction))
        answers.failures = [item for item in every if isinstance(item, BrokenPicture)]
        answers.remarks = left_out([pictures])
        return answers


def share_below(own: float, usual: Sequence[float]) -> float | None:
    """The share of known photos that look stranger, by the familiarity `usual` at equal steps; none without."""
    return bisect_right(usual, own) / len(usual) if usual else None


def check_rate(rate: float) -> None:
    """Refuse a rate of unknown photos that is no share."""
    if not 0 <= rate < 1:
        raise Misuse(f"the unknown rate is a share of photos, at least 0 and below 1, not {rate}")


def listed(pictures: Picture | Sequence[Picture]) -> list[Picture]:
    """Pictures as a list, whatever one or several were given as; a tensor counts as its array."""
    if callable(array := getattr(pictures, "numpy", None)):
        pictures = array()
    if isinstance(pictures, str | os.PathLike):
        return list(find_photos([pictures]))
    if isinstance(pictures, np.ndarray) and pictures.ndim == 4:
        return list(pictures)
    if isinstance(pictures, bytes | Image.Image | np.ndarray | Zipped):
        return [pictures]
    return list(pictures)


def many(pictures: Any) -> bool:
    """Whether this is a folder, a zip or a glob, of which nobody knows beforehand what is in it."""
    return isinstance(pictures, str | os.PathLike) and (is_zip(pictures) or not os.path.isfile(pictures))


def whole(item: Any) -> Any:
    """The item, unless it is a picture that could not be read."""
    if isinstance(item, BrokenPicture):
        raise item
    return item
