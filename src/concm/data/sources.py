"""Finds the training and test pictures of a data folder, whichever of the native layouts it has."""

from __future__ import annotations

import csv
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from concm.data import lists
from concm.data.pickles import CIFAR, read_batch
from concm.errors import ConcmError, loading

SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"),
    *(".avif", ".heic", ".heif", ".jp2", ".j2k"),
}


@dataclass(frozen=True)
class Pictures:
    """Pictures of one part (train or test): the name and class of each, and its file or its pixels."""

    ids: list[str]
    keys: list[str]
    paths: list[Path] | None = None
    pixels: NDArray[np.uint8] | None = None

    def take(self, rows: list[int]) -> Pictures:
        """The pictures at `rows`, in that order."""
        return Pictures(
            ids=[self.ids[row] for row in rows],
            keys=[self.keys[row] for row in rows],
            paths=None if self.paths is None else [self.paths[row] for row in rows],
            pixels=None if self.pixels is None else self.pixels[rows],
        )


@dataclass(frozen=True)
class Source:
    """The two parts of a data folder."""

    train: Pictures
    test: Pictures


def find_source(root: Path, *, splits: Path | None = None, test_share: float = 0.2, seed: int = 0) -> Source:
    """Recognise what is at `root`: cifar-100-python, CUB-200-2011, mini- or Tiny-ImageNet, class folders or a list."""
    if lists.is_list(root):
        return _list(root, test_share, seed)
    if not root.is_dir():
        raise ConcmError(f"no data folder at {root}; `data` takes the folder of the pictures, or a list of them")
    for folder in (root, root / "cifar-100-python"):
        if (folder / "train").is_file() and (folder / "test").is_file():
            return _cifar(folder)
    for folder in (root, root / "CUB_200_2011"):
        if (folder / "images.txt").is_file() and (folder / "train_test_split.txt").is_file():
            return _cub(folder)
    for folder in (root, root / "split", *([splits] if splits else [])):
        if (folder / "train.csv").is_file() and (folder / "test.csv").is_file():
            return _listed(root, folder)
    for folder in (root, root / "tiny-imagenet-200"):
        if (folder / "val" / "val_annotations.txt").is_file():
            return _tiny(folder)
    return _folders(root, test_share, seed)


