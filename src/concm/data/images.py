"""Pictures decoded once, in parallel, into a memory-mapped uint8 cache that is keyed by their content.

Decoding itself needs numpy and Pillow alone: an exported classifier runs without torch, and imports this.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from concm.data import formats
from concm.data.pixels import DEEP, grey, rgb, room, shrunk, square
from concm.data.pixels import BrokenPicture as BrokenPicture
from concm.errors import ConcmError

Broken = Literal["refuse", "skip"]
MAX_PIXELS = 89_000_000
MAX_BYTES = 500_000_000
PIXELS_VERSION = 4
"""Version of the pixels that decoding gives; it must be raised when they change."""
_ELSEWHERE = "; set CONCM_CACHE to a folder elsewhere"
T = TypeVar("T")
R = TypeVar("R")


def cache_folder() -> Path:
    """Where decoded pictures are kept: $CONCM_CACHE, or the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("CONCM_CACHE") or Path(home, "concm"))


def decode(data: bytes | Path | Image.Image, side: int) -> NDArray[np.uint8]:
    """The central square of a picture, (side, side, 3): turned upright by its EXIF data, and any mode made RGB."""
    name = str(data) if isinstance(data, Path) else "this picture"
    if isinstance(data, Image.Image):
        return _pixels(data, name, side)
    with _pillow(name, data):
        if isinstance(data, Path):
            refuse_odd_file(data)
        image = Image.open(data if isinstance(data, Path) else io.BytesIO(data), formats=formats.readable())
    with image:
        with _pillow(name):
            image.draft("RGB", (2 * side, 2 * side))
        return _pixels(image, name, side)


@contextmanager
def _pillow(name: str, data: bytes | Path = b"") -> Iterator[None]:
    """The guard of Pillow's readers, whose failures have no common type; only they run in it."""
    try:
        yield
    except BrokenPicture:
        raise
    except Exception as error:
        heif = "HEIF" not in formats.readable() and formats.is_heif(data)
        reason = formats.MISSING_HEIF if heif else _reason(error)
        raise BrokenPicture(name, f"cannot be read as a picture ({reason})") from error


def refuse_odd_file(path: Path) -> None:
    """Refuse what never ends or never begins: a pipe, a device, a file larger than any picture that is read."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BrokenPicture(str(path), "cannot be read as a picture (it is no regular file)")
    if status.st_size > MAX_BYTES:
        raise BrokenPicture(str(path), f"has {status.st_size:,} bytes; at most {MAX_BYTES // 10**6} million are read")


def _pixels(image: Image.Image, name: str, side: int) -> NDArray[np.uint8]:
    if image.width * image.height > MAX_PIXELS:
        raise BrokenPicture(name, _TOO_LARGE.format(f"{image.width}×{image.height}"))
    if not image.width * image.height:
        raise BrokenPicture(name, "has no pixels")
    with room.taken(8 * image.width * image.height):
        return _decoded(image, name, side)


def _decoded(image: Image.Image, name: str, side: int) -> NDArray[np.uint8]:
    with _pillow(name):
        frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # an MPO file of a camera is one photo and a preview
        raise BrokenPicture(name, f"has {frames} frames; save the one that is meant as a separate picture")
    with _pillow(name):
        turn = _TURNS.get(image.getexif().get(0x0112, 1))
        image.load()
    plain = rgb(grey(image, name, side)) if image.mode in DEEP else shrunk(image, side)
    upright = plain if turn is None else plain.transpose(turn)
    return np.asarray(square(upright, side), dtype=np.uint8)


_TOO_LARGE = f"has {{}} pixels; at most {MAX_PIXELS // 10**6} million are read: scale it down"
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, Image.DecompressionBombError):
        return f"it is larger than the {MAX_PIXELS // 10**6} million pixels that are read: scale it down"
    return "not an image format" if isinstance(error, UnidentifiedImageError) else str(error)


def in_threads(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Results of `work` in order, computed on all cores; Pillow and hashing release the interpreter's lock."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ahead: deque[Future[R]] = deque()  # bounded, so that memory does not grow with the number of pictures
    with ThreadPoolExecutor(cores) as pool:
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                if len(ahead) > 16 * cores:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def cached(
    paths: Sequence[Path], side: int, broken: Broken = "refuse"
) -> tuple[NDArray[np.uint8], list[int], list[str]]:
    """Decoded pictures (memory-mapped), their positions in `paths`, and complaints about skipped ones."""
    pixels, skipped = _stored(_digests(paths), side, lambda row: decode(paths[row], side), len(paths), broken)
    complaints = [f"{paths[row]} {why}" for row, why in skipped.items()]
    if complaints and broken == "refuse":
        raise _refusal(complaints[0])
    return pixels, [row for row in range(len(paths)) if row not in skipped], complaints


def resized(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Square pictures that are in memory already, (n, h, h, 3), scaled to `side` pixels and cached in the same way."""
    if pixels.shape[1] == side:
        return pixels

    def scaled(row: int) -> NDArray[np.uint8]:
        return np.asarray(square(Image.fromarray(pixels[row]), side))

    return _stored(hashlib.blake2b(pixels.tobytes()).hexdigest(), side, scaled, len(pixels), "refuse")[0]


