"""BiDist (Zhao, Lu, Xu and others, "Few-Shot Class-Incremental Learning via Class-Aware Bilateral
Distillation", CVPR 2023).

Two branches: the base model, frozen, and one whose last block and classifier go on learning in each session. It learns
from new shots and one exemplar of each old class, and is distilled from two teachers: the base model, which keeps it
from overfitting, and itself before the session, which remembers earlier novel classes. A small network mixes the two
for each novel class, by its likeness to the base classes. Another one, the gate, decides from the predictions of both
branches how much of each to believe.

Here: the shared backbone is the base model; the base session only trains a classifier on its features, whose scale is
kept and whose rows are replaced by class means, as in the authors' code. Each session draws a few views of each picture
(shifts and mirrors) and uses them throughout; batch statistics stay those of the base session, as in the authors' code;
weight decay, which does next to nothing in so few steps, is left out. Layers before the last block are the same in both
branches and are computed once. Norms with fixed statistics multiply a change of the weights before them by their gain
over their deviation; where that is larger than in the backbones on which the paper's rate was tried, the block's rate
is smaller by its square, or a single session would forget the base classes.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from concm.backbones import opened
from concm.engine.descent import SGD, descend, paced
from concm.features.sessions import BaseSession, Session
from concm.methods.imprint import BaseTraining, classifier, imprinted
from concm.methods.picture_base import PictureLearner
from concm.methods.registry import EXEMPLARS, PICTURES, method
from concm.records import Checked, setting


@dataclass(frozen=True)
class BiDistSettings(Checked):
    """The settings of BiDist, with the authors' values for mini-ImageNet, the only ones released."""

    iterations: int = setting(100, "Steps of each session (paper).", least=0)
    lr: float = setting(0.001, "Rate of the last block and the classifier (paper).", least=0)
    amplification: float = setting(
        6.0,
        "Gain over deviation of the block's norms up to which that is the rate; beyond, it falls with the square "
        "(chosen: that of the validation backbones, which the paper's rate does no harm).",
        above=0,
    )
    batch: int = setting(
        50,
        "Exemplars in a step, half of them of novel classes once there are some (authors' code); all new shots "
        "come on top.",
        least=2,
    )
    views: int = setting(
        10,
        "Views of each picture in a session, whose maps before the last block are computed once (chosen; authors' "
        "code: new views at each step).",
        least=1,
    )
    replay: float = setting(5.0, "Weight of the cross-entropy of exemplars (authors' code).")
    distillation: float = setting(
        100.0,
        "Weight of the distillation on exemplars and on as many new shots as there are new classes (authors' code).",
    )
    temperature: float = setting(16.0, "Temperature of the distillation (authors' code).", above=0)
    trust: float = setting(
        1.0, "Weight of the previous model's mean share in the teacher, which is kept small (authors' code)."
    )
    hidden: int = setting(64, "Hidden units of the two small networks, mixer and gate (authors' code).", least=1)
    hidden_lr: float = setting(0.01, "Rate of the two small networks (authors' code).", least=0)
    binary: float = setting(50.0, "Weight of the gate's cross-entropy of novel against base (authors' code).")
    merged: float = setting(5.0, "Weight of the gate's cross-entropy of the merged scores (authors' code).")
    scale: float = setting(10.0, "Initial value of the learned scale of the cosines (authors' code).", above=0)
    base: BaseTraining = setting(
        BaseTraining(),
        "Training of the base classifier (chosen: that of imprint; authors' code: with the backbone, 200 epochs).",
    )


class Material(NamedTuple):
    """Labels (n,) of a session's pictures; for views of them, maps before the last block and both teachers' scores."""

    labels: Tensor
    maps: Tensor
    base: Tensor
    previous: Tensor


