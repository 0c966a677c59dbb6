"""A lesson: the photos that are taught in one go, by class, encoded and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from concm.backbones.encoder import Encoder
from concm.classifier.elsewhere import Elsewhere
from concm.classifier.photos import Picture, spelling
from concm.classifier.stream import Encoded, encoded
from concm.data.images import Broken, BrokenPicture
from concm.errors import ConcmError, Misuse
from concm.features.sessions import BaseSession, Session


@dataclass(frozen=True)
class Lesson:
    """Photos by class, none empty; `remarks` say what was left out."""

    photos: dict[str, list[Encoded]]
    remarks: list[str]

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        groups: Mapping[str, list[Picture]],
        *,
        broken: Broken,
        remember: bool = False,
        elsewhere: Elsewhere | None = None,
    ) -> Lesson:
        """Encode all pictures, here or elsewhere; broken ones are refused or skipped."""
        if broken not in get_args(Broken):
            raise Misuse(f"`broken` is one of {', '.join(get_args(Broken))}, not {broken!r}")
        every = [(name, picture) for name, pictures in groups.items() for picture in pictures]
        pictures, title = [picture for _, picture in every], "reading photos"
        if elsewhere is None:
            items = encoded(encoder, pictures, remember=remember, title=title)
        else:
            items = elsewhere.encoded(encoder, pictures, title)
        found: dict[str, list[Encoded]] = {name: [] for name in groups}
        remarks: list[str] = []
        for (name, _), item in zip(every, items, strict=True):
            if isinstance(item, BrokenPicture):
                remarks.append(_skipped(str(item), broken))
            else:
                found[name].append(item)
        return cls(_none_empty(found), remarks)

    def only(self, names: Iterable[str]) -> Lesson:
        """The part of the lesson about these classes."""
        return replace(self, photos={name: self.photos[name] for name in names}, remarks=[])

    def spelled(self, known: Iterable[str]) -> Lesson:
        """The lesson with the names of known classes as they are kept."""
        kept, photos = spelling(known), dict[str, list[Encoded]]()
        for name, items in self.photos.items():
            photos[kept(name)] = photos.get(kept(name), []) + items
        return replace(self, photos=photos)

    def without(self, known: Callable[[str], object]) -> Lesson:
        """The lesson without pictures whose digests are `known`, and without classes of which nothing is left then."""
        left = {name: [item for item in items if not known(item.digest)] for name, items in self.photos.items()}
        return replace(self, photos={name: items for name, items in left.items() if items})

    @property
    def features(self) -> Tensor:
        """Features (n, d), class by class."""
        return torch.stack([item.features for items in self.photos.values() for item in items])

    @property
    def names(self) -> list[str]:
        """What the photo of each row of `features` is called."""
        return [item.name for items in self.photos.values() for item in items]

    @property
    def digests(self) -> list[str]:
        """The digest of the photo of each row of `features`."""
        return [item.digest for items in self.photos.values() for item in items]

    @property
    def truth(self) -> list[str]:
        """The class of each row of `features`."""
        return [name for name, items in self.photos.items() for _ in items]

    def session(self, index: int, first: int) -> Session:
        """A session for the engine, with classes numbered from `first` on.

        All readings share one metric, which told base photos apart better than one for each (docs/photos-choices.md).
        """
        labels = torch.tensor([first + at for at, items in enumerate(self.photos.values()) for _ in items])
        classes = range(first, first + len(self.photos))
        return Session(index, classes, tuple(self.photos), self.features, labels)

    def base_session(self) -> BaseSession:
        """A base session for the engine, with statistics."""
        return BaseSession.of(self.session(0, 0))

    def __str__(self) -> str:
        """The classes and their numbers of photos, for the history."""
        parts = [f"{name} ({len(items)})" for name, items in self.photos.items()]
        return ", ".join(parts) if len(parts) <= 5 else f"{', '.join(parts[:4])} and {len(parts) - 4} more"


def _skipped(sentence: str, broken: Broken) -> str:
    if broken == "refuse":
        raise ConcmError(f'{sentence}; remove it, or say `broken="skip"`')
    return f"skipped: {sentence}"


def _none_empty(found: dict[str, list[Encoded]]) -> dict[str, list[Encoded]]:
    for name, items in found.items():
        if not items:
            raise ConcmError(f"class {name!r} has no photo left that can be used")
    return found
