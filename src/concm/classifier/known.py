"""What is known at one version of a classifier, and what it says of a photo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from concm.backbones.cores import one_thread
from concm.classifier.answers import Prediction, share_below
from concm.classifier.confidence import Confidence
from concm.classifier.photos import UNKNOWN
from concm.classifier.shortlist import Shortlist
from concm.engine.concm import Engine
from concm.engine.head import Head
from concm.errors import ConcmError
from concm.files import all_finite

FEW = 4096
"""Classes up to which loading a state and scoring photos is too little work for several threads."""


def threads(classes: int) -> AbstractContextManager[None]:
    """As many threads as so many classes are worth."""
    return nullcontext() if classes > FEW else one_thread()


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
        if len(confidence.offset) not in (0, classes):
            raise ValueError("it says what is usual in other classes than it has")
        if scores.shape != (1, classes) or not confidence.familiarity(scores).isfinite().all():
            raise ValueError("it gives no scores")
        return known

    @property
    def dimension(self) -> int:
        """Dimensions of the features that it takes."""
        return sum(matrix.shape[1] for matrix in self.head.metric) or self.head.inner_weight.shape[-1]

    def scores(self, features: Tensor) -> Tensor:
        """Scores (n, classes), on the CPU."""
        if features.shape[1] != self.dimension:
            raise ConcmError(f"this store knows features of {self.dimension} dimensions, not of {features.shape[1]}")
        return self.head(features.to(self.engine.device)).cpu()

    @property
    def many(self) -> bool:
        """Whether there are so many classes that their prototypes should be read once for many photos."""
        return len(self.engine.names) > FEW

    def predictions(self, photos: Sequence[str], features: Tensor, unknown_rate: float, top: int) -> list[Prediction]:
        """What each photo with these features (n, d) shows."""
        with threads(len(self.engine.names)):
            scores = self.scores(features) if self._shortlist is None else self._shortlist.scores(features)
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
                    familiarity=share_below(own, self._usual),
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
    def _shortlist(self) -> Shortlist | None:
        """What makes scores against very many classes faster, where it does."""
        return Shortlist(self.head) if self.many and Shortlist.helps(self.head) else None

    @cached_property
    def _usual(self) -> list[float]:
        """The familiarity that 1, 2, … 100 % of known photos do not reach; nothing where that is not known."""
        return [self.confidence.threshold(percent / 100) for percent in range(1, 101) if self.confidence.enough]


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