@method(
    "bidist",
    title="BiDist: two teachers mixed for each class, two branches and a gate",
    paper="CVPR 2023",
    link="https://openaccess.thecvf.com/content/CVPR2023/papers/"
    "Zhao_Few-Shot_Class-Incremental_Learning_via_Class-Aware_Bilateral_Distillation_CVPR_2023_paper.pdf",
    code="https://github.com/LinglanZhao/BiDistFSCIL",
    group="updates the backbone",
    needs=(PICTURES, f"{EXEMPLARS}: 1 picture per class"),
)
class BiDist(PictureLearner):
    """The base model and the tuned last block, each with its own rows, the gate, and one picture of each class."""

    settings = BiDistSettings()
    values = (*PictureLearner.values, "scale", "seen")
    kept = ("exemplars",)
    copies = ("network",)

    def __init__(self, settings: BiDistSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(settings, seed=seed, device=device)
        self.scale, self.seen = self.settings.scale, 0

    def build(self) -> None:
        """Make the base model, the block that is tuned, and the gate for the classes seen."""
        super().build()
        self.tuned = deepcopy(opened(self.network).last)
        self.network.requires_grad_(False)
        self.gate = perceptron(2 * self.seen, self.settings.hidden, 2, self.generator)

    def fit_base(self, base: BaseSession) -> None:
        """Train a classifier on features to get its scale; both branches begin with class means as rows."""
        self.seen = len(base.classes)
        base = self.begin(base)
        assert base.pictures is not None
        self.tuned.load_state_dict(opened(self.network).last.state_dict())
        _, self.scale = classifier(base, self.settings.scale, self.settings.base, self.generator)
        self.base_rows = self.rows = imprinted(base)
        self.exemplars = base.pictures[typical(base.features, base.labels, self.base_rows)]

    def learn(self, session: Session) -> None:
        """Add the new means as rows, tune block, rows and gate together, and keep the most typical new pictures."""
        session = session.to(self.device)
        assert session.pictures is not None
        self.seen = session.classes.stop
        general, own = self._features(session.pictures)
        self.base_rows = torch.cat([self.base_rows, imprinted(replace(session, features=general))])
        self.rows = torch.cat([self.rows, imprinted(replace(session, features=own))])
        self.gate = perceptron(2 * self.seen, self.settings.hidden, 2, self.generator)
        self._tune(session.pictures, session.labels, len(session.classes))
        _, own = self._features(session.pictures)
        added = typical(own, session.labels, self.rows)
        self.exemplars = torch.cat([self.exemplars, session.pictures[added]])

    def _tune(self, shots: Tensor, labels: Tensor, way: int) -> None:
        """Train block, rows and gate on all losses of a session of `way` classes."""
        settings, count = self.settings, len(shots)
        rows = self.rows.clone().requires_grad_()
        mixer = perceptron(self.base, settings.hidden, 1, self.generator)
        likeness = self.base_rows @ self.base_rows[: self.base].T
        every = self._material(shots, labels)
        pace = settings.lr * min(1.0, settings.amplification / amplification(self.tuned)) ** 2

        def loss() -> Tensor:
            seen = self._batch(every, count)
            feature = paced(self.tuned(seen.maps).mean((2, 3)), pace)
            new = self._scaled(feature, paced(rows, settings.lr))
            recognised = self._recognition_loss(new, seen.labels, count)
            share = self._share(mixer(likeness[seen.labels]), seen.labels)
            teacher = share * seen.base + (1 - share) * seen.previous
            kept = distillation(new[count - way :], teacher[count - way :], settings.temperature)
            trusted = self._trust(share[count - way :], seen.labels[count - way :])
            student = recognised + settings.distillation * kept + settings.trust * trusted
            return student + self._gate_loss(seen.base, new.detach(), seen.labels)

        weights = [rows, *self.tuned.parameters(), *mixer.parameters(), *self.gate.parameters()]
        descend(weights, loss, repeat(1.0, settings.iterations), SGD(nesterov=True))
        self.rows = F.normalize(rows.detach())

    def _material(self, shots: Tensor, labels: Tensor) -> Material:
        """Read some views of all shots and exemplars."""
        pictures = torch.cat([shots, self.exemplars])
        every = torch.cat([labels, torch.arange(len(self.exemplars), device=self.device)])
        read = [self._read(self.views(pictures)) for _ in range(self.settings.views)]
        maps, general, own = map(torch.cat, zip(*read, strict=True))
        return Material(every, maps, self._scaled(general, self.base_rows), self._scaled(own, self.rows))

    def _batch(self, every: Material, shots: int) -> Material:
        """All shots in random order, then some exemplars, each picture in one of its views."""
        order = torch.randperm(shots, generator=self.generator, device=self.device)
        chosen = torch.cat([order, shots + self._draw()])
        seen = chosen + len(every.labels) * self._random(0, self.settings.views, len(chosen))
        return Material(every.labels[chosen], every.maps[seen], every.base[seen], every.previous[seen])

    def _recognition_loss(self, new: Tensor, targets: Tensor, shots: int) -> Tensor:
        """Cross-entropy of the shots, which come first, and that of the exemplars with its weight."""
        learned = F.cross_entropy(new[:shots], targets[:shots])
        return learned + self.settings.replay * F.cross_entropy(new[shots:], targets[shots:])

    def _share(self, mixed: Tensor, targets: Tensor) -> Tensor:
        """Share (n, 1) of the base model in the teacher: the mixer's for novel classes, all of it for base classes."""
        share = paced(torch.sigmoid(mixed), self.settings.hidden_lr)
        return torch.where((targets >= self.base)[:, None], share, 1.0)

    def _trust(self, share: Tensor, targets: Tensor) -> Tensor:
        """Mean share of the previous model in the teacher of novel classes."""
        return (1 - share).sum() / (targets >= self.base).sum()

    def _gate_loss(self, base: Tensor, new: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropies of the gate: novel or base, and the class by the merged scores."""
        logits = paced(self._gate_logits(base, new), self.settings.hidden_lr)
        binary = F.cross_entropy(logits, (targets >= self.base).long())
        return self.settings.binary * binary + self.settings.merged * F.cross_entropy(
            merged(logits, base, new), targets
        )

    def _gate_logits(self, base: Tensor, new: Tensor) -> Tensor:
        logits: Tensor = self.gate(torch.cat([base.softmax(1), new.softmax(1)], 1))
        return logits

    def _draw(self) -> Tensor:
        """Labels of the exemplars of a step: as many of novel classes as of base classes, once there are some."""
        kinds = [(0, self.base), (self.base, len(self.exemplars))]
        kinds = [(first, end) for first, end in kinds if end > first]
        each = self.settings.batch // len(kinds)
        return torch.cat([self._random(first, end, each) for first, end in kinds])

    def _random(self, first: int, end: int, count: int) -> Tensor:
        return torch.randint(first, end, (count,), generator=self.generator, device=self.device)

    def _scaled(self, features: Tensor, rows: Tensor) -> Tensor:
        return self.scale * F.normalize(features) @ F.normalize(rows).T

    @torch.no_grad()
    def _read(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The maps that enter the last block, the base model's features, and the tuned branch's."""
        caught: list[Tensor] = []
        hook = opened(self.network).last.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
        try:
            general = self.network(images)
        finally:
            hook.remove()
        return caught[0], general, self.tuned(caught[0]).mean((2, 3))

    def _features(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the base model and of the tuned branch, as at test time."""
        read = [self._read(self.how.centre(part.to(self.device)))[1:] for part in torch.split(pictures, 256)]
        general, own = map(torch.cat, zip(*read, strict=True))
        return general, own

    @torch.no_grad()
    def scores(self, pictures: Tensor) -> Tensor:
        """Scaled cosines of both branches, merged by the gate."""
        general, own = self._features(pictures)
        base, new = self._scaled(general, self.base_rows), self._scaled(own, self.rows)
        return merged(self._gate_logits(base, new), base, new)

    @property
    def parameter_count(self) -> int:
        """Number of weights in the tuned block, both sets of rows and the gate, and the scale."""
        return super().parameter_count + self.base_rows.numel() + self.rows.numel() + 1


def amplification(block: nn.Module) -> float:
    """The largest factor by which a block's norms multiply what enters them: the mean square of gain over deviation.

    It is one for a block without any that keeps statistics.
    """
    factors = [
        float((norm.weight.detach().square() / (norm.running_var + norm.eps)).mean().sqrt())
        for norm in block.modules()
        if isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None and norm.weight is not None
    ]
    return max(factors, default=1.0)


def perceptron(inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Two layers with torch's default initial weights, drawn from the generator."""
    layers = []
    for width, outs in ((inputs, hidden), (hidden, outputs)):
        layer: nn.Module = skip_init(nn.Linear, width, outs, device=generator.device)  # type: ignore[no-untyped-call]
        bound = max(width, 1) ** -0.5
        for weight in layer.parameters():
            weight.data.uniform_(-bound, bound, generator=generator)
        layers.append(layer)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² times the divergence of softened predictions (n, classes) from the teacher's, on average."""
    soft, target = ((scores / temperature).log_softmax(1) for scores in (student, teacher))
    return temperature**2 * F.kl_div(soft, target, reduction="batchmean", log_target=True)


def merged(gate: Tensor, base: Tensor, new: Tensor) -> Tensor:
    """Scores of both branches (n, classes), weighted by the gate's softmax (n, 2)."""
    weights = gate.softmax(1)
    return weights[:, :1] * base + weights[:, 1:] * new


def typical(features: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """For each label, in order, the index of the feature (n, d) that has the largest cosine to its row."""
    cosines = F.cosine_similarity(features, rows[labels])
    return torch.stack([torch.where(labels == label, cosines, -torch.inf).argmax() for label in torch.unique(labels)])
