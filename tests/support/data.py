"""Small builders that several tests share: pictures, data folders, banks, and pickles as Python 2 wrote them."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from concm.backbones.encoder import Identity
from concm.data.scenarios import of_folder
from concm.features.bank import Bank, Card, Part


def noise(seed: int, height: int = 8, width: int = 8) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_picture(path: Path, seed: int = 0, side: int = 8) -> NDArray[np.uint8]:
    """A lossless picture of noise; returns its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = noise(seed, side, side)
    Image.fromarray(pixels).save(path, "PNG")
    return pixels


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def huge_png(side: int) -> bytes:
    """Only a header, which is all that may be read of it."""
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0), b"IDAT"]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    )


def write_class_folders(root: Path, counts: Mapping[str, int]) -> None:
    """One folder a class, with pictures 0.png, 1.png, … that are all different."""
    seed = 0
    for key, count in counts.items():
        (root / key).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write_picture(root / key / f"{number}.png", seed)
            seed += 1


class _Python2Pickler(pickle._Pickler):
    """Writes text and bytes alike as Python 2's `str`, and numpy by the names it had then."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def _save_text(self, value: str | bytes) -> None:
        data = value.encode("latin-1") if isinstance(value, str) else value
        short = len(data) < 256
        self.write(b"U" + bytes([len(data)]) if short else b"T" + len(data).to_bytes(4, "little"))
        self.write(data)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = _save_text


def python2_pickle(value: object) -> bytes:
    """As Python 2 and an old numpy wrote it with protocol 2: how CIFAR-100 is distributed."""
    file = io.BytesIO()
    _Python2Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_cifar(
    folder: Path,
    classes: Sequence[str],
    train: Sequence[int],
    test: Sequence[int],
    *,
    dump: Callable[[Any], bytes] = python2_pickle,
    names: Callable[[str], str | bytes] = str.encode,
) -> dict[str, NDArray[np.uint8]]:
    """The files of cifar-100-python with these fine labels; returns the pictures of each part, (n, 32, 32, 3)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta").write_bytes(dump({names("fine_label_names"): [names(key) for key in classes]}))
    pictures = {}
    for seed, (part, labels) in enumerate((("train", train), ("test", test))):
        pictures[part] = np.random.default_rng(seed).integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
        planes = np.ascontiguousarray(pictures[part].transpose(0, 3, 1, 2).reshape(len(labels), 3072))
        (folder / part).write_bytes(dump({names("data"): planes, names("fine_labels"): list(labels)}))
    return pictures


def make_bank(
    *, base: int = 4, novel: int = 6, way: int = 2, shot: int = 5, images: int = 8, dimension: int = 5, views: int = 2
) -> Bank:
    """A bank of random features, `images` a class in every part; novel pictures are called by numbers."""
    scenario = of_folder([f"class_{at:02}" for at in range(base + novel)], base=base, way=way, shot=shot)
    random = torch.Generator().manual_seed(0)

    def part(first: int, last: int, ids: str | None, *, viewed: bool = True) -> Part:
        labels = torch.arange(first, last).repeat(images)  # interleaved, as in CIFAR's files
        features = torch.randn(len(labels), dimension, generator=random)
        some = features[:, None] + 0.1 * torch.randn(len(labels), views, dimension, generator=random)
        names = [] if ids is None else [ids.format(7 * row) for row in range(len(labels))]
        return Part(features, labels, some.clamp(features.amin(0), features.amax(0)) if viewed else None, names)

    return Bank(
        scenario=scenario,
        encoder=Identity("none", ""),
        base=part(0, base, "pictures/base_{}.jpg"),
        novel=part(base, base + novel, "{}"),
        test=part(0, base + novel, None, viewed=False),
        mean=torch.randn(base, dimension, generator=random) / 3,
        std=torch.rand(base, dimension, generator=random) / 3,
        counts=torch.full((base,), images),
        card=Card(views=views),
    )


def write_lists(folder: Path, bank: Bank, shots: dict[int, list[int]], line=str) -> Path:
    """One list a session, session_2.txt and on, of the candidates' names as `line` writes them."""
    folder.mkdir()
    for session in range(1, bank.scenario.sessions + 1):
        names = [line(bank.novel.ids[row]) for label in bank.scenario.classes_of(session) for row in shots[label]]
        (folder / f"session_{session + 1}.txt").write_text("".join(f"{name}\n" for name in names))
    return folder
