"""Descent is torch's, at the rates of its schedules, and does what it is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from concm.engine import geometry, losses
from concm.engine.descent import SGD, AdamW, Feed, descend, falling, half_cosine, paced, stepped, warmed_cosine
from concm.engine.projector import Projector

CENTRES = 2 * torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(4).repeat_interleave(8)
STRUCTURE = geometry.nearest_simplex(torch.randn(4, 8, generator=torch.Generator().manual_seed(4)))


def projector() -> tuple[Projector, Tensor]:
    torch.manual_seed(0)
    return Projector(6, 8, hidden=16), torch.randn(10, 6)


def small_problem() -> tuple[nn.Module, Callable[[], Tensor]]:
    """A network of several weights, and a loss that asks something of each."""
    torch.manual_seed(0)
    network, inputs = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double(), torch.randn(20, 4).double()
    wanted = torch.stack([inputs[:, 0] * inputs[:, 1], inputs.sum(1).sin()], 1)
    return network, lambda: (network(inputs) - wanted).square().mean()


def by_torch(
    make: Callable[..., torch.optim.Optimizer], network: nn.Module, loss: Callable[[], Tensor], rates: list[float]
) -> None:
    """What torch's own class makes of the network at these rates."""
    optimizer = make(network.parameters())
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


# the same as torch's


