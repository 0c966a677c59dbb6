"""Pictures encoded on a cluster, a shard at a time: what is done is kept beside the bank until the bank is whole."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from concm.backbones.encoder import Encoder
from concm.cluster import Cluster, ahead
from concm.data.dataset import ImageSet
from concm.data.pixels import BrokenPicture
from concm.data.unread import Unread
from concm.data.views import Augment
from concm.errors import ConcmError
from concm.files import digest, load_tensors, save_tensors
from concm.records import to_json

KIND = "concm-shard-1"
BATCHES = 4
"""Batches in a shard."""


@dataclass(frozen=True)
class Shards:
    """Where shards are encoded, on what, and the folder that keeps them; workers read pictures by their paths."""

    cluster: Cluster
    device: str
    folder: Path

    def encode(
        self,
        encoder: Encoder,
        images: ImageSet,
        views: tuple[int, Augment],
        seed: int,
        batch: int,
        tick: Callable[[int], None],
    ) -> Tensor:
        """Features (n, d), or (n, views, d) of views, as one process finds them; finished shards are not redone."""
        size = batch * BATCHES
        parts = [images.where(_between(len(images), at, at + size)).alone() for at in range(0, len(images), size)]
        files = [self.folder / f"{_key(encoder, part, views, seed, batch)}.safetensors" for part in parts]
        todo = [at for at, file in enumerate(files) if not file.exists()]
        tick(sum(len(part) for at, part in enumerate(parts) if at not in set(todo)))
        gpus = int(self.device == "cuda")
        jobs = [(parts[at], views, seed, batch, self.device) for at in todo]
        done = self.cluster.each(_encoded, encoder, jobs, gpus=gpus, at_once=ahead(self.cluster, self.device))
        with closing(done):
            for at, features in done:
                save_tensors(files[todo[at]], KIND, {"features": torch.tensor(features)}, {})
                tick(len(features))
        every = [load_tensors(file, KIND)[0]["features"] for file in files]
        return torch.cat(every) if every else encoder.encode(images, views=views[0])

    def clear(self) -> None:
        """Remove the shards, of which there is a bank now."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _between(count: int, first: int, last: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    rows = np.arange(count)
    return (rows >= first) & (rows < last)


def _key(encoder: Encoder, images: ImageSet, views: tuple[int, Augment], seed: int, batch: int) -> str:
    """A digest of all that decides a shard."""
    own = images.pixels
    pictures = own.fingerprint() if isinstance(own, Unread) else digest({"pixels": torch.from_numpy(own)})
    about = [to_json(encoder.identity), pictures, images.ids, views, seed if views[0] else 0, batch]
    return hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()


def _encoded(
    encoder: Encoder, images: ImageSet, views: tuple[int, Augment], seed: int, batch: int, device: str
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """In a worker: the features of one shard."""
    torch.set_num_threads(1)
    if encoder.device.type != device:
        encoder.to(torch.device(device))
    try:
        features = encoder.encode(images, views=views[0], kind=views[1], seed=seed, batch=batch)
    except BrokenPicture as error:
        raise ConcmError(f"{error}; remove it, and the same command does the rest") from error
    if not features.isfinite().all():
        raise ConcmError(f"the backbone {encoder.name} gives features that are no numbers")
    return features.numpy()
