"""Sums, means and batch statistics over all processes, so that several compute the same as one would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _together(value: Tensor) -> Tensor:
    out = value.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out)
    return out


# An operator of its own, so that a compiled step is one graph with it, and not one more for each sum. CUDA graphs are
# cut at it, for not every backend can be recorded.
_UNRECORDED = getattr(torch.Tag, "cudagraph_unsafe", None)
_sum: Any = torch.library.custom_op(
    "concm::total",
    _together,
    mutates_args=(),
    schema="(Tensor value) -> Tensor",
    **({} if _UNRECORDED is None else {"tags": (_UNRECORDED,)}),
)
_sum.register_fake(lambda value: torch.empty_like(value, memory_format=torch.contiguous_format))
# The gradient is summed too: every process's loss depends on every process's input.
_sum.register_autograd(lambda context, gradient: _sum(gradient))
if hasattr(_sum, "register_effect"):  # a compiler that changed the order of sums would have processes wait for ever
    _sum.register_effect(torch.library.EffectType.ORDERED)  # type: ignore[attr-defined]


def total(value: Tensor) -> Tensor:
    """The sum over processes, differentiable."""
    out: Tensor = _sum(value)
    return out


@contextmanager
def in_one_graph() -> Iterator[None]:
    """While it lasts, a compiled step is not cut into a graph for each part of the gradients that is sent."""
    import torch._dynamo.config

    with torch._dynamo.config.patch(optimize_ddp=False):  # which loses the order of sums at its cuts
        yield


def gather(value: Tensor) -> Tensor:
    """Rows of all processes, in rank order, differentiable; (n, …) → (n · processes, …)."""
    if processes() == 1:
        return value
    everything = value.new_zeros(processes(), *value.shape)
    everything[dist.get_rank()] = value
    rows: Tensor = total(everything).flatten(0, 1)
    return rows


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation over the global batch, on any device (torch's own synchronised one needs CUDA)."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w), this process's share of the batch."""
        if not self.training or processes() == 1:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        values = x.float()
        count = x.numel() / x.shape[1] * processes()
        mean = total(values.sum((0, 2, 3))) / count
        centred = values - mean.view(1, -1, 1, 1)
        variance = total(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            momentum = self.momentum if self.momentum is not None else 0.1
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * count / (count - 1), momentum)
        out: Tensor = centred * (variance + self.eps).rsqrt().view(1, -1, 1, 1)
        if self.affine:
            out = out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return out.to(x.dtype)

    @classmethod
    def convert(cls, network: nn.Module) -> None:
        """Make every batch norm of a network global, in place; parameters and their names do not change."""
        for module in network.modules():
            if type(module) is nn.BatchNorm2d:
                module.__class__ = cls
