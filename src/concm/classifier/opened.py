"""A photo classifier that is opened: what it can be asked for, none of which changes what it knows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from concm.backbones.encoder import Encoder
from concm.classifier.album import Album
from concm.classifier.answers import UNKNOWN_RATE, Prediction, Predictions, check_rate, listed, many, whole
from concm.classifier.check import Check, check
from concm.classifier.elsewhere import Elsewhere
from concm.classifier.evaluation import Evaluation, evaluated
from concm.classifier.folder import KEPT, refuse_foreign
from concm.classifier.folders import Nested, beside
from concm.classifier.known import Known, threads
from concm.classifier.lesson import Lesson
from concm.classifier.made import Made
from concm.classifier.photos import Picture, by_class, printable
from concm.classifier.rows import ClassRow, VersionRow, state_file
from concm.classifier.sight import Sight
from concm.classifier.store import Store
from concm.classifier.stream import BATCH, Encoded, encoded, in_parts, in_piles
from concm.cluster import joined
from concm.data.images import Broken, BrokenPicture
from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse, loading, no_gpu
from concm.progress import track
from concm.records import from_json, to_json

OUT = "step back with undo; if another version of concm made the store, fit it again"
WAIT = 60.0
"""Seconds to wait for another process that is changing the store."""
Given = str | os.PathLike[str] | Mapping[str, Any]
"""A folder or a zip file of class folders, a CSV file of paths and labels, or pictures by class name."""


class Opened:
    """The store in a folder, if there is one, the network that sees photos, and the answers of the newest version."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        backbone: str | nn.Module | None = None,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        seed: int = 0,
        wait: float = WAIT,
        waiting: Callable[[], None] | None = None,
        blocks: int | None = None,
        looks: int | None = None,
        size: int | None = None,
    ) -> None:
        self.path, self._asked = Path(path), device
        self.device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        if device == "cuda" and self.device == "cpu":
            raise no_gpu()
        if not wait >= 0:
            raise Misuse(f"seconds to wait are a number from 0 on, not {wait}")
        if not 0 <= seed < 2**63:
            raise Misuse(f"a seed is a whole number from 0 to 2^63 − 1, not {seed}")
        self.seed, self._wait, self._waiting = seed, wait, waiting
        self._backbone, self._blocks, self._looks, self._size = backbone, blocks, looks, size
        self._store = self._found()
        if self._store is None:
            refuse_foreign(self.path)
        elif any(given is not None for given in (backbone, blocks, looks, size)):
            _ = self.encoder  # refuses a backbone or readings that are not the store's
        self._cached: Known | None = None
        self.remarks: list[str] = []

    def close(self) -> None:
        """Close the store's files; they are opened again when the classifier is used."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another process: where the store is and how it is opened; it is opened there anew."""
        how = {"device": self.device, "seed": self.seed, "wait": self._wait}
        readings = {"blocks": self._blocks, "looks": self._looks, "size": self._size}
        return {"path": self.path.absolute(), "backbone": self._backbone, **how, **readings}

    def __setstate__(self, how: dict[str, Any]) -> None:
        self.__init__(**how)  # type: ignore[misc]

    # State

    @property
    def store(self) -> Store:
        """The store on disk; it exists once the classifier is fitted."""
        if self._store is None and (found := self._found()) is not None:  # another process has made it
            self._store = found
            self.__dict__.pop("encoder", None)  # so that it is checked against the store's
        if self._store is None:
            raise Misuse(f"there is no store at {self.path} yet: fit it with two classes or more first")
        return self._store

    @property
    def classes(self) -> list[ClassRow]:
        """All classes, in the order in which they were learned."""
        return self.store.classes()

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The class names, in the order of `predict_proba`'s columns."""
        return np.array(self.known().engine.names)

    @property
    def history(self) -> list[VersionRow]:
        """The versions that led to the current one, oldest first."""
        return self.store.history()

    @property
    def version(self) -> int:
        """The current version."""
        return self.store.version

    # Prediction

    def predict(
        self,
        pictures: Picture | Sequence[Picture],
        *,
        unknown_rate: float = UNKNOWN_RATE,
        top: int = 5,
        broken: Broken | None = None,
    ) -> Predictions:
        """Say what each picture shows; at most about `unknown_rate` of photos of known classes are called unknown.

        What cannot be read of a folder is in the result's `failures`, and its `remarks` count what is no photo by its
        name. Of pictures that are listed one by one, each has an answer in its place, or an error is raised; `broken`
        chooses one or the other.
        """
        found = self.stream(listed(pictures), unknown_rate=unknown_rate, top=top)
        refuse = not many(pictures) if broken is None else broken == "refuse"
        return Predictions.of(map(whole, found) if refuse else found, pictures)

    def stream(
        self, pictures: Sequence[Picture], *, unknown_rate: float = UNKNOWN_RATE, top: int = 5
    ) -> Iterator[Prediction | BrokenPicture]:
        """Predict pictures one by one, always by the newest version; a picture that cannot be read gives its error."""
        check_rate(unknown_rate)
        if top < 1:
            raise Misuse(f"at least one guess must be asked for, not {top}")
        self.known()
        piles = in_piles(self.encoder, pictures, kept=False)
        if self.known().many:
            piles = in_parts(chain.from_iterable(piles), BATCH)
        found = chain.from_iterable(self._answers(pile, unknown_rate, top) for pile in piles)
        yield from track(found, "predicting", len(pictures))

    def _answers(
        self, pile: list[Encoded | BrokenPicture], unknown_rate: float, top: int
    ) -> Iterator[Prediction | BrokenPicture]:
        """Answers to photos that were encoded together: all at once, and again if a new version comes in between."""
        seen = [item for item in pile if isinstance(item, Encoded)]
        known, answers = None, dict[int, Prediction]()
        for item in pile:
            if isinstance(item, BrokenPicture):
                yield item
                continue
            if (now := self.known()) is not known:
                known, features = now, torch.stack([own.features for own in seen])
                found = now.predictions([own.name for own in seen], features, unknown_rate, top)
                answers = {id(own): answer for own, answer in zip(seen, found, strict=True)}
            yield answers[id(item)]

    def features(self, pictures: Picture | Sequence[Picture]) -> NDArray[np.float32]:
        """Features (n, d) of pictures by the store's backbone, for `concm.ConCM` or whatever else works on features."""
        items = [whole(item) for item in encoded(self.encoder, listed(pictures), kept=False, title="photos")]
        return np.array([item.features.numpy() for item in items], np.float32)

    def predict_proba(self, pictures: Picture | Sequence[Picture]) -> NDArray[np.float32]:
        """Probabilities (n, classes) in the order of `classes_`."""
        self.known()
        items = [whole(item) for item in encoded(self.encoder, listed(pictures), kept=False, title="predicting")]
        known = self.known()
        if not items:
            return np.zeros((0, len(known.engine.names)), np.float32)
        scores = known.scores(torch.stack([item.features for item in items]))
        return known.confidence.probabilities(scores).numpy()

    def evaluate(
        self,
        photos: Given,
        *,
        unknown_rate: float = UNKNOWN_RATE,
        broken: Broken = "refuse",
        nested: Nested = "refuse",
        on: str = "here",
    ) -> Evaluation:
        """Measure accuracy and confidence on labelled photos; those of unknown classes should be called unknown.

        `on` says where photos are encoded, as in `fit`.
        """
        check_rate(unknown_rate)
        self.known()
        lesson = self._remembered(by_class(photos, taught=False, nested=nested), broken, on)
        known = self.known()
        lesson = lesson.spelled(known.engine.names)
        result, said = evaluated(known, lesson, unknown_rate, self.store.taught(lesson.digests))
        source = "photos in memory" if isinstance(photos, Mapping) else printable(photos)
        self.remarks = beside(photos) + lesson.remarks + said
        try:
            self.store.keep_evaluation(known.version, source, to_json(result), self._waiting, self._wait)
        except ConcmError as error:  # the result is returned even if it cannot be stored
            self.remarks = [*self.remarks, f"the figures were not kept: {error}"]
        return result

    def check(self) -> Check:
        """What the taught photos say of each other: classes that need more, confused ones, and photos to look at.

        For each class there is the accuracy to be expected now and with more photos; photos that are likely mislabelled
        and those that do harm come with the worst first. Nothing is encoded, and nothing is changed.
        """
        known = self.known()
        return check(Album.of(self.store, known), known)

    def export(
        self, onnx: str | os.PathLike[str] | None = None, structure: str | os.PathLike[str] | None = None
    ) -> list[Path]:
        """Write the network as ONNX, and what it knows now as a structure file, beside it or at `structure`."""
        from concm.classifier import export

        if onnx is None and structure is None:
            raise Misuse("export writes an ONNX file, a structure file, or both: say where to")
        known, written = self.known(), list[Path]()
        what = known.engine, known.confidence, known.version
        if onnx is not None:
            export.write_onnx(Path(onnx), self.encoder, *what)
            written.append(Path(onnx))
        beside = Path(structure) if structure is not None else written[0].with_suffix(".structure.safetensors")
        export.write_structure(beside, Made.of(self.store).encoder, *what)
        return [*written, beside]

    def verify(self) -> list[str]:
        """What is damaged in the store, in sentences; an empty list means that every version is sound."""
        wrong = self.store.verify()
        try:
            Made.of(self.store).check(self.path / KEPT)
        except ConcmError as error:
            wrong.append(f"the backbone: {error}")
        return wrong

    def backup(self, destination: str | os.PathLike[str]) -> Path:
        """Make a consistent copy of the store in a new folder, while others go on predicting; not of a damaged one."""
        Made.of(self.store).check(self.path / KEPT)
        self.store.backup(Path(destination), self._waiting, self._wait)
        return Path(destination)

    def _remembered(self, groups: dict[str, list[Picture]], broken: Broken, on: str) -> Lesson:
        """Photos that are encoded only once, by workers if there are any; interrupted, the same call does the rest."""
        with joined(on) as cluster:
            elsewhere = None if cluster is None else Elsewhere(cluster, cluster.device(self._asked))
            return Lesson.of(self.encoder, groups, broken=broken, remember=True, elsewhere=elsewhere)

    # Internals

    def _found(self) -> Store | None:
        """The store if it was fitted; a store whose first version was interrupted does not count."""
        store = Store.open(self.path) if Store.exists(self.path) else None
        if store is not None and not store.version:
            store.close()
            return None
        return store

    @cached_property
    def encoder(self) -> Encoder:
        """The frozen backbone, checked to be the one that the store's features come from."""
        made = None if self._store is None else Made.of(self._store)
        return Sight(self.path, self._backbone, self._blocks, self._looks, self._size).encoder(made, self.device)

    def _load(self) -> Known:
        """The current version, read from the store."""
        while True:
            version = self.store.version
            (tensors, state), names = self.store.state(), [row.name for row in self.classes]
            if self.store.version == version:
                break
        file = state_file(self.path, version)
        with threads(len(names)), loading(file, "state of a classifier", OUT):
            engine = Engine(from_json(Settings, state["settings"]), seed=Made.of(self.store).seed, device=self.device)
            return Known.of(version, engine, tensors, names)

    def known(self) -> Known:
        """The current version, read again if another process has learned something since."""
        if self._cached is None or self._cached.version != self.store.version:
            self._cached = self._load()
        return self._cached
