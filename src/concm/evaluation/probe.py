"""A look inside one run of ConCM: how true its prototypes are, how its classes lie, and what a picture costs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.backbones import find_backbone
from concm.engine.concm import Engine
from concm.engine.memory import class_sums
from concm.errors import Misuse, loading
from concm.evaluation import tsne
from concm.features.bank import Bank
from concm.features.sessions import draw, sessions
from concm.files import write_whole
from concm.methods import choose, teach
from concm.methods.registry import granted
from concm.metrics import confusion
from concm.records import from_json, shortened, to_json

SHOWN = 40
"""Test images of a class in a picture."""


@dataclass(frozen=True)
class Prototypes:
    """Of each novel class: the cosine of its true centre to the few-shot prototype and the calibrated one, and the
    accuracy of its test images (per cent). The true centre is the mean of its test images, which nothing else sees.
    """

    names: list[str]
    biased: list[float]
    calibrated: list[float]
    accuracy: list[float]

    @property
    def correlation(self) -> float:
        """Of calibrated prototypes' truth with accuracy, over the classes."""
        return float(np.corrcoef(self.calibrated, self.accuracy)[0, 1])


@dataclass(frozen=True)
class Points:
    """Points of a picture: place, class, and whether it is a sample, a true centre or a prototype."""

    title: str
    x: list[float]
    y: list[float]
    name: list[str]
    kind: list[str]


@dataclass(frozen=True)
class Probe:
    """What was seen in one run, after its last session. `within` and `between` are mean cosines of two test images of
    one class and of two classes, behind the first projector; `flops` are of one picture, all its passes.
    """

    scenario: str
    method: str
    draw: int
    within: float
    between: float
    flops: int | None
    prototypes: Prototypes
    confusion: list[list[int]]
    space: Points
    embeddings: list[Points]


def probe(bank: Bank, label: str, *, at: int = 0, device: str = "cpu", pictures: bool = True) -> Probe:
    """Run a form of ConCM on one draw, and look; without `pictures`, at what tables need alone."""
    choice = choose(label)
    method = choice.build(seed=at, device=device)
    if not isinstance(method, Engine):
        raise Misuse(f"{label} is no form of concm, so there are no prototypes and projectors to look at")
    embeddings, wanted = [], {1, max(1, bank.scenario.sessions // 2), bank.scenario.sessions}
    for session in sessions(bank, draw(bank, at)):
        teach(method, granted(session, choice.needs))
        if pictures and session.index in wanted:
            classes = [*range(min(5, bank.scenario.base)), *list(session.classes)[:5]]
            embeddings.append(_embedding(method, bank, classes, f"session {session.index}"))
    test, seen = bank.test, len(method.names)
    predicted = method.scores(test.features).argmax(1).cpu()
    matrix = confusion(test.labels, predicted, seen)
    within, between = likeness(_projected(method, test.features), test.labels, seen)
    return Probe(
        scenario=bank.scenario.name,
        method=label,
        draw=at,
        within=within,
        between=between,
        flops=flops(bank),
        prototypes=_prototypes(method, bank, matrix),
        confusion=matrix.tolist() if pictures else [],
        space=_space(method, bank) if pictures else Points("", [], [], [], []),
        embeddings=embeddings,
    )


def flops(bank: Bank) -> int | None:
    """Operations of all passes of one picture, a multiplication with its addition counting as two; none where the
    bank was made of somebody's features.
    """
    from torch.utils.flop_counter import FlopCounterMode

    if bank.encoder.transform is None:
        return None
    counter = FlopCounterMode(display=False)
    size = bank.encoder.transform.size
    with counter, torch.no_grad():
        find_backbone(bank.encoder.name).build().eval()(torch.zeros(1, 3, size, size))
    return bank.passes * int(counter.get_total_flops())


def save(probes: list[Probe], path: Path) -> None:
    """Write them whole, with as many digits as can be seen."""
    write_whole(path, (json.dumps(shortened([to_json(entry) for entry in probes], 4)) + "\n").encode())


def load(path: Path) -> list[Probe]:
    """Read them back."""
    with loading(path, "file of looks inside", "make it again with this version"):
        return [from_json(Probe, entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _centres(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    return F.normalize(class_sums(features, labels.to(features.device), classes))


@torch.no_grad()
def _projected(method: Engine, features: Tensor) -> Tensor:
    vectors: Tensor = method.projectors[0](method.head.read(features.to(method.device)))
    return F.normalize(vectors)


def likeness(vectors: Tensor, labels: Tensor, classes: int) -> tuple[float, float]:
    """Mean cosine of two vectors of one class, and of two classes, every pair counting alike."""
    sums = class_sums(vectors, labels.to(vectors.device), classes).double()
    counts = torch.bincount(labels, minlength=classes).double()
    own, pairs = float((sums**2).sum()) - len(vectors), float((counts * (counts - 1)).sum())
    every = float((sums.sum(0) ** 2).sum()) - len(vectors)
    return own / max(1.0, pairs), (every - own) / max(1.0, len(vectors) * (len(vectors) - 1) - pairs)


def _prototypes(method: Engine, bank: Bank, matrix: Tensor) -> Prototypes:
    novel = slice(method.memory.base, None)
    true = _centres(method.head.read(bank.test.features.to(method.device)), bank.test.labels, len(method.names))[novel]
    right = 100 * matrix.diagonal().double() / matrix.sum(1).clamp(min=1)
    return Prototypes(
        names=list(method.names[novel]),
        biased=(true * F.normalize(method.memory.shown[novel])).sum(1).tolist(),
        calibrated=(true * F.normalize(method.memory.mean[novel])).sum(1).tolist(),
        accuracy=right[novel].tolist(),
    )


def _some(bank: Bank, classes: list[int]) -> tuple[Tensor, Tensor]:
    """Features and labels of a few test images of each class."""
    rows = torch.cat([torch.nonzero(bank.test.labels == label)[:SHOWN, 0] for label in classes])
    return bank.test.features[rows], bank.test.labels[rows]


def _space(method: Engine, bank: Bank) -> Points:
    """Samples of five novel classes of the last session, their true centres, and prototypes before and after."""
    classes = list(range(len(method.names)))[-min(5, bank.scenario.way) :]
    features, labels = _some(bank, classes)
    unit = method.head.read(features.to(method.device))
    places = torch.tensor([classes.index(int(label)) for label in labels])
    parts = {
        "sample": unit,
        "true centre": _centres(unit, places, len(classes)),
        "few-shot prototype": F.normalize(method.memory.shown[classes]),
        "calibrated prototype": F.normalize(method.memory.mean[classes]),
    }
    names = [method.names[int(label)] for label in labels] + [method.names[at] for at in classes] * 3
    kinds = [kind for kind, rows in parts.items() for _ in range(len(rows))]
    flat = tsne.embed(torch.cat(list(parts.values())).double().cpu().numpy())
    title = "the last classes' features and prototypes"
    return Points(title, flat[:, 0].round(3).tolist(), flat[:, 1].round(3).tolist(), names, kinds)


def _embedding(method: Engine, bank: Bank, classes: list[int], title: str) -> Points:
    """Where the first projector puts test images of some classes."""
    features, labels = _some(bank, classes)
    flat = tsne.embed(_projected(method, features).double().cpu().numpy())
    base = method.memory.base
    kinds = ["base" if int(label) < base else "novel" for label in labels]
    names = [method.names[int(label)] for label in labels]
    return Points(title, flat[:, 0].round(3).tolist(), flat[:, 1].round(3).tolist(), names, kinds)
