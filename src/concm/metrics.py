"""Metrics of a session, all derived from its confusion matrix in the joint label space, in per cent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """(classes, classes): how many images of each class (row) were given each label (column)."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).view(classes, classes)


@dataclass(frozen=True)
class Accuracies:
    """Accuracy over all, base and novel images, the harmonic mean of the last two, and how often the two are mixed up.

    BER takes base for positive and novel for negative: the mean of base images called novel (FNR) and novel images
    called base (FPR).
    """

    acc: float
    acc_base: float
    acc_novel: float
    hm: float
    ber: float
    fpr: float
    fnr: float


def accuracies(matrix: Tensor, base: int) -> Accuracies:
    """What a confusion matrix comes to; one of shares instead of counts gives the class-mean variants."""
    right, images = matrix.diagonal().double(), matrix.sum(1).double()

    def share(part: Tensor, whole: Tensor) -> float:
        total = float(whole.sum())
        return 100 * float(part.sum()) / total if total else 0.0

    old, new = slice(base), slice(base, None)
    acc_base, acc_novel = share(right[old], images[old]), share(right[new], images[new])
    fnr, fpr = share(matrix[old, new], images[old]), share(matrix[new, old], images[new])
    return Accuracies(
        acc=share(right, images),
        acc_base=acc_base,
        acc_novel=acc_novel,
        hm=harmonic(acc_base, acc_novel),
        ber=(fnr + fpr) / 2,
        fpr=fpr,
        fnr=fnr,
    )


def harmonic(one: float, other: float) -> float:
    """2ab / (a + b), and 0 where both are 0."""
    return 2 * one * other / (one + other) if one + other else 0.0


def class_mean_accuracies(matrix: Tensor, base: int) -> Accuracies:
    """The same with every class counting the same, however many images it has."""
    return accuracies(matrix.double() / matrix.sum(1, keepdim=True).clamp(min=1), base)


def trade_off(
    scores: Tensor, labels: Tensor, base: int, biases: Sequence[float] | NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Base and novel accuracy for each constant that is added to all novel scores."""
    old, new = scores[:, :base].max(1), scores[:, base:].max(1)
    margin = (old.values - new.values).double().cpu().numpy()
    truth = labels.cpu().numpy()
    is_base = truth < base
    right_old = margin[is_base & (old.indices.cpu().numpy() == truth)]
    right_new = margin[~is_base & (new.indices.cpu().numpy() + base == truth)]
    # An image is called novel where the bias exceeds its margin; a tie goes to the base class, as argmax does.
    kept = len(right_old) - np.searchsorted(np.sort(right_old), biases, "left")
    gained = np.searchsorted(np.sort(right_new), biases, "left")
    return 100 * kept / max(1, is_base.sum()), 100 * gained / max(1, (~is_base).sum())


def novel_at(base_accuracy: float, old: Sequence[float], new: Sequence[float]) -> float:
    """Novel accuracy of a trade-off curve where its base accuracy is that, between its points."""
    x, y = np.asarray(old), np.asarray(new)
    if (there := np.isclose(x, base_accuracy, rtol=0, atol=1e-9)).any():
        return float(y[there].max())  # of points with the same base accuracy, the best is to be had
    order = np.lexsort((-y, x))  # where points share a base accuracy, the curve goes on from its lowest
    return float(np.interp(base_accuracy, x[order], y[order]))
