"""Sums, means and batch statistics over all processes, so that several compute the same as one would."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Sum(torch.autograd.Function):
    """All-reduce whose gradient is all-reduced too: every process's loss depends on every process's input."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone().contiguous()
        dist.all_reduce(total)
        return total


@torch.compiler.disable  # type: ignore[untyped-decorator]
def total(value: Tensor) -> Tensor:
    """The sum over processes, differentiable."""
    out: Tensor = _Sum.apply(value)  # type: ignore[no-untyped-call]
    return out


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
        scale = (variance + self.eps).rsqrt() * self.weight
        out: Tensor = centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return out.to(x.dtype)

    @classmethod
    def convert(cls, network: nn.Module) -> None:
        """Make every batch norm of a network global, in place; parameters and their names do not change."""
        for module in network.modules():
            if type(module) is nn.BatchNorm2d:
                module.__class__ = cls
