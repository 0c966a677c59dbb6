"""A frozen backbone in use: pictures in, features out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from concm import backbones
from concm.backbones import cores, fast, onnx, readings, timm
from concm.backbones.efficientnet_lite import EfficientNetLite
from concm.backbones.identity import Identity as Identity
from concm.data import augment
from concm.data.dataset import ImageSet
from concm.data.transform import Transform
from concm.data.views import Augment, uniform, view
from concm.errors import Misuse
from concm.files import digest, save_tensors

KIND = "concm-backbone-1"
LEARNED = "learned/"


class Reading(nn.Module):
    """A network that reads each picture in several quarter turns, or keeps its last maps, flat, instead of their mean.

    (n, 3, h, w) → (n, turns × d), or (n, turns × d·h·w) with maps.
    """

    def __init__(self, network: nn.Module, turns: Sequence[int] = (0,), maps: bool = False) -> None:
        super().__init__()
        self.network = network
        self.turns = tuple(map(index, turns)) or (0,)
        self.maps = maps

    def forward(self, images: Tensor) -> Tensor:
        """One feature per turn, side by side."""
        read: Callable[[Tensor], Tensor] = self.network.maps if self.maps else self.network  # type: ignore[assignment]
        quarters = (torch.full((len(images),), turn, device=images.device) for turn in self.turns)
        return torch.cat([read(augment.turn(images, quarter)).flatten(1) for quarter in quarters], 1)

    @classmethod
    def of(cls, network: nn.Module, turns: Sequence[int], maps: bool) -> nn.Module:
        """The network with these turns and maps, or the network itself if it needs neither."""
        return network if tuple(turns) == (0,) and not maps else cls(network, turns, maps)


@dataclass
class Encoder:
    """A network with the transform it was trained for, and the readings that make a feature.

    The last `blocks` of the network are read in 1, 2 or 4 quarter `turns`, and each reading is averaged over `looks`:
    the central square, its mirror image, and shifts of both. `learned` is what its base session learned for a method,
    beside the network.
    """

    name: str
    network: nn.Module
    transform: Transform
    meta: dict[str, Any]
    blocks: int = 1
    turns: int = 1
    looks: int = 1
    learned: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        readings.check(self.blocks, self.turns, self.looks)
        if isinstance(self.network, Reading):
            if self._several:
                raise Misuse("this backbone's base session settled how pictures are read: without `blocks` and `turns`")
            if self.looks > 1 and self.network.maps:
                raise Misuse("`looks` averages features, and maps of a shifted or mirrored image lie elsewhere")
        if self.blocks > 1:
            backbones.staged(self.network)
        self.weights = digest(self.network.state_dict())

    def __getstate__(self) -> dict[str, Any]:
        """All but the runtime, of which another process may have another one."""
        return {name: value for name, value in vars(self).items() if name != "_fast"}

    @property
    def backbone(self) -> nn.Module:
        """The network itself, without turns or maps."""
        return self.network.network if isinstance(self.network, Reading) else self.network

    @property
    def plain(self) -> bool:
        """Whether features are the plain output of a network that can be trained further."""
        ours = not isinstance(self.network, (Reading, EfficientNetLite)) and "source" not in self.meta
        return ours and self.passes == self.blocks == 1

    @property
    def source(self) -> str:
        """What the user named, where that is not the name of the architecture."""
        return str(self.meta.get("source", self.name))

    @property
    def kept(self) -> bool:
        """Whether a store keeps its weights: those of a run folder and of timm, but not what comes in a package."""
        return self.meta.get("recipe") is not None or self.name.startswith(timm.KEPT)

    @property
    def passes(self) -> int:
        """How often the network sees each picture."""
        return self.turns * self.looks * (len(self.network.turns) if isinstance(self.network, Reading) else 1)

    @property
    def _several(self) -> bool:
        return self.blocks * self.turns > 1

    @cached_property
    def layout(self) -> tuple[int, ...]:
        """The widths of the readings that stand side by side in a feature, found by trying an empty picture."""
        training = self.network.training
        images = torch.zeros(1, 3, self.transform.size, self.transform.size, device=self.device)
        with cores.one_thread(), torch.inference_mode():
            try:
                found = readings.pooled(self._quick.eval(), images, self.blocks)
            finally:
                self.network.train(training)
        return tuple(own.shape[1] for own in found) * self.turns

    @property
    def identity(self) -> Identity:
        """What the features of this encoder depend on."""
        layout = self.layout if self._several else ()
        return Identity(self.name, self.weights, self.transform, self.blocks, self.turns, self.looks, layout)

    def to(self, device: torch.device) -> Encoder:
        """Move to a device, in eval mode and in the layout that is fastest for convolutions."""
        network: nn.Module = self.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        network.eval().requires_grad_(False)
        return self

    @property
    def device(self) -> torch.device:
        """The device it computes on."""
        first = next(chain(self.network.parameters(), self.network.buffers()), None)  # asked for often: no full walk
        return torch.device("cpu") if first is None or isinstance(self.network, onnx.OnnxNetwork) else first.device

    def encode(
        self,
        images: ImageSet,
        *,
        views: int = 0,
        kind: Augment = "shift",
        seed: int = 0,
        batch: int = 256,
        tick: Callable[[int], None] = lambda done: None,
    ) -> Tensor:
        """Features (n, d) of the images as they are, or (n, views, d) of random views of them."""
        parts = []
        for start in range(0, len(images), batch):
            rows = images.rows[start : start + batch]
            pixels = torch.from_numpy(np.ascontiguousarray(images.pixels[rows])).to(self.device)
            ids = images.ids[start : start + batch]
            parts.append(self.views(pixels, ids, views, seed, kind) if views else self(pixels))
            tick(len(rows))
        return torch.cat(parts) if parts else torch.empty(0, *([views] if views else []), sum(self.layout))

    def __call__(self, pixels: Tensor) -> Tensor:
        """(n, h, w, 3) uint8 → (n, d) float32 on the CPU."""
        return self._shared(lambda part: self._features(readings.looks_at(part, self.transform, self.looks)), pixels)

    def _shared(self, read: Callable[[Tensor], Tensor], pictures: Tensor) -> Tensor:
        """Features of pictures on the CPU; on a CPU each core reads its share by itself.

        Cores that compute one picture together wait for each other, for ever where they are shared with others.
        """
        workers = min(self.workers, len(pictures))
        if workers < 2:
            return read(pictures).cpu()
        return torch.cat(list(cores.together(read, pictures.chunk(workers), workers)))

    @property
    def workers(self) -> int:
        """How many threads may encode by themselves: the cores of a CPU as far as torch may use them, one for a GPU."""
        return cores.budget() if self.device.type == "cpu" else 1

    def views(self, pixels: Tensor, ids: list[str], views: int, seed: int = 0, kind: Augment = "shift") -> Tensor:
        """Features (n, views, d) of views, which depend only on the picture, its id and the seed."""
        random = torch.stack([uniform(f"{seed}:{name}", views) for name in ids]).to(pixels.device)
        out = []
        for at in range(views):
            images = view(pixels, random[:, at], self.transform.size, kind)
            out.append(self._shared(lambda part: self._features([self.transform.normalise(part)]), images))
        return torch.stack(out, 1)

    @torch.inference_mode()
    def _features(self, looks: Iterable[Tensor]) -> Tensor:
        if not isinstance(self._quick, (fast.Fast, onnx.OnnxNetwork)):  # which take pictures as they are
            looks = (images.contiguous(memory_format=torch.channels_last) for images in looks)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return readings.read(self._quick, looks, blocks=self.blocks, turns=self.turns)

    @property
    def _quick(self) -> nn.Module:
        """The network in the runtime that is fastest where it is."""
        return self._fast if self.device.type == "cpu" else self.network

    @cached_property
    def _fast(self) -> nn.Module:
        return fast.fast(self.network)

    def save(self, path: Path) -> None:
        """Write the network with what is needed to use it again."""
        meta = {**self.meta, "name": self.name, "transform": asdict(self.transform)}
        if isinstance(self.network, Reading):
            meta["reading"] = {"turns": self.network.turns, "maps": self.network.maps}
        learned = {f"{LEARNED}{name}": value for name, value in self.learned.items()}
        save_tensors(path, KIND, {**self.backbone.state_dict(), **learned}, meta)
