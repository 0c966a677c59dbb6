"""Photos to features in a stream: decoded ahead by all cores, encoded in batches, and remembered where that helps."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from concm.backbones.encoder import Encoder
from concm.data.images import BrokenPicture, cache_folder, in_threads
from concm.data.photos import Photo, Picture, called

BATCH = 32


@dataclass(frozen=True)
class Encoded:
    """What is kept of a photo: an identity, a small JPEG, and features (1 + views, d)."""

    name: str
    digest: str
    thumbnail: bytes
    features: Tensor


def encoded(
    encoder: Encoder, pictures: Sequence[Picture], *, views: int = 0, remember: bool = False, title: str = "photos"
) -> Iterator[Encoded | BrokenPicture]:
    """Each picture's features in order, or why it has none; `remember` spares files that were encoded before."""
    cache = FeatureCache(encoder, views) if remember else None

    def read(item: tuple[int, Picture]) -> Photo | Encoded | BrokenPicture:
        number, picture = item
        name = called(picture, number)
        try:
            known = cache.get(picture, name) if cache else None
            return known or Photo.read(picture, encoder.transform.resize, name)
        except BrokenPicture as error:
            return error

    pile: list[tuple[Picture, Photo | Encoded | BrokenPicture]] = []
    items = list(enumerate(pictures))
    for picture, item in zip(pictures, in_threads(read, items, title), strict=True):
        pile.append((picture, item))
        if len(pile) == BATCH:
            yield from _developed(encoder, pile, views, cache)
            pile = []
    yield from _developed(encoder, pile, views, cache)


def _developed(
    encoder: Encoder,
    pile: list[tuple[Picture, Photo | Encoded | BrokenPicture]],
    views: int,
    cache: FeatureCache | None,
) -> Iterator[Encoded | BrokenPicture]:
    """The pile with its photos encoded, all of them at once."""
    photos = [item for _, item in pile if isinstance(item, Photo)]
    done: dict[int, Encoded] = {}
    if photos:
        pixels = torch.from_numpy(np.stack([photo.pixels for photo in photos])).to(encoder.device)
        features = encoder(pixels)[:, None]
        if views:
            features = torch.cat([features, encoder.views(pixels, [photo.digest for photo in photos], views)], 1)
        for photo, own in zip(photos, features, strict=True):
            done[id(photo)] = Encoded(photo.name, photo.digest, photo.thumbnail(), own)
    if cache:
        cache.put([(picture, done[id(item)]) for picture, item in pile if isinstance(item, Photo)])
    for _, item in pile:
        yield done[id(item)] if isinstance(item, Photo) else item


class FeatureCache:
    """Features of files by content, in the user's cache folder, so that what was interrupted can go on.

    Only a convenience: where it cannot be read or written, photos are simply encoded again.
    """

    def __init__(self, encoder: Encoder, views: int) -> None:
        self._of = hashlib.blake2b(json.dumps([encoder.identity, views]).encode(), digest_size=16).digest()
        self._mutex = threading.Lock()
        self._db: sqlite3.Connection | None = None
        with suppress(sqlite3.Error, OSError):
            cache_folder().mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(cache_folder() / "features.db", isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(
                "CREATE TABLE IF NOT EXISTS photos (key BLOB PRIMARY KEY, digest TEXT, thumbnail BLOB, rows INTEGER,"
                " features BLOB) WITHOUT ROWID"
            )
            self._db = db

    def _key(self, picture: Picture) -> bytes | None:
        """Of files and encoded bytes alone: nothing else has a content that can be named quickly."""
        if isinstance(picture, str | os.PathLike):
            with suppress(OSError):
                picture = Path(picture).read_bytes()
        return hashlib.blake2b(self._of + picture, digest_size=16).digest() if isinstance(picture, bytes) else None

    def get(self, picture: Picture, name: str) -> Encoded | None:
        """What is remembered of this content."""
        key = self._key(picture)
        if self._db is None or key is None:
            return None
        with suppress(sqlite3.Error), self._mutex:
            row = self._db.execute(
                "SELECT digest, thumbnail, rows, features FROM photos WHERE key = ?", (key,)
            ).fetchone()
            if row is not None:
                features = torch.frombuffer(bytearray(row[3]), dtype=torch.float32).reshape(row[2], -1)
                return Encoded(name, row[0], row[1], features)
        return None

    def put(self, photos: list[tuple[Picture, Encoded]]) -> None:
        """Remember them."""
        rows = [
            (key, photo.digest, photo.thumbnail, len(photo.features), photo.features.numpy().tobytes())
            for picture, photo in photos
            if (key := self._key(picture)) is not None
        ]
        if self._db is not None and rows:
            with suppress(sqlite3.Error), self._mutex:
                self._db.execute("BEGIN")
                self._db.executemany("INSERT OR REPLACE INTO photos VALUES (?, ?, ?, ?, ?)", rows)
                self._db.execute("COMMIT")
