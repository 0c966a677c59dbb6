"""A photo classifier in a folder: it knows classes, learns new ones from a few photos, and predicts.

    zoo = concm.Classifier("zoo")
    zoo.fit("photos/base")
    zoo.learn({"okapi": ["a.jpg", "b.jpg", "c.jpg"]})
    zoo.predict(["x.jpg"])

Every change makes one version of the store behind it, so nothing half-learned is ever seen, and `undo` steps back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from concm import __version__
from concm.backbones.cores import one_thread
from concm.classifier.change import Change
from concm.classifier.confidence import ENOUGH, TOO_FEW, Confidence
from concm.classifier.corrections import Chosen, Correction
from concm.classifier.duplicates import Duplicates, check_duplicates, not_removed, only_new
from concm.classifier.folder import KEPT, refuse_unwritable
from concm.classifier.folders import Nested, Similar, almost_the_same, beside, refuse_similar
from concm.classifier.lesson import Lesson
from concm.classifier.made import Made
from concm.classifier.opened import Given, Opened
from concm.classifier.photos import NO_PHOTOS, by_class, checked_name, spelling
from concm.classifier.rehearsal import Plan, rehearse
from concm.classifier.rows import PhotoRow, VersionRow
from concm.classifier.store import Store
from concm.data.images import Broken
from concm.engine.concm import Engine
from concm.engine.operating import Lean
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse
from concm.features.sessions import Session
from concm.files import content_digest
from concm.progress import steps
from concm.records import to_json

FEW = 5000
"""Photos up to which a store is fitted on one thread: where cores are shared, more wait longer than they compute."""


class Classifier(Opened):
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
    blocks, looks, size
        How photos are read, for `fit`: how many of the network's last blocks (2 of EfficientNet-Lite, else 1), how
        many looks at a photo are averaged (1; 2 adds its mirror image, up to 10 add shifts), each a forward pass, and
        in how many pixels of a side the network sees them (288 with EfficientNet-Lite0, 320 with Lite1 and Lite2, else
        those it was trained with). A store knows its own.

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

    def _fitted(self, lesson: Lesson, lean: Lean, settings: Settings | None) -> tuple[Engine, Confidence]:
        base = lesson.base_session()
        unseen = self.encoder.meta.get("recipe") is None
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
            if self.encoder.kept:
                self.encoder.save(self.path / KEPT)
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
        self.teach(Lesson.of(self.encoder, groups, broken=broken), duplicates, similar_names)
        self.remarks = beside(photos) + self.remarks
        return self

    def teach(self, lesson: Lesson, duplicates: Duplicates, similar_names: Similar = "refuse") -> Classifier:
        """Learn what is in a lesson, whose photos are encoded already; `learn` says what the choices are."""
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
        """Learn a class by its name alone, before its first photo: its look is estimated from related base classes.

        `classes` shows it with no photos until there are some, and `remarks` say which class it is expected to look
        most like. A name that is hardly related to any base class is refused.
        """
        name = checked_name(name)
        with self.store.writing(self._waiting, self._wait) as change:
            known = self._load()
            refuse_similar([name], known.engine.names, similar_names)
            if name in known.engine.names:
                raise Misuse(f"there is a class {name!r} already")
            if (kin := known.engine.kin(name)) is None:
                raise Misuse(f"the name {name!r} is not related enough to any base class, so it needs photos")
            first = len(known.engine.names)
            nothing = torch.empty(0, known.dimension), torch.empty(0, dtype=torch.long)
            index = len(self.store.history())
            known.engine.learn(Session(index, range(first, first + 1), (name,), *nothing))
            change.add_class(name, base=False)
            self._commit(change, "learn", f"{name} (by its name)", known.engine, known.confidence)
        self.remarks = [f"by its name, {name!r} is expected to look most like {kin!r}"]
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
        lesson = Lesson.of(self.encoder, by_class(photos, nested=nested), broken=broken, remember=True)
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
                raise Misuse(f"calibrating takes {ENOUGH} photos or more; {len(labels)} were given{but}")
            confidence = known.confidence.adapt(known.scores(lesson.features), labels)
            self._commit(change, "calibrate", str(lesson), known.engine, confidence)
        self.remarks = beside(photos) + lesson.remarks
        if taught:
            self.remarks.append(f"{taught} of {given} photos were taught, and are left out: they look too familiar")
        return self

    def undo(self) -> VersionRow:
        """Step back to exactly the version before."""
        return self.store.undo(self._waiting, self._wait)

    def _licence(self) -> list[str]:
        licence = self.encoder.meta.get("licence")
        return [] if licence is None else [f"the weights of {self.encoder.source} have the licence: {licence}"]

    def _meta(self) -> dict[str, Any]:
        own = self.path / KEPT
        file = content_digest(own.read_bytes()) if own.is_file() else None
        licence = self.encoder.meta.get("licence")
        return to_json(Made(self.encoder.source, self.encoder.identity, self.seed, __version__, file, licence=licence))

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


_LASTING = ("engine.metric", "engine.calibrator.", "engine.prior.")
