"""safetensors files written whole or not at all, and read with sentences instead of tracebacks."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from concm.errors import ConcmError, Misuse, WrongKind, loading


@contextmanager
def replacing(path: Path, way_out: str = "") -> Iterator[Path]:
    """A draft beside `path` that takes its place in one step on success, and disappears on failure.

    Only a regular file is ever replaced: a device, a pipe or a folder is refused. Rights follow the umask.
    """
    refuse_stream(path)
    draft = None
    try:
        path = Path(os.path.realpath(path))  # behind a link, its target is replaced
        if path.exists() and not path.is_file():
            kind = "folder" if path.is_dir() else "device or a pipe"
            raise ConcmError(f"cannot write {path}: it is a {kind}{way_out}")
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.parent / f".draft-{secrets.token_hex(8)}"
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield draft
        sync(draft)  # else a loss of power could leave the name without the content
        if path.exists():
            draft.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(draft, path)
        draft = None
        with suppress(OSError):  # a folder that cannot be synced holds the file all the same
            sync(path.parent)
    except OSError as error:
        raise ConcmError(f"cannot write {path}: {error.strerror or error}{way_out}") from error
    finally:
        if draft is not None:
            with suppress(OSError):  # the reason why it failed is told, and whoever writes next removes the draft
                draft.unlink()


def sync(path: Path) -> None:
    """Make a file's content durable, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_stream(path: Path | None) -> bool:
    """Whether a path stands for standard output."""
    return str(path) in ("-", "/dev/stdout")


def refuse_stream(*paths: Path | None) -> None:
    """Refuse standard output where something is written that is no text."""
    for path in filter(is_stream, paths):
        raise Misuse(f"{path} stands for standard output, which takes text alone; give the name of a file")


def text_of(path: Path, what: str, way_out: str) -> str:
    """The text of a file, which must be UTF-8."""
    with loading(path, what, way_out):
        return path.read_text(encoding="utf-8")


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path`: a crash or a full disk leaves the old file, and no draft; `-` is standard output."""
    if is_stream(path):
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    with replacing(path) as draft, draft.open("wb") as file:
        file.write(data)


def save_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> str:
    """Write tensors with JSON metadata, and return a digest of the file.

    `kind` names the sort of file, so that none is taken for another.
    """
    refuse_stream(path)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(meta)
    data = save(plain, metadata={"kind": kind, "meta": text, "seal": _seal(plain, text)})
    write_whole(path, data)
    return content_digest(data)


def _seal(tensors: Mapping[str, Tensor], text: str) -> str:
    """A digest of all that a file says, kept in the file itself, so that a flipped bit is noticed anywhere."""
    state = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        state.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        state.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


def content_digest(data: bytes) -> str:
    """Of a file's bytes; of the digests that can be trusted, the one that processors compute fastest."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def has_digest(path: Path, digest: str) -> bool:
    """Whether a file has this digest, also one that an older concm wrote.

    It is read, and not mapped into memory: a disk that fails while a map is read would end the process.
    """
    with path.open("rb") as file:
        if digest.startswith("sha256:"):
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == digest
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest() == digest


def load_tensors(path: Path, kind: str, expected: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; a file whose digest is not the `expected` one is refused, and so is one that
    does not fit its own seal. Files of before seals were written have none.
    """
    what = kind.rsplit("-", 1)[0].removeprefix("concm-")
    with loading(path, f"{what} file", "make it again or get another copy"):
        if expected is not None and not has_digest(path, expected):
            raise ConcmError(f"{path} is damaged: it is not the {what} file that was written")
        head, tensors = _read(path)
        if head.get("kind") != kind:
            raise WrongKind(f"{path} is {_describe(head.get('kind'))}, not a {what} (format {kind})")
        if expected is None and "seal" in head and head["seal"] != _seal(tensors, head["meta"]):
            raise ConcmError(f"{path} is damaged: it is not the {what} file that was written")
        meta = json.loads(head["meta"])
        if not isinstance(meta, dict):
            raise ValueError(f"its metadata is a {type(meta).__name__}")
        return tensors, meta


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file; the library opens no path that is not text."""
    try:
        if not os.fsdecode(path).isprintable():
            data = path.read_bytes()
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            return header.get("__metadata__") or {}, load(data)
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(error) from error


def _describe(kind: str | None) -> str:
    return f"a file of format {kind}" if kind else "some other safetensors file"


def all_finite(value: Tensor) -> bool:
    """Whether all values are numbers; where their sum is one, which is found faster, they are."""
    return bool(value.sum().isfinite()) or bool(value.isfinite().all())


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A short identity of named tensors."""
    state = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        state.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        state.update(value.flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()
