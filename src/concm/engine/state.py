"""The state of everything that learns: tensors are buffers, networks submodules, and plain values extra state.

So saving, loading, counting and moving are written only once, for the engine and for every method.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from concm.errors import ConcmError

EXTRA = "_extra_state"


class Growing(nn.Module):
    """A module whose tensors may grow: a tensor assigned to an attribute becomes a buffer, whatever its shape."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and name not in self._buffers:
            self.__dict__.pop(name, None)
            self.register_buffer(name, value)
        else:
            super().__setattr__(name, value)


class Stateful(Growing):
    """Base class of all that learn on a device with their own random numbers; the state is a table of tensors."""

    values: ClassVar[tuple[str, ...]] = ()
    "Names of the attributes of the state that are not tensors: numbers, words, and lists of them."
    older: ClassVar[Mapping[str, Any]] = {}
    "What those of them were that older states do not have."

    def __init__(self, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__()
        self.seed = seed
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def rebuild(self, state: Mapping[str, Tensor]) -> None:
        """Make the submodules that a state has tensors for; plain values have been loaded already."""

    def get_extra_state(self) -> Tensor:
        """The plain values and the names of the buffers, as bytes of JSON in a tensor."""
        buffers = sorted(name for name, _ in self.named_buffers(remove_duplicate=False))
        known = {"values": {name: getattr(self, name) for name in self.values}, "buffers": buffers}
        return torch.frombuffer(bytearray(json.dumps(known).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Inverse of `get_extra_state`."""
        known = {**self.older, **_unpacked(state)["values"]}
        for name in self.values:
            setattr(self, name, known[name])

    def state_dict(self) -> dict[str, Tensor]:  # type: ignore[override]
        """All that was learned, as tensors; an object of the same settings that loads it goes on as this one would."""
        state = {name: value.detach().clone() for name, value in super().state_dict().items()}
        return {**state, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        """Inverse of `state_dict`, for an object of the same settings; a state that does not fit is refused."""
        try:
            self.set_extra_state(state[EXTRA])
            buffers = set(_unpacked(state[EXTRA])["buffers"])
            with torch.random.fork_rng(devices=[]):
                self.rebuild(state)
            restore(self.generator, state["generator"], self.seed)  # which making the submodules may have moved
            for name in state.keys() - {EXTRA, "generator"}:
                self._put(name, state[name], buffers)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise ConcmError(
                f"this state does not fit {type(self).__name__} ({type(error).__name__}: {error})"
            ) from error
        if lacking := (super().state_dict().keys() | buffers) - state.keys():
            raise ConcmError(f"this state does not fit {type(self).__name__}: it lacks {min(lacking)}")

    def _put(self, name: str, value: Tensor, buffers: Collection[str]) -> None:
        path, _, leaf = name.rpartition(".")
        owner = self.get_submodule(path)
        if leaf == EXTRA:
            owner.set_extra_state(value)
        elif (weight := owner._parameters.get(leaf)) is not None:
            if weight.shape != value.shape:  # otherwise copying might broadcast the value
                raise ValueError(f"{name} is {tuple(value.shape)}, not {tuple(weight.shape)}")
            with torch.no_grad():
                weight.copy_(value)
        elif name in buffers:
            owner.register_buffer(leaf, value.to(self.device, copy=True))
        else:
            raise KeyError(name)


def _unpacked(state: Tensor) -> dict[str, Any]:
    """What `get_extra_state` wrote."""
    known: dict[str, Any] = json.loads(state.cpu().numpy().tobytes())
    return known


def restore(generator: torch.Generator, state: Tensor, seed: int) -> None:
    """Set a generator to a saved state; if that is of another kind of device, the generator restarts from the seed."""
    try:
        generator.set_state(state)
    except RuntimeError:
        generator.manual_seed(seed)


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that these tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
