"""Any network: what it says of itself, and one vector a picture from whatever form its output has."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from concm.backbones.registry import MODULE
from concm.data.transform import Transform
from concm.errors import Misuse, in_a_line


@dataclass(frozen=True)
class Found:
    """A network as a user named it; a store calls it `source`, and its weights may have a `licence`."""

    name: str
    network: nn.Module
    transform: Transform | None
    source: str
    licence: str | None = None


def given(network: nn.Module) -> Found:
    """A network that was given as an object, copied so that its owner can go on training it."""
    name = f"{MODULE}{type(network).__qualname__}"
    try:
        copy = deepcopy(network)
    except Exception as error:  # somebody else's code may raise anything
        raise Misuse(f"{type(network).__qualname__} cannot be copied: {in_a_line(error)}") from error
    return Found(name, copy, own_transform(network), name)


def own_transform(network: nn.Module) -> Transform | None:
    """How pictures enter it, if it says so: by an attribute `transform`, or as networks of timm do."""
    transform = getattr(network, "transform", None)
    if isinstance(transform, Transform):
        return transform
    config = getattr(network, "pretrained_cfg", None)
    return configured(config) if isinstance(config, Mapping) and "input_size" in config else None


def configured(config: Mapping[str, Any]) -> Transform:
    """The transform that a configuration of timm describes."""
    channels, height, width = config["input_size"]
    if channels != 3 or height != width:
        raise Misuse(
            f"this network takes pictures of {channels} × {height} × {width}; here they are square, of 3 colours"
        )
    share = float(config.get("crop_pct") or 1)
    red, green, blue = (float(value) for value in config["mean"])
    deviations = (float(value) for value in config["std"])
    return Transform(height, max(height, int(height / share)), (red, green, blue), tuple(deviations))  # type: ignore[arg-type]


def vectors(output: Any, count: int) -> Tensor:
    """One vector for each of so many pictures: (count, d), the mean of tokens (count, t, d), or that of maps."""
    if not isinstance(output, Tensor):
        raise Misuse(
            f"a backbone gives a tensor, and this one a {type(output).__name__}: wrap it in a module that does"
        )
    if output.ndim not in (2, 3, 4) or output.shape[0] != count:
        raise Misuse(
            f"the backbone gives {tuple(output.shape)} for pictures: {count}; it should give vectors (n, d), tokens "
            "(n, t, d) or maps (n, d, h, w)"
        )
    if output.ndim == 3:
        return output.mean(1)
    return output.mean((2, 3)) if output.ndim == 4 else output
