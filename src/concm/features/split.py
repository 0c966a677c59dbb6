"""A feature bank in many files: a folder with an index and shards of rows, which is read as one bank."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concm.errors import ConcmError, Misuse, loading
from concm.files import load_tensors, save_tensors

KIND = "concm-rows-1"
INDEX = "index.safetensors"
ROWS = {f"{part}/{kind}" for part in ("base", "novel", "test") for kind in ("features", "views", "pictures")}
"""What shards hold; all else of a bank is in the index."""


def save_split(folder: Path, kind: str, tensors: Mapping[str, Tensor], meta: dict[str, Any], shards: int) -> None:
    """Write the shards and then the index, which names them: until it is there, an older bank is as it was."""
    if folder.exists() and not folder.is_dir():
        raise Misuse(f"a bank in `shards` is a folder, and {folder} is a file")
    rows = {name: value for name, value in tensors.items() if name in ROWS}
    token, files, before = secrets.token_hex(4), dict[str, str](), _named(folder, kind)
    for at in range(shards):
        own = {name: value[_between(len(value), at, shards)] for name, value in rows.items()}
        file = f"{at:05}-{token}.safetensors"
        files[file] = save_tensors(folder / file, KIND, own, {})
    others = {name: value for name, value in tensors.items() if name not in rows}
    save_tensors(folder / INDEX, kind, others, {**meta, "shards": files})
    for old in before:
        (folder / old).unlink(missing_ok=True)


def _named(folder: Path, kind: str) -> Iterable[str]:
    """The shards of the bank that was there before."""
    with suppress(ConcmError):
        return _shards(folder, load_tensors(folder / INDEX, kind)[1])
    return []


def _shards(folder: Path, meta: dict[str, Any]) -> dict[str, str]:
    """The files that an index names, with their digests."""
    with loading(folder / INDEX, "feature bank", "extract it again"):
        files = {str(file): str(digest) for file, digest in meta["shards"].items()}
        if not files or any(Path(file).name != file for file in files):
            raise ValueError("it names no shards of its own folder")
        return files


def load_split(folder: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors as one file would have them; a shard that is missing, or is not the one written, is refused."""
    tensors, meta = load_tensors(folder / INDEX, kind)
    found = [load_tensors(folder / file, KIND, expected)[0] for file, expected in _shards(folder, meta).items()]
    if len({frozenset(own) for own in found}) > 1:
        raise ConcmError(f"the shards of {folder} do not fit each other; extract it again")
    with loading(folder, "feature bank", "extract it again"):
        return tensors | {name: torch.cat([own[name] for own in found]) for name in found[0]}, meta


def is_split(path: Path) -> bool:
    """Whether there is a bank in many files."""
    return (path / INDEX).is_file()


def bank_size(path: Path) -> int:
    """Bytes of a bank, in one file or in many."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) if path.is_dir() else path.stat().st_size


def _between(count: int, at: int, shards: int) -> slice:
    """The rows of one shard, as many as of any other but for one."""
    return slice(count * at // shards, count * (at + 1) // shards)
