"""What every method would otherwise write again: a device, a generator, state as plain tensors, memory counted.

A method keeps what it learned in attributes: tensors, numbers, lists, and networks that `build` makes. That is enough
for `state_dict` to find all of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from concm.features.sessions import Session


class Learner:
    """Base of the methods; `fit_base`, `learn` and `scores` are theirs to write."""

    kept: tuple[str, ...] = ()
    "Names of the attributes that are kept of the data: what `memory_bytes` counts."

    def __init__(self, *, seed: int = 0, device: str = "cpu") -> None:
        self.seed = seed
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.dimension = 0
        self.base = 0

    def begin(self, base: Session) -> Session:
        """The base session on the device, with `dimension` and `base` set and the networks built."""
        self.dimension, self.base = base.features.shape[1], len(base.classes)
        self._build()
        return base.to(self.device)

    def _build(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.build()
        for network in self._networks().values():
            network.to(self.device)

    def _networks(self) -> dict[str, nn.Module]:
        return {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}

    def build(self) -> None:
        """Make the networks, for features of `dimension`; random numbers are the seed's."""

    @property
    def memory_bytes(self) -> int:
        """What is kept of the data between sessions."""
        return sum(value.numel() * value.element_size() for value in (getattr(self, name) for name in self.kept))

    @property
    def parameters(self) -> int:
        """Trained weights: the networks'."""
        return sum(weight.numel() for network in self._networks().values() for weight in network.parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """All that was learned, as tensors."""
        state, known = {}, {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                state[name] = value.detach().clone()
            elif isinstance(value, torch.Generator):
                state[name] = value.get_state()
            elif isinstance(value, nn.Module):
                state |= {f"{name}/{key}": weight.detach().clone() for key, weight in value.state_dict().items()}
            elif name not in ("settings", "device", "seed"):
                known[name] = value
        return {**state, "known": torch.tensor(list(json.dumps(known).encode()), dtype=torch.uint8)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Inverse of `state_dict`, into a method of the same settings."""
        known: dict[str, Any] = json.loads(bytes(state["known"].tolist()))
        for name, value in known.items():
            setattr(self, name, value)
        self._build()
        for name, value in state.items():
            if name == "known" or "/" in name:
                continue
            if isinstance(generator := getattr(self, name, None), torch.Generator):
                restore(generator, value, self.seed)
            else:
                setattr(self, name, value.to(self.device))
        for name, network in self._networks().items():
            network.load_state_dict(
                {key.removeprefix(f"{name}/"): v for key, v in state.items() if key.startswith(f"{name}/")}
            )


def restore(generator: torch.Generator, state: Tensor, seed: int) -> None:
    """Set a generator to a saved state; one of another kind of device does not fit: it begins anew from the seed."""
    try:
        generator.set_state(state)
    except RuntimeError:
        generator.manual_seed(seed)


def class_means(session: Session) -> Tensor:
    """Mean feature (classes, d) of a session's shots."""
    return torch.stack([session.features[session.labels == label].mean(0) for label in session.classes])
