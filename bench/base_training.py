"""Images per second of the base session, as ratios in one run on one device.

    python bench/base_training.py [--backbone resnet12] [--batch 512] [--steps 100] [--json FILE]

Against a plain PyTorch loop (DataLoader with workers, per-image PIL augmentation, fp32, eager, the same two views,
network and losses) and against the copy-free bound: the same forward and backward on random views that lie ready on
the device. Also: augmentation alone, plain torch against kornia. Pictures are random; speed does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from concm import backbones
from concm.cli.options import Machine
from concm.data import augment, scenarios
from concm.data.dataset import Dataset as Pictures
from concm.data.dataset import ImageSet
from concm.training.loop import BaseRun
from concm.training.objective import Stage, TwoViews
from concm.training.recipe import Recipe


def pictures(count: int) -> Pictures:
    scenario = scenarios.load_scenario("cifar100")
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(count) % scenario.base
    images = ImageSet(pixels, np.arange(count), labels, [str(at) for at in range(count)])
    return Pictures(scenario, scenario.transform, images, images.where(np.arange(count) < 600))


class PlainViews(Dataset):  # type: ignore[type-arg]
    """What most repositories do: decode, crop, flip and jitter one picture at a time with Pillow."""

    def __init__(self, images: ImageSet, recipe: Recipe) -> None:
        self.images, self.recipe = images, recipe

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor, int]:
        generator = np.random.default_rng()
        picture = Image.fromarray(self.images.pixels[at])
        weak = ImageOps.expand(picture, 4)
        left, top = generator.integers(0, 9, 2)
        weak = weak.crop((left, top, left + 32, top + 32))
        y, x = generator.integers(0, 32, 2)
        weak.paste((128, 128, 128), (x - 8, y - 8, x + 8, y + 8))
        side = 32 * generator.uniform(self.recipe.scale_min, 1) ** 0.5
        left, top = generator.uniform(0, 32 - side, 2)
        strong = picture.resize((32, 32), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            strong = enhance(strong).enhance(generator.uniform(0.6, 1.4))
        if generator.random() < self.recipe.grey:
            strong = strong.convert("L").convert("RGB")
        turn = int(generator.integers(0, 4))
        views = []
        for view in (weak, strong):
            view = ImageOps.mirror(view) if generator.random() < 0.5 else view
            array = np.ascontiguousarray(np.rot90(np.asarray(view), turn).transpose(2, 0, 1))
            views.append(torch.from_numpy(array).float() / 255)
        return views[0], views[1], int(self.images.labels[at])


def timed(step: Callable[[], object], steps: int, warm: int, device: torch.device) -> float:
    """Seconds per step."""
    for _ in range(warm):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def ours(data: Pictures, backbone: str, batch: int, steps: int, machine: Machine) -> float:
    """The real trainer, checkpoints and log included; the first epoch compiles and is not counted."""
    fabric = machine.fabric()
    an_epoch = len(data.train) // batch
    recipe = Recipe(epochs=1 + max(2, round(steps / an_epoch)), batch=batch, warmup=1)
    with tempfile.TemporaryDirectory() as folder:
        BaseRun(data, backbone, recipe, Path(folder), fabric, compiled=fabric.device.type == "cuda").run()
        rows = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
    return (rows[-1]["step"] - rows[0]["step"]) * batch / (rows[-1]["seconds"] - rows[0]["seconds"])


def plain(data: Pictures, backbone: str, batch: int, steps: int, device: torch.device) -> float:
    model = build(backbone, data, batch).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    workers = os.cpu_count() or 1
    loader = DataLoader(
        PlainViews(data.train, model.settings),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
    )

    def endless() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        while True:
            yield from loader

    batches = endless()

    def step() -> None:
        weak, strong, labels = (value.to(device) for value in next(batches))
        advance(model, optimizer, data.transform.normalise(torch.cat([weak, strong])), labels)

    return batch / timed(step, steps, 5, device)


def bound(data: Pictures, backbone: str, batch: int, steps: int, device: torch.device) -> float:
    """No data at all: forward, backward and optimizer on views that never change."""
    model = build(backbone, data, batch).to(device, memory_format=torch.channels_last)
    fused = device.type == "cuda"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=fused)
    views = torch.randn(2 * batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch, device=device) % data.scenario.base
    compiled = torch.compile(losses, dynamic=False, mode="reduce-overhead") if fused else losses

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=fused):
            loss = compiled(model, views, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return batch / timed(step, steps, 5, device)


def build(backbone: str, data: Pictures, batch: int) -> TwoViews:
    known = backbones.find_backbone(backbone)
    classes = data.scenario.base
    stage = Stage(known.build(), known.dimension, classes, classes, data.transform)
    return TwoViews(stage, Recipe(batch=batch))


def losses(model: TwoViews, views: Tensor, labels: Tensor) -> Tensor:
    features = model.backbone(views).float()
    vectors = F.normalize(model.projection(features).float())
    pictures = torch.arange(len(labels), device=labels.device)
    supervised, simclr = model._contrast(vectors, labels, pictures)
    scores = model.head(features).float()
    return F.cross_entropy(scores, labels.repeat(2), label_smoothing=0.1) + 0.4 * supervised + 0.1 * simclr


def advance(model: TwoViews, optimizer: torch.optim.SGD, views: Tensor, labels: Tensor) -> None:
    losses(model, views, labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def augmentation(data: Pictures, batch: int, steps: int, device: torch.device) -> dict[str, float]:
    """Milliseconds for both views of a batch."""
    model = build("resnet20", data, batch).to(device)
    pixels = torch.from_numpy(data.train.pixels[:batch]).to(device)
    labels = torch.from_numpy(data.train.labels[:batch]).to(device)

    def own(function: Callable[..., object]) -> Callable[[], object]:
        return lambda: function(pixels, labels, torch.rand(batch, 2, augment.RANDOMS, device=device))

    figures = {"plain torch": timed(own(model.views), steps, 5, device)}
    if device.type == "cuda":
        figures["plain torch, compiled"] = timed(own(torch.compile(model.views, dynamic=False)), steps, 5, device)
    try:
        import kornia.augmentation as K
    except ImportError:
        return {name: 1e3 * value for name, value in figures.items()}
    size, recipe = (32, 32), model.settings
    weak = K.AugmentationSequential(
        K.RandomCrop(size, padding=4, padding_mode="reflect"),
        K.RandomHorizontalFlip(),
        K.RandomErasing((0.25, 0.25), (1, 1), p=1),
    )
    strong = K.AugmentationSequential(
        K.RandomResizedCrop(size, scale=(recipe.scale_min, 1)), K.RandomHorizontalFlip(),
        K.ColorJiggle(0.4, 0.4, 0.4, p=0.8), K.RandomGrayscale(p=recipe.grey),
    )  # fmt: skip

    def kornias() -> Tensor:
        images = pixels.permute(0, 3, 1, 2).float() / 255
        return data.transform.normalise(torch.cat([weak(images), strong(images)]))

    figures["kornia (without turns)"] = timed(kornias, steps, 5, device)
    return {name: 1e3 * value for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet12")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--images", type=int, default=30_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = Machine()
    device = machine.fabric().device
    data = pictures(options.images)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{os.cpu_count()} × {platform.machine()}"
    speeds = {
        "this trainer": ours(data, options.backbone, options.batch, options.steps, machine),
        "copy-free bound": bound(data, options.backbone, options.batch, options.steps, device),
        "plain PyTorch loop": plain(data, options.backbone, options.batch, max(5, options.steps // 5), device),
    }
    own = speeds["this trainer"]
    for what, speed in speeds.items():
        print(f"{what:20} {speed:10,.0f} images/s   {speed / own:6.2f}× of this trainer", flush=True)
    milliseconds = augmentation(data, options.batch, options.steps, device)
    for what, value in milliseconds.items():
        print(f"both views of {options.batch} pictures, {what}: {value:.2f} ms")
    if options.json:
        record = {
            "device": name,
            "torch": torch.__version__,
            "images_per_second": speeds,
            "augmentation_ms": milliseconds,
        }
        settings = {name: getattr(options, name) for name in ("backbone", "batch", "steps", "images")}
        options.json.write_text(json.dumps({**settings, **record}, indent=1))


if __name__ == "__main__":
    main()
