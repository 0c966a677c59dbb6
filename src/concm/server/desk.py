"""What the server can be asked for, without HTTP: one classifier that answers, one that learns, and an inbox."""

from __future__ import annotations

import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from concm import progress
from concm.classifier.album import Album, grouped, in_metric
from concm.classifier.answers import Prediction, check_rate
from concm.classifier.check import check
from concm.classifier.classifier import Classifier
from concm.classifier.duplicates import Duplicates, check_duplicates
from concm.classifier.evaluation import evaluated
from concm.classifier.folders import Similar
from concm.classifier.known import Known
from concm.classifier.lesson import Lesson
from concm.classifier.opened import WAIT
from concm.classifier.photos import checked_name
from concm.classifier.store import Store
from concm.classifier.stream import Encoded
from concm.errors import ConcmError, Misuse
from concm.files import replacing
from concm.progress import track
from concm.records import to_json
from concm.report.classifier import card
from concm.server.inbox import Inbox
from concm.server.jobs import Job, Jobs
from concm.server.predictor import Predictor, Seen

UNSURE = 0.5
"""A best guess below this probability is a question for the inbox."""


class Desk:
    """A store that is served. Answers come from one handle of it, and all changes are jobs on another."""

    def __init__(
        self, store: str | Path, backbone: str | None = None, device: Any = "auto", wait: float = WAIT
    ) -> None:
        def opened() -> Classifier:
            return Classifier(store, backbone, device=device, wait=wait)

        self.classifier = opened()
        _ = self.classifier.store  # refuses a store that is not there
        self._reader = Store.open(store)  # albums take long to read: answers do not wait for the same handle
        self.predictor = Predictor(self.classifier.encoder)
        self.inbox = Inbox(Path(store), self.taught)
        self.jobs = Jobs(opened)
        self.exports = Path(tempfile.mkdtemp(prefix="concm-export-"))
        self._album: Album | None = None
        self._health: dict[str, Any] = {}
        self._taught: tuple[int, Set[str]] = (0, frozenset())
        self.checking: int | None = None
        """How many per cent of the present step of a check are done, while there is one."""
        self._mutex, self._turning, self._checking = threading.Lock(), threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Finish what was begun, and let go of all files."""
        self.jobs.close()
        self.predictor.close()
        self.inbox.close()
        self.classifier.close()
        self._reader.close()
        shutil.rmtree(self.exports, ignore_errors=True)

    def known(self) -> Known:
        """What the newest version knows."""
        with self._mutex:
            return self.classifier.known()

    def album(self, known: Known) -> Album:
        """The photos of a version."""
        with self._turning:  # not the lock of answers, which do not wait until an album is read
            if self._album is None or self._album.version != known.version:
                self._album = Album.of(self._reader, known)
            return self._album

    def taught(self) -> Set[str]:
        """The digests of all photos of the newest version."""
        version = self.classifier.version
        if self._taught[0] != version:
            self._taught = version, self.classifier.store.digests()
        return self._taught[1]

    def health(self) -> dict[str, Any]:
        """What the taught photos say of each other; found once for a version, however many ask."""
        with self._checking:
            known = self.known()
            if self._health.get("version") != known.version:
                self._checked(0.0)
                try:
                    with progress.heard(self._checked):
                        self._health = to_json(check(self.album(known), known))
                finally:
                    self.checking = None
            return self._health

    def _checked(self, share: float) -> None:
        self.checking = int(100 * share)

    def map(self) -> dict[str, Any]:
        """Classes and photos in a plane."""
        return self.album(self.known()).map()

    # Answers

    def said(self, seen: Seen, unknown_rate: float, top: int) -> Prediction:
        """What a photo shows."""
        return self.known().prediction(seen.photo.name, seen.features, unknown_rate, top)

    def keep(self, seen: Seen, prediction: Prediction) -> int:
        """Keep a photo to be named later, and return its number; one that is a question waits for it in the inbox."""
        return self.inbox.add(seen.kept(), shown=is_question(prediction))

    def nearest(self, seen: Seen, count: int) -> list[dict[str, Any]]:
        """The taught photos that a photo looks most like."""
        known = self.known()
        return self.album(known).nearest(in_metric(known, seen.features[None])[0], count)

    def waiting(self, unknown_rate: float, nearest: int = 0) -> list[dict[str, Any]]:
        """The inbox, with what the newest version says; photos that are alike are in one group."""
        check_rate(unknown_rate)
        known = self.known()
        items = self.inbox.waiting()
        if not items:
            return []
        units = in_metric(known, torch.stack([item.features for item in items]))
        groups = grouped(units, float(known.engine.unseen))
        listed = []
        for item, unit, group in zip(items, units, groups, strict=True):
            prediction = known.prediction(item.name, item.features, unknown_rate, 3)
            said = {"inbox": item.id, "added": item.added, "group": group, **asdict(prediction)}
            said["recognised"] = not is_question(prediction)
            if nearest:
                said["nearest"] = self.album(known).nearest(unit, nearest)
            listed.append(said)
        return listed

    def status(self) -> dict[str, Any]:
        """What a page has to know to be up to date."""
        versions = self.classifier.history
        line = versions[-1]
        running = [job.told() for job in self.jobs.all() if not job.over.is_set()]
        return {
            "store": self.classifier.path.resolve().name,
            "version": line.version,
            "last": {"action": line.action, "detail": line.detail},
            "can_undo": len(versions) > 1,
            "classes": line.classes,
            "photos": line.photos,
            **self.inbox.told(),
            "jobs": running,
            "checking": self.checking,
        }

    # Changes

    def learn(
        self, classes: Mapping[str, Sequence[int]], duplicates: Duplicates = "refuse", similar: Similar = "refuse"
    ) -> Job:
        """Teach photos of the inbox, by class: one version."""
        groups = {checked_name(name): self.inbox.photos(own) for name, own in classes.items()}
        return self._learn(groups, duplicates, similar)

    def learn_seen(
        self, groups: Mapping[str, Sequence[Seen]], duplicates: Duplicates = "refuse", similar: Similar = "refuse"
    ) -> Job:
        """Teach photos that were just sent: one version."""
        kept = {checked_name(name): [one.kept() for one in own] for name, own in groups.items()}
        return self._learn(kept, duplicates, similar)

    def _learn(self, groups: dict[str, list[Encoded]], duplicates: Duplicates, similar: Similar) -> Job:
        check_duplicates(duplicates)
        if not groups or not all(groups.values()):
            raise Misuse("name a class and its photos")
        lesson = Lesson(groups, [])
        return self.change(f"learn {lesson}", lambda classifier: classifier.teach(lesson, duplicates, similar))

    def change(self, title: str, change: Callable[[Classifier], object]) -> Job:
        """A change, as a job; `change` is given the classifier that learns."""

        def work(classifier: Classifier) -> dict[str, Any]:
            classifier.remarks, before = [], classifier.version
            change(classifier)
            line = classifier.history[-1]
            if line.version == before:  # what that one did is not what was asked for now
                return {"changed": False, "version": before, "remarks": classifier.remarks}
            return {"changed": True, **asdict(line), "remarks": classifier.remarks}

        return self.jobs.add(title, work)

    def undo(self, version: int | None) -> Job:
        """Step back, unless another has changed the store since `version`."""

        def step(classifier: Classifier) -> None:
            if version is not None and classifier.version != version:
                raise ConcmError(f"version {version} is not the newest any more; look again before undoing")
            classifier.undo()

        return self.change("undo", step)

    def evaluate(self, groups: Mapping[str, Sequence[Seen]], unknown_rate: float) -> dict[str, Any]:
        """Measure the classifier on labelled photos."""
        check_rate(unknown_rate)
        known, have = self.known(), self.taught()
        photos = {
            name: [Encoded(seen.photo.name, seen.photo.digest, b"", seen.features) for seen in own]
            for name, own in groups.items()
        }
        lesson = Lesson(photos, []).spelled(known.engine.names)
        result, said = evaluated(known, lesson, unknown_rate, sum(digest in have for digest in lesson.digests))
        return {**to_json(result), "remarks": said}

    def export(self, what: str) -> Job:
        """Write a file that can be fetched when the job is done."""
        if what not in EXPORTS:
            raise Misuse(f"there is no export {what!r}, only {', '.join(EXPORTS)}")

        def work(classifier: Classifier) -> dict[str, Any]:
            name = classifier.path.resolve().name
            with tempfile.TemporaryDirectory(dir=self.exports) as folder:
                inside = Path(folder, name)
                if what == "onnx":
                    inside.mkdir()
                    classifier.export(inside / f"{name}.onnx")
                else:
                    classifier.backup(inside)
                _zip(self.exports / f"{what}.zip", Path(folder))
            return {"file": f"/api/exports/{what}"}

        return self.jobs.add(f"export {what}", work)

    def card(self) -> str:
        """The model card."""
        return card(self.classifier)


EXPORTS = ("onnx", "backup")


def is_question(prediction: Prediction) -> bool:
    """Whether a photo should be shown to somebody: it is unknown, or the best guess is hardly one."""
    return prediction.unknown or prediction.score < UNSURE


def _zip(archive: Path, folder: Path) -> None:
    """All files of a folder in one, which takes the place of an older one when it is whole."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    with replacing(archive) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in track(files, "packing"):
            packed.write(file, file.relative_to(folder))