def _cifar(folder: Path) -> Source:
    meta = read_batch(folder / "meta")
    with loading(folder / "meta", *CIFAR):
        classes = [name.decode() if isinstance(name, bytes) else str(name) for name in meta["fine_label_names"]]

    def part(name: str) -> Pictures:
        batch = read_batch(folder / name)
        if not batch.keys() >= {"data", "fine_labels"}:
            raise ConcmError(f"{folder / name} is not a CIFAR-100 batch: it has no data or no fine_labels")
        with loading(folder / name, *CIFAR):
            labels = [int(label) for label in batch["fine_labels"]]
            pixels = np.asarray(batch["data"]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            if len(pixels) != len(labels) or pixels.dtype != np.uint8 or not set(labels) <= set(range(len(classes))):
                raise ValueError(f"{len(pixels)} pictures and {len(labels)} labels do not fit {len(classes)} classes")
            # Positions, not file names: the published index lists count in this order.
            ids = [str(position) for position in range(len(labels))]
            keys = [classes[label] for label in labels]
            return Pictures(ids=ids, keys=keys, pixels=np.ascontiguousarray(pixels))

    return Source(part("train"), part("test"))


def _cub(folder: Path) -> Source:
    def column(name: str) -> list[str]:
        with loading(folder / name, "list of CUB", "download CUB again"):
            lines = (folder / name).read_text(encoding="utf-8").splitlines()
            return [line.split()[1] for line in lines if line.strip()]

    chosen = {"1": _Builder(folder / "images"), "0": _Builder(folder / "images")}
    names, flags = column("images.txt"), column("train_test_split.txt")
    if len(names) != len(flags) or not set(flags) <= {"0", "1"}:
        raise ConcmError(f"{folder}: images.txt and train_test_split.txt do not fit together; download CUB again")
    for image, flag in zip(names, flags, strict=True):
        if Path(image).is_absolute() or ".." in Path(image).parts:
            raise ConcmError(f"{folder / 'images.txt'} names {image}, which is not in its folder; download CUB again")
        chosen[flag].add(image, Path(image).parent.name, folder / "images" / image)
    return Source(chosen["1"].done(), chosen["0"].done())


def _listed(root: Path, lists: Path) -> Source:
    """mini-ImageNet: pictures anywhere under `root`, the two parts from train.csv and test.csv."""
    where = {path.name: path for path in pictures_under(root)}

    def part(name: str) -> Pictures:
        builder = _Builder(root)
        with (
            loading(lists / name, "list of pictures", "it should be a CSV file of the columns filename and label"),
            (lists / name).open(newline="", encoding="utf-8") as file,
        ):
            rows = csv.DictReader(file, strict=True)
            if not {"filename", "label"} <= set(rows.fieldnames or ()):
                raise ConcmError(f"{lists / name} should begin with the line filename,label")
            for row in rows:
                if not row["filename"] or not row["label"]:
                    raise ValueError(f"line {rows.line_num} has no file name or no label")
                if row["filename"] not in where:
                    raise ConcmError(f"{lists / name} lists {row['filename']:.100}, which is nowhere under {root}")
                builder.add(row["filename"], row["label"], where[row["filename"]])
        return builder.done()

    return Source(part("train.csv"), part("test.csv"))


def _tiny(folder: Path) -> Source:
    """Tiny-ImageNet: class folders under train/; the pictures of val/ are the test part, with their classes in a list.

    The part that it calls test has no labels.
    """
    listed = folder / "val" / "val_annotations.txt"
    where = {path.name: path for path in pictures_under(listed.parent)}
    builder = _Builder(listed.parent)
    with loading(listed, "list of Tiny-ImageNet", "download Tiny-ImageNet again"):
        for line in listed.read_text(encoding="utf-8").splitlines():
            name, key = line.split("\t")[:2]
            if name not in where:
                raise ConcmError(f"{listed} lists {name:.100}, which is nowhere under {listed.parent}")
            builder.add(name, key, where[name])
    return Source(_class_folders(folder / "train"), builder.done())


def _folders(root: Path, test_share: float, seed: int) -> Source:
    """Class folders under train/ and test/ (or val/), or under `root`, with a test share drawn from each class."""
    train, test = (next((root / name for name in names if _has_folders(root / name)), None) for names in _PARTS)
    if train is not None and test is not None:
        return Source(_class_folders(train), _class_folders(test))
    return _divided(_class_folders(train or root), test_share, seed)


def _list(root: Path, test_share: float, seed: int) -> Source:
    """A CSV file of paths and labels, or a folder of such files; without a column `part`, a test share is drawn."""
    builders = {part: _Builder(root) for part in ("train", "test", "")}
    for line in lists.lines(root):
        if line.part not in builders:
            raise ConcmError(f"{root} has {line.name:.100} in the part {line.part:.20}; it should be train or test")
        builders[line.part].add(line.name, line.label, line.path)
    train, test, undivided = (builder.done() for builder in builders.values())
    if undivided.ids and (train.ids or test.ids):
        raise ConcmError(f"{root} gives the part of some pictures only, and not that of {undivided.ids[0]}")
    return _divided(undivided, test_share, seed) if undivided.ids else Source(train, test)


def _divided(everything: Pictures, test_share: float, seed: int) -> Source:
    """A test share drawn from each class."""
    by_class: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(everything.keys):
        by_class[key].append(row)
    generator = np.random.default_rng(seed)
    kept: list[int] = []
    held: list[int] = []
    for rows in by_class.values():
        shuffled = [rows[at] for at in generator.permutation(len(rows))]
        cut = round(len(rows) * test_share)
        held += sorted(shuffled[:cut])
        kept += sorted(shuffled[cut:])
    return Source(everything.take(kept), everything.take(held))


_PARTS = (("train",), ("test", "val"))


def _has_folders(root: Path) -> bool:
    return root.is_dir() and any(path.is_dir() for path in root.iterdir())


def _class_folders(root: Path) -> Pictures:
    builder = _Builder(root)
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        for path in pictures_under(folder):
            builder.add(path.relative_to(root).as_posix(), folder.name, path)
    if not builder.ids:
        raise ConcmError(f"no pictures in {root}: it should hold one folder per class, with its photos inside")
    return builder.done()


def pictures_under(folder: Path) -> Iterator[Path]:
    """All picture files in and below a folder, in order; hidden ones are left alone."""
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith("."):
                yield Path(at, name)


def text(name: str) -> str:
    """The name of a file or folder as text in its normal form (NFC), with bytes that are no text as their numbers."""
    whole = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return unicodedata.normalize("NFC", whole)


class _Builder:
    """Collects the pictures of one part."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ids: list[str] = []
        self._keys: list[str] = []
        self._paths: list[Path] = []

    def add(self, name: str, key: str, path: Path) -> None:
        self.ids.append(text(name))
        self._keys.append(text(key))
        self._paths.append(path)

    def done(self) -> Pictures:
        return Pictures(ids=self.ids, keys=self._keys, paths=self._paths)
