"""Learning sessions of a bank: which shots are drawn, and what a method sees of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from concm.errors import ConcmError
from concm.features.bank import Bank
from concm.files import text_of

if TYPE_CHECKING:
    from concm.backbones.encoder import Encoder

Shots = dict[int, list[int]]
"""For each novel class, the rows of the bank's novel part that are its shots."""


@dataclass(frozen=True)
class Session:
    """What one session brings: classes (indices and names), features with labels, and views of the shots.

    `layout` has the widths of the readings that stand side by side in a feature; where it is empty, there is one.
    `scenario` names the data, for senses of class names that are set by hand. The rest is for methods that declare it:
    `total`, how many classes there will be; `pool`, features and labels of all training images of these classes, which
    no few-shot learner may see; `pictures` (n, h, w, 3), from which the features were made.
    """

    index: int
    classes: range
    names: tuple[str, ...]
    features: Tensor
    labels: Tensor
    views: Tensor | None = None
    layout: tuple[int, ...] = ()
    scenario: str = ""
    total: int | None = None
    pool: tuple[Tensor, Tensor] | None = None
    pictures: Tensor | None = None

    def class_means(self) -> Tensor:
        """Mean feature (classes, d) of each class's images."""
        return class_means(self.features, self.labels, self.classes)

    def to(self, device: torch.device) -> Self:
        """The session on another device."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        moved: dict[str, Any] = {name: v.to(device) for name, v in values.items() if torch.is_tensor(v)}
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class BaseSession(Session):
    """The first session: `mean` and `std` (classes, d) and `counts` (classes,) are those of *all* images trained on.

    `features` may be of only some of them, followed by those of images that the backbone was not trained on: `held`
    (n,) marks these rows, where there are any. `learned` is what the backbone's base session learned for a method, and
    `backbone`, for methods that declare it, a copy of the backbone that made the features.
    """

    mean: Tensor
    std: Tensor
    counts: Tensor
    held: Tensor | None = None
    learned: Mapping[str, Tensor] = field(default_factory=dict)
    backbone: Encoder | None = None

    @property
    def complete(self) -> bool:
        """Whether all images trained on are among its features, and no others."""
        return self.held is None and len(self.labels) == int(self.counts.sum())

    @classmethod
    def of(cls, session: Session) -> BaseSession:
        """A session whose classes are numbered from 0 on, with the statistics of its own images."""
        mean, std, counts = statistics(session.features, session.labels, len(session.classes))
        given = {item.name: getattr(session, item.name) for item in fields(session)}
        return cls(**{**given, "mean": mean, "std": std, "counts": counts})


def statistics(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and population standard deviation (classes, d) and count (classes,) of each class, summed in float64."""
    counts = torch.bincount(labels, minlength=classes)
    shape = (classes, features.shape[1])
    mean, std = torch.empty(shape), torch.empty(shape)
    for label, rows in enumerate(rows_by_class(labels, classes)):
        own = features[rows].double()
        mean[label], std[label] = own.mean(0), own.std(0, correction=0)
    return mean, std, counts


def rows_by_class(labels: Tensor, classes: int) -> tuple[Tensor, ...]:
    """The rows of each class in order, found in one go however many classes there are."""
    counts = torch.bincount(labels, minlength=classes)
    return torch.split(labels.argsort(stable=True), counts.tolist())


def class_means(features: Tensor, labels: Tensor, classes: Iterable[int]) -> Tensor:
    """Mean (classes, d) of each class's features, in the order of `classes`."""
    chosen = list(classes)
    rows = rows_by_class(labels, max(chosen, default=-1) + 1)
    return torch.stack([features[rows[label]].mean(0) for label in chosen])


def draw(bank: Bank, seed: int) -> Shots:
    """A seeded draw of shots; fewer shots are a subset of more, and no class's shots depend on another class."""
    shots = {}
    for label in range(bank.scenario.base, len(bank.scenario.keys)):
        rows = (bank.novel.labels == label).nonzero().flatten().numpy()
        shots[label] = np.random.default_rng((seed, label)).permutation(rows)[: bank.scenario.shot].tolist()
    return shots


def published(bank: Bank, splits: Path) -> Shots:
    """The shots of published index lists: `session_2.txt` and on, one picture per line (TOPIC and CEC's format)."""
    find = Finder(bank.novel.ids)
    shots: Shots = {label: [] for label in range(bank.scenario.base, len(bank.scenario.keys))}
    for file, line in listed(splits, bank.scenario.sessions):
        rows = find(line)
        if len(rows) != 1:
            count = f"{len(rows)} candidates of this bank have that name"
            none = f"which is not among the {len(bank.novel.ids)} candidates of this bank"
            raise ConcmError(f"{file} names {line}, {f'and {count}' if rows else none}")
        shots[int(bank.novel.labels[rows[0]])].append(rows[0])
    short = [bank.scenario.keys[label] for label, rows in shots.items() if len(rows) < bank.scenario.shot]
    if short:
        raise ConcmError(f"{splits} has fewer than {bank.scenario.shot} shots of class {short[0]!r}")
    return {label: rows[: bank.scenario.shot] for label, rows in shots.items()}


def listed(splits: Path, sessions: int) -> Iterator[tuple[Path, str]]:
    """The pictures that published lists name, each with its list."""
    for session in range(1, sessions + 1):
        file = splits / f"session_{session + 1}.txt"
        if not file.is_file():
            raise ConcmError(f"no index list at {file}; `splits` takes the folder that holds session_2.txt and on")
        for line in text_of(file, "index list", "get another copy").split():
            yield file, line


class Finder:
    """Finds pictures by the name in a list: by as much of the path as it gives, or by the file name alone."""

    def __init__(self, ids: list[str]) -> None:
        self.row_of = {name: row for row, name in enumerate(ids)}
        self.rows_called: dict[str, list[int]] = defaultdict(list)
        for name, row in self.row_of.items():
            self.rows_called[PurePosixPath(name).name].append(row)

    def __call__(self, line: str) -> list[int]:
        """The rows that a line of a list may mean."""
        parts = PurePosixPath(line).parts
        for at in range(len(parts)):
            tail = "/".join(parts[at:])
            if tail in self.row_of:
                return [self.row_of[tail]]
        return self.rows_called.get(PurePosixPath(line).name, [])


def sessions(bank: Bank, shots: Shots) -> Iterator[Session]:
    """The base session, then each incremental session."""
    scenario, base = bank.scenario, bank.base
    common: dict[str, Any] = {"scenario": scenario.name, "total": len(scenario.keys), "layout": bank.layout}
    classes = scenario.classes_of(0)
    yield BaseSession(
        0,
        classes,
        scenario.names[: classes.stop],
        base.features,
        base.labels,
        base.views,
        **common,
        pool=(base.features, base.labels),
        pictures=base.pictures,
        mean=bank.mean,
        std=bank.std,
        counts=bank.counts,
        learned=bank.learned,
        backbone=bank.backbone() if bank.weights else None,
        held=base.held,
    )
    for index in range(1, scenario.sessions + 1):
        classes = scenario.classes_of(index)
        names = scenario.names[classes.start : classes.stop]
        part = bank.novel.where(torch.tensor([row for label in classes for row in shots[label]]))
        labels = bank.novel.labels
        every = bank.novel.where((labels >= classes.start) & (labels < classes.stop))
        seen: dict[str, Any] = {"pool": (every.features, every.labels), "pictures": part.pictures}
        yield Session(index, classes, names, part.features, part.labels, part.views, **common, **seen)
