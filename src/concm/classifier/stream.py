"""Photos to features in a stream: decoded ahead on all cores, encoded in batches, and cached."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from concm.backbones.encoder import Encoder
from concm.classifier.photos import Photo, Picture, called
from concm.data.images import PIXELS_VERSION, BrokenPicture, cache_folder, in_threads, refuse_odd_file
from concm.records import to_json

BATCH = 32


@dataclass(frozen=True)
class Encoded:
    """What is kept of a photo: a digest, a small JPEG if it was asked for, and its features (d,)."""

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
    thumbnails: bool = True,
    title: str = "photos",
) -> Iterator[Encoded | BrokenPicture]:
    """The features of each picture in order, or its error; with `remember`, files are not encoded a second time."""
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

    pile: list[_Waiting | Encoded | BrokenPicture] = []
    try:
        for item in in_threads(read, list(enumerate(pictures)), title):
            pile.append(item)
            if len(pile) == BATCH:
                yield from _developed(encoder, pile, cache, thumbnails)
                pile = []
        yield from _developed(encoder, pile, cache, thumbnails)
    finally:
        if cache is not None:
            cache.close()


def _developed(
    encoder: Encoder, pile: list[_Waiting | Encoded | BrokenPicture], cache: FeatureCache | None, thumbnails: bool
) -> list[Encoded | BrokenPicture]:
    """The pile with its waiting photos encoded, all at once."""
    waiting = [item for item in pile if isinstance(item, _Waiting)]
    done: dict[int, Encoded | BrokenPicture] = {}
    if waiting:
        pixels = torch.from_numpy(np.stack([item.photo.pixels for item in waiting])).to(encoder.device)
        features = _on_all_cores(encoder, pixels).clone()  # inference tensors cannot be trained on
        for item, own in zip(waiting, features, strict=True):
            if not own.isfinite().all():
                done[id(item)] = BrokenPicture(item.photo.name, "has features that are no numbers in this backbone")
                continue
            small = item.photo.thumbnail() if thumbnails else b""
            done[id(item)] = Encoded(item.photo.name, item.photo.digest, small, own)
    if cache is not None:
        fresh = [(item.key, done[id(item)]) for item in waiting]
        cache.put([(key, own) for key, own in fresh if key is not None and isinstance(own, Encoded)])
    return [done[id(item)] if isinstance(item, _Waiting) else item for item in pile]


def _on_all_cores(encoder: Encoder, pixels: Tensor) -> Tensor:
    """Features (n, d) of pictures; on a CPU each core encodes its share by itself.

    Cores that compute one picture together wait for each other, which takes for ever where they are shared with others.
    """
    cores, before = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, torch.get_num_threads()
    if encoder.device.type != "cpu" or min(cores, before, len(pixels)) < 2:
        return encoder(pixels)
    try:
        with ThreadPoolExecutor(min(cores, before), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return torch.cat(list(pool.map(encoder, pixels.chunk(min(cores, before)))))
    finally:
        torch.set_num_threads(before)


def _proof(key: bytes, digest: str, thumbnail: bytes, features: bytes) -> bytes:
    """A digest of a row of the cache, so that a damaged one is not used."""
    state = hashlib.blake2b(key + digest.encode(), digest_size=16)
    state.update(len(thumbnail).to_bytes(8, "little") + thumbnail + features)
    return state.digest()


class FeatureCache:
    """A cache of features by file content, in the user's cache folder, so that interrupted work can go on.

    If it cannot be read or written, photos are simply encoded again.
    """

    def __init__(self, encoder: Encoder) -> None:
        about = [to_json(encoder.identity), encoder.device.type, PIXELS_VERSION]
        self._of = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).digest()
        self._mutex = threading.Lock()
        self._db: sqlite3.Connection | None = None
        file = cache_folder() / "features.db"
        if file.exists() and not file.is_file():  # a pipe would be waited for
            return
        for _ in range(2):
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                self._db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
                self._db.execute("PRAGMA journal_mode = WAL")
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
        """Add photos to the cache."""
        rows = []
        for key, own in photos:
            row = (own.digest, own.thumbnail, own.features.numpy().tobytes())
            rows.append((key, *row, _proof(key, *row)))
        with self._mutex, suppress(sqlite3.Error, UnicodeDecodeError):
            if self._db is not None and rows:
                try:
                    self._db.execute("BEGIN IMMEDIATE")
                    self._db.executemany("INSERT OR REPLACE INTO encoded_2 VALUES (?, ?, ?, ?, ?)", rows)
                    self._db.execute("COMMIT")
                finally:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Close the cache file."""
        if self._db is not None:
            self._db.close()
            self._db = None
