"""Word vectors: the bundled GloVe table (50 dimensions, the words of WordNet's nouns) or a user's GloVe text file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concm.errors import ConcmError, in_a_line
from concm.semantics.plurals import singulars

Vector = NDArray[np.float32]


class WordVectors(Protocol):
    """A vocabulary of words with vectors."""

    @property
    def size(self) -> int:
        """Dimensions of a vector."""

    def find(self, words: Iterable[str]) -> dict[str, Vector]:
        """Vectors of the words that are there."""


class Table:
    """Vectors in memory as int8, (s, words), with one scale per dimension (s)."""

    def __init__(self, words: Sequence[str], vectors: NDArray[np.int8], scale: Vector) -> None:
        self._row = dict(zip(words, range(len(words)), strict=True))
        self._vectors, self._scale = vectors, scale

    @property
    def size(self) -> int:
        """Dimensions of a vector."""
        return len(self._scale)

    def find(self, words: Iterable[str]) -> dict[str, Vector]:
        """Vectors of the words that are there."""
        return {word: self._vectors[:, self._row[word]] * self._scale for word in words if word in self._row}


@cache
def glove() -> Table:
    """The bundled table, read at first use."""
    path = files("concm") / "assets" / "glove.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as table:
        return Table(table["words"].tobytes().decode().split("\n"), table["vectors"], table["scale"])


class TextFile:
    """A GloVe text file with lines such as `word 0.1 -0.2 …`; only the words that are asked for are read from it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Vector | None] = {}
        try:
            with path.open("rb") as file:
                first = file.readline(1_000_000).split()
                # word2vec's files begin with a line of two counts.
                first = file.readline(1_000_000).split() if len(first) == 2 else first
        except OSError as error:
            raise ConcmError(f"cannot read the word vectors in {path}: {error.strerror or error}") from error
        self.size = len(first) - 1
        if self.size < 2:
            raise self._malformed("its first line is not a word and its numbers")
        self._numbers(first[1:], "its first line")

    def find(self, words: Iterable[str]) -> dict[str, Vector]:
        """Vectors of the words that are there; what was looked up before is remembered."""
        words = list(words)
        missing = {word.encode() for word in words if word not in self._found}
        if missing:
            self._found.update(dict.fromkeys((word.decode() for word in missing), None))
            self._scan(missing)
        return {word: vector for word in words if (vector := self._found[word]) is not None}

    def _scan(self, missing: set[bytes]) -> None:
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                word = line[: line.find(b" ")]
                if word not in missing:
                    continue
                values = line.split()[1:]
                if len(values) > self.size:  # one of the few words of GloVe that contain spaces
                    continue
                if len(values) < self.size:
                    raise self._malformed(f"line {number} has {len(values)} numbers, not {self.size}")
                self._found[word.decode()] = self._numbers(values, f"line {number}")
                missing.remove(word)
                if not missing:
                    return

    def _numbers(self, values: Sequence[bytes], place: str) -> Vector:
        try:
            found = np.array([float(value) for value in values], np.float32)
        except ValueError as error:
            raise self._malformed(f"{place}: {in_a_line(error)}") from error
        if not np.isfinite(found).all():
            raise self._malformed(f"{place} has values that are no numbers")
        return found

    def _malformed(self, why: str) -> ConcmError:
        return ConcmError(
            f"{self._path} is no file of word vectors ({why}); give an unpacked GloVe text file, "
            "with one word and its numbers on each line, or leave `word_vectors` out to use the bundled table"
        )


def word_vectors(path: Path | None) -> WordVectors:
    """A user's file, or the bundled table."""
    return glove() if path is None else TextFile(path)


def spellings(text: str) -> list[list[list[str]]]:
    """Ways to read each word of a name, each in pieces (black-footed, black + footed); singulars come last."""
    words = text.lower().replace("_", " ").split()
    return [
        [[word], re.findall(r"\w+", re.sub(r"['’]s?$", "", word)), *([one] for one in singulars(word))]
        for word in words
    ]


def embed(names: Sequence[Sequence[str]], vectors: WordVectors) -> tuple[Tensor, list[tuple[str, ...]]]:
    """One vector (n, s) for each group of names: the mean over its names of the mean over their known words.

    A group without known words gets zeros. Also returns the unknown words of each group.
    """
    split = [[spellings(name) for name in group] for group in names]
    known = vectors.find(
        {piece for group in split for name in group for word in name for pieces in word for piece in pieces}
    )
    rows = np.zeros((len(names), vectors.size), np.float32)
    unknown = []
    for row, group in enumerate(split):
        words = [[(word[0][0], _word(word, known)) for word in name] for name in group]
        unknown.append(tuple(dict.fromkeys(text for name in words for text, vector in name if vector is None)))
        means = [_mean(found) for name in words if (found := [vector for _, vector in name if vector is not None])]
        if means:
            rows[row] = _mean(means)
    return torch.from_numpy(rows), unknown


def _word(readings: Sequence[Sequence[str]], known: dict[str, Vector]) -> Vector | None:
    """The mean over the known pieces of the first reading that has any."""
    for pieces in readings:
        found = [known[piece] for piece in pieces if piece in known]
        if found:
            return _mean(found)
    return None


def _mean(found: list[Vector]) -> Vector:
    """The mean of some vectors, mostly of one."""
    return found[0] if len(found) == 1 else np.asarray(np.mean(found, axis=0), np.float32)