@pytest.mark.parametrize(
    "how",
    [
        {"momentum": 0.0},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_sgd_is_torch_s(how):
    rates = warmed_cosine(0.2, 12, 3)
    (ours, our_loss), (theirs, their_loss) = small_problem(), small_problem()
    descend(ours.parameters(), our_loss, rates, SGD(**how))
    by_torch(lambda weights: torch.optim.SGD(weights, **how), theirs, their_loss, rates)
    assert_same_weights(ours, theirs)


def test_data_are_renewed_before_every_epoch():
    network, _ = small_problem()
    data, seen, renewed = torch.zeros(()), list[float](), list[int]()

    def renew() -> None:
        renewed.append(len(seen))
        data.fill_(len(renewed))

    def loss() -> Tensor:
        seen.append(float(data))
        return sum(weight.square().sum() for weight in network.parameters())

    descend(network.parameters(), loss, [0.1] * 7, SGD(), renew=renew, epoch=3)
    assert renewed == [0, 3, 6]
    assert seen == [1, 1, 1, 2, 2, 2, 3]


def test_sgd_takes_a_rate_that_is_a_tensor_as_it_takes_a_number():
    (ours, our_loss), (theirs, their_loss) = small_problem(), small_problem()
    steps = [
        SGD(dampening=0.5, weight_decay=0.1).update(list(n.parameters()), f)
        for n, f in ((ours, our_loss), (theirs, their_loss))
    ]
    for rate in warmed_cosine(0.2, 12, 3):
        steps[0](rate)
        steps[1](torch.tensor(rate, dtype=torch.float64))
    assert_same_weights(ours, theirs)


def test_a_feed_gives_every_row_once_in_the_order_of_the_epoch():
    feed = Feed.of(torch.arange(6.0)[:, None], torch.arange(6), torch.arange(6))
    feed.begin(torch.tensor([5, 3, 1, 0, 2, 4]))
    assert [feed.batch(2)[1].tolist() for _ in range(3)] == [[5, 3], [1, 0], [2, 4]]
    feed.begin(torch.arange(6))
    assert feed.batch(4)[0].flatten().tolist() == [0, 1, 2, 3]


def test_a_falling_rate_is_torch_s_too():
    (ours, our_loss), (theirs, their_loss) = small_problem(), small_problem()
    descend(ours.parameters(), our_loss, falling(0.1, 20, 0.2, 0.5), SGD())
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for _ in range(20):
        optimizer.zero_grad()
        their_loss().backward()
        optimizer.step()
        schedule.step()
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_is_torch_s(weight_decay):
    rates = warmed_cosine(0.05, 12, 3)
    (ours, our_loss), (theirs, their_loss) = small_problem(), small_problem()
    descend(ours.parameters(), our_loss, rates, AdamW(weight_decay))
    by_torch(lambda weights: torch.optim.AdamW(weights, weight_decay=weight_decay), theirs, their_loss, rates)
    assert_same_weights(ours, theirs)


def test_from_rest_it_is_torch_s_with_a_momentum_of_zero():
    how = {"momentum": 0.9, "dampening": 0.9, "weight_decay": 0.1}
    rates = warmed_cosine(0.2, 12, 3)
    (ours, our_loss), (theirs, their_loss) = small_problem(), small_problem()
    descend(ours.parameters(), our_loss, rates, SGD(**how, from_rest=True))

    def at_rest(weights: Iterable[Tensor]) -> torch.optim.SGD:
        optimizer = torch.optim.SGD(list(weights), **how)
        for weight in theirs.parameters():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        return optimizer

    by_torch(at_rest, theirs, their_loss, rates)
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("from_rest", [False, True])
def test_the_first_step_is_dampened_only_from_rest(from_rest):
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    descend([weight], weight.sum, [0.5], SGD(momentum=0.9, dampening=0.8, from_rest=from_rest))
    assert float(weight.detach()) == pytest.approx(0.9 if from_rest else 0.5)


# what it is told


def batch_loss(network: Projector, generator: torch.Generator) -> Tensor:
    """How far a new batch of four classes is from where they belong."""
    features = CENTRES[LABELS] + torch.randn(32, 6, generator=generator)
    return losses.matching(network(features), LABELS, STRUCTURE, scale=16.0)


def trained(seed: int = 0, *, steps: int = 60, lr: float = 1e-2) -> Projector:
    network, _ = projector()
    generator = torch.Generator().manual_seed(seed)
    rates = warmed_cosine(lr, steps, max(1, steps // 10) - 1)
    descend(network.parameters(), lambda: batch_loss(network, generator), rates, AdamW(1e-2), random=generator)
    return network


def test_it_lowers_the_loss_on_batches_it_has_not_seen():
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


@pytest.mark.parametrize("optimiser", [SGD(), AdamW()], ids=["sgd", "adamw"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 25])
def test_the_loss_is_asked_for_once_a_step(steps, optimiser):
    network, features = projector()
    calls = []

    def loss() -> Tensor:
        calls.append(1)
        return network(features).sum()

    descend(network.parameters(), loss, [1e-3] * steps, optimiser)
    assert len(calls) == steps


def test_only_the_weights_given_are_trained():
    network, features = projector()
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    descend(network.outer.parameters(), lambda: network(features)[:, 0].sum(), [1e-2] * 3, AdamW(0.1))
    changed = [name for name, weight in network.state_dict().items() if not torch.equal(weight, before[name])]
    assert changed == ["outer.weight", "outer.bias"]


def test_free_vectors_can_be_trained_beside_the_network():
    network, features = projector()
    vector = torch.zeros(8).index_fill(0, torch.tensor([0]), 1.0).requires_grad_()

    def loss() -> Tensor:
        return -(network(features) @ nn.functional.normalize(vector, dim=0)).mean()

    before = float(loss().detach())
    descend([*network.parameters(), vector], loss, warmed_cosine(1e-2, 30, 2), AdamW(0.0))
    assert float(loss().detach()) < before - 0.2
    assert vector[1:].abs().max() > 0.01


# rates


def position_at_each_step(rates: list[float], weight_decay: float, slope: float) -> list[float]:
    """Where a single weight is, before training and after each step, on a straight line."""
    weight, seen = torch.ones(1, dtype=torch.float64, requires_grad=True), []

    def loss() -> Tensor:
        seen.append(float(weight.detach()))
        return slope * weight.sum()

    descend([weight], loss, rates, AdamW(weight_decay))
    return [*seen, float(weight.detach())]


rates_of_some_steps = st.lists(st.floats(1e-4, 0.1), min_size=1, max_size=30)


@given(rates_of_some_steps, st.sampled_from([-3.0, 0.5]))
def test_on_a_straight_line_each_step_of_adamw_is_as_long_as_its_rate(rates, slope):
    found = position_at_each_step(rates, weight_decay=0.0, slope=slope)
    moved = [math.copysign(1, slope) * (here - there) for here, there in pairwise(found)]
    assert moved == pytest.approx(rates, rel=1e-3, abs=1e-7)


@given(rates_of_some_steps)
def test_weight_decay_shrinks_what_the_loss_does_not_hold(rates):
    found = position_at_each_step(rates, weight_decay=0.5, slope=0.0)
    shrunk = [there / here for here, there in pairwise(found)]
    assert shrunk == pytest.approx([1 - 0.5 * rate for rate in rates], rel=1e-5)


@given(st.floats(1e-4, 1.0), st.integers(1, 200), st.floats(0, 20))
def test_a_warmed_cosine_rises_to_its_peak_and_would_be_zero_one_step_after_the_last(lr, steps, warm):
    rates = warmed_cosine(lr, steps, warm)
    assert len(rates) == steps
    assert rates[0] == pytest.approx(lr / (warm + 1))
    assert 0 < rates[-1] <= max(rates) <= lr
    falls = rates[math.ceil(warm) :]
    assert falls == pytest.approx([lr * half_cosine(at / steps) for at in range(math.ceil(warm), steps)])
    assert falls == sorted(falls, reverse=True)
    assert half_cosine(0) == pytest.approx(1)
    assert half_cosine(1) == pytest.approx(0)


def test_a_single_step_without_warm_up_is_taken_at_full_rate():
    assert warmed_cosine(0.25, 1) == [0.25]


@pytest.mark.parametrize("schedule", [warmed_cosine, lambda *a: falling(*a, 0.5, 0.1), lambda *a: stepped(*a, 0.1, [])])
def test_no_steps_have_no_rates(schedule):
    assert schedule(0.1, 0) == []


def test_a_falling_rate_loses_its_factor_after_each_period():
    assert falling(0.1, 10, 0.3, 0.5) == pytest.approx([0.1] * 3 + [0.05] * 3 + [0.025] * 3 + [0.0125])


@given(st.integers(1, 50), st.sampled_from([2, 4, 5]))
def test_a_falling_rate_ends_one_factor_short_of_all_periods(length, periods):
    rates = falling(0.1, length * periods, 1 / periods, 0.5)
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.1 * 0.5 ** (periods - 1))


def test_a_stepped_rate_falls_at_its_milestones():
    assert stepped(0.1, 10, 0.1, [0.5, 0.8]) == pytest.approx([0.1] * 5 + [0.01] * 3 + [0.001] * 2)
    assert stepped(0.1, 4, 0.1, []) == pytest.approx([0.1] * 4)


def test_what_comes_before_paced_values_learns_at_its_own_rate():
    weight = torch.tensor([2.0, -1.0], requires_grad=True)
    values = paced(3 * weight, 0.25)
    assert torch.equal(values, 3 * weight)
    (gradient,) = torch.autograd.grad(values.sum(), weight)
    assert gradient.tolist() == pytest.approx([0.75, 0.75])
