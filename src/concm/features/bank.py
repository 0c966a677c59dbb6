"""Feature banks: a scenario's features in one file, on which everything after the backbone runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from concm.backbones.encoder import Encoder, Identity
from concm.data.scenarios import Scenario
from concm.data.views import Augment
from concm.errors import ConcmError, Misuse
from concm.files import digest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Precision = Literal["int8", "float16", "float32"]


@dataclass(frozen=True)
class Part:
    """Features (n, d), labels (n,), augmented views (n, k, d) if there are any, and the pictures' names.

    `pictures` (n, h, w, 3) are present if the bank was made for methods that go on training the backbone. `held` (n,)
    marks base images that the backbone was not trained on, where there are any.
    """

    features: Tensor
    labels: Tensor
    views: Tensor | None = None
    ids: list[str] = field(default_factory=list)
    pictures: Tensor | None = None
    held: Tensor | None = None

    def where(self, chosen: Tensor) -> Part:
        """The rows marked or numbered in `chosen`."""
        at = chosen.nonzero().flatten() if chosen.dtype == torch.bool else chosen
        ids = [self.ids[i] for i in at.tolist()] if self.ids else []
        optional = (self.views, self.pictures, self.held)
        views, pictures, held = (None if value is None else value[at] for value in optional)
        return Part(self.features[at], self.labels[at], views, ids, pictures, held)


@dataclass(frozen=True)
class Card:
    """Where a bank comes from: the backbone's training, the views per image and their kind, precision and size.

    `nearest_mean` is the accuracy of nearest class mean on the original features, so that the loss by storing can be
    checked without them.
    """

    training: dict[str, Any] | None = None
    views: int = 0
    augment: Augment = "shift"
    extraction_seconds: float | None = None
    nearest_mean: list[dict[str, float]] | None = None
    precision: Precision = "float32"
    bytes: int | None = None

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings of the base session that trained the backbone; empty if it was not trained by this library."""
        return (self.training or {}).get("recipe") or {}


