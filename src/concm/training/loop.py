"""The training loop of the base session, on Fabric: one process or many, interrupted or not, the same weights.

ResNet-12 on CIFAR-100's 60 base classes: 84.08 % base accuracy in 472 seconds on one H200 (one run of 400 epochs;
docs/results/cifar100-resnet12.json).
"""

from __future__ import annotations

import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from concm import backbones
from concm.backbones.encoder import Encoder, Reading
from concm.data.augment import RANDOMS
from concm.data.dataset import Dataset
from concm.engine.descent import half_cosine
from concm.errors import ConcmError, Misuse, enough_memory, in_a_line
from concm.progress import bar, interruptible
from concm.records import to_json
from concm.training import checkpoint
from concm.training.distributed import GlobalBatchNorm2d, in_one_graph
from concm.training.feed import Feed
from concm.training.log import Log, Meter
from concm.training.objective import Objective, Stage, TwoViews
from concm.training.recipe import Recipe, Schedule

CHECKPOINT_SECONDS = 120.0


@dataclass(frozen=True)
class Objectives:
    """What a method minimises in its own base session, and what the run's file records of it."""

    make: Callable[[Stage], Objective]
    recorded: dict[str, Any]


def ours(stage: Stage, recipe: Schedule) -> Objective:
    """The objective of our own base session."""
    if not isinstance(recipe, Recipe):
        raise Misuse("our own base session takes a Recipe; a bare Schedule goes with a method's objective")
    return TwoViews(stage, recipe)


class Interrupted(ConcmError):
    """The run was interrupted by Ctrl-C; its checkpoint is on disk."""


