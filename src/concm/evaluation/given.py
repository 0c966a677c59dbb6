"""What a bank gave to methods: how many images of a class, and how many views of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from concm.features.bank import Bank, Part


@dataclass(frozen=True)
class Given:
    """Images of the class that has most: `base` ones of as many as were trained `on`, those that were `held` out of
    that, `candidates` of a novel class and `test` images; with the `views` of a candidate and of a base image.
    """

    base: int
    on: int
    held: int
    candidates: int
    views: int
    base_views: int
    test: int | None = None

    @classmethod
    def of(cls, bank: Bank) -> Given:
        """Count what a bank holds."""
        labels, held = bank.base.labels, bank.base.held
        return cls(
            base=_most(labels if held is None else labels[~held]),
            on=int(bank.counts.max()),
            held=0 if held is None else _most(labels[held]),
            candidates=_most(bank.novel.labels),
            views=_views(bank.novel),
            base_views=_views(bank.base),
            test=_most(bank.test.labels),
        )


def _most(labels: Tensor) -> int:
    return int(torch.bincount(labels).max()) if len(labels) else 0


def _views(part: Part) -> int:
    return 0 if part.views is None else part.views.shape[1]
