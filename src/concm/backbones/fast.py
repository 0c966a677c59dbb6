"""The faster runtime on a CPU: an EfficientNet-Lite as an ONNX graph, run by onnxruntime where that is installed.

Features are the same up to rounding, so nothing that is kept depends on which runtime computed it. The graph is made
of the folded network itself: convolutions with kernels turned back and TensorFlow's padding, which is ONNX's too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from concm.backbones import cores
from concm.backbones.efficientnet_lite import EfficientNetLite
from concm.backbones.onnx import session
from concm.runtime import onnxruntime

OPSET = 17
BATCH = 2
"""Pictures at a time: the maps of more leave the core's own memory before the next layer reads them."""


class Fast(nn.Module):
    """A folded EfficientNet-Lite on the calling thread of a CPU, with the means of its last two blocks as maps."""

    def __init__(self, network: EfficientNetLite) -> None:
        super().__init__()
        self._made = partial(_model, network)
        self.session = session(self._made())
        self._shared: _Shared | None = None
        self._sooner = cores.Sooner()

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → (n, 1280)."""
        return self._run(images, ["head"])[0]

    def stages(self, images: Tensor) -> list[Tensor]:
        """(n, 3, h, w) → the means of the last block and of the head, (n, d, 1, 1) each."""
        return [means[..., None, None] for means in self._run(images, ["last", "head"])]

    def _run(self, images: Tensor, names: list[str]) -> list[Tensor]:
        pixels = images.contiguous().numpy()
        parts = [self._part(names, {"images": pixels[at : at + BATCH]}) for at in range(0, len(pixels), BATCH)]
        return [torch.from_numpy(np.concatenate(found)) for found in zip(*parts, strict=True)]

    def _part(self, names: list[str], given: dict[str, Any]) -> list[Any]:
        """On this thread, or on the cores that it was lent if that is sooner done."""
        alone = partial(self.session.run, names, given)
        if cores.lent() < 2:
            return alone()  # type: ignore[no-any-return]
        if self._shared is None:  # the first run takes longer than others, and says nothing of them
            self._shared = _Shared(self._made(), cores.lent())
            return self._shared.run(names, given)
        return self._sooner(partial(self._shared.run, names, given), alone)


class _Shared:
    """The same graph on several cores together, which belong to it: the calling thread keeps away from the others'."""

    def __init__(self, model: bytes, threads: int) -> None:
        self._others = cores.others(threads)
        self.session = session(model, threads, self._others)

    def run(self, names: list[str], given: dict[str, Any]) -> list[Any]:
        """What the graph gives under these names."""
        with cores.apart(self._others):
            found: list[Any] = self.session.run(names, given)
        return found


def fast(network: nn.Module) -> nn.Module:
    """The same network in the faster runtime, if there is one for it."""
    if not isinstance(network, EfficientNetLite) or not isinstance(network.stem.norm, nn.Identity):
        return network
    try:
        import onnx  # noqa: F401

        onnxruntime()
    except ImportError:
        return network
    return Fast(network)


def _model(network: EfficientNetLite) -> bytes:
    from onnx import TensorProto, helper

    graph = _Graph()
    maps = graph.unit("images", network.stem)
    for block in network.blocks:
        inner = maps
        for unit in (block.expand, block.depthwise, block.project):
            inner = inner if isinstance(unit, nn.Identity) else graph.unit(inner, unit)
        maps = graph.add("Add", [maps, inner]) if block.residual else inner
    for name, own in (("last", maps), ("head", graph.unit(maps, network.head))):
        graph.add("Flatten", [graph.add("GlobalAveragePool", [own])], name)
    pictures = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, "h", "w"])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in ("last", "head")]
    made = helper.make_graph(graph.nodes, "features", [pictures], outputs, graph.tensors)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    found: bytes = model.SerializeToString()
    return found


class _Graph:
    """The nodes of a graph and their tensors, as they are added."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def add(self, kind: str, inputs: list[str], name: str | None = None, **how: Any) -> str:
        """A node; returns the name of its output."""
        from onnx import helper

        output = name or f"at{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **how))
        return output

    def tensor(self, value: Tensor) -> str:
        """A constant; returns its name."""
        from onnx import numpy_helper

        name = f"constant{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(value.detach().cpu().contiguous().numpy(), name))
        return name

    def unit(self, maps: str, unit: Any) -> str:
        """A folded convolution, and its activation if it has one."""
        conv: nn.Conv2d = unit.conv
        assert conv.bias is not None
        weights = [self.tensor(conv.weight.flip(-2, -1)), self.tensor(conv.bias)]
        how: dict[str, Any] = {"strides": conv.stride, "kernel_shape": conv.kernel_size, "group": conv.groups}
        found = self.add("Conv", [maps, *weights], auto_pad="SAME_UPPER", **how)
        if isinstance(unit.activation, nn.Identity):
            return found
        return self.add("Clip", [found, self.tensor(torch.tensor(0.0)), self.tensor(torch.tensor(6.0))])
