"""A small classifier of made-up animals, and questions to it that many tests ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from concm.classifier.classifier import Classifier
from concm.engine.settings import Settings
from tests.support.photographs import BACKBONE, pictures

torch.set_num_threads(1)  # bit for bit only holds for one number of threads

QUICK = Settings(calibrate="none", base_steps=5, steps=5, hidden=32)
BASE = ("cat", "dog", "fox", "hen", "owl")
COUNT = 24  # so that what is held out of them is enough to tell what is usual
FEW = ("cat", "dog")
NEW = 300  # photos from this number on were never taught


def base_photos(count: int = COUNT) -> dict:
    return {name: pictures(name, count) for name in BASE}


def opened(path: Path, **how) -> Classifier:
    return Classifier(path, device="cpu", **how)


def made(path: Path, photos=None, *, settings: Settings | None = QUICK, **how) -> Classifier:
    return opened(path, backbone=BACKBONE).fit(base_photos() if photos is None else photos, settings=settings, **how)


def new_photos(*names: str, count: int = 6) -> list:
    return [photo for name in names for photo in pictures(name, count, first=NEW)]


def labels(zoo: Classifier, *names: str, count: int = 6, **how) -> list[str]:
    return [found.label for found in zoo.predict(new_photos(*names, count=count), **how)]


def right(zoo: Classifier, name: str, count: int = 20) -> float:
    """The share of new photos of a class that are given its name."""
    return labels(zoo, name, count=count, unknown_rate=0).count(name) / count


def probabilities(zoo: Classifier) -> np.ndarray:
    """Of photos of classes that are known and of some that are not."""
    return zoo.predict_proba(new_photos(*BASE, "okapi", "yak", count=2))


def names(zoo: Classifier) -> list[str]:
    return [row.name for row in zoo.classes]


def everything(zoo: Classifier) -> SimpleNamespace:
    """All that a change would change, but for the times."""
    tensors, state = zoo.store.state()
    rows = [
        (row, [(p.label, p.digest, p.features.tolist()) for p in zoo.store.photos(row.name)]) for row in zoo.classes
    ]
    tensors = {name: (value.dtype, value.numpy().tobytes()) for name, value in tensors.items()}
    history = [replace(line, created="") for line in zoo.history]
    return SimpleNamespace(version=zoo.version, history=history, tensors=tensors, state=state, classes=rows)


def loaded(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


def each(change, photos: dict) -> dict:
    return {name: [change(photo) for photo in own] for name, own in photos.items()}


def files(root: Path) -> dict:
    return {folder.name: sorted(folder.iterdir(), key=lambda path: int(path.stem)) for folder in sorted(root.iterdir())}


FORMS = {
    "folder": lambda root: root,
    "its name": str,
    "folders": lambda root: {folder.name: folder for folder in sorted(root.iterdir())},
    "globs": lambda root: {folder.name: f"{folder}/*.png" for folder in sorted(root.iterdir())},
    "paths": files,
    "names": lambda root: each(str, files(root)),
    "bytes": lambda root: each(Path.read_bytes, files(root)),
    "PIL": lambda root: each(loaded, files(root)),
    "arrays": lambda root: each(lambda path: np.asarray(loaded(path)), files(root)),
    "floats": lambda root: each(lambda path: np.asarray(loaded(path)) / 255, files(root)),
    "generators": lambda root: {name: iter(paths) for name, paths in files(root).items()},
}