@dataclass
class BaseRun:
    """One run: what it trains on, how, and where it writes."""

    dataset: Dataset
    backbone: str
    recipe: Schedule
    out: Path
    fabric: Fabric
    objective: Objectives | None = None
    weights: str | None = None
    compiled: bool = False
    resident: bool | None = None
    tensorboard: bool = False

    def run(self, *, resume: bool = False) -> Encoder:
        """Train to the last epoch and write `backbone.safetensors`; returns the encoder that was written."""
        file = self.out / "checkpoint.safetensors"
        self._check(file, resume)
        recipe, fabric = self.recipe, self.fabric
        an_epoch = len(self.dataset.base) // self.batch
        steps = recipe.epochs * an_epoch
        torch.manual_seed(recipe.seed)
        model = self._model()
        # Optimizer and checkpoint come before the step is compiled or wrapped, so that names and objects are plain.
        optimizer = _optimizer(model, recipe, fabric.device)
        identity = {
            "scenario": self.dataset.scenario.name,
            "number of base classes": self.dataset.scenario.base,
            "number of pictures": len(self.dataset.base),
            "pictures": self._fingerprint(),
            "image size": self.dataset.transform.size,
            "backbone": self.backbone,
            "recipe": self.described,
        }
        start, before, sums = 0, 0.0, dict[str, float]()
        if resume:
            start, before, sums = checkpoint.load(file, model, optimizer, identity, steps)
        if self.compiled:
            # CUDA graphs, because a step is hundreds of small kernels and launching each costs time. In place, so that
            # several processes wrap the compiled step, and do not compile what wraps it.
            model.compile(dynamic=False, mode="reduce-overhead")
        wrapped, wrapped_optimizer = fabric.setup(model, optimizer)
        feed = Feed(self.dataset.base, fabric.device, resident=self.resident)
        meter = Meter(start, an_epoch, self.batch, before, sums)
        saved = time.perf_counter()
        log = Log(self.out, fabric.is_global_zero, self.tensorboard, start)
        whole = in_one_graph() if self.compiled else nullcontext()
        with interruptible(signal.SIGINT, signal.SIGTERM) as stop, log, whole, bar(transient=False) as progress:
            task = progress.add_task("base session", total=steps, completed=start, note="")
            for step, (pixels, labels) in enumerate(feed.batches(self._orders(start, steps, an_epoch)), start):
                if step == start or step % an_epoch == 0:
                    model.advance(step // an_epoch / recipe.epochs)
                rate = recipe.lr * _schedule(step, steps, min(recipe.warmup, recipe.epochs / 4) * an_epoch)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                meter.add(self._step(wrapped, wrapped_optimizer, pixels, labels, self._random(step, model.draws)))
                done = step + 1
                progress.update(task, completed=done)
                if done % an_epoch == 0:
                    row = meter.row(done, fabric.all_reduce)
                    if not math.isfinite(row["loss"]):
                        raise ConcmError(f"the loss is {row['loss']} after epoch {row['epoch']}: try a lower `lr`")
                    log.write({**row, "lr": rate})
                    progress.update(task, note=f"loss {row['loss']:.3f}  {row['images_per_second']:,.0f} images/s")
                stopping = done < steps and self._agreed(bool(stop), done)
                if stopping or done == steps or time.perf_counter() - saved > CHECKPOINT_SECONDS:
                    saved = time.perf_counter()
                    if fabric.is_global_zero:
                        state = {**identity, "step": done, "seconds": meter.seconds, "losses": meter.losses()}
                        checkpoint.save(file, model, optimizer, state)
                    if stopping:
                        raise Interrupted(f"interrupted at step {done} of {steps}")
        return self._finish(model, meter.row(steps, fabric.all_reduce), file)

    def _fingerprint(self) -> str:
        """A digest of the pictures, so that a checkpoint does not go on with others."""
        words = [*self.dataset.scenario.keys[: self.dataset.scenario.base], *self.dataset.base.ids]
        return hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()

    def _agreed(self, stop: bool, step: int) -> bool:
        """Whether to stop here; several processes ask each other from time to time, since they must stop together."""
        if self.fabric.world_size == 1:
            return stop
        if step % 10:
            return False
        votes = self.fabric.all_reduce(torch.tensor(float(stop), device=self.fabric.device), reduce_op="sum")
        return bool(votes)

    @cached_property
    def batch(self) -> int:
        """Size of the global batch; if there are fewer pictures, they are one batch."""
        return min(self.recipe.batch, len(self.dataset.base))

    @cached_property
    def share(self) -> slice:
        """The part of every global batch that this process computes."""
        size = self.batch // self.fabric.world_size
        return slice(self.fabric.global_rank * size, (self.fabric.global_rank + 1) * size)

    def _check(self, file: Path, resume: bool) -> None:
        world = self.fabric.world_size
        if self.batch % world:
            raise Misuse(f"`batch` is {self.batch}, the batch over all processes and must divide by {world}")
        finished = self.out / "backbone.safetensors"
        if resume and not file.exists():
            why = "the run is finished" if finished.exists() else f"no checkpoint at {file}"
            raise Misuse(f"nothing to resume: {why}")
        if not resume and finished.exists():
            raise Misuse(f"{self.out} already holds a finished run; choose another `out`")
        if not resume and file.exists():
            raise Misuse(f"{self.out} already holds a run; add `resume` to go on with it, or choose another `out`")

    def _model(self) -> Objective:
        backbone = backbones.find_backbone(self.backbone, self.dataset.transform)
        network = backbone.build()
        if self.weights is not None:
            from concm.backbones.resnet import ResNet, load_torchvision

            if self.backbone != "resnet18_imagenet" or not isinstance(network, ResNet):
                raise Misuse("`weights` takes torchvision's ResNet-18 and goes with the backbone resnet18_imagenet")
            load_torchvision(network, self.weights)
        self._try(network)
        scenario = self.dataset.scenario
        names = scenario.names[: scenario.base]
        stage = Stage(network, backbone.dimension, scenario.base, len(scenario.keys), self.dataset.transform, names)
        model = self.objective.make(stage) if self.objective is not None else ours(stage, self.recipe)
        if self.fabric.world_size > 1:
            GlobalBatchNorm2d.convert(model)
        return model.train().to(self.fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    @cached_property
    def described(self) -> dict[str, Any]:
        """The recipe as the run's file records it, with the method if this is the base session of one."""
        return {**(self.objective.recorded if self.objective is not None else {}), **to_json(self.recipe)}

    def _try(self, network: nn.Module) -> None:
        """Refuse pictures that are too small for the network before anything is written."""
        size = self.dataset.transform.size
        try:
            with torch.no_grad():
                network.eval()(torch.zeros(1, 3, size, size))
        except RuntimeError as error:
            raise Misuse(f"{self.backbone} cannot take pictures of {size} pixels: {in_a_line(error)}") from error

    def _orders(self, start: int, steps: int, an_epoch: int) -> Iterator[NDArray[np.int64]]:
        """The share of this process in every global batch, from step `start` on: a fresh shuffle each epoch."""
        count = len(self.dataset.base)
        order = np.empty(0, np.int64)
        for step in range(start, steps):
            epoch, at = divmod(step, an_epoch)
            if at == 0 or step == start:
                order = np.random.default_rng((self.recipe.seed, epoch)).permutation(count)
            yield order[at * self.batch : (at + 1) * self.batch][self.share]

    def _random(self, step: int, draws: int) -> Tensor:
        """Uniform numbers for this process's share of the global batch; they depend only on seed and step."""
        device = self.fabric.device
        generator = torch.Generator(device).manual_seed(self.recipe.seed * 1_000_003 + step)
        return torch.rand(self.batch, draws, RANDOMS, generator=generator, device=device)[self.share]

    def _step(self, model: Any, optimizer: Any, pixels: Tensor, labels: Tensor, random: Tensor) -> dict[str, Tensor]:
        sentence = f"the device is out of memory at a batch of {self.batch}; try `batch={self.batch // 2}`"
        with enough_memory(sentence):
            losses: dict[str, Tensor] = model(pixels, labels, random, self.share.start)
            self.fabric.backward(losses["loss"])
            optimizer.step()
            optimizer.zero_grad()
        return losses

    def _finish(self, model: Objective, last: dict[str, float], file: Path) -> Encoder:
        meta = {
            "dimension": backbones.registered(self.backbone).dimension,
            "scenario": self.dataset.scenario.name,
            "recipe": self.described,
            "seconds": round(last["seconds"], 1),
            "images_per_second": round(last["images_per_second"]),
            "base_accuracy": round(head_accuracy(model, self.dataset), 2),
        }
        learned = {name: value.detach().cpu() for name, value in model.learned().items()}
        network = Reading.of(model.backbone, model.turns, model.maps)
        encoder = Encoder(self.backbone, network, self.dataset.transform, meta, learned=learned)
        if self.fabric.is_global_zero:
            encoder.save(self.out / "backbone.safetensors")
            file.unlink(missing_ok=True)
        self.fabric.barrier()
        return encoder


@torch.inference_mode()
def head_accuracy(model: Objective, dataset: Dataset) -> float:
    """Accuracy (per cent) of the base session's own classifier over the base classes' test images."""
    images = dataset.test.of_classes(dataset.scenario.classes_of(0))
    network = Reading.of(model.backbone, model.turns, model.maps)
    encoder = Encoder("", network, dataset.transform, {}).to(next(model.parameters()).device)
    features = encoder.encode(images)
    scores = model.eval().classify(features.to(encoder.device)).cpu()
    return float((scores.argmax(1) == torch.from_numpy(images.labels)).float().mean() * 100)


def _optimizer(model: nn.Module, recipe: Schedule, device: torch.device) -> torch.optim.SGD:
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.ndim > 1]
    free = [p for p in trained if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9, nesterov=True, fused=device.type == "cuda" or None)


def _schedule(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then half a cosine to zero."""
    if step < warmup:
        return min(1.0, (step + 1) / warmup)
    return half_cosine((step - warmup) / max(1.0, steps - warmup))
