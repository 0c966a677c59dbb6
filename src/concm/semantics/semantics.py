"""What calibration uses of the class names: a pool of attributes fixed by the base classes, and word vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from concm.semantics import cub
from concm.semantics.attributes import attributes, pool
from concm.semantics.overrides import identified, plain, synsets
from concm.semantics.senses import Company, Sense, resolve, told
from concm.semantics.vectors import WordVectors, embed, word_vectors
from concm.semantics.wordnet import identifier, key, nouns


@dataclass(frozen=True)
class Meaning:
    """What is known of one class name, in words for users; `synset` and `kind_of` are empty if it has no synset."""

    name: str
    synset: str
    label: str
    kind_of: tuple[str, ...]
    how: str
    attributes: tuple[str, ...]
    unknown_words: tuple[str, ...]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the user: a name known in part or not at all, no attributes, words without a vector."""
        found = []
        if self.how.startswith(("head word", "first words")):
            found.append(f"{self.name!r} is read as {self.label!r} ({self.how})")
        elif not self.synset and self.how != "CUB":
            found.append(f"{self.name!r} has no meaning here ({self.how})")
        if not self.attributes:
            found.append(f"{self.name!r} has no attributes: its prototype is not calibrated")
        if self.unknown_words:
            found.append(f"{self.name!r} has words without a vector: {', '.join(self.unknown_words)}")
        return tuple(found)


class Source(Protocol):
    """A source of meanings; what a name means depends only on the known classes and the name."""

    @property
    def known(self) -> Mapping[str, Sense]:
        """The classes whose sense is settled, by key."""

    def learn(self, names: Sequence[str]) -> Source:
        """The same source with these classes known too."""

    def sense(self, name: str) -> Sense:
        """The meaning of a name."""

    def columns(self, name: str) -> tuple[int, ...]:
        """The attributes of a name that are in the pool, as columns."""

    def profile(self, name: str) -> dict[int, float]:
        """What a name says of its class's looks: things that other classes share, and how much each of them tells."""


@dataclass(frozen=True)
class FromWordNet:
    """Meanings from WordNet: senses of the known classes, and the pool as synsets."""

    known: Mapping[str, Sense]
    pool: tuple[int, ...]
    overrides: Mapping[str, int | None]
    least_information: float

    def learn(self, names: Sequence[str]) -> FromWordNet:
        """Settle the senses of these names one after the other, each in the context of those before it."""
        if all(_key(name) in self.known for name in names):
            return self
        known, company = dict(self.known), Company(self.known.values())
        for name in names:
            if _key(name) not in known:
                known[_key(name)] = resolve([name], known=company, overrides=self.overrides)[0]
                company.add(known[_key(name)])
        return replace(self, known=known)

    def sense(self, name: str) -> Sense:
        """The settled sense of a known class, else the one that fits the known classes best."""
        if _key(name) in self.known:
            return self.known[_key(name)]
        return resolve([name], known=Company(self.known.values()), overrides=self.overrides)[0]

    def columns(self, name: str) -> tuple[int, ...]:
        """The parts of the class in the pool, its own and inherited ones."""
        own = attributes(self.sense(name).synset, self.least_information)
        return tuple(column for column, part in enumerate(self.pool) if part in own)

    def profile(self, name: str) -> dict[int, float]:
        """The ancestors of the class's synset, each with what it tells beyond its own ancestors."""
        synset = self.sense(name).synset
        return {} if synset is None else {above: told(above) for above in nouns().ancestors(synset)}


@dataclass(frozen=True)
class FromCub:
    """Meanings from CUB's attribute table, and the pool as its columns."""

    table: cub.CubAttributes
    pool: tuple[int, ...]
    known: Mapping[str, Sense] = field(default_factory=dict)

    def learn(self, names: Sequence[str]) -> FromCub:
        """The same source, since CUB's classes have no senses to settle."""
        return self

    def sense(self, name: str) -> Sense:
        """A sense without a synset; it says whether CUB has the class."""
        return Sense(name, None, "not among CUB's classes" if self.table.of(name) is None else "CUB")

    def columns(self, name: str) -> tuple[int, ...]:
        """The strongest attribute of each group, as far as the pool has it."""
        own = self.table.of(name) or ()
        return tuple(column for column, attribute in enumerate(self.pool) if attribute in own)

    def profile(self, name: str) -> dict[int, float]:
        """The strongest attribute of each group; all tell as much."""
        return dict.fromkeys(self.table.of(name) or (), 1.0)


