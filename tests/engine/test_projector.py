"""The projector stays on the sphere and widens without a trace, and its training loop does what it is told."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concm.engine import geometry, losses
from concm.engine.projector import Projector, train


def projector(width: int = 8) -> tuple[Projector, torch.Tensor]:
    torch.manual_seed(0)
    return Projector(6, width, hidden=16), torch.randn(10, 6)


def test_it_gives_unit_vectors_whatever_the_length_of_the_features():
    network, features = projector()
    assert torch.allclose(network(features).norm(dim=1), torch.ones(10), atol=1e-6)
    assert torch.allclose(network(7 * features), network(features), atol=1e-6)


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


CENTRES = 2 * torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(4).repeat_interleave(8)
STRUCTURE = geometry.nearest_simplex(torch.randn(4, 8, generator=torch.Generator().manual_seed(4)))


def batch_loss(network: Projector, generator: torch.Generator) -> torch.Tensor:
    """How far a new batch of four classes is from where they belong."""
    features = CENTRES[LABELS] + torch.randn(32, 6, generator=generator)
    return losses.matching(network(features), LABELS, STRUCTURE, scale=16.0)


def trained(seed: int = 0, *, steps: int = 60, lr: float = 1e-2) -> Projector:
    network, _ = projector()
    generator = torch.Generator().manual_seed(seed)
    train(
        network.parameters(), lambda: batch_loss(network, generator), generator, steps=steps, lr=lr, weight_decay=1e-2
    )
    return network


def position_at_each_step(steps: int, lr: float, weight_decay: float, slope: float) -> list[float]:
    """Where a single weight is, before training and after each step, on a straight line."""
    weight, seen = torch.ones(1, dtype=torch.float64, requires_grad=True), []

    def loss() -> torch.Tensor:
        seen.append(float(weight.detach()))
        return slope * weight.sum()

    train([weight], loss, torch.Generator(), steps=steps, lr=lr, weight_decay=weight_decay)
    return [*seen, float(weight.detach())]


def rates(steps: int, lr: float) -> list[float]:
    """A tenth of the steps to warm up, and a cosine that would reach zero one step after the last."""
    warm = max(1, steps // 10)
    return [lr * min(1, (at + 1) / warm) * (1 + math.cos(math.pi * at / steps)) / 2 for at in range(steps)]


def test_training_lowers_the_loss_on_batches_it_has_not_seen():
    before, after = (
        float(batch_loss(network, torch.Generator().manual_seed(99)).detach())
        for network in (projector()[0], trained())
    )
    assert after < before / 2


def test_the_same_seed_gives_the_same_weights_bit_for_bit_and_another_seed_others():
    one, again, other = trained(1, steps=5), trained(1, steps=5), trained(2, steps=5)
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert not torch.equal(weight, other.state_dict()[name])


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 25])
def test_the_loss_is_asked_for_once_a_step(steps):
    network, features = projector()
    calls = []

    def loss() -> torch.Tensor:
        calls.append(1)
        return network(features).sum()

    train(network.parameters(), loss, torch.Generator(), steps=steps, lr=1e-3, weight_decay=0.0)
    assert len(calls) == steps


def test_a_single_step_is_taken_at_full_rate():
    assert position_at_each_step(1, lr=0.25, weight_decay=0.0, slope=1.0) == pytest.approx([1, 0.75])


@given(steps=st.integers(1, 60), lr=st.floats(1e-4, 0.1), slope=st.sampled_from([-3.0, 0.5]))
def test_on_a_straight_line_each_step_is_as_long_as_the_schedule_says(steps, lr, slope):
    found = position_at_each_step(steps, lr, weight_decay=0.0, slope=slope)
    moved = [math.copysign(1, slope) * (here - there) for here, there in pairwise(found)]
    assert moved == pytest.approx(rates(steps, lr), rel=1e-3, abs=1e-7)


def test_weight_decay_shrinks_what_the_loss_does_not_hold():
    found = position_at_each_step(20, lr=0.1, weight_decay=0.5, slope=0.0)
    shrunk = [there / here for here, there in pairwise(found)]
    assert shrunk == pytest.approx([1 - 0.5 * rate for rate in rates(20, 0.1)], rel=1e-5)


def test_only_the_weights_given_are_trained():
    network, features = projector()
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    train(
        network.outer.parameters(),
        lambda: network(features)[:, 0].sum(),
        torch.Generator(),
        steps=3,
        lr=1e-2,
        weight_decay=0.1,
    )
    changed = [name for name, weight in network.state_dict().items() if not torch.equal(weight, before[name])]
    assert changed == ["outer.weight", "outer.bias"]


def test_free_vectors_can_be_trained_beside_the_network():
    network, features = projector()
    vector = torch.zeros(8).index_fill(0, torch.tensor([0]), 1.0).requires_grad_()

    def loss() -> torch.Tensor:
        return -(network(features) @ torch.nn.functional.normalize(vector, dim=0)).mean()

    before = float(loss().detach())
    train([*network.parameters(), vector], loss, torch.Generator(), steps=30, lr=1e-2, weight_decay=0.0)
    assert float(loss().detach()) < before - 0.2
    assert vector[1:].abs().max() > 0.01
