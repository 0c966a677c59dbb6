"""Measures a classifier on labelled photos: accuracy, calibration of the probabilities, and unknown photos accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from concm.classifier.confidence import TOO_FEW, Confidence
from concm.classifier.folders import almost_the_same
from concm.errors import ConcmError
from concm.metrics import accuracies, confusion

if TYPE_CHECKING:
    from concm.classifier.known import Known
    from concm.classifier.lesson import Lesson

MANY = 10
"""Known photos that were refused, from which on more than twice as many as asked for are no accident."""


@dataclass(frozen=True)
class Wrong:
    """A photo of a known class whose best guess was another; `unknown` says whether it was refused."""

    photo: str
    truth: str
    guess: str
    score: float
    unknown: bool


@dataclass(frozen=True)
class Evaluation:
    """Figures in per cent. Accuracies count the best guess, refused or not; `None` if there are no such photos.

    `refused`: known photos called unknown; `strangers`: photos of classes never learned, of which `false_accept` were
    given a label all the same; `auroc`: how well familiarity tells the two apart at any rate. `confused` has, for each
    class and other best guess, the number of photos, most frequent first; `wrong` has those photos. `taught` photos of
    all that were given are no test, for the classifier has them.
    """

    version: int
    photos: int
    classes: int
    acc: float
    acc_base: float | None
    acc_novel: float | None
    hm: float | None
    ece: float
    unknown_rate: float
    refused: float
    strangers: int
    false_accept: float | None
    auroc: float | None
    by_class: dict[str, tuple[int, int]]
    confused: list[tuple[str, str, int]] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    taught: int = 0


def evaluate(
    scores: Tensor,
    truth: Sequence[str],
    names: Sequence[str],
    base: int,
    confidence: Confidence,
    unknown_rate: float,
    version: int,
    photos: Sequence[str] = (),
    taught: int = 0,
) -> Evaluation:
    """Figures from the scores (n, classes) of photos whose classes are `truth`, known or not."""
    index = {name: at for at, name in enumerate(names)}
    labels = torch.tensor([index.get(name, -1) for name in truth])
    known = labels >= 0
    if not known.any():
        near = next((f"; is {one!r} meant to be {other!r}?" for one, other in almost_the_same(truth, names)), "")
        raise ConcmError(f"none of these photos is of a known class; known are {', '.join(names[:5])} …{near}")
    own, right = scores[known], labels[known]
    predicted = own.argmax(1)
    matrix = confusion(right, predicted, len(names))
    figures = accuracies(matrix, base)
    has_base, has_novel = bool((right < base).any()), bool((right >= base).any())
    familiar = confidence.familiarity(scores)
    accepted = familiar >= confidence.threshold(unknown_rate)
    strangers = int((~known).sum())
    probabilities = confidence.probabilities(own)
    rows = known.nonzero().flatten().tolist()
    wrong = [
        Wrong(photos[row], truth[row], names[guess], float(probabilities[at, guess]), not bool(accepted[row]))
        for at, (row, guess) in enumerate(zip(rows, predicted.tolist(), strict=True))
        if photos and names[guess] != truth[row]
    ]
    missed = matrix.clone().fill_diagonal_(0)
    pairs = [(names[one], names[other], int(missed[one, other])) for one, other in missed.nonzero().tolist()]
    return Evaluation(
        version=version,
        photos=len(right),
        classes=len(names),
        acc=figures.acc,
        acc_base=figures.acc_base if has_base else None,
        acc_novel=figures.acc_novel if has_novel else None,
        hm=figures.hm if has_base and has_novel else None,
        ece=calibration_error(probabilities, right),
        unknown_rate=100 * unknown_rate,
        refused=100 * float((~accepted[known]).double().mean()),
        strangers=strangers,
        false_accept=100 * float(accepted[~known].double().mean()) if strangers else None,
        auroc=100 * auroc(familiar[known], familiar[~known]) if strangers else None,
        by_class={
            names[at]: (int(matrix[at, at]), int(count)) for at, count in enumerate(matrix.sum(1).tolist()) if count
        },
        confused=sorted(pairs, key=lambda pair: -pair[2]),
        wrong=wrong,
        taught=taught,
    )


def evaluated(known: Known, lesson: Lesson, unknown_rate: float, taught: int) -> tuple[Evaluation, list[str]]:
    """Figures of what one version says of labelled photos, `taught` of which it has, and what to know beside them."""
    engine, confidence, scores = known.engine, known.confidence, known.scores(lesson.features)
    rated = confidence, unknown_rate, known.version
    names = engine.names
    result = evaluate(scores, lesson.truth, names, engine.memory.base, *rated, photos=lesson.names, taught=taught)
    return result, remarks(result, names, lesson.photos, confidence.enough)


def remarks(result: Evaluation, names: Sequence[str], truth: Iterable[str], enough: bool) -> list[str]:
    """What to know beside the figures; `enough` says whether there were photos enough to call anything unknown."""
    near = [pair for pair in almost_the_same(dict.fromkeys(truth), names) if pair[1] in names]
    said = [f"photos of {one!r} count as strangers, but {other!r} is known" for one, other in near]
    if result.taught:
        of = f"{result.taught} of {result.photos + result.strangers} photos were taught"
        said.append(f"{of}: on these it does better than on photos to come")
    if result.refused > 2 * result.unknown_rate and result.refused * result.photos >= 100 * MANY:
        rates = f"{result.refused:.0f} % of known photos were called unknown, and {result.unknown_rate:g} % asked for"
        said.append(f"{rates}: calibrate it on labelled photos like these")
    return said if enough else [*said, TOO_FEW]


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error in per cent: how far the best guess's probability is from how often it is right."""
    best = probabilities.max(1)
    right = (best.indices == labels).double()
    place = (best.values.double() * bins).long().clamp(max=bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add(0, place, best.values.double() - right)
    return 100 * float(gap.abs().sum()) / max(1, len(labels))


def auroc(known: Tensor, strange: Tensor) -> float:
    """How often a known photo is more familiar than a strange one; ties count half."""
    order, _ = strange.double().sort()
    below = torch.searchsorted(order, known.double(), right=False)
    upto = torch.searchsorted(order, known.double(), right=True)
    return float((below + upto).double().mean()) / (2 * max(1, len(strange)))
