"""Very many classes: scores in half precision, with those of the best classes exact, answer as all exact ones do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from concm.classifier.shortlist import NEAR, Shortlist
from concm.engine.head import Head


def head(classes: int, dimension: int = 32) -> Head:
    random = torch.Generator().manual_seed(0)
    nothing = torch.empty(1, 0, dimension)
    return Head(
        metric=(),
        weights=torch.ones(1),
        inner_weight=nothing,
        inner_bias=torch.empty(1, 0),
        outer_weight=torch.empty(1, 4, 0),
        outer_bias=torch.empty(1, 4),
        structure=torch.empty(1, 0, 4),
        prototypes=F.normalize(torch.randn(classes, dimension, generator=random)),
        bias=0.01 * torch.randn(classes, generator=random),
        share=torch.tensor(1.0),
        reach=3.0,
    )


@pytest.mark.parametrize("classes", [5, NEAR, 3000])
def test_the_best_scores_are_exact_and_the_others_nearly_so(classes):
    own = head(classes)
    asked = torch.randn(20, 32, generator=torch.Generator().manual_seed(1))
    found, exact = Shortlist(own).scores(asked), own(asked)
    assert found.shape == exact.shape
    best = exact.topk(min(10, classes), 1)
    assert torch.equal(found.topk(min(10, classes), 1).indices, best.indices)
    torch.testing.assert_close(found.gather(1, best.indices), best.values)
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0)


def test_a_head_with_a_structure_takes_none():
    assert not Shortlist.helps(replace(head(5), structure=torch.ones(1, 5, 4)))
