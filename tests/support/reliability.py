"""What the long suites in bench/ share: a small store to be harmed, and what can be asked of it."""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from concm.classifier.classifier import Classifier
from tests.support.photographs import BACKBONE, pictures
from tests.support.zoo import QUICK, base_photos, new_photos

torch.set_num_threads(1)


def make_store(path: Path) -> Path:
    """A store of six classes and two versions, with an evaluation."""
    with Classifier(path, BACKBONE, device="cpu") as zoo:
        zoo.fit(base_photos(4), settings=QUICK)
        zoo.learn({"okapi": pictures("okapi", 3)})
        zoo.evaluate({"cat": pictures("cat", 2, first=50)})
    return path


def answers(path: Path) -> dict[str, Any]:
    """All that a store says: what it predicts, and what it remembers."""
    with Classifier(path, device="cpu") as zoo:
        table = zoo.predict_proba(new_photos("cat", "okapi", count=2))
        photos = [photo for row in zoo.classes for photo in zoo.store.photos(row.name)]
        kept = hashlib.blake2b(b"".join(photo.features.numpy().tobytes() + photo.thumbnail for photo in photos))
        return {
            "version": zoo.version,
            "table": hashlib.blake2b(table.tobytes()).hexdigest(),
            "classes": [(row.name, row.base, row.photos) for row in zoo.classes],
            "history": [(line.version, line.action, line.detail) for line in zoo.history],
            "evaluations": [row.source for row in zoo.store.evaluations()],
            "photos": kept.hexdigest(),
        }


class Hang(BaseException):
    """Something took far longer than it may."""


@contextmanager
def seconds(limit: int) -> Iterator[None]:
    """Break off what takes longer."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def about(**more: Any) -> dict[str, Any]:
    """Where a suite ran."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "sqlite": sqlite3.sqlite_version}
    return {"machine": platform.machine(), "cores": os.cpu_count(), **versions, **more}