@dataclass(frozen=True)
class Bank:
    """Features of base, novel and test images, cut into sessions by a scenario; everything is measured on such banks.

    Parameters
    ----------
    scenario
        The class order, how it is cut into sessions, and the shots.
    encoder
        The identity of the encoder that made the features.
    base, novel, test
        Features with labels of the base images, of the candidates from which shots are drawn, and of the test images.
    mean, std, counts
        Statistics (base classes, d) over *all* base images that were trained on, of which `base` may be a part.
    card
        Where the bank comes from.
    learned
        What the backbone's base session learned for a method, beside the backbone.
    weights
        The weights of the backbone, if the bank has pictures.

    Examples
    --------
    >>> import concm
    >>> bank = concm.Bank.bundled()
    >>> bank.scenario.base, bank.scenario.sessions, bank.dimension
    (60, 8, 960)
    """

    scenario: Scenario
    encoder: Identity
    base: Part
    novel: Part
    test: Part
    mean: Tensor
    std: Tensor
    counts: Tensor
    card: Card = Card()
    learned: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def from_arrays(
        cls,
        train: tuple[ArrayLike, Sequence[Any] | ArrayLike],
        test: tuple[ArrayLike, Sequence[Any] | ArrayLike],
        *,
        names: Sequence[str] | None = None,
        base: int,
        way: int = 5,
        shot: int = 5,
        views: ArrayLike | None = None,
    ) -> Bank:
        """Make a bank of your own features.

        Parameters
        ----------
        train, test
            Features (n, d) and labels (n,) each, as numpy arrays, torch tensors or lists. Labels are numbers from 0 on,
            or class names.
        names
            All class names, in the order in which the classes come. With class names as labels it may be left out: the
            order is then that of their first appearance among the training labels. Nothing is ever sorted.
        base
            Number of classes in the base session; the others come `way` at a time, with `shot` images each.
        views
            Augmented views (n, k, d) of the training features.

        Examples
        --------
        >>> import numpy, concm
        >>> X, y = numpy.random.default_rng(0).normal(size=(60, 8)), numpy.arange(60) % 6
        >>> bank = concm.Bank.from_arrays(train=(X, y), test=(X, y), base=4, way=2, shot=5)
        >>> bank.scenario.sessions, bank.scenario.names[0]
        (1, 'class 0')
        """
        from concm.features.arrays import bank_of_arrays

        return bank_of_arrays(train, test, names=names, base=base, way=way, shot=shot, views=views)

    @classmethod
    def load(cls, path: str | Path, scenario: str | None = None) -> Bank:
        """Read a bank, a file or a folder of shards, as float32; one of another scenario is refused."""
        from concm.features.storage import load_bank

        return load_bank(Path(path), scenario)

    @classmethod
    def bundled(cls, name: str = "cifar100") -> Bank:
        """The bank that ships with the package."""
        from concm.features.storage import bundled_bank

        return bundled_bank(name)

    @cached_property
    def digest(self) -> str:
        """A digest of all features and class names, which tells apart banks of the same backbone and size."""
        parts = {f"{name}/{kind}": getattr(part, kind) for name, part in self.parts.items() for kind in _KINDS}
        tensors = {name: value for name, value in parts.items() if value is not None}
        words = repr((self.scenario, self.encoder, digest({**tensors, "mean": self.mean, "std": self.std})))
        return blake2b(words.encode(), digest_size=8).hexdigest()

    @property
    def base_session(self) -> str | None:
        """The method whose base session trained the backbone; none if it was trained in another way."""
        name: str | None = self.card.recipe.get("method")
        return name

    @property
    def parts(self) -> dict[str, Part]:
        """Base, novel and test by name."""
        return {"base": self.base, "novel": self.novel, "test": self.test}

    def backbone(self) -> Encoder:
        """A copy of the backbone, to train further."""
        from concm import backbones

        own = self.encoder
        if own.transform is None:
            raise ConcmError("the features of this bank do not come from pictures, so it has no backbone")
        network = backbones.registered(own.name).build()
        try:
            network.load_state_dict(self.weights)
        except RuntimeError as error:
            raise ConcmError(f"this bank does not hold the weights of {own.name}; extract it again") from error
        training = self.card.training or {}
        return Encoder(own.name, network, own.transform, training, own.blocks, own.turns, own.looks)

    @property
    def layout(self) -> tuple[int, ...]:
        """The widths of the readings that stand side by side in a feature."""
        return self.encoder.layout or (self.dimension,)

    @property
    def passes(self) -> int:
        """How often the backbone saw each picture."""
        reading = (self.card.training or {}).get("reading") or {}
        return self.encoder.passes * len(reading.get("turns", (0,)))

    @property
    def dimension(self) -> int:
        """Dimensions of the features."""
        return self.mean.shape[1]

    def vary(self, *, way: int | None = None, shot: int | None = None, sessions: int | None = None) -> Bank:
        """The same features under other ways, shots or a smaller number of sessions."""
        scenario = self.scenario.vary(way=way, shot=shot, sessions=sessions)
        classes = len(scenario.keys)
        fewest = fewest_candidates(self.novel.labels, scenario)
        if fewest < scenario.shot:
            raise Misuse(f"this bank has {fewest} candidates for some novel class, so `shot` can be at most {fewest}")
        novel, test = (part.where(part.labels < classes) for part in (self.novel, self.test))
        return replace(self, scenario=scenario, novel=novel, test=test)

    def save(self, path: str | Path, precision: Precision = "float16", shards: int | None = None) -> None:
        """Write the bank; with int8, each dimension has a scale and an offset, and statistics stay float32.

        With `shards`, it is a folder of so many files, no larger than the disk or the network takes at a time.
        """
        from concm.features.storage import save_bank

        save_bank(self, Path(path), precision, shards)


_KINDS = ("features", "labels", "views", "held")


def fewest_candidates(labels: Tensor, scenario: Scenario) -> int:
    """Number of candidates of the novel class that has fewest."""
    counts = torch.bincount(labels, minlength=len(scenario.keys))[scenario.base : len(scenario.keys)]
    return int(counts.min()) if len(counts) else scenario.shot
