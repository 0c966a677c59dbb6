"""A scenario joined with its pictures: labelled uint8 images, and pseudo-incremental variants for validation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from concm.data import images, sources
from concm.data.scenarios import Scenario
from concm.data.transform import Transform
from concm.data.unread import Unread
from concm.errors import ConcmError


@dataclass(frozen=True)
class ImageSet:
    """Rows of a pixel array (n, h, w, 3), their labels in the scenario's order and the pictures' names."""

    pixels: NDArray[np.uint8] | Unread
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    ids: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, chosen: NDArray[np.bool_]) -> ImageSet:
        """The images marked in `chosen`; pixels are shared, not copied."""
        at = np.flatnonzero(chosen)
        return ImageSet(self.pixels, self.rows[at], self.labels[at], [self.ids[i] for i in at])

    def alone(self) -> ImageSet:
        """The same images without the pixels or files of others, to be sent elsewhere."""
        if isinstance(self.pixels, Unread):
            own: NDArray[np.uint8] | Unread = Unread([self.pixels.paths[row] for row in self.rows], self.pixels.side)
        else:
            own = self.pixels[self.rows]
        return ImageSet(own, np.arange(len(self)), self.labels, self.ids)

    def of_classes(self, classes: range) -> ImageSet:
        """The images of consecutive classes."""
        return self.where((self.labels >= classes.start) & (self.labels < classes.stop))


@dataclass(frozen=True)
class Dataset:
    """Training and test images of a scenario, decoded for one transform.

    `held` are base images that the base session does not train on; what a frozen backbone makes of *them* tells how it
    does on pictures that it has not seen.
    """

    scenario: Scenario
    transform: Transform
    train: ImageSet
    test: ImageSet
    held: ImageSet | None = None

    @cached_property
    def base(self) -> ImageSet:
        """The images that the base session may train on."""
        return self.train.of_classes(self.scenario.classes_of(0))

    @cached_property
    def novel(self) -> ImageSet:
        """The candidates from which shots are drawn."""
        return self.train.of_classes(range(self.scenario.base, len(self.scenario.keys)))

    def holding_out(self, share: float, *, seed: int) -> Dataset:
        """The same data with a share of each base class's images held out; a class keeps one image to train on."""
        if not share:
            return self
        chosen = _share(self.train.labels, self.scenario.base, share, np.random.default_rng((seed, 1)))
        return replace(self, train=self.train.where(~chosen), held=self.train.where(chosen))

    def validation(self, *, novel: int | None = None, share: float = 0.1, seed: int = 0) -> Dataset:
        """A pseudo-incremental scenario of the base classes alone, for choosing settings.

        The last of the base classes (shuffled) play the novel ones; a share of all training images is the test part.
        """
        scenario = self.scenario
        count = scenario.base // 3 if novel is None else novel
        generator = np.random.default_rng(seed)
        order = generator.permutation(scenario.base)
        place = np.argsort(order)
        base = self.base
        labels = place[base.labels]
        held = _share(labels, scenario.base, share, generator)
        relabelled = replace(base, labels=labels)
        pseudo = replace(
            scenario,
            name=f"{scenario.name}-validation",
            title=f"{scenario.title}, validation on base classes",
            keys=tuple(scenario.keys[i] for i in order),
            names=tuple(scenario.names[i] for i in order),
            base=scenario.base - count,
            parts=(),
        )
        return Dataset(pseudo, self.transform, relabelled.where(~held), relabelled.where(held))


def _share(labels: NDArray[np.int64], classes: int, share: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Marks a share of each class's images, at least one and never all."""
    marked = np.zeros(len(labels), dtype=bool)
    for label in range(classes):
        rows = np.flatnonzero(labels == label)
        count = min(len(rows) - 1, max(1, round(len(rows) * share)))
        marked[generator.permutation(rows)[:count]] = True
    return marked


def load_dataset(
    scenario: Scenario,
    root: Path,
    *,
    transform: Transform | None = None,
    splits: Path | None = None,
    broken: images.Broken = "refuse",
    unread: bool = False,
) -> tuple[Dataset, list[str]]:
    """Read a scenario's pictures from its native layout; returns complaints about pictures that were skipped.

    Files may be left `unread` until their pixels are asked for.
    """
    transform = transform or scenario.transform
    parts = scenario.parts if len(scenario.parts) > 1 else ((None, 0, len(scenario.keys)),)
    train: list[ImageSet] = []
    test: list[ImageSet] = []
    complaints: list[str] = []
    for folder, first, last in parts:
        label_of = {key: label for label, key in enumerate(scenario.keys) if first <= label < last}
        source = sources.find_source(root if folder is None else root / folder, splits=splits)
        for pictures, into, what in ((source.train, train, "training"), (source.test, test, "test")):
            part, skipped = _read(pictures, label_of, transform, broken, unread)
            into.append(part)
            complaints += skipped
            missing = sorted(set(label_of.values()) - set(part.labels.tolist()))
            if missing:
                raise ConcmError(
                    f"{root}: no {what} pictures of {len(missing)} of the {len(label_of)} classes of scenario "
                    f"{scenario.name}, the first is {scenario.keys[missing[0]]!r}"
                )
    whole = Dataset(scenario, transform, _join(train), _join(test))
    _enough_shots(whole, root)
    return whole, complaints


def _read(
    pictures: sources.Pictures, label_of: dict[str, int], transform: Transform, broken: images.Broken, unread: bool
) -> tuple[ImageSet, list[str]]:
    rows = [row for row, key in enumerate(pictures.keys) if key in label_of]
    chosen = pictures.take(rows)
    complaints: list[str] = []
    kept = list(range(len(rows)))
    pixels: NDArray[np.uint8] | Unread
    if chosen.paths is not None and unread:
        pixels = Unread(chosen.paths, transform.resize)
    elif chosen.paths is not None:
        pixels, kept, complaints = images.cached(chosen.paths, transform.resize, broken)
    else:
        assert chosen.pixels is not None
        pixels = images.resized(chosen.pixels, transform.resize)
    return (
        ImageSet(
            pixels=pixels,
            rows=np.arange(len(kept)),
            labels=np.array([label_of[chosen.keys[row]] for row in kept], dtype=np.int64),
            ids=[chosen.ids[row] for row in kept],
        ),
        complaints,
    )


def _join(parts: list[ImageSet]) -> ImageSet:
    if len(parts) == 1:
        return parts[0]
    read = [part.pixels for part in parts if not isinstance(part.pixels, Unread)]
    unread = [part.pixels for part in parts if isinstance(part.pixels, Unread)]
    if read and unread:  # some have no files, so all are read
        read = [part.pixels[range(len(part))] for part in parts]
    return ImageSet(
        pixels=np.concatenate(read) if read else Unread([at for one in unread for at in one.paths], unread[0].side),
        rows=np.arange(sum(len(part) for part in parts)),
        labels=np.concatenate([part.labels for part in parts]),
        ids=[name for part in parts for name in part.ids],
    )


def _enough_shots(dataset: Dataset, root: Path) -> None:
    scenario = dataset.scenario
    counts = np.bincount(dataset.train.labels, minlength=len(scenario.keys))
    for label in range(scenario.base, len(scenario.keys)):
        if counts[label] < scenario.shot:
            raise ConcmError(
                f"{root}: class {scenario.keys[label]!r} has {counts[label]} training pictures, but the scenario "
                f"takes {scenario.shot} shots: add pictures or lower `shot`"
            )
