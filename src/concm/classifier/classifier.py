"""A photo classifier in a folder: it knows classes, learns new ones from a few photos, and predicts.

    zoo = concm.Classifier("zoo")
    zoo.fit("photos/base")
    zoo.learn({"okapi": ["a.jpg", "b.jpg", "c.jpg"]})
    zoo.predict(["x.jpg"])

Every change makes one version of the store behind it, so nothing half-learned is ever seen, and `undo` steps back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from concm import __version__
from concm.backbones.cores import one_thread
from concm.backbones.encoder import Encoder
from concm.classifier.album import Album
from concm.classifier.change import Change
from concm.classifier.check import Check, check
from concm.classifier.confidence import ENOUGH, TOO_FEW, Confidence
from concm.classifier.corrections import Chosen, Correction
from concm.classifier.duplicates import Duplicates, check_duplicates, not_removed, only_new
from concm.classifier.elsewhere import Elsewhere
from concm.classifier.evaluation import Evaluation, remarks
from concm.classifier.evaluation import evaluate as measure
from concm.classifier.folder import KEPT, refuse_foreign, refuse_unwritable
from concm.classifier.folders import Nested, Similar, almost_the_same, beside, refuse_similar
from concm.classifier.lesson import Lesson
from concm.classifier.made import Made
from concm.classifier.photos import NO_PHOTOS, Picture, by_class, checked_name, printable, spelling
from concm.classifier.prediction import Known, Prediction, Predictions, check_rate, listed, many, threads, whole
from concm.classifier.rehearsal import Plan, rehearse
from concm.classifier.rows import ClassRow, PhotoRow, VersionRow, state_file
from concm.classifier.sight import Sight
from concm.classifier.store import Store
from concm.classifier.stream import BATCH, Encoded, encoded, in_parts, in_piles
from concm.cluster import joined
from concm.data.images import Broken, BrokenPicture
from concm.engine.concm import Engine
from concm.engine.operating import Lean
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse, loading
from concm.features.sessions import Session
from concm.files import content_digest
from concm.progress import steps, track
from concm.records import from_json, to_json

UNKNOWN_RATE = 0.05
FEW = 5000
"""Photos up to which a store is fitted on one thread: where cores are shared, more wait longer than they compute."""
Given = str | os.PathLike[str] | Mapping[str, Any]
"""A folder or a zip file of class folders, a CSV file of paths and labels, or pictures by class name."""


class Classifier:
    """A photo classifier that lives in a folder; it is opened if it exists, and made by `fit` if it does not.

    Parameters
    ----------
    path
        The folder that holds all that the classifier knows.
    backbone
        The frozen network that sees the photos: one that comes with weights (see `concm backbones`), a run folder of
        `concm train`, `timm:NAME`, `hf-hub:OWNER/NAME` or `local-dir:FOLDER`, an ONNX file, a module, or code as
        `package.module:factory` or `file.py:factory`. A store knows its own, or keeps it; only an ONNX file, a module
        and code must be given each time.
    device
        Where it computes; a GPU if there is one, unless you say otherwise.
    seed
        Seed of all random choices.
    wait
        Seconds to wait for another process that is changing the store.
    waiting
        A function that is called when such a wait begins.
    blocks, looks
        How photos are read, for `fit`: how many of the network's last blocks (2 of EfficientNet-Lite, else 1), and how
        many looks at a photo are averaged (1; 2 adds its mirror image, up to 10 add shifts), each a forward pass. A
        store knows its own.

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
        backbone: str | nn.Module | None = None,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        seed: int = 0,
        wait: float = 60.0,
        waiting: Callable[[], None] | None = None,
        blocks: int | None = None,
        looks: int | None = None,
    ) -> None:
        self.path, self._asked = Path(path), device
        self.device = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        if device == "cuda" and self.device == "cpu":
            raise Misuse("device cuda, but torch sees no GPU here")
        if not wait >= 0:
            raise Misuse(f"seconds to wait are a number from 0 on, not {wait}")
        if not 0 <= seed < 2**63:
            raise Misuse(f"a seed is a whole number from 0 to 2^63 − 1, not {seed}")
        self.seed, self._wait, self._waiting = seed, wait, waiting
        self._backbone, self._blocks, self._looks = backbone, blocks, looks
        self._store = self._found()
        if self._store is None:
            refuse_foreign(self.path)
        elif any(given is not None for given in (backbone, blocks, looks)):
            _ = self._encoder  # refuses a backbone or readings that are not the store's
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

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another process: where the store is and how it is opened; it is opened there anew."""
        how = {"device": self.device, "seed": self.seed, "wait": self._wait, "blocks": self._blocks}
        return {"path": self.path.absolute(), "backbone": self._backbone, "looks": self._looks, **how}

    def __setstate__(self, how: dict[str, Any]) -> None:
        self.__init__(**how)  # type: ignore[misc]

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
        return np.array(self.known().engine.names)

    @property
    def history(self) -> list[VersionRow]:
        """The versions that led to the current one, oldest first."""
        return self.store.history()

    @property
    def version(self) -> int:
        """The current version."""
        return self.store.version

    # Learning

    def fit(
        self,
        photos: Given,
        labels: None = None,
        *,
        broken: Broken = "refuse",
        duplicates: Duplicates = "refuse",
        nested: Nested = "refuse",
        similar_names: Similar = "refuse",
        lean: Lean = "even",
        settings: Settings | None = None,
        on: str = "here",
    ) -> Classifier:
        """Make the store from the base classes, from which metric, kinship of names and confidence are learned.

        Where base and new classes compete, `lean` says what counts: accuracy over all classes (base), the harmonic mean
        of both kinds (novel), or both alike. Without `settings`, how far names are trusted is rehearsed. `on` says
        where photos are encoded: `here`, or on the workers of `ray` or `ray://HOST:PORT`, by the same paths.
        """
        if labels is not None:  # as estimators take them
            raise Misuse(NO_PHOTOS)
        check_duplicates(duplicates)
        if (found := self._found()) is not None:
            found.close()
            raise Misuse(f"the store at {self.path} is fitted already: teach it more with learn, or use another folder")
        refuse_unwritable(self.path)
        groups = by_class(photos, nested=nested)
        refuse_similar(groups, (), similar_names)
        if len(groups) < 2:
            raise Misuse(f"fit needs two classes or more, and there is only {next(iter(groups))!r}")
        lesson = only_new(self._remembered(groups, broken, on), duplicates)
        if lost := groups.keys() - lesson.photos.keys():
            raise ConcmError(f"class {min(lost)!r} has no photo left that can be used")
        with one_thread() if len(lesson.names) <= FEW else nullcontext():
            engine, confidence = self._fitted(lesson, lean, settings)
        self.remarks = beside(photos) + lesson.remarks + engine.remarks + self._licence()
        if not confidence.enough:
            self.remarks.append(TOO_FEW)
        return self

    def _remembered(self, groups: dict[str, list[Picture]], broken: Broken, on: str) -> Lesson:
        """Photos that are encoded only once, by workers if there are any; interrupted, the same call does the rest."""
        with joined(on) as cluster:
            elsewhere = None if cluster is None else Elsewhere(cluster, cluster.device(self._asked))
            return Lesson.of(self._encoder, groups, broken=broken, remember=True, elsewhere=elsewhere)

    def _fitted(self, lesson: Lesson, lean: Lean, settings: Settings | None) -> tuple[Engine, Confidence]:
        base = lesson.base_session()
        unseen = self._encoder.meta.get("recipe") is None
        plan = (
            rehearse(base, lean, unseen=unseen, seed=self.seed, device=self.device)
            if settings is None
            else Plan(settings)
        )
        engine = Engine(plan.settings, seed=self.seed, device=self.device)
        with steps("learning", 3) as done:
            engine.fit_base(base)
            done()
            store = Store.create(self.path, self._meta(), self._waiting, self._wait)
            if self._encoder.kept:
                self._encoder.save(self.path / KEPT)
            with store.writing(self._waiting, self._wait) as change:
                change.describe({**self._meta(), "rehearsal": plan.tried})
                self._write(change, lesson, new=list(lesson.photos), base=True)
                done()
                confidence = self._commit(change, "fit", str(lesson), engine, first=True)
        store.close()
        self._store = Store.open(self.path)
        return engine, confidence

    def learn(
        self,
        photos: Given,
        *,
        broken: Broken = "refuse",
        duplicates: Duplicates = "refuse",
        nested: Nested = "refuse",
        similar_names: Similar = "refuse",
    ) -> Classifier:
        """Learn new classes, and improve known ones for which there are more photos now: one session, one version.

        Photos that their class has already are left out, and those that were removed from it unless they are given
        alone; `remarks` say so, and where nothing is new, nothing changes.
        `duplicates` says what to do with a picture that two classes claim, `nested` with folders in class folders, and
        `similar_names` with names that differ in nothing but their spelling.
        """
        check_duplicates(duplicates)
        _ = self.store
        names = [row.name for row in self.classes]
        kept = spelling(names)
        groups = {kept(name): own for name, own in by_class(photos, nested=nested, alone=True).items()}
        refuse_similar(groups, names, similar_names)
        self._taught(Lesson.of(self._encoder, groups, broken=broken), duplicates, similar_names)
        self.remarks = beside(photos) + self.remarks
        return self

    def _taught(self, lesson: Lesson, duplicates: Duplicates, similar_names: Similar = "refuse") -> Classifier:
        store = self.store
        with store.writing(self._waiting, self._wait) as change, steps("learning", 4) as done:
            known = self._load()
            done()
            lesson = lesson.spelled(known.engine.names)
            refuse_similar(lesson.photos, known.engine.names, similar_names)
            lesson = only_new(not_removed(lesson, change.was_removed), duplicates, change.has_photo)
            if not lesson.photos:
                self.remarks = [*lesson.remarks, "there is nothing new to learn"]
                return self
            engine, names, said = known.engine, known.engine.names, len(known.engine.remarks)
            new = [name for name in lesson.photos if name not in names]
            more = {names.index(name): self._all_photos(name, lesson) for name in lesson.photos if name in names}
            if more:
                engine.revise({label: (features, None) for label, features in more.items()})
            if new:
                engine.learn(lesson.only(new).session(len(store.history()), len(names)))
            done()
            self._write(change, lesson, new=new, base=False)
            done()
            self._commit(change, "learn", str(lesson), engine, known.confidence)
        self.remarks = lesson.remarks + engine.remarks[said:]
        return self

    def learn_name(self, name: str, *, similar_names: Similar = "refuse") -> Classifier:
        """Learn a class by its name alone, before its first photo: it is expected to look like its kin.

        `classes` shows it with no photos until there are some. A name that has no kin among the base classes says
        nothing, and is refused.
        """
        name = checked_name(name)
        with self.store.writing(self._waiting, self._wait) as change:
            known = self._load()
            refuse_similar([name], known.engine.names, similar_names)
            if name in known.engine.names:
                raise Misuse(f"there is a class {name!r} already")
            if not known.engine.imagines(name):
                raise Misuse(f"the name {name!r} says nothing of how such things look here: it takes photos")
            first = len(known.engine.names)
            nothing = torch.empty(0, known.dimension), torch.empty(0, dtype=torch.long)
            index = len(self.store.history())
            known.engine.learn(Session(index, range(first, first + 1), (name,), *nothing))
            change.add_class(name, base=False)
            self._commit(change, "learn", f"{name} (by its name)", known.engine, known.confidence)
        self.remarks = []
        return self

    def forget(self, name: str) -> Classifier:
        """Drop a class; `undo` brings it back."""
        with self.store.writing(self._waiting, self._wait) as change:
            known = self._load()
            name = self.store.called(name)
            change.remove_class(name)
            if len(known.engine.names) <= 2:
                raise Misuse(f"{name!r} is one of the last two classes, and a classifier has two at least")
            known.engine.forget(known.engine.names.index(name))
            self._commit(change, "forget", name, known.engine, known.confidence)
        return self

    def photos(self, name: str) -> list[PhotoRow]:
        """The photos of a class as they are remembered: number, file name, features and a thumbnail."""
        return self.store.photos(name)

    def remove(self, photos: Sequence[Chosen]) -> Classifier:
        """Remove photos, by number or file name (`class/file` where several are called so)."""
        return self._corrected("remove", lambda correction: correction.remove(photos))

    def move(self, photos: Sequence[Chosen], to: str, *, similar_names: Similar = "refuse") -> Classifier:
        """Move photos, named as for `remove`, to another class, known or new; `similar_names` is as in `learn`."""
        return self._corrected("move", lambda correction: correction.move(photos, to, similar_names))

    def rename(self, name: str, to: str, *, similar_names: Similar = "refuse") -> Classifier:
        """Give a class another name; `similar_names` is as in `learn`."""
        return self._corrected("rename", lambda correction: correction.rename(name, to, similar_names))

    def merge(self, names: Sequence[str], into: str) -> Classifier:
        """Make one class of several, called `into`, which is one of them; a base class among them makes it one."""
        return self._corrected("merge", lambda correction: correction.merge(names, into))

    def _corrected(self, action: str, correct: Callable[[Correction], str]) -> Classifier:
        with self.store.writing(self._waiting, self._wait) as change, steps("correcting", 3) as done:
            correction = Correction(self.store, change, self._load())
            done()
            said = len(correction.known.engine.remarks)
            detail = correct(correction)
            done()
            known = correction.known
            self._commit(change, action, detail, known.engine, known.confidence)
        self.remarks = known.engine.remarks[said:]
        return self

    def calibrate(self, photos: Given, *, broken: Broken = "refuse", nested: Nested = "refuse") -> Classifier:
        """Adapt probabilities and the rate of "unknown" to labelled photos of new conditions; nothing is learned.

        They stay so when more is learned, until this is done again or undone. Photos that were taught are left out.
        """
        lesson = Lesson.of(self._encoder, by_class(photos, nested=nested), broken=broken, remember=True)
        with self.store.writing(self._waiting, self._wait) as change:
            known = self._load()
            names = known.engine.names
            lesson = lesson.spelled(names)
            if strange := [name for name in lesson.photos if name not in names]:
                near = "".join(f"; is it {other!r}?" for _, other in almost_the_same(strange[:1], names))
                raise Misuse(f"calibrating takes photos of known classes, and {strange[0]!r} is none{near}")
            given, lesson = len(lesson.names), lesson.without(change.has_photo)
            labels = torch.tensor([names.index(name) for name in lesson.truth])
            taught = given - len(labels)
            if len(labels) < ENOUGH:
                but = f" beside the {taught} that were taught" if taught else ""
                raise Misuse(f"{len(labels)} photos{but} do not tell what is usual: calibrating takes {ENOUGH} or more")
            confidence = known.confidence.adapt(known.scores(lesson.features), labels)
            self._commit(change, "calibrate", str(lesson), known.engine, confidence)
        self.remarks = beside(photos) + lesson.remarks
        if taught:
            self.remarks.append(f"{taught} of {given} photos were taught, and are left out: they look too familiar")
        return self

    def undo(self) -> VersionRow:
        """Step back to exactly the version before."""
        return self.store.undo(self._waiting, self._wait)

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
        piles = in_piles(self._encoder, pictures, kept=False)
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
        items = [whole(item) for item in encoded(self._encoder, listed(pictures), kept=False, title="photos")]
        return np.array([item.features.numpy() for item in items], np.float32)

    def predict_proba(self, pictures: Picture | Sequence[Picture]) -> NDArray[np.float32]:
        """Probabilities (n, classes) in the order of `classes_`."""
        self.known()
        items = [whole(item) for item in encoded(self._encoder, listed(pictures), kept=False, title="predicting")]
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
        names, base = known.engine.names, known.engine.memory.base
        lesson = lesson.spelled(names)
        scores, taught = known.scores(lesson.features), self.store.taught(lesson.digests)
        rated = known.confidence, unknown_rate, known.version
        result = measure(scores, lesson.truth, names, base, *rated, photos=lesson.names, taught=taught)
        source = "photos in memory" if isinstance(photos, Mapping) else printable(photos)
        self.remarks = beside(photos) + lesson.remarks
        self.remarks += remarks(result, names, lesson.photos, known.confidence.enough)
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
            export.write_onnx(Path(onnx), self._encoder, *what)
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
        made = None if self._store is None else Made.of(self._store)
        return Sight(self.path, self._backbone, self._blocks, self._looks).encoder(made, self.device)

    def _licence(self) -> list[str]:
        licence = self._encoder.meta.get("licence")
        return [] if licence is None else [f"the weights of {self._encoder.source} have the licence: {licence}"]

    def _meta(self) -> dict[str, Any]:
        own = self.path / KEPT
        file = content_digest(own.read_bytes()) if own.is_file() else None
        licence = self._encoder.meta.get("licence")
        return to_json(
            Made(self._encoder.source, self._encoder.identity, self.seed, __version__, file, licence=licence)
        )

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
        self,
        change: Change,
        action: str,
        detail: str,
        engine: Engine,
        before: Confidence | None = None,
        first: bool = False,
    ) -> Confidence:
        confidence = Confidence.of(engine) if before is None else before.kept(engine)
        tensors = {f"engine.{name}": value for name, value in engine.state_dict().items()}
        tensors |= {f"confidence.{name}": value for name, value in confidence.tensors().items()}
        lasting = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_LASTING)}
        state = {"settings": to_json(engine.settings)}
        change.commit(action, detail, tensors, state, lasting=lasting if first else None, names=engine.names)
        return confidence

    def _load(self) -> Known:
        """The current version, read from the store."""
        while True:
            version = self.store.version
            (tensors, state), names = self.store.state(), [row.name for row in self.classes]
            if self.store.version == version:
                break
        file = state_file(self.path, version)
        with threads(len(names)), loading(file, "state of a classifier", "step back with undo"):
            engine = Engine(from_json(Settings, state["settings"]), seed=Made.of(self.store).seed, device=self.device)
            return Known.of(version, engine, tensors, names)

    def known(self) -> Known:
        """The current version, read again if another process has learned something since."""
        if self._cached is None or self._cached.version != self.store.version:
            self._cached = self._load()
        return self._cached


_LASTING = ("engine.metric", "engine.calibrator.", "engine.prior.")
