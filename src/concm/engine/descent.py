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

    def update(self, weights: list[Tensor], loss: Callable[[], Tensor]) -> Update:
        """A function that takes one step."""
        momenta = [torch.zeros_like(weight) if self.from_rest else None for weight in weights]

        def step(rate: Any) -> None:
            gradients = list(torch.autograd.grad(loss(), weights))
            with torch.no_grad():
                sgd(
                    weights,
                    gradients,
                    momenta,
                    lr=float(rate),
                    momentum=self.momentum,
                    dampening=self.dampening,
                    nesterov=self.nesterov,
                    weight_decay=self.weight_decay,
                    maximize=False,
                    foreach=False,
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
) -> None:
    """Minimise `loss`, which may draw a new batch at each call, by one step for each rate.

    Where `random` is the only source of the batches, AdamW's steps on a GPU are captured once as a CUDA graph and
    replayed, so the host neither waits nor launches kernels.
    """
    weights, steps = list(parameters), list(rates)
    update = optimiser.update(weights, loss)
    if isinstance(optimiser, AdamW):
        device = weights[0].device
        table, place = torch.tensor(steps, device=device), torch.zeros(1, dtype=torch.long, device=device)
        rate = torch.zeros((), device=device)

        def step() -> None:
            rate.copy_(table[place].squeeze())
            place.add_(1)
            update(rate)

        if random is not None and device.type == "cuda":
            _replayed(step, len(steps), random, device)
        else:
            for _ in steps:
                step()
    else:
        for value in steps:
            update(value)


def _replayed(step: Callable[[], None], steps: int, random: torch.Generator, device: torch.device) -> None:
    """Take some steps eagerly on a separate stream, as capturing requires, and the rest from one CUDA graph."""
    eager = min(steps, 3)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(eager):
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    if steps == eager:
        return
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(random)
    with torch.cuda.graph(graph):
        step()
    for _ in range(steps - eager):
        graph.replay()


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
