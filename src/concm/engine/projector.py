"""The projector: from the hypersphere of features to the one in which the structure lies, and its training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adamw import adamw  # the function: its class imports all of torch.compile, which takes seconds


class Projector(nn.Module):
    """Two layers with unit length before and after (paper, "Model architecture"); `width` is d_g and may grow."""

    def __init__(self, dimension: int, width: int = 128, hidden: int = 2048) -> None:
        super().__init__()
        self.inner = nn.Linear(dimension, hidden)
        self.outer = nn.Linear(hidden, width)

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) → (n, width), unit vectors."""
        return F.normalize(self.outer(self.inner(F.normalize(features)).relu()), dim=1)

    @property
    def width(self) -> int:
        """Dimensions it projects to."""
        return self.outer.out_features

    @torch.no_grad()
    def widen(self, width: int) -> None:
        """More dimensions with the function unchanged: the new ones are zero until training moves them."""
        old = self.outer
        like = {"device": old.weight.device, "dtype": old.weight.dtype}
        self.outer = nn.utils.skip_init(nn.Linear, old.in_features, width, **like)  # type: ignore[no-untyped-call]
        self.outer.weight.zero_()[: old.out_features] = old.weight
        self.outer.bias.zero_()[: old.out_features] = old.bias


def train(
    parameters: Iterable[Tensor],
    loss: Callable[[], Tensor],
    generator: torch.Generator,
    *,
    steps: int,
    lr: float,
    weight_decay: float,
) -> None:
    """Minimise `loss`, which draws a new batch from `generator` at each call: AdamW, cosine to zero after a warm-up.

    On a GPU a step is captured once as a CUDA graph and replayed, so the host neither waits nor launches kernels.
    """
    weights = list(parameters)
    device = weights[0].device
    progress = torch.arange(steps, device=device) / steps
    warm = (torch.arange(1, steps + 1, device=device) / max(1, steps // 10)).clamp(max=1)
    rates = lr * warm * (1 + torch.cos(torch.pi * progress)) / 2
    rate, at = torch.tensor(lr, device=device), torch.zeros(1, dtype=torch.long, device=device)
    graphed = device.type == "cuda"
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    counts = [torch.zeros((), device=device) for _ in weights]

    def step() -> None:
        rate.copy_(rates[at].squeeze())
        at.add_(1)
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
                capturable=graphed,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate,
                weight_decay=weight_decay,
                eps=1e-8,
                maximize=False,
            )

    if not graphed:
        for _ in range(steps):
            step()
        return
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
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        step()
    for _ in range(steps - eager):
        graph.replay()
