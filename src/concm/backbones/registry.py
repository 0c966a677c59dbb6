"""The registry of backbones: each has a dimension and, if it comes with weights, an input transform."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from concm.data.transform import Transform
from concm.errors import Misuse, did_you_mean, in_a_line
from concm.importing import FAILURES, imported

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Backbone:
    """How to make a network: `factory` is an import path, so that listing the backbones imports nothing.

    Without its own `transform` it uses the scenario's; `ready` says that it comes with weights, and `code` that the
    factory is a user's own, in a file or the current folder perhaps.
    """

    name: str
    factory: str
    dimension: int
    summary: str
    transform: Transform | None = None
    ready: bool = False
    code: bool = False

    def build(self) -> nn.Module:
        """A new network, with its packaged weights if it has any."""
        module, _, attribute = self.factory.rpartition(":")
        make = imported(module, attribute) if self.code else getattr(importlib.import_module(module), attribute)
        network: nn.Module = make()
        return network


class Open(Protocol):
    """A network that gives access to its maps: `back(front(images))` are its last maps, `last` is its last block."""

    last: nn.Module

    def front(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → maps half-way."""

    def back(self, maps: Tensor) -> Tensor:
        """Maps half-way → the last maps."""

    def maps(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → the last maps (n, d, h', w'), whose mean is the feature."""


def opened(network: nn.Module) -> Open:
    """The network, checked to give access to its maps, which some methods need."""
    if not all(hasattr(network, name) for name in ("front", "back", "maps", "last")):
        raise Misuse(f"this method looks inside the network, and {type(network).__name__} does not show its maps")
    return cast(Open, network)


class Staged(Protocol):
    """A network that shows the maps of its blocks."""

    def stages(self, images: Tensor) -> list[Tensor]:
        """(n, 3, h, w) → the maps (n, d, h', w') of its blocks in order; the mean of the last ones is the feature."""


def staged(network: nn.Module) -> Staged:
    """The network, checked to show the maps of its blocks."""
    if not callable(getattr(network, "stages", None)):
        raise Misuse(f"`blocks` above 1 reads earlier blocks, and {type(network).__name__} has no method `stages`")
    return cast(Staged, network)


def _lite(variant: int, size: int) -> Backbone:
    grey = 127 / 255
    return Backbone(
        name=f"efficientnet_lite{variant}",
        factory=f"concm.backbones.efficientnet_lite:lite{variant}",
        dimension=1280,
        summary=f"EfficientNet-Lite{variant}, ImageNet weights from a package, {size} px",
        transform=Transform(size, round(size / 0.875), (grey, grey, grey), (128 / 255, 128 / 255, 128 / 255)),
        ready=True,
    )


_REGISTRY = {
    backbone.name: backbone
    for backbone in (
        Backbone("resnet12", "concm.backbones.resnet:ResNet12", 640, "64-160-320-640, LeakyReLU; CIFAR-100"),
        Backbone("resnet18", "concm.backbones.resnet:resnet18", 512, "3×3 stem; mini-ImageNet (OrCo, ConCM)"),
        Backbone("resnet18_imagenet", "concm.backbones.resnet:resnet18_imagenet", 512, "7×7 stem, torchvision's keys"),
        Backbone("resnet20", "concm.backbones.resnet:resnet20", 64, "16-32-64; CIFAR-100 (CEC, FACT, TEEN)"),
        _lite(0, 224),
        _lite(1, 240),
        _lite(2, 260),
    )
}


_named_by_the_user: dict[str, Backbone] = {}
MODULE = "module "
"""What the name of a network that was given as an object begins with."""
SOURCES = "(timm|hf-hub|local-dir):"
"""How references to networks of timm begin."""


def backbones() -> list[Backbone]:
    """All registered backbones."""
    return list(_REGISTRY.values())


def registered(name: str) -> Backbone:
    """A backbone that a file names: only known names are looked up, so that no file can make code run."""
    if name in _REGISTRY:
        return _REGISTRY[name]
    if name in _named_by_the_user:
        return _named_by_the_user[name]
    if name.startswith(MODULE):
        raise Misuse(f"the backbone is a network of yours, {name.removeprefix(MODULE)}: give the same one, in Python")
    if name.endswith(".onnx"):
        raise Misuse(
            f"the backbone is the network of {name}, which no file may run: name that file yourself as the backbone"
        )
    if re.match(SOURCES, name):
        raise Misuse(f"the backbone is {name!r}, whose weights are not with it: name it yourself as the backbone")
    if ":" in name:
        raise Misuse(
            f"the backbone is {name!r}, code that a file may not run: if you trust it, name it yourself as the backbone"
        )
    raise Misuse(f"no backbone called {name!r}; {did_you_mean(name, _REGISTRY)}")


def is_code(reference: str) -> bool:
    """Whether this names code of the user's, `package.module:factory` or `file.py:factory`, perhaps with weights."""
    return ":" in reference and not re.match(SOURCES, reference)


def find_backbone(name: str, transform: Transform | None = None, size: int | None = None) -> Backbone:
    """A backbone that the user names: a registered one, or `package.module:factory`, which is imported and called.

    The factory returns a module of (n, 3, h, w) → (n, d), of pictures as its own transform or this one says, or of
    another `size`; from then on files may name it too, in this process.
    """
    if re.match(SOURCES, name):
        raise Misuse(f"{name} comes with weights and stays as it is: train a registered backbone or a factory of yours")
    if name in _REGISTRY or ":" not in name:
        return registered(name)
    _named_by_the_user[name] = found = _imported(name, transform, size)
    return found


def _imported(name: str, transform: Transform | None, size: int | None) -> Backbone:
    own = Backbone(name, name, 0, "from an import path", ready=True, code=True)
    try:
        network = own.build()
        network.eval()
    except FAILURES as error:
        raise Misuse(f"cannot import the backbone {name!r}: {in_a_line(error)}") from error
    from concm.backbones.modules import own_transform

    found = own_transform(network)
    shown = found or transform
    return replace(own, dimension=_dimension(network, name, shown and shown.at(size)), transform=found)


def _dimension(network: nn.Module, name: str, transform: Transform | None) -> int:
    """The dimension as the network states it, or as found by trying it on empty pictures."""
    declared = getattr(network, "dimension", None)
    if isinstance(declared, int):
        return declared
    import torch

    from concm.backbones.modules import vectors

    size = 224 if transform is None else transform.size
    with torch.no_grad():
        try:
            found = network(torch.zeros(2, 3, size, size))
        except Exception as error:  # a user's code may raise anything
            raise Misuse(f"the backbone {name!r} cannot take pictures of {size} pixels: {in_a_line(error)}") from error
    return int(vectors(found, 2).shape[1])
