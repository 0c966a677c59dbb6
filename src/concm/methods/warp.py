"""WaRP (Kim, Han, Seo and Moon, "Warping the Space: Weight Space Rotation for Class-Incremental Few-Shot Learning",
ICLR 2023).

What a network knows is spread over almost all of its weights, so that changing a few forgets much. But the inputs of a
layer lie mostly in few directions, and in a basis of these the same knowledge sits in few coefficients. So the kernels
of the last layers are expressed in that basis, the coefficients that matter most to the classes learned so far are
frozen, and a session trains the rest on its shots. Class means, taken before that, are the classifier.

Here: the backbone is the shared one, where the authors train theirs by plain cross-entropy; layers are those of its
second half, as in the authors' code; bases and importances come from the base images that the bank holds. Gradients are
turned and masked instead of kernels, which is the same for this optimiser.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concm.backbones import opened
from concm.engine.descent import SGD, descend
from concm.features.sessions import BaseSession, Session, class_means
from concm.methods.picture_base import PictureLearner
from concm.methods.registry import PICTURES, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class WaRPSettings(Checked):
    """The settings of WaRP, with the authors' values for CIFAR-100."""

    scale: float = setting(16.0, "Scale of the cosines (authors' code).", above=0)
    share: float = setting(
        0.1,
        "Share of all coefficients that the base session and each later one freeze (authors' code).",
        above=0,
        most=1,
    )
    steps: int = setting(30, "Steps of a session, each over all shots (authors' code).", least=0)
    lr: float = setting(0.01, "Rate of the sessions (authors' code).", above=0)
    images: int = setting(2560, "Base images whose inputs to a layer give its basis (authors' code).", least=1)
    batch: int = setting(60, "Base images in a gradient that says what matters (authors' code).", least=1)


@method(
    "warp",
    title="WaRP: what matters is frozen in a turned weight space, the rest is trained",
    paper="ICLR 2023",
    link="https://openreview.net/forum?id=kPLzOfPfA2l",
    code="https://github.com/EdwinKim3069/WaRP-CIFSL",
    group="updates the backbone",
    needs=(PICTURES,),
)
class WaRP(PictureLearner):
    """The network, a row for each class, and for each turned layer a basis and which of its coefficients are frozen."""

    settings = WaRPSettings()
    values = (*PictureLearner.values, "layers")
    kept = ("rows", "bases", "frozen")

    def __init__(self, settings: WaRPSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(settings, seed=seed, device=device)
        self.layers: list[str] = []

    def fit_base(self, base: BaseSession) -> None:
        """Find the bases of the last layers, and freeze what the base classes need."""
        base, settings = self.begin(base), self.settings
        assert base.pictures is not None
        self.rows = base.mean
        chosen = torch.randperm(len(base.pictures), generator=self.generator, device=self.device)[: settings.images]
        self._turn(base.pictures[chosen])
        self._freeze(base.pictures, base.labels, settings.batch)

    def learn(self, session: Session) -> None:
        """Add class means, train what is not frozen on the shots, and freeze what they need."""
        session, settings = session.to(self.device), self.settings
        assert session.pictures is not None
        pictures, labels = session.pictures, session.labels
        self.rows = torch.cat([self.rows, class_means(self.features(pictures), labels, session.classes)])
        with ExitStack() as stack:
            for weight, basis, frozen in self._parts():
                hook = weight.register_hook(partial(freed, basis=basis, frozen=frozen))  # type: ignore[no-untyped-call]
                stack.callback(hook.remove)
            weights = [weight for weight, _, _ in self._parts()]
            descend(weights, lambda: self._loss(pictures, labels), [settings.lr] * settings.steps, SGD(momentum=0.9))
        self._freeze(pictures, labels, 1)

    def scores(self, pictures: Tensor) -> Tensor:
        """Cosine to every row."""
        return F.normalize(self.features(pictures)) @ F.normalize(self.rows).T

    def _loss(self, pictures: Tensor, labels: Tensor) -> Tensor:
        units = F.normalize(self.network(self.how.centre(pictures)))
        return F.cross_entropy(self.settings.scale * units @ F.normalize(self.rows).T, labels)

    @torch.no_grad()
    def _turn(self, pictures: Tensor) -> None:
        """Find the convolutions of the second half, and the directions of their inputs, the strongest first."""
        network, moments = opened(self.network), dict[str, Tensor]()
        names = {module: name for name, module in self.network.named_modules() if isinstance(module, nn.Conv2d)}

        def record(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen = _patches(layer, given[0])
            moments[names[layer]] = moments.get(names[layer], 0) + seen.T @ seen  # type: ignore[index]

        for part in torch.split(pictures, 128):
            maps = network.front(self.how.centre(part))
            with ExitStack() as stack:
                for layer in names:
                    stack.callback(layer.register_forward_pre_hook(record).remove)
                network.back(maps)
        self.layers = list(moments)
        bases = [torch.linalg.eigh(moment.double()).eigenvectors.flip(1).T for moment in moments.values()]
        self.bases = torch.cat([basis.float().flatten() for basis in bases])
        count = sum(layer.weight.numel() for layer, name in names.items() if name in moments)
        self.frozen = torch.zeros(count, dtype=torch.bool, device=self.device)

    def _freeze(self, pictures: Tensor, labels: Tensor, batch: int) -> None:
        """Freeze the share of coefficients whose gradients are largest, beside those that are frozen already."""
        weights, total = [weight for weight, _, _ in self._parts()], torch.zeros_like(self.frozen, dtype=torch.float32)
        for rows in torch.split(torch.arange(len(labels), device=self.device), batch):
            gradients = torch.autograd.grad(self._loss(pictures[rows], labels[rows]), weights)
            turned = [own.flatten(1) @ part[1].T for own, part in zip(gradients, self._parts(), strict=True)]
            total += torch.cat([coefficients.abs().flatten() for coefficients in turned])
        count = max(1, round(self.settings.share * len(total)))
        chosen = torch.zeros_like(self.frozen).scatter(0, total.topk(count).indices, True)
        self.frozen = self.frozen | chosen

    def _parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Each turned layer's weight (o, i, k, k), its basis (d, d) and what is frozen (o, d), d being i·k·k."""
        bases, frozen = 0, 0
        for name in self.layers:
            weight: Tensor = self.network.get_submodule(name).weight  # type: ignore[assignment]
            width = weight[0].numel()
            basis = self.bases[bases : bases + width * width].view(width, width)
            yield weight, basis, self.frozen[frozen : frozen + weight.numel()].view(-1, width)
            bases, frozen = bases + width * width, frozen + weight.numel()


def _patches(layer: nn.Module, maps: Tensor) -> Tensor:
    """What a convolution sees at every place, one below the other: (n, i, h, w) → (places, i·k·k)."""
    assert isinstance(layer, nn.Conv2d)
    how = {"dilation": layer.dilation, "padding": layer.padding, "stride": layer.stride}
    return F.unfold(maps, layer.kernel_size, **how).transpose(1, 2).flatten(0, 1)  # type: ignore[arg-type]


def freed(gradient: Tensor, basis: Tensor, frozen: Tensor) -> Tensor:
    """The gradient of a weight (o, …) without what would change frozen coefficients (o, d) in a basis (d, d)."""
    turned = (gradient.flatten(1) @ basis.T).masked_fill(frozen, 0)
    return (turned @ basis).view_as(gradient)
