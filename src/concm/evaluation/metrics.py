"""Metrics of a session, all derived from its confusion matrix in the joint label space, in per cent."""

from __future__ import annotations

import torch
from torch import Tensor


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """(classes, classes): how many images of each class (row) were given each label (column)."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).view(classes, classes)


def accuracies(matrix: Tensor, base: int) -> dict[str, float]:
    """Accuracy over all, base and novel images, and the harmonic mean of the last two."""
    right, images = matrix.diagonal(), matrix.sum(1)

    def share(classes: slice) -> float:
        total = int(images[classes].sum())
        return 100 * int(right[classes].sum()) / total if total else 0.0

    old, new = share(slice(base)), share(slice(base, None))
    hm = 2 * old * new / (old + new) if old + new else 0.0
    return {"acc": share(slice(None)), "acc_base": old, "acc_novel": new, "hm": hm}
