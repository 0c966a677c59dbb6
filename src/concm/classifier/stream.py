"""Photos to features in a stream: decoded and encoded in batches on all cores, and cached."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from concm.backbones.cores import together
from concm.backbones.encoder import Encoder
from concm.classifier.photos import Photo, Picture, called
from concm.data.images import PIXELS_VERSION, BrokenPicture, cache_folder, in_threads, refuse_odd_file
from concm.progress import track
from concm.records import to_json

BATCH = 32
PILE = 4
"""How many photos a core takes at a time where there are several; the last ones keep it waiting for others."""
T = TypeVar("T")


@dataclass(frozen=True)
class Encoded:
    """A photo's features (d,), and what else is kept of it, if that was asked for: a digest and a small JPEG."""

    name: str
    digest: str
    thumbnail: bytes
    features: Tensor


@dataclass(frozen=True)
class _Waiting:
    """A photo that is still to be encoded, and its key in the cache."""

    photo: Photo
    key: bytes | None


def encoded(
    encoder: Encoder,
    pictures: Sequence[Picture],
    *,
    remember: bool = False,
    kept: bool = True,
    title: str = "photos",
) -> Iterator[Encoded | BrokenPicture]:
    """The features of each picture in order, or its error; with `remember`, files are not encoded a second time.

    `kept` says that the pictures are to be kept, and not only answered.
    """
    piles = in_piles(encoder, pictures, remember=remember, kept=kept)
    yield from track(chain.from_iterable(piles), title, len(pictures))


def in_piles(
    encoder: Encoder, pictures: Sequence[Picture], *, remember: bool = False, kept: bool = True
) -> Iterator[list[Encoded | BrokenPicture]]:
    """The same, as many at a time as were encoded together."""
    cache = FeatureCache(encoder) if remember else None

    def read(item: tuple[int, Picture]) -> _Waiting | Encoded | BrokenPicture:
        number, picture = item
        name = called(picture, number)
        if cache is not None and isinstance(picture, str | os.PathLike):
            with suppress(OSError, BrokenPicture):  # whatever is wrong with it is said when it is read as a picture
                refuse_odd_file(Path(picture))
                picture = Path(picture).read_bytes()
        key = cache.key(picture) if cache is not None and isinstance(picture, bytes) else None
        try:
            known = cache.get(key, name) if cache is not None and key is not None else None
            return known or _Waiting(Photo.read(picture, encoder.transform.resize, name), key)
        except BrokenPicture as error:
            return error

    def developed(pile: Iterable[_Waiting | Encoded | BrokenPicture]) -> list[Encoded | BrokenPicture]:
        return _developed(encoder, list(pile), cache, kept)

    numbered, workers = list(enumerate(pictures)), encoder.workers
    if encoder.device.type == "cpu":  # each core takes its pictures all the way from the file to the feature
        size = BATCH if workers == 1 else min(BATCH, PILE)
        piles = together(lambda pile: developed(map(read, pile)), in_parts(numbered, size), workers)
    else:
        piles = map(developed, in_parts(in_threads(read, numbered), BATCH))
    try:
        yield from piles
    finally:
        if cache is not None:
            cache.close()


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of this length, the last of which may be shorter."""
    every = iter(items)
    while part := list(islice(every, size)):
        yield part


def _developed(
    encoder: Encoder, pile: list[_Waiting | Encoded | BrokenPicture], cache: FeatureCache | None, kept: bool
) -> list[Encoded | BrokenPicture]:
    """The pile with its waiting photos encoded, all at once."""
    waiting = [item for item in pile if isinstance(item, _Waiting)]
    done: dict[int, Encoded | BrokenPicture] = {}
    if waiting:
        pixels = torch.from_numpy(np.stack([item.photo.pixels for item in waiting])).to(encoder.device)
        features = encoder(pixels).clone()  # inference tensors cannot be trained on
        finite = features.isfinite().all(1).tolist()
        for item, own, sound in zip(waiting, features, finite, strict=True):
            if not sound:
                done[id(item)] = BrokenPicture(item.photo.name, "has features that are no numbers in this backbone")
                continue
            about = (item.photo.digest, item.photo.thumbnail()) if kept else ("", b"")
            done[id(item)] = Encoded(item.photo.name, *about, own)
    if cache is not None:
        fresh = [(item.key, done[id(item)]) for item in waiting]
        cache.put([(key, own) for key, own in fresh if key is not None and isinstance(own, Encoded)])
    return [done[id(item)] if isinstance(item, _Waiting) else item for item in pile]


def _proof(key: bytes, digest: str, thumbnail: bytes, features: bytes) -> bytes:
    """A digest of a row of the cache, so that a damaged one is not used."""
    state = hashlib.blake2b(key + digest.encode(), digest_size=16)
    state.update(len(thumbnail).to_bytes(8, "little") + thumbnail + features)
    return state.digest()


class FeatureCache:
    """A cache of features by file content, in the user's cache folder, so that interrupted work can go on.

    If it cannot be read or written, photos are simply encoded again.
    """

    def __init__(self, encoder: Encoder, device: str | None = None) -> None:
        about = [to_json(encoder.identity), device or encoder.device.type, PIXELS_VERSION]
        self._of = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).digest()
        self._mutex = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._fresh: list[tuple[bytes, str, bytes, bytes, bytes]] = []
        file = cache_folder() / "features.db"
        if file.exists() and not file.is_file():  # a pipe would be waited for
            return
        for _ in range(2):
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                self._db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")  # what a power failure takes is encoded again
                self._db.execute(
                    "CREATE TABLE IF NOT EXISTS encoded_2 (key BLOB PRIMARY KEY, digest TEXT, thumbnail BLOB,"
                    " features BLOB, proof BLOB) WITHOUT ROWID"
                )
                return
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                self.close()
                if getattr(error, "sqlite_errorcode", 0) not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                    return
                with suppress(OSError):
                    file.unlink()

    def key(self, content: bytes) -> bytes:
        """The key of a file with this content for this encoder."""
        return hashlib.blake2b(self._of + content, digest_size=16).digest()

    def get(self, key: bytes, name: str) -> Encoded | None:
        """The features cached under this key, if there are any."""
        with self._mutex, suppress(sqlite3.Error, ValueError, TypeError, AttributeError):
            if self._db is not None:
                row = self._db.execute(
                    "SELECT digest, thumbnail, features, proof FROM encoded_2 WHERE key = ?", (key,)
                ).fetchone()
                if row is not None and row[3] == _proof(key, *row[:3]):
                    return Encoded(name, row[0], row[1], torch.frombuffer(bytearray(row[2]), dtype=torch.float32))
        return None

    def put(self, photos: list[tuple[bytes, Encoded]]) -> None:
        """Add photos to the cache; they are written when there are some."""
        rows = []
        for key, own in photos:
            row = (own.digest, own.thumbnail, own.features.numpy().tobytes())
            rows.append((key, *row, _proof(key, *row)))
        with self._mutex:
            self._fresh += rows
            if len(self._fresh) >= BATCH:
                self._write()

    def _write(self) -> None:
        rows, self._fresh = self._fresh, []
        with suppress(sqlite3.Error, UnicodeDecodeError):
            if self._db is not None and rows:
                try:
                    self._db.execute("BEGIN IMMEDIATE")
                    self._db.executemany("INSERT OR REPLACE INTO encoded_2 VALUES (?, ?, ?, ?, ?)", rows)
                    self._db.execute("COMMIT")
                finally:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Write what is left, and close the cache file."""
        self._write()
        if self._db is not None:
            self._db.close()
            self._db = None
