"""The state of a base session between two steps: everything that the next step depends on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from concm.errors import ConcmError, loading
from concm.files import load_tensors, save_tensors

KIND = "concm-training-1"


def save(path: Path, model: nn.Module, optimizer: torch.optim.SGD, meta: dict[str, Any]) -> None:
    """Write weights, momenta and `meta` (step, recipe, scenario)."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        momentum = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum/{name}"] = momentum
    save_tensors(path, KIND, tensors, meta)


def load(
    path: Path, model: nn.Module, optimizer: torch.optim.SGD, meta: dict[str, Any], steps: int
) -> tuple[int, float, dict[str, float]]:
    """Restore the state and return its step, the seconds spent so far and the losses of the epoch that it is in.

    Another run's checkpoint is refused.
    """
    tensors, saved = load_tensors(path, KIND)
    for what, value in meta.items():
        if saved.get(what) != value:
            raise ConcmError(f"{path} belongs to another run: its {what} is {_differs(saved.get(what), value)}")
    with loading(path, "checkpoint", "delete it to begin anew"):
        step, seconds = saved["step"], float(saved["seconds"])
        if not isinstance(step, int) or not 0 < step <= steps or not 0 <= seconds < math.inf:
            raise ValueError(f"it is at step {step} of {steps}, after {seconds} seconds")
        for name, value in tensors.items():
            if not value.isfinite().all():
                raise ValueError(f"{name} has values that are no numbers")
        _restore(model, optimizer, _under("model/", tensors), _under("momentum/", tensors))
        return step, seconds, {str(name): float(value) for name, value in saved.get("losses", {}).items()}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _restore(
    model: nn.Module, optimizer: torch.optim.SGD, weights: dict[str, Tensor], momenta: dict[str, Tensor]
) -> None:
    model.load_state_dict(weights)
    parameters = dict(model.named_parameters())
    for name, momentum in momenta.items():
        if momentum.shape != parameters[name].shape:
            raise ValueError(f"the momentum of {name} is {tuple(momentum.shape)}")
        optimizer.state[parameters[name]]["momentum_buffer"] = momentum.to(parameters[name])


def _differs(saved: object, wanted: object) -> str:
    """The difference of two values; of two tables, setting by setting."""
    if isinstance(saved, dict) and isinstance(wanted, dict):
        return "different: " + "; ".join(_changed(saved, wanted))
    return f"{saved!r}, not {wanted!r}"


def _changed(saved: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    changes = []
    for key in wanted:
        one, other = saved.get(key), wanted[key]
        if isinstance(one, dict) and isinstance(other, dict):
            changes += _changed(one, other)
        elif one != other:
            changes.append(f"{key} {one!r}, not {other!r}")
    return changes
