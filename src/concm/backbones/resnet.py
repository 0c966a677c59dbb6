"""The residual networks of the field: ResNet-12 (few-shot), ResNet-18 with either stem, ResNet-20 (CIFAR)."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from concm.errors import ConcmError, in_a_line


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block12(nn.Module):
    """Three convolutions beside a linear shortcut, then halving by max-pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(inputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(0.1, inplace=True),
            _conv(outputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(0.1, inplace=True),
            _conv(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(_conv(inputs, outputs, 1), nn.BatchNorm2d(outputs))
        self.activation = nn.LeakyReLU(0.1, inplace=True)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) → (n, outputs, h/2, w/2)."""
        out: Tensor = self.pool(self.activation(self.body(x) + self.shortcut(x)))
        return out


class ResNet12(nn.Module):
    """64-160-320-640 (Lee et al., CVPR 2019), 12.4 M parameters."""

    dimension = 640

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block12(3, 64), Block12(64, 160), Block12(160, 320), Block12(320, 640))
        _initialise(self)

    @property
    def last(self) -> nn.Module:
        """The last block."""
        return self.blocks[-1]

    def front(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 160, h/4, w/4)."""
        out: Tensor = self.blocks[:2](images)
        return out

    def back(self, maps: Tensor) -> Tensor:
        """(n, 160, h/4, w/4) → (n, 640, h/16, w/16)."""
        out: Tensor = self.blocks[2:](maps)
        return out

    def maps(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 640, h/16, w/16)."""
        return self.back(self.front(images))

    def stages(self, images: Tensor) -> list[Tensor]:
        """(n, 3, h, w) → the maps of the four blocks."""
        return list(accumulate(self.blocks, _onwards, initial=images))[1:]

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 640)."""
        return self.maps(images).mean((2, 3))


class BasicBlock(nn.Module):
    """Two convolutions; attribute names are torchvision's, so that its state dicts load."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) → (n, outputs, h/stride, w/stride)."""
        straight = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(x)) + straight)
        return out


class ResNet(nn.Module):
    """He et al., CVPR 2016. `stem` 7 is ImageNet's (stride 2 and max-pooling), 3 keeps small pictures large."""

    def __init__(self, widths: tuple[int, ...], depth: int, stem: int) -> None:
        super().__init__()
        self.dimension = widths[-1]
        self.conv1 = _conv(3, widths[0], stem, 2 if stem == 7 else 1)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == 7 else nn.Identity()
        inputs = widths[0]
        for at, width in enumerate(widths):
            blocks = []
            for block in range(depth):
                blocks.append(BasicBlock(inputs, width, 2 if at and not block else 1))
                inputs = width
            self.add_module(f"layer{at + 1}", nn.Sequential(*blocks))
        self._layers = [f"layer{at + 1}" for at in range(len(widths))]
        _initialise(self)

    @property
    def last(self) -> nn.Module:
        """The last layer."""
        return self.get_submodule(self._layers[-1])

    def front(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → the maps of the second layer."""
        return self._through(self._layers[:2], self.maxpool(self.relu(self.bn1(self.conv1(images)))))

    def back(self, maps: Tensor) -> Tensor:
        """The maps of the second layer → those of the last."""
        return self._through(self._layers[2:], maps)

    def maps(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → the last maps."""
        return self.back(self.front(images))

    def stages(self, images: Tensor) -> list[Tensor]:
        """(n, 3, h, w) → the maps of the layers."""
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        return list(accumulate(map(self.get_submodule, self._layers), _onwards, initial=stem))[1:]

    def _through(self, layers: list[str], x: Tensor) -> Tensor:
        for layer in layers:
            x = self.get_submodule(layer)(x)
        return x

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, dimension)."""
        return self.maps(images).mean((2, 3))


def _onwards(maps: Tensor, block: nn.Module) -> Tensor:
    out: Tensor = block(maps)
    return out


def _initialise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu", a=0.1)


def resnet18() -> ResNet:
    """3×3 stem, as OrCo and ConCM use it on mini-ImageNet."""
    return ResNet((64, 128, 256, 512), depth=2, stem=3)


def resnet18_imagenet() -> ResNet:
    """7×7 stem, with the keys of torchvision's ResNet-18 but without its last layer."""
    return ResNet((64, 128, 256, 512), depth=2, stem=7)


def resnet20() -> ResNet:
    """The CIFAR network of CEC and its descendants."""
    return ResNet((16, 32, 64), depth=3, stem=3)


def load_torchvision(network: ResNet, weights: str) -> None:
    """Load torchvision's state dict into a 7×7-stem network: from a file, or from `torchvision` if it is installed."""
    if weights == "torchvision":
        try:
            from torchvision.models import ResNet18_Weights
        except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that was built with another torch
            raise ConcmError("`weights=torchvision` needs torchvision; give the state dict's file instead") from error
        state = dict(ResNet18_Weights.DEFAULT.get_state_dict())
    else:
        try:
            state = torch.load(Path(weights), map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            raise ConcmError(f"no weights file at {weights}") from error
        except Exception as error:  # torch.load's failures have no common type
            raise ConcmError(
                f"{weights} is not a state dict that loads without running code ({in_a_line(error)})"
            ) from error
    if not isinstance(state, dict):
        raise ConcmError(f"{weights} holds no state dict but a {type(state).__name__}")
    wanted = {key: value for key, value in state.items() if not key.startswith("fc.")}
    missing = sorted(set(network.state_dict()) - set(wanted))
    if missing or set(wanted) - set(network.state_dict()):
        raise ConcmError(
            f"{weights} does not fit resnet18_imagenet: it lacks {', '.join(missing[:3]) or 'nothing, but has more'}"
        )
    try:
        network.load_state_dict(wanted)
    except RuntimeError as error:
        raise ConcmError(f"{weights} does not fit resnet18_imagenet: {in_a_line(error)}") from error