def _stored(
    content: str, side: int, work: Callable[[int], NDArray[np.uint8]], count: int, broken: Broken
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """The cache entry for this content, made if it is missing or incomplete, and why rows were skipped."""
    key = hashlib.blake2b(f"{PIXELS_VERSION}:{side}:{content}".encode(), digest_size=16).hexdigest()
    folder = cache_folder()
    file, notes = folder / f"{key}.npy", folder / f"{key}.json"
    entry = _read(file, notes, (count, side, side, 3))
    if entry is None:
        _decode_all(work, count, side, broken, file, notes)
        entry = _read(file, notes, (count, side, side, 3))
        if entry is None:
            raise ConcmError(f"the cache file {file} cannot be read back; delete it, or set CONCM_CACHE elsewhere")
    pixels, skipped = entry
    return pixels[: count - len(skipped)], skipped


def _read(file: Path, notes: Path, shape: tuple[int, ...]) -> tuple[NDArray[np.uint8], dict[int, str]] | None:
    """A cache entry; none if it is missing or damaged in whatever way."""
    with suppress(OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, MemoryError):
        pixels = np.load(file, mmap_mode="r")
        skipped = {int(row): str(why) for row, why in json.loads(notes.read_bytes())["skipped"]}
        if pixels.shape == shape and pixels.dtype == np.uint8 and set(skipped) <= set(range(shape[0])):
            return pixels, skipped
    return None


def _refusal(why: str) -> ConcmError:
    return ConcmError(f'{why}; remove it, or say `broken="skip"`')


def _decode_all(
    work: Callable[[int], NDArray[np.uint8]], count: int, side: int, broken: Broken, file: Path, notes: Path
) -> None:
    """Fill the cache file, then publish it by renaming: an interrupted run leaves nothing half-written."""

    def attempt(row: int) -> NDArray[np.uint8] | BrokenPicture:
        try:
            return work(row)
        except BrokenPicture as error:
            return error

    from concm.files import replacing
    from concm.progress import track

    skipped: list[tuple[int, str]] = []
    with replacing(file, _ELSEWHERE) as draft:
        store = np.lib.format.open_memmap(draft, mode="w+", dtype=np.uint8, shape=(count, side, side, 3))
        if hasattr(os, "posix_fallocate"):  # so that a full disk is an error here, not a crash on a later write
            with draft.open("r+b") as handle:
                os.posix_fallocate(handle.fileno(), 0, draft.stat().st_size)
        at = 0
        rows = track(range(count), "decoding pictures")
        for row, result in enumerate(in_threads(attempt, rows)):
            if isinstance(result, BrokenPicture):
                if broken == "refuse":
                    raise _refusal(str(result))
                skipped.append((row, result.reason))
            else:
                store[at] = result
                at += 1
        store.flush()
        del store
    with replacing(notes, _ELSEWHERE) as draft:
        draft.write_text(json.dumps({"skipped": skipped}))


def _digests(paths: Sequence[Path]) -> str:
    """One digest of all files' contents; they are read again only if the size or time of a file has changed."""
    stamps = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError as error:
            raise ConcmError(f"no picture at {path}") from error
        stamps.update(os.fsencode(f"{os.path.abspath(path)}:{status.st_size}:{status.st_mtime_ns}\n"))
    ledger = cache_folder() / f"digest-{stamps.hexdigest()}"
    with suppress(OSError, UnicodeDecodeError):
        if re.fullmatch("[0-9a-f]{32}", known := ledger.read_text(encoding="ascii")):
            return known
    together = hashlib.blake2b(digest_size=16)

    def content(path: Path) -> bytes:
        refuse_odd_file(path)
        return hashlib.blake2b(path.read_bytes()).digest()

    from concm.files import replacing
    from concm.progress import track

    for digest in in_threads(content, track(paths, "reading files")):
        together.update(digest)
    with replacing(ledger, _ELSEWHERE) as draft:
        draft.write_text(together.hexdigest())
    return together.hexdigest()
