"""Gradient descent for all of the package: optimisers, schedules of their rate, and CUDA graphs on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw  # the functions: their classes import all of torch.compile, which takes seconds
from torch.optim.sgd import sgd

Update = Callable[[Tensor | float], None]
"""A function that takes one step with the given rate."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent; the first step is not damped, as in torch, unless it begins `from_rest`."""

    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    from_rest: bool = False

    def update(
        self, weights: list[Tensor], loss: Callable[[], Tensor], momenta: list[Tensor | None] | None = None
    ) -> Update:
        """A function that takes one step; it goes on from the `momenta` of earlier ones, which it changes in place."""
        if momenta is None:
            momenta = [torch.zeros_like(weight) if self.from_rest else None for weight in weights]

        def step(rate: Any) -> None:
            gradients = list(torch.autograd.grad(loss(), weights))
            with torch.no_grad():
                sgd(
                    weights,
                    gradients,
                    momenta,
                    lr=rate,
                    momentum=self.momentum,
                    dampening=self.dampening,
                    nesterov=self.nesterov,
                    weight_decay=self.weight_decay,
                    maximize=False,
                    foreach=False,
                    fused=torch.is_tensor(rate),  # which alone takes a rate that is on the device
                )

        return step


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay."""

    weight_decay: float = 1e-2

    def update(self, weights: list[Tensor], loss: Callable[[], Tensor]) -> Update:
        """A function that takes one step."""
        device = weights[0].device
        first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
        counts = [torch.zeros((), device=device) for _ in weights]

        def step(rate: Any) -> None:
            gradients = list(torch.autograd.grad(loss(), weights))
            with torch.no_grad():
                adamw(
                    weights,
                    gradients,
                    first,
                    second,
                    [],
                    counts,
                    fused=True,
                    capturable=device.type == "cuda",
                    amsgrad=False,
                    beta1=0.9,
                    beta2=0.999,
                    lr=rate,
                    weight_decay=self.weight_decay,
                    eps=1e-8,
                    maximize=False,
                )

        return step


def descend(
    parameters: Iterable[Tensor],
    loss: Callable[[], Tensor],
    rates: Iterable[float],
    optimiser: SGD | AdamW = SGD(),  # noqa: B008
    *,
    random: torch.Generator | None = None,
    renew: Callable[[], None] | None = None,
    epoch: int = 1,
) -> None:
    """Minimise `loss`, which may draw a new batch at each call, by one step for each rate.

    Before every `epoch` of so many steps, `renew` puts new data into the tensors that the loss reads. Where `random` is
    the only source of the batches, the steps on a GPU are captured once as a CUDA graph and replayed, so the host
    neither waits nor launches kernels.
    """
    weights, values = list(parameters), list(rates)
    captured = random is not None and weights[0].device.type == "cuda"
    on_device = captured or isinstance(optimiser, AdamW)
    step = _stepper(optimiser.update(weights, loss), values, weights[0].device if on_device else None)
    replay: Callable[[], None] | None = None
    for at in range(len(values)):
        if renew is not None and at % epoch == 0:
            renew()
        if replay is not None:
            replay()
        elif random is not None and captured:
            if at < EAGER:
                _aside(step)
            else:
                replay = _captured(step, random)
                replay()
        else:
            step()


EAGER = 3
"""Steps that are taken before one is captured, as capturing requires."""


def _stepper(update: Update, rates: list[float], device: torch.device | None) -> Callable[[], None]:
    """A function that takes the next step; on a device it finds the rate there, without asking the host."""
    if device is None:
        left = iter(rates)
        return lambda: update(next(left))
    table, place = torch.tensor(rates, device=device), torch.zeros(1, dtype=torch.long, device=device)
    rate = torch.zeros((), device=device)

    def step() -> None:
        rate.copy_(table[place].squeeze())
        place.add_(1)
        update(rate)

    return step


def _aside(step: Callable[[], None]) -> None:
    """Take a step on a stream of its own."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)


def _captured(step: Callable[[], None], random: torch.Generator) -> Callable[[], None]:
    """The step as one CUDA graph, to be replayed."""
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(random)
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@dataclass(frozen=True)
class Feed:
    """Rows of features (m, d) and labels (m,), taken from `place` on in the `order` (n,) of the epoch.

    All of them stay where they are in memory, so that steps can be captured and replayed.
    """

    features: Tensor
    labels: Tensor
    order: Tensor
    place: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, order: Tensor) -> Feed:
        """A feed at the start of an epoch."""
        return cls(features, labels, order, torch.zeros(1, dtype=torch.long, device=order.device))

    def begin(self, order: Tensor) -> None:
        """Begin an epoch in another order."""
        self.order.copy_(order)
        self.place.zero_()

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """The next features and labels."""
        rows = self.order[self.place + torch.arange(size, device=self.order.device)]
        self.place.add_(size)
        return self.features[rows], self.labels[rows]


def warmed_cosine(lr: float, steps: int, warm: float = 0) -> list[float]:
    """Rates that rise linearly over `warm` steps, times half a cosine that falls to zero over all steps."""
    return [lr * min(1.0, (step + 1) / (warm + 1)) * half_cosine(step / steps) for step in range(steps)]


def half_cosine(progress: float) -> float:
    """Half a cosine, from 1 to 0 as `progress` goes from 0 to 1."""
    return (1 + math.cos(math.pi * progress)) / 2


def falling(lr: float, steps: int, period: float, decay: float) -> list[float]:
    """Rates that fall by the factor `decay` after each `period`, a share of all steps."""
    return [lr * decay ** int(step / steps / period + 1e-9) for step in range(steps)]


def stepped(lr: float, steps: int, factor: float, milestones: Sequence[float]) -> list[float]:
    """Rates that fall by `factor` at each milestone, a share of all steps."""
    return [lr * factor ** sum(step >= share * steps for share in milestones) for step in range(steps)]


def paced(values: Tensor, pace: float) -> Tensor:
    """The same values with their gradient times `pace`, so that the weights behind them learn at another rate."""
    return values.detach() + pace * (values - values.detach())
