"""Pictures decoded once, in parallel, into a memory-mapped uint8 cache that is keyed by their content."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from concm.errors import ConcmError
from concm.progress import track

Broken = Literal["refuse", "skip"]
MAX_PIXELS = 89_000_000
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # refused below, with a sentence
T = TypeVar("T")
R = TypeVar("R")


class BrokenPicture(ConcmError):
    """A file that cannot be read as a picture."""


def cache_folder() -> Path:
    """Where decoded pictures are kept: $CONCM_CACHE, or the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("CONCM_CACHE") or Path(home, "concm"))


def decode(data: bytes | Path, side: int) -> NDArray[np.uint8]:
    """The central square of a picture at `side` pixels, (side, side, 3): EXIF-upright, any mode as RGB."""
    name = str(data) if isinstance(data, Path) else "this picture"
    try:
        with Image.open(data if isinstance(data, Path) else io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise BrokenPicture(
                    f"{name} has {image.width}×{image.height} pixels; at most {MAX_PIXELS // 10**6} million are read: "
                    "scale it down"
                )
            image.draft("RGB", (2 * side, 2 * side))
            turn = _TURNS.get(image.getexif().get(0x0112, 1))
            upright = _rgb(image if turn is None else image.transpose(turn))
            return np.asarray(_square(upright, side), dtype=np.uint8)
    except BrokenPicture:
        raise
    except Exception as error:
        raise BrokenPicture(f"{name} cannot be read as a picture ({_reason(error)})") from error


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
    return "not an image format" if isinstance(error, UnidentifiedImageError) else str(error)


def _rgb(image: Image.Image) -> Image.Image:
    """RGB from any mode: transparency over white, 16-bit and float greys scaled rather than clipped."""
    if image.mode in ("I;16", "I;16B", "I;16L", "I", "F"):
        grey = np.asarray(image, dtype=np.float64)
        top = 255.0 if image.mode in ("I", "F") and grey.max(initial=0) <= 255 else 65535.0
        return Image.fromarray((grey.clip(0, top) / top * 255).round().astype(np.uint8), "L").convert("RGB")
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB")
    return image.convert("RGB")


def _square(image: Image.Image, side: int) -> Image.Image:
    """Central square, scaled to `side`; pixels of the right size are left untouched."""
    short = min(image.size)
    left, top = (image.width - short) / 2, (image.height - short) / 2
    if image.size == (side, side):
        return image
    return image.resize((side, side), Image.Resampling.BICUBIC, box=(left, top, left + short, top + short))


def resized(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Square pictures that are in memory already, (n, h, h, 3), at `side` pixels."""
    if pixels.shape[1] == side:
        return pixels
    if not len(pixels):
        return np.zeros((0, side, side, 3), np.uint8)
    return np.stack([np.asarray(_square(Image.fromarray(picture), side)) for picture in pixels])


def in_threads(work: Callable[[T], R], items: Sequence[T], title: str) -> Iterator[R]:
    """Results of `work` in order, computed by all cores; Pillow and hashing release the interpreter's lock."""
    cores = os.cpu_count() or 1
    ahead: deque[Future[R]] = deque()  # bounded, so that memory does not grow with the number of pictures
    with ThreadPoolExecutor(cores) as pool:
        try:
            for item in track(items, title):
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
    """Decoded pictures (memory-mapped), the positions in `paths` they belong to, and complaints about skipped ones."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConcmError(f"cannot make the cache folder {folder}: {error.strerror}; set CONCM_CACHE") from error
    digests = _digests(paths, folder)
    key = hashlib.blake2b(f"{side}:{broken}:".encode() + "".join(digests).encode(), digest_size=16).hexdigest()
    pixels, notes = folder / f"{key}.npy", folder / f"{key}.json"
    if not notes.exists() or not pixels.exists():
        _decode_all(paths, side, broken, pixels, notes)
    record = json.loads(notes.read_text())
    complaints = [f"{paths[row]} {why}" for row, why in record["skipped"]]
    skipped = {row for row, _ in record["skipped"]}
    kept = [row for row in range(len(paths)) if row not in skipped]
    return np.load(pixels, mmap_mode="r")[: len(kept)], kept, complaints


def _decode_all(paths: Sequence[Path], side: int, broken: Broken, pixels: Path, notes: Path) -> None:
    """Fill the cache file, then publish it by renaming: an interrupted run leaves nothing half-written."""

    def attempt(path: Path) -> NDArray[np.uint8] | BrokenPicture:
        try:
            return decode(path, side)
        except BrokenPicture as error:
            return error

    skipped: list[tuple[int, str]] = []
    with _replacing(pixels) as draft:
        store = np.lib.format.open_memmap(draft, mode="w+", dtype=np.uint8, shape=(len(paths), side, side, 3))
        with draft.open("r+b") as file:  # a full disk must be an error here, not a crash in the middle of a page
            os.posix_fallocate(file.fileno(), 0, draft.stat().st_size)
        at = 0
        for row, result in enumerate(in_threads(attempt, paths, "decoding pictures")):
            if isinstance(result, BrokenPicture):
                if broken == "refuse":
                    raise ConcmError(f"{result}; remove it, or add --broken skip")
                skipped.append((row, str(result).removeprefix(f"{paths[row]} ")))
            else:
                store[at] = result
                at += 1
        store.flush()
        del store
    with _replacing(notes) as draft:
        draft.write_text(json.dumps({"skipped": skipped}))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A draft beside `path` that takes its place on success and disappears on failure."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, path)
    except OSError as error:
        raise ConcmError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _digests(paths: Sequence[Path], folder: Path) -> list[str]:
    """A digest of each file's content; nothing is read again while no file's size or time changed."""
    gone = next((path for path in paths if not path.is_file()), None)
    if gone is not None:
        raise ConcmError(f"no picture at {gone}")
    stamps = [f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}" for path in paths for status in [path.stat()]]
    ledger = folder / f"digests-{hashlib.blake2b(chr(10).join(stamps).encode(), digest_size=16).hexdigest()}.json"
    if ledger.exists():
        return list(json.loads(ledger.read_text()))
    digests = list(
        in_threads(lambda path: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest(), paths, "reading files")
    )
    with _replacing(ledger) as draft:
        draft.write_text(json.dumps(digests))
    return digests
