"""What a user gives instead of WordNet's attributes and the bundled word vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from concm.errors import Misuse
from concm.semantics.overrides import bundled
from concm.semantics.semantics import Semantics


@dataclass(frozen=True)
class Knowledge:
    """CUB's folder of attributes, and a GloVe text file of word vectors, where they are given."""

    attributes: Path | None = None
    word_vectors: Path | None = None

    def __post_init__(self) -> None:
        if self.attributes is not None and not self.attributes.is_dir():
            raise Misuse(f"no folder of attributes at {self.attributes}; `attributes` takes that of CUB-200-2011")
        if self.word_vectors is not None and not self.word_vectors.is_file():
            raise Misuse(f"no word vectors at {self.word_vectors}; `word_vectors` takes a GloVe text file")

    def semantics(self, scenario: str, names: tuple[str, ...]) -> Semantics:
        """What the names of a scenario's base classes mean by it; read once, however often it is asked for."""
        return _meanings(self, scenario.removesuffix("-validation"), names)

    def _read(self, scenario: str, names: tuple[str, ...]) -> Semantics:
        if self.attributes is not None:
            return Semantics.of_cub(names, self.attributes, word_vectors=self.word_vectors)
        return Semantics.of_names(names, overrides=bundled(scenario), word_vectors=self.word_vectors)

    @property
    def recorded(self) -> dict[str, str]:
        """A digest of each, by which a result is told from one of other knowledge."""
        found = {"attributes": self.attributes, "word_vectors": self.word_vectors}
        return {name: _digest(path) for name, path in found.items() if path is not None}


@cache
def _meanings(knowledge: Knowledge, scenario: str, names: tuple[str, ...]) -> Semantics:
    return knowledge._read(scenario, names)


def _digest(path: Path) -> str:
    state = blake2b(digest_size=8)
    for file in sorted(path.rglob("*attribut*.txt")) if path.is_dir() else [path]:
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                state.update(block)
    return state.hexdigest()
