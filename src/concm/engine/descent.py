"""Gradient descent as most of these papers do it: SGD with momentum, and the schedules of its rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.optim.sgd import sgd  # the function: its class imports all of torch.compile, which takes seconds


def descend(
    parameters: Iterable[Tensor],
    loss: Callable[[], Tensor],
    rates: Iterable[float],
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    from_rest: bool = False,
) -> None:
    """Minimise `loss`, which may draw a new batch at each call, by one step a rate.

    The first step is not damped, as in torch, unless it begins `from_rest`.
    """
    weights = list(parameters)
    momenta = [torch.zeros_like(weight) if from_rest else None for weight in weights]
    for rate in rates:
        gradients = list(torch.autograd.grad(loss(), weights))
        with torch.no_grad():
            sgd(
                weights,
                gradients,
                momenta,
                lr=rate,
                momentum=momentum,
                dampening=dampening,
                nesterov=nesterov,
                weight_decay=weight_decay,
                maximize=False,
                foreach=False,
            )


def warmed_cosine(lr: float, steps: int, warm: int = 0) -> Iterator[float]:
    """Linear to the peak over `warm` steps, then half a cosine to zero."""
    for step in range(steps):
        yield lr * min(1.0, (step + 1) / (warm + 1)) * (1 + math.cos(math.pi * step / steps)) / 2


def falling(lr: float, steps: int, period: float, decay: float) -> Iterator[float]:
    """Falls by the factor `decay` after each `period`, a share of all steps."""
    for step in range(steps):
        yield lr * decay ** int(step / steps / period + 1e-9)


def paced(values: Tensor, pace: float) -> Tensor:
    """The same values, whose gradient is `pace` times theirs: what comes before them learns at its own rate."""
    return values.detach() + pace * (values - values.detach())
