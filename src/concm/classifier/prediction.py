"""What a classifier says of a photo, and what it knows at one version to say so."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from concm.classifier.archive import Zipped, is_zip
from concm.classifier.confidence import Confidence
from concm.classifier.photos import UNKNOWN, Picture, find_photos
from concm.classifier.stream import BATCH
from concm.data.images import BrokenPicture
from concm.engine.concm import Engine
from concm.engine.head import Head
from concm.errors import ConcmError, Misuse
from concm.files import all_finite

FEW = 4096
"""Classes up to which photos are scored one by one."""


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
        than the unknown rate that was asked for.

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
    familiarity: float = 1.0


class Predictions(list[Prediction]):
    """The answers of one call, and the pictures that could not be read."""

    failures: list[BrokenPicture]

    @classmethod
    def of(cls, found: Iterable[Prediction | BrokenPicture]) -> Predictions:
        """Answers and failures apart."""
        every = list(found)
        answers = cls(item for item in every if isinstance(item, Prediction))
        answers.failures = [item for item in every if isinstance(item, BrokenPicture)]
        return answers


@dataclass(frozen=True)
class Known:
    """The engine and confidence of one version."""

    version: int
    engine: Engine
    head: Head
    confidence: Confidence
    _thresholds: dict[float, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, version: int, engine: Engine, tensors: Mapping[str, Tensor], names: Sequence[str]) -> Known:
        """What the tensors of a state say, tried out; one whose parts do not fit each other, or `names`, is refused."""
        for name, value in tensors.items():
            if not all_finite(value):
                raise ValueError(f"{name} has values that are no numbers")
        engine.load_state_dict(under(tensors, "engine."))
        memory, classes = engine.memory, len(names)
        if engine.names != list(names) or len(memory.mean) != classes or not 0 <= memory.base <= classes:
            raise ValueError("it has other classes than the database")
        if memory.labels.numel() and not 0 <= int(memory.labels.min()) <= int(memory.labels.max()) < classes:
            raise ValueError("it has exemplars of classes that there are not")
        held = memory.held_labels
        if held.numel() and not 0 <= int(held.min()) <= int(held.max()) < memory.base:
            raise ValueError("it has held out photos of classes that there are not")
        if (
            len(memory.held) != len(held)
            or len(memory.apart) != memory.base
            or len(memory.exemplars) != len(memory.labels)
        ):
            raise ValueError("its memory has photos without a class")
        confidence = Confidence.read(under(tensors, "confidence."))
        known = cls(version, engine, engine.head, confidence)
        scores = known.scores(torch.ones(1, known.dimension))
        if scores.shape != (1, classes) or not confidence.familiarity(scores).isfinite().all():
            raise ValueError("it gives no scores")
        return known

    @property
    def dimension(self) -> int:
        """Dimensions of the features that it takes."""
        return sum(len(matrix) for matrix in self.head.metric) or self.head.inner_weight.shape[-1]

    def scores(self, features: Tensor) -> Tensor:
        """Scores (n, classes), on the CPU."""
        if features.shape[1] != self.dimension:
            raise ConcmError(f"this store knows features of {self.dimension} dimensions, not of {features.shape[1]}")
        return self.head(features.to(self.engine.device)).cpu()

    @property
    def pile(self) -> int:
        """How many photos are best scored together: with many classes, their prototypes are then read only once."""
        return 1 if len(self.engine.names) <= FEW else BATCH

    def predictions(self, photos: Sequence[str], features: Tensor, unknown_rate: float, top: int) -> list[Prediction]:
        """What each photo with these features (n, d) shows."""
        scores = self.scores(features)
        probabilities = self.confidence.probabilities(scores)
        familiar = self.confidence.familiarity(scores).tolist()
        best = probabilities.topk(min(top, probabilities.shape[1]))
        names, base, threshold = self.engine.names, self.engine.memory.base, self._threshold(unknown_rate)
        found = []
        for photo, own, at, values in zip(photos, familiar, best.indices.tolist(), best.values.tolist(), strict=True):
            guesses = [(names[label], value) for label, value in zip(at, values, strict=True)]
            found.append(
                Prediction(
                    label=UNKNOWN if own < threshold else guesses[0][0],
                    score=guesses[0][1],
                    top=guesses,
                    unknown=own < threshold,
                    novel=at[0] >= base,
                    version=self.version,
                    photo=photo,
                    familiarity=bisect_right(self._usual, own) / len(self._usual),
                )
            )
        return found

    def prediction(self, photo: str, features: Tensor, unknown_rate: float, top: int) -> Prediction:
        """What a photo with these features (d,) shows."""
        return self.predictions([photo], features[None], unknown_rate, top)[0]

    def _threshold(self, rate: float) -> float:
        """The familiarity below which photos are unknown, found once for each rate."""
        if rate not in self._thresholds:
            self._thresholds[rate] = self.confidence.threshold(rate)
        return self._thresholds[rate]

    @cached_property
    def _usual(self) -> list[float]:
        """The familiarity that 1, 2, … 100 % of known photos do not reach."""
        return [self.confidence.threshold(percent / 100) for percent in range(1, 101)]


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