@dataclass(frozen=True, eq=False)
class Semantics:
    """Attributes (A) with their vectors (A, s), and for any class name its vector and its share of the pool.

    A name's meaning depends only on the known classes and the name, so no later class changes an earlier one.
    """

    attributes: tuple[str, ...]
    vectors: Tensor
    source: Source
    words: WordVectors

    @classmethod
    def of_names(
        cls,
        base_names: Sequence[str],
        *,
        overrides: Mapping[str, str] | Path | None = None,
        word_vectors: Path | None = None,
        least_information: float = 0.0,
    ) -> Semantics:
        """Attributes from WordNet; the base classes' senses are settled together.

        `least_information` leaves out the parts of very general hypernyms; see `attributes`.
        """
        by_hand = synsets(overrides)
        known = resolve(base_names, overrides=by_hand)
        parts = pool((sense.synset for sense in known), least_information)
        labels = tuple(nouns().label(part) for part in parts)
        lemmas = [nouns().lemmas(part) for part in parts]
        settled = {_key(sense.name): sense for sense in known}
        source = FromWordNet(settled, parts, by_hand, least_information)
        return cls._of(labels, lemmas, base_names, source, word_vectors)

    @classmethod
    def of_cub(cls, base_names: Sequence[str], folder: Path, *, word_vectors: Path | None = None) -> Semantics:
        """Attributes from CUB's files: for each class the strongest of each group, the pool by the base classes."""
        table = cub.read(folder)
        columns = table.pool(base_names)
        labels = tuple(table.names[column] for column in columns)
        names = [(cub.words(label),) for label in labels]
        return cls._of(labels, names, base_names, FromCub(table, columns), word_vectors)

    @classmethod
    def _of(
        cls,
        labels: tuple[str, ...],
        names: Sequence[Sequence[str]],
        base_names: Sequence[str],
        source: Source,
        path: Path | None,
    ) -> Semantics:
        words = word_vectors(path)
        # The vectors of attributes and base classes are looked up together, so that a user's file is read only once.
        vectors, _ = embed([*names, *((plain(name),) for name in base_names)], words)
        return cls(attributes=labels, vectors=vectors[: len(labels)].clone(), source=source, words=words)

    def __deepcopy__(self, memo: object) -> Semantics:
        """Nothing of it ever changes, and its vocabulary is large: a copy is the thing itself."""
        return self

    def learn(self, names: Sequence[str]) -> Semantics:
        """The same pool with these classes known too, as context for the names that come later."""
        return replace(self, source=self.source.learn(names))

    def classes(self, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Class vectors (n, s) and which attributes of the pool each class has (n, A), as bool."""
        association = torch.zeros(len(names), len(self.attributes), dtype=torch.bool)
        for row, name in enumerate(names):
            association[row, list(self.source.columns(name))] = True
        return self._embed(names)[0], association

    def embedded(self, names: Sequence[str]) -> Tensor:
        """Word vectors (n, s) of class names; those of names without any known word are zero."""
        return self._embed(names)[0]

    @property
    def without_vector(self) -> tuple[str, ...]:
        """Attributes whose vectors are zero, because none of their words is known."""
        return tuple(name for name, vector in zip(self.attributes, self.vectors, strict=True) if not vector.any())

    @property
    def senses(self) -> dict[str, str]:
        """The known classes' synsets; given as `overrides`, they keep their senses in any later version."""
        known = self.source.known.values()
        return {sense.name: "" if sense.synset is None else identifier(sense.synset) for sense in known}

    def meanings(self, names: Sequence[str]) -> list[Meaning]:
        """The meanings of these names in words for users: senses, attributes by name, and what is unknown."""
        _, unknown = self._embed(names)
        found = []
        for name, strange in zip(names, unknown, strict=True):
            sense = self.source.sense(name)
            own = tuple(self.attributes[column] for column in self.source.columns(name))
            path = () if sense.synset is None else nouns().ancestors(sense.synset)
            labels = tuple(nouns().label(synset) for synset in path)
            found.append(
                Meaning(
                    name=name,
                    synset="" if sense.synset is None else identifier(sense.synset),
                    label=labels[0] if labels else "",
                    kind_of=labels[1:],
                    how=sense.how,
                    attributes=own,
                    unknown_words=strange,
                )
            )
        return found

    def _embed(self, names: Sequence[str]) -> tuple[Tensor, list[tuple[str, ...]]]:
        """Vectors of the names' own words, or of their synsets' lemmas if none of those words is known."""
        found = [self.source.sense(name).synset for name in names]
        lemmas = [() if synset is None else nouns().lemmas(synset) for synset in found]
        own = [group[:1] if identified(name) else (plain(name),) for name, group in zip(names, lemmas, strict=True)]
        vectors, unknown = embed(own, self.words)
        strange = [row for row, vector in enumerate(vectors) if not vector.any()]
        for row, vector in zip(strange, embed([lemmas[row] for row in strange], self.words)[0], strict=True):
            if vector.any():
                vectors[row], unknown[row] = vector, ()
        return vectors, unknown


def _key(name: str) -> str:
    return key(plain(name))


def report(
    names: Sequence[str],
    *,
    overrides: Mapping[str, str] | Path | None = None,
    word_vectors: Path | None = None,
    least_information: float = 0.0,
) -> list[Meaning]:
    """What each of these class names means in the context of the others, with all its attributes."""
    semantics = Semantics.of_names(
        names, overrides=overrides, word_vectors=word_vectors, least_information=least_information
    )
    return semantics.meanings(names)
