"""Photos encoded on a cluster: files are read where the workers are, and what comes back is remembered here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from concm.backbones.encoder import Encoder
from concm.classifier.photos import Picture, called
from concm.classifier.stream import Encoded, FeatureCache, in_parts, in_piles
from concm.cluster import Cluster, ahead
from concm.data.images import BrokenPicture, in_threads, refuse_odd_file
from concm.errors import Misuse
from concm.progress import track

SHARD = 64
"""Photos that a worker takes at a time."""
Sent = tuple[str, bytes, np.ndarray[tuple[int], np.dtype[np.float32]]] | str
"""What a worker sends: digest, small JPEG and features of a photo, or why there are none."""


@dataclass(frozen=True)
class Elsewhere:
    """Where photos are encoded, and on what."""

    cluster: Cluster
    device: str

    def encoded(self, encoder: Encoder, pictures: Sequence[Picture], title: str) -> Iterator[Encoded | BrokenPicture]:
        """The features of each file in order, or its error; files that were encoded before are not sent."""
        paths = [_path(picture) for picture in pictures]
        cache = FeatureCache(encoder, self.device)
        try:
            yield from track(self._found(encoder, paths, cache), title, len(paths))
        finally:
            cache.close()

    def _found(self, encoder: Encoder, paths: list[Path], cache: FeatureCache) -> Iterator[Encoded | BrokenPicture]:
        names = [called(path, at) for at, path in enumerate(paths)]
        keys: dict[int, bytes] = {}
        found: dict[int, Encoded | BrokenPicture] = {}
        for at, key in enumerate(in_threads(lambda path: _key(cache, path), paths)):
            known = None if key is None else cache.get(key, names[at])
            if known is not None:
                found[at] = known
            elif key is not None:
                keys[at] = key
        shards = list(in_parts([at for at in range(len(paths)) if at not in found], SHARD))
        jobs = [([os.path.abspath(paths[at]) for at in shard], self.device) for shard in shards]
        gpus, most = int(self.device == "cuda"), ahead(self.cluster, self.device)
        next_one = 0
        with closing(self.cluster.each(_encoded, encoder, jobs, gpus=gpus, at_once=most)) as results:
            for job, sent in results:
                fresh = {at: _received(own, names[at]) for at, own in zip(shards[job], sent, strict=True)}
                sound = {at: own for at, own in fresh.items() if isinstance(own, Encoded)}
                cache.put([(keys[at], own) for at, own in sound.items() if at in keys])
                found |= fresh
                while next_one in found:
                    yield found.pop(next_one)
                    next_one += 1
        yield from (found[at] for at in range(next_one, len(paths)))


def _path(picture: Picture) -> Path:
    if not isinstance(picture, str | os.PathLike):
        raise Misuse("the workers of a cluster read photos by their paths: `on` goes with a folder or a list of files")
    return Path(picture)


def _key(cache: FeatureCache, path: Path) -> bytes | None:
    """The key of a file in the cache; what is wrong with one that cannot be read, its worker says."""
    try:
        refuse_odd_file(path)
        return cache.key(path.read_bytes())
    except (OSError, BrokenPicture):
        return None


def _received(sent: Sent, name: str) -> Encoded | BrokenPicture:
    if isinstance(sent, str):
        return BrokenPicture(name, sent)
    return Encoded(name, sent[0], sent[1], torch.tensor(sent[2]))


def _encoded(encoder: Encoder, paths: list[str], device: str) -> list[Sent]:
    """In a worker: all that is kept of each file."""
    torch.set_num_threads(1)
    if encoder.device.type != device:
        encoder.to(torch.device(device))
    items = [item for pile in in_piles(encoder, paths) for item in pile]
    return [
        item.reason if isinstance(item, BrokenPicture) else (item.digest, item.thumbnail, item.features.numpy())
        for item in items
    ]
