"""What goes wrong for users: a sentence that names the thing, the place and the way out.

Library messages name arguments in backquotes (`broken="skip"`); the command line shows them as its options.
"""

from __future__ import annotations

import csv
import difflib
import pickle
import struct
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class ConcmError(Exception):
    """A user-facing failure; the command line prints it without a traceback and exits with `code`."""

    code = 1


class Misuse(ConcmError, ValueError):
    """The request itself is wrong (an argument, a name, a combination), so nothing was attempted."""

    code = 2


class WrongKind(ConcmError):
    """A file is sound, and of another kind or format than is needed."""


def extra_needed(what: str, extra: str) -> Misuse:
    """The sentence for packages that are missing, which an extra of this one brings."""
    return Misuse(f"{what} needs the extra '{extra}' of concm (docs/installation.md says how to install it)")


def no_gpu() -> Misuse:
    """The sentence for a GPU that was asked for and is not there."""
    return Misuse("`device=cuda`, but torch sees no GPU here; leave `device` out, or install torch for CUDA")


def at_least(least: int, **values: float) -> None:
    """Refuse an argument whose value is too small."""
    for name, value in values.items():
        if value < least:
            raise Misuse(f"`{name}` must be at least {least}, not {value}")


def at_most(most: int, **values: float) -> None:
    """Refuse an argument whose value is too large."""
    for name, value in values.items():
        if value > most:
            raise Misuse(f"`{name}` must be at most {most:,}, not {value:,}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the nearest one, or what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"


_STUMBLES = (
    *(
        OSError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ),
    *(csv.Error, pickle.UnpicklingError, struct.error),
)


@contextmanager
def loading(path: Path, what: str, way_out: str) -> Iterator[None]:
    """The guard of a loader: what it stumbles over in a damaged file is told in one sentence about that file.

    It stands around the lines that take the file apart and no others, so that a bug elsewhere shows its traceback.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise ConcmError(f"no {what} at {path}") from error
    except ConcmError:
        raise
    except _STUMBLES as error:
        why = str(error) if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
        raise ConcmError(f"{path} is damaged or not a {what} ({in_a_line(why)}); {way_out}") from error


@contextmanager
def enough_memory(sentence: str) -> Iterator[None]:
    """Say `sentence` where memory runs out, on whichever device (torch has no common exception for it)."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        ran_out = isinstance(error, MemoryError) or any(
            words in str(error) for words in ("out of memory", "can't allocate memory", "not enough memory")
        )
        if type(error).__name__ == "OutOfMemoryError" or ran_out:
            raise ConcmError(sentence) from error
        raise


def in_a_line(error: Exception | str) -> str:
    """What an exception says, short, without line breaks and without what a terminal would obey."""
    words = textwrap.shorten(str(error), 200, placeholder=" …")
    return "".join(letter if letter.isprintable() else "�" for letter in words)
