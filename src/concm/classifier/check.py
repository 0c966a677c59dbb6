"""A check of what a classifier was taught: which classes need photos, which are confused, which photos are to blame.

Nothing is encoded and nothing is changed: the features of all photos are in the store. Each photo is judged by its
class without itself and without those taken together with it (`LeftOut`), so this is what the photos say of each other
and no test; photos of another day or another camera may do worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from concm.classifier.album import Album
from concm.classifier.expected import Expectation
from concm.classifier.known import Known
from concm.classifier.left_out import LeftOut
from concm.classifier.suspects import doubts, harms

MORE = (5, 20)
"""So many more photos of each class are asked about."""
GAIN = 5.0
"""Points of accuracy that the larger number of photos must promise before a class is said to need more."""
GOOD = 80.0
"""The accuracy in per cent below which a class that more photos would not help is called confused."""
MOST = 50
"""Photos and pairs of classes that are listed at most."""
HARM = 0.5
"""Photos that must be expected to be recognised without a photo, but not with it, before it is called harmful."""

Verdict = Literal["enough", "more photos", "confused"]


@dataclass(frozen=True)
class ClassCheck:
    """A class; `separate` counts photos taken together once, and what is expected is accuracy in per cent.

    `expected` is with the photos that there are, `with_5_more` and `with_20_more` with so many more of each class;
    `None` where there is nothing to go by.
    """

    name: str
    photos: int
    separate: int
    expected: float | None
    with_5_more: float | None
    with_20_more: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Suspect:
    """A photo that looks more like `more_like` than like its class, by so much (`doubt`), or that does `harm`.

    `harm` is how many of the other photos are expected to be recognised without it that are not with it.
    """

    number: int
    photo: str
    name: str
    more_like: str
    doubt: float
    harm: float


@dataclass(frozen=True)
class Confusion:
    """Photos of the class `name` that are taken for `taken_for`, and those of that class that they look like most."""

    name: str
    taken_for: str
    photos: list[int]
    because: list[int]


@dataclass(frozen=True)
class Check:
    """What was found: classes in their order; likely mislabelled, harmful and confused ones with the worst first."""

    version: int
    expected: float | None
    classes: list[ClassCheck]
    mislabelled: list[Suspect]
    harmful: list[Suspect]
    confused: list[Confusion]


def check(album: Album, known: Known) -> Check:
    """Check the photos of a version."""
    left_out = LeftOut.of(album, known)
    usual = known.engine.likeness() + known.engine.single.gain  # a single photo is drawn to its neighbours
    classes = _classes(left_out, usual.cpu())
    doubt, more_like = doubts(left_out)
    harm = harms(left_out)

    def suspects(value: Tensor, least: float) -> list[Suspect]:
        """The photos whose value is above the least, the highest first."""
        ranked = [at for at in value.argsort(descending=True).tolist() if value[at] > least]
        return [
            Suspect(
                number=album.numbers[at],
                photo=album.files[at],
                name=album.names[int(album.labels[at])],
                more_like=album.names[int(more_like[at])],
                doubt=round(max(0.0, float(doubt[at])), 3),
                harm=round(float(harm[at]), 2),
            )
            for at in ranked[:MOST]
        ]

    figures = [row.expected for row in classes if row.expected is not None]
    return Check(
        version=album.version,
        expected=round(sum(figures) / len(figures), 1) if figures else None,
        classes=classes,
        mislabelled=suspects(doubt, -torch.inf),
        harmful=suspects(harm, HARM),
        confused=_confusions(left_out),
    )


def _classes(left_out: LeftOut, likeness: Tensor) -> list[ClassCheck]:
    album = left_out.album
    expectation = Expectation.of(left_out, likeness)
    separate = torch.bincount(album.labels[torch.unique(left_out.groups)], minlength=len(album.names))
    accuracies = torch.stack([expectation.accuracy(more) for more in (0, *MORE)], 1)
    found = []
    for at, name in enumerate(album.names):
        now, some, many = (None if value.isnan() else round(100 * float(value), 1) for value in accuracies[at])
        verdict = _verdict(int(separate[at]), now, many)
        found.append(ClassCheck(name, int(album.counts[at]), int(separate[at]), now, some, many, verdict))
    return found


def _verdict(separate: int, now: float | None, later: float | None) -> Verdict:
    """What a class needs; one photo alone says nothing of its class, whatever is expected of it."""
    if separate < 2 or now is None or later is None or later - now >= GAIN:
        return "more photos"
    return "enough" if now >= GOOD else "confused"


def _confusions(left_out: LeftOut) -> list[Confusion]:
    album, pairs = left_out.album, dict[tuple[int, int], list[int]]()
    for at in (left_out.margin < 0).nonzero().flatten().tolist():
        pairs.setdefault((int(album.labels[at]), int(left_out.rivals[1][at, 0])), []).append(at)
    found = []
    for (name, other), rows in sorted(pairs.items(), key=lambda pair: -len(pair[1]))[:MOST]:
        there = (album.labels == other).nonzero().flatten()
        like = there[(album.units[rows] @ album.units[there].T).argmax(1)] if len(there) else there
        because = dict.fromkeys(album.numbers[at] for at in like.tolist())
        found.append(
            Confusion(album.names[name], album.names[other], [album.numbers[at] for at in rows], list(because))
        )
    return found
