"""What a classifier says of a photo, and what it knows at one version to say so."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from concm.classifier.confidence import Confidence
from concm.classifier.photos import Picture, find_photos
from concm.data.images import BrokenPicture
from concm.engine.concm import Engine
from concm.engine.head import Head
from concm.errors import Misuse


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


@dataclass(frozen=True)
class Known:
    """The engine and confidence of one version."""

    version: int
    engine: Engine
    head: Head
    confidence: Confidence

    def scores(self, features: Tensor) -> Tensor:
        """Scores (n, classes), on the CPU."""
        return self.head(features.to(self.engine.device)).cpu()


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def check_rate(rate: float) -> None:
    """Refuse a rate of unknown photos that is no share."""
    if not 0 <= rate < 1:
        raise Misuse(f"the unknown rate is a share of photos, at least 0 and below 1, not {rate}")


def listed(pictures: Picture | Sequence[Picture] | Tensor) -> list[Picture]:
    """Pictures as a list, whatever one or several were given as."""
    if isinstance(pictures, Tensor):
        pictures = pictures.numpy()
    if isinstance(pictures, str | os.PathLike):
        return list(find_photos([pictures]))
    if isinstance(pictures, np.ndarray) and pictures.ndim == 4:
        return list(pictures)
    if isinstance(pictures, bytes | Image.Image | np.ndarray):
        return [pictures]
    return list(pictures)


def whole(item: Any) -> Any:
    """The item, unless it is a picture that could not be read."""
    if isinstance(item, BrokenPicture):
        raise item
    return item
