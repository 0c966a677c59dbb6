"""The projector stays on the sphere and widens without a trace."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concm.engine import geometry
from concm.engine.projector import Projector


def projector(width: int = 8) -> tuple[Projector, torch.Tensor]:
    torch.manual_seed(0)
    return Projector(6, width, hidden=16), torch.randn(10, 6)


def test_it_gives_unit_vectors_whatever_the_length_of_the_features():
    network, features = projector()
    assert torch.allclose(network(features).norm(dim=1), torch.ones(10), atol=1e-6)
    assert torch.allclose(network(7 * features), network(features), atol=1e-6)


@pytest.mark.promise
@given(st.integers(1, 40))
@settings(max_examples=10, deadline=None)
def test_widening_changes_no_score(more):
    network, features = projector()
    structure = geometry.nearest_simplex(torch.randn(5, 8, generator=torch.Generator().manual_seed(1)))
    before = network(features) @ structure.T
    network.widen(8 + more)
    after = network(features) @ geometry.widen(structure, network.width).T
    assert network.width == 8 + more
    assert torch.allclose(after, before, atol=1e-6)


def test_what_was_widened_can_be_trained_into_the_new_dimensions():
    network, features = projector()
    network.widen(12)
    target = torch.zeros(12)
    target[11] = 1.0
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(50):
        loss = -(network(features) @ target).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (network(features)[:, 11] > 0.5).all()
