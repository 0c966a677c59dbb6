"""A photo classifier in a folder: it knows classes, learns new ones from a few photos, and predicts.

    zoo = concm.Classifier("zoo")
    zoo.fit("photos/base")
    zoo.learn({"okapi": ["a.jpg", "b.jpg", "c.jpg"]})
    zoo.predict(["x.jpg"])

Every change makes one version of the store behind it, so nothing half-learned is ever seen, and `undo` steps back.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concm import __version__, backbones
from concm.backbones import encoder as encoders
from concm.backbones.encoder import Encoder
from concm.classifier.change import Change
from concm.classifier.confidence import Usual
from concm.classifier.evaluation import Evaluation
from concm.classifier.evaluation import evaluate as measure
from concm.classifier.folder import refuse_foreign, refuse_unwritable
from concm.classifier.lesson import Lesson
from concm.classifier.made import Made
from concm.classifier.photos import UNKNOWN, Picture, by_class, printable
from concm.classifier.prediction import Known, Prediction, check_rate, listed, whole
from concm.classifier.rehearsal import rehearse
from concm.classifier.rows import ClassRow, VersionRow, state_file
from concm.classifier.store import Store
from concm.classifier.stream import encoded
from concm.data.images import Broken, BrokenPicture
from concm.data.scenarios import natural
from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse, loading
from concm.files import content_digest
from concm.records import from_json, to_json

BACKBONE = "efficientnet_lite0"
UNKNOWN_RATE = 0.05
Given = str | os.PathLike[str] | Mapping[str, Any]
"""A folder of class folders, or pictures by class name."""


class Classifier:
    """A photo classifier that lives in a folder; it is opened if it exists, and made by `fit` if it does not.

    Parameters
    ----------
    path
        The folder that holds all that the classifier knows.
    backbone
        The frozen network that sees the photos: one that comes with weights (see `concm backbones`), a run folder of
        `concm train`, or `package.module:factory`. A store knows its own; only code of yours must be named each time.
    device
        Where it computes; a GPU if there is one, unless you say otherwise.
    seed
        Seed of all random choices.
    wait
        Seconds to wait for another process that is changing the store.
    waiting
        A function that is called when such a wait begins.

    Examples
    --------
    >>> import numpy, concm
    >>> random = numpy.random.default_rng(0)
    >>> def photos(colour, count=5):
    ...     return [(colour + random.integers(0, 60, (64, 64, 3))).astype("uint8") for _ in range(count)]
    >>> zoo = concm.Classifier("zoo")
    >>> zoo = zoo.fit({"red": photos([190, 0, 0]), "blue": photos([0, 0, 190])})
    >>> zoo = zoo.learn({"green": photos([0, 190, 0])})
    >>> zoo.predict(photos([0, 190, 0], 1), unknown_rate=0)[0].label
    'green'
    >>> zoo.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        backbone: str | None = None,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        seed: int = 0,
        wait: float = 60.0,
        waiting: Callable[[], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self.device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        if device == "cuda" and self.device == "cpu":
            raise Misuse("device cuda, but torch sees no GPU here")
        if not wait >= 0:
            raise Misuse(f"seconds to wait are a number from 0 on, not {wait}")
        if not 0 <= seed < 2**63:
            raise Misuse(f"a seed is a whole number from 0 to 2^63 − 1, not {seed}")
        self.seed, self._wait, self._waiting = seed, wait, waiting
        self._backbone = backbone
        self._store = self._found()
        if self._store is None:
            refuse_foreign(self.path)
        elif backbone is not None:
            _ = self._encoder  # refuses a backbone that is not the store's
        self._cached: Known | None = None
        self.remarks: list[str] = []

    def close(self) -> None:
        """Close the store's files; they are opened again when the classifier is used."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def __enter__(self) -> Classifier:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # State

    @property
    def store(self) -> Store:
        """The store on disk; it exists once the classifier is fitted."""
        if self._store is None and (found := self._found()) is not None:  # another process has made it
            self._store = found
            self.__dict__.pop("_encoder", None)  # so that it is checked against the store's
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
        return np.array(self._known().engine.names)

    @property
    def history(self) -> list[VersionRow]:
        """The versions that led to the current one, oldest first."""
        return self.store.history()

    @property
    def version(self) -> int:
        """The current version."""
        return self.store.version

    # Learning

    def fit(self, photos: Given, *, broken: Broken = "refuse", settings: Settings | None = None) -> Classifier:
        """Make the store from the base classes, from which metric, attributes and confidence are learned.

        Without `settings` they are chosen by rehearsing later sessions on the base classes.
        """
        if (found := self._found()) is not None:
            found.close()
            raise Misuse(f"the store at {self.path} is fitted already: teach it more with learn, or use another folder")
        refuse_unwritable(self.path)
        groups = by_class(photos)
        if len(groups) < 2:
            raise Misuse(f"fit needs two classes or more, and there is only {next(iter(groups))!r}")
        lesson = Lesson.of(self._encoder, groups, broken=broken, remember=True)
        base = lesson.base_session()
        unseen = self._encoder.meta.get("recipe") is None
        plan = rehearse(base, settings, unseen=unseen, seed=self.seed, device=self.device)
        engine = Engine(plan.settings, seed=self.seed, device=self.device)
        engine.fit_base(base)
        store = Store.create(self.path, self._meta(), self._waiting, self._wait)
        if not unseen:
            self._encoder.save(self.path / "backbone.safetensors")
        with store.writing(self._waiting, self._wait) as change:
            change.describe(self._meta())
            self._write(change, lesson, new=list(lesson.photos), base=True)
            self._commit(change, "fit", str(lesson), engine, plan.usual, first=True)
        store.close()
        self._store = Store.open(self.path)
        self.remarks = lesson.remarks + plan.remarks + engine.remarks
        return self

    def learn(self, photos: Given, *, broken: Broken = "refuse") -> Classifier:
        """Learn new classes, and improve known ones for which there are more photos now: one session, one version."""
        store = self.store
        lesson = Lesson.of(self._encoder, by_class(photos), broken=broken)
        with store.writing(self._waiting, self._wait) as change:
            known = self._load()
            lesson = lesson.unless(change.has_photo, broken)
            engine, names, said = known.engine, known.engine.names, len(known.engine.remarks)
            new = [name for name in lesson.photos if name not in names]
            more = {names.index(name): self._all_photos(name, lesson) for name in lesson.photos if name in names}
            if more:
                engine.revise({label: (features, None) for label, features in more.items()})
            if new:
                engine.learn(lesson.only(new).session(len(store.history()), len(names)))
            self._write(change, lesson, new=new, base=False)
            self._commit(change, "learn", str(lesson), engine, known.confidence.usual)
        self.remarks = lesson.remarks + engine.remarks[said:]
        return self

    def forget(self, name: str) -> Classifier:
        """Drop a class; `undo` brings it back."""
        with self.store.writing(self._waiting, self._wait) as change:
            known = self._load()
            normal = unicodedata.normalize("NFC", name)
            name = normal if normal in known.engine.names else name  # older stores have names as they were typed
            change.remove_class(name)
            if len(known.engine.names) <= 2:
                raise Misuse(f"{name!r} is one of the last two classes, and a classifier has two at least")
            label = known.engine.names.index(name)
            usual = known.confidence.without(label)
            known.engine.forget(label)
            self._commit(change, "forget", name, known.engine, usual)
        return self

    def undo(self) -> VersionRow:
        """Step back to exactly the version before."""
        return self.store.undo(self._waiting, self._wait)

    # Prediction

    def predict(
        self, pictures: Picture | Sequence[Picture], *, unknown_rate: float = UNKNOWN_RATE, top: int = 5
    ) -> list[Prediction]:
        """Say what each picture shows; at most about `unknown_rate` of photos of known classes are called unknown."""
        return [whole(item) for item in self.stream(listed(pictures), unknown_rate=unknown_rate, top=top)]

    def stream(
        self, pictures: Sequence[Picture], *, unknown_rate: float = UNKNOWN_RATE, top: int = 5
    ) -> Iterator[Prediction | BrokenPicture]:
        """Predict pictures one by one, always by the newest version; a picture that cannot be read gives its error."""
        check_rate(unknown_rate)
        if top < 1:
            raise Misuse(f"at least one guess must be asked for, not {top}")
        self._known()
        for item in encoded(self._encoder, pictures, thumbnails=False, title="predicting"):
            if isinstance(item, BrokenPicture):
                yield item
                continue
            known = self._known()
            scores = known.scores(item.features[None])
            probabilities = known.confidence.probabilities(scores)[0]
            strange = bool(known.confidence.familiarity(scores)[0] < known.confidence.threshold(unknown_rate))
            best = probabilities.topk(min(top, len(probabilities)))
            names = known.engine.names
            guesses = [(names[at], float(p)) for at, p in zip(best.indices.tolist(), best.values, strict=True)]
            yield Prediction(
                label=UNKNOWN if strange else guesses[0][0],
                score=guesses[0][1],
                top=guesses,
                unknown=strange,
                novel=int(best.indices[0]) >= known.engine.memory.base,
                version=known.version,
                photo=item.name,
            )

    def predict_proba(self, pictures: Picture | Sequence[Picture]) -> NDArray[np.float32]:
        """Probabilities (n, classes) in the order of `classes_`."""
        self._known()
        items = [whole(item) for item in encoded(self._encoder, listed(pictures), thumbnails=False, title="predicting")]
        known = self._known()
        if not items:
            return np.zeros((0, len(known.engine.names)), np.float32)
        scores = known.scores(torch.stack([item.features for item in items]))
        return known.confidence.probabilities(scores).numpy()

    def evaluate(self, photos: Given, *, unknown_rate: float = UNKNOWN_RATE, broken: Broken = "refuse") -> Evaluation:
        """Measure accuracy and confidence on labelled photos; those of unknown classes should be called unknown."""
        check_rate(unknown_rate)
        self._known()
        groups = by_class(photos, taught=False)
        lesson = Lesson.of(self._encoder, groups, broken=broken, remember=True, distinct=False)
        known = self._known()
        names, base = known.engine.names, known.engine.memory.base
        scores = known.scores(lesson.features)
        result = measure(scores, lesson.truth, names, base, known.confidence, unknown_rate, known.version)
        source = "photos in memory" if isinstance(photos, Mapping) else printable(photos)
        self.remarks = lesson.remarks
        try:
            self.store.keep_evaluation(known.version, source, to_json(result), self._waiting, self._wait)
        except ConcmError as error:  # the result is returned even if it cannot be stored
            self.remarks = [*self.remarks, f"the figures were not kept: {error}"]
        return result

    def export(
        self, onnx: str | os.PathLike[str] | None = None, structure: str | os.PathLike[str] | None = None
    ) -> list[Path]:
        """Write the network as ONNX, and what it knows now as a structure file, beside it or at `structure`."""
        from concm.classifier import export

        if onnx is None and structure is None:
            raise Misuse("export writes an ONNX file, a structure file, or both: say where to")
        known, written = self._known(), list[Path]()
        if onnx is not None:
            export.write_onnx(Path(onnx), self._encoder, known.engine, known.confidence, known.version)
            written.append(Path(onnx))
        beside = Path(structure) if structure is not None else written[0].with_suffix(".structure.safetensors")
        export.write_structure(beside, known.engine, known.confidence, known.version)
        return [*written, beside]

    def verify(self) -> list[str]:
        """What is damaged in the store, in sentences; an empty list means that every version is sound."""
        return self.store.verify()

    def backup(self, destination: str | os.PathLike[str]) -> Path:
        """Make a consistent copy of the store in a new folder, while others go on predicting."""
        self.store.backup(Path(destination), self._waiting, self._wait)
        return Path(destination)

    # Internals

    def _found(self) -> Store | None:
        """The store if it was fitted; a store whose first version was interrupted does not count."""
        store = Store.open(self.path) if Store.exists(self.path) else None
        if store is not None and not store.version:
            store.close()
            return None
        return store

    @cached_property
    def _encoder(self) -> Encoder:
        """The frozen backbone, checked to be the one that the store's features come from."""
        reference = self._backbone or BACKBONE
        made = None if self._store is None else Made.of(self._store)
        if made is not None:
            own = self.path / "backbone.safetensors"
            named = self._backbone is not None and ":" in self._backbone
            if own.exists() and (named or self._backbone is None):
                made.check(own)
                reference = f"{self._backbone}@{own}" if named else str(own)
            elif self._backbone is None:
                reference = backbones.registered(made.backbone).name
        with torch.random.fork_rng(devices=[]):
            encoder = encoders.load_encoder(reference, natural(224)).to(torch.device(self.device))
        if made is not None and encoder.identity != made.encoder:
            raise Misuse(
                f"the store at {self.path} was made with {made.encoder.name} of weights {made.encoder.weights}; "
                f"{reference} has weights {encoder.weights}, or another transform of pictures"
            )
        return encoder

    def _meta(self) -> dict[str, Any]:
        own = self.path / "backbone.safetensors"
        file = content_digest(own.read_bytes()) if own.is_file() else None
        return to_json(Made(self._encoder.name, self._encoder.identity, self.seed, __version__, file))

    def _all_photos(self, name: str, lesson: Lesson) -> Tensor:
        """Features (n, d) of a known class's photos, old and new."""
        old = [photo.features[0] for photo in self.store.photos(name)]
        new = [item.features for item in lesson.photos[name]]
        if any(features.shape != new[0].shape for features in old):
            raise ConcmError(f"the photos of {name!r} in {self.path} are of another backbone; use a copy of the folder")
        return torch.stack(old + new)

    def _write(self, change: Change, lesson: Lesson, *, new: list[str], base: bool) -> None:
        for name in new:
            change.add_class(name, base)
        for name, items in lesson.photos.items():
            for item in items:
                change.add_photo(name, os.path.basename(item.name), item.digest, item.features[None], item.thumbnail)

    def _commit(
        self, change: Change, action: str, detail: str, engine: Engine, usual: Usual, first: bool = False
    ) -> None:
        tensors = {f"engine.{name}": value for name, value in engine.state_dict().items()}
        tensors |= {f"confidence.{name}": value for name, value in usual.tensors().items()}
        lasting = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_LASTING)}
        state = {"settings": to_json(engine.settings)}
        change.commit(action, detail, tensors, state, lasting=lasting if first else None, names=engine.names)

    def _load(self) -> Known:
        """The current version, read from the store."""
        while True:
            version = self.store.version
            (tensors, state), names = self.store.state(), [row.name for row in self.classes]
            if self.store.version == version:
                break
        with loading(state_file(self.path, version), "state of a classifier", "step back with undo"):
            engine = Engine(from_json(Settings, state["settings"]), seed=Made.of(self.store).seed, device=self.device)
            return Known.of(version, engine, tensors, names)

    def _known(self) -> Known:
        """The current version, read again if another process has learned something since."""
        if self._cached is None or self._cached.version != self.store.version:
            self._cached = self._load()
        return self._cached


_LASTING = ("engine.metric", "engine.calibrator.")
