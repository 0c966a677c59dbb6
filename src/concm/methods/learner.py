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

from concm.data.sessions import Session


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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.build()
        return base.to(self.device)

    def build(self) -> None:
        """Make the networks, for features of `dimension`; random numbers are the seed's."""

    @property
    def memory_bytes(self) -> int:
        """What is kept of the data between sessions."""
        return sum(value.numel() * value.element_size() for value in (getattr(self, name) for name in self.kept))

    @property
    def parameters(self) -> int:
        """Trained weights: the networks'."""
        networks = [value for value in vars(self).values() if isinstance(value, nn.Module)]
        return sum(weight.numel() for network in networks for weight in network.parameters())

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
        self.build()
        for name, value in state.items():
            if name == "known" or "/" in name:
                continue
            if isinstance(getattr(self, name, None), torch.Generator):
                getattr(self, name).set_state(value)
            else:
                setattr(self, name, value.to(self.device))
        for name, network in vars(self).items():
            if isinstance(network, nn.Module):
                weights = {key.removeprefix(f"{name}/"): v for key, v in state.items() if key.startswith(f"{name}/")}
                network.to(self.device).load_state_dict(weights)


def class_means(session: Session) -> Tensor:
    """Mean feature (classes, d) of a session's shots."""
    return torch.stack([session.features[session.labels == label].mean(0) for label in session.classes])
