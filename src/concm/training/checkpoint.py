"""The state of a base session between two steps: everything that the next step depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from concm.errors import ConcmError, in_a_line
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


def load(path: Path, model: nn.Module, optimizer: torch.optim.SGD, meta: dict[str, Any]) -> tuple[int, float]:
    """Restore the state and return its step and the seconds spent so far; another run's checkpoint is refused."""
    tensors, saved = load_tensors(path, KIND)
    for what, value in meta.items():
        if saved.get(what) != value:
            raise ConcmError(f"{path} belongs to another run: its {what} is {_differs(saved.get(what), value)}")
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "momentum": {}}
    for name, tensor in tensors.items():
        part, _, key = name.partition("/")
        parts[part][key] = tensor
    try:
        model.load_state_dict(parts["model"])
    except RuntimeError as error:
        raise ConcmError(f"{path} does not fit this backbone: {in_a_line(error)}") from error
    for name, parameter in model.named_parameters():
        if name in parts["momentum"]:
            optimizer.state[parameter]["momentum_buffer"] = parts["momentum"][name].to(parameter.device)
    return int(saved["step"]), float(saved["seconds"])


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
