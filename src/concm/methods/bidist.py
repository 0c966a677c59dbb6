"""BiDist (Zhao, Lu, Xu and others, "Few-Shot Class-Incremental Learning via Class-Aware Bilateral
Distillation", CVPR 2023).

Two branches: the base model, frozen, and one whose last block and classifier go on learning in each session. It learns
from new shots and one exemplar of each old class, and is distilled from two teachers: the base model, which keeps it
from overfitting, and itself before the session, which remembers earlier novel classes. A small network mixes the two
for each novel class, by its likeness to the base classes. Another one, the gate, decides from the predictions of both
branches how much of each to believe.

Here: the shared backbone is the base model; the base session only trains a classifier on its features, whose scale is
kept and whose rows are replaced by class means, as in the authors' code. The views, shifts and mirrors, are a few fixed
ones a session; batch statistics stay the base's, as in the authors' code; weight decay, which does next to nothing in
so few steps, is left out. Layers before the last block are the same in both branches and are computed once.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import repeat

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
    """Defaults: the authors' for mini-ImageNet, the only ones released."""

    iterations: int = setting(100, "Steps of a session (paper).", least=0)
    lr: float = setting(0.001, "Of the last block and the classifier (paper).", least=0)
    batch: int = setting(
        50,
        "Exemplars in a step, half of them of novel classes once there are some (authors' code); new shots "
        "are all in it.",
        least=2,
    )
    views: int = setting(
        10,
        "Of each picture in a session, whose maps before the last block are computed once (chosen; authors' "
        "code: anew).",
        least=1,
    )
    replay: float = setting(5.0, "Weight of the cross-entropy of exemplars (authors' code).")
    distillation: float = setting(
        100.0,
        "Weight of the distillation, of exemplars and as many new shots as there are new classes (authors' code).",
    )
    temperature: float = setting(16.0, "Of the distillation (authors' code).", above=0)
    trust: float = setting(
        1.0, "Weight of the previous model's mean share of the teacher, which is to be small (authors' code)."
    )
    hidden: int = setting(64, "Width of the two small networks (authors' code).", least=1)
    hidden_lr: float = setting(0.01, "Their rate (authors' code).", least=0)
    binary: float = setting(50.0, "Weight of the gate's cross-entropy, novel or base (authors' code).")
    merged: float = setting(5.0, "Weight of the cross-entropy of the merged scores, for the gate (authors' code).")
    scale: float = setting(10.0, "What the learned scale of the cosines starts from (authors' code).", above=0)
    base: BaseTraining = setting(
        BaseTraining(),
        "Of the base classifier (chosen: that of imprint; authors' code: with the backbone, 200 epochs).",
    )


@method(
    "bidist",
    title="BiDist: two teachers mixed for each class, two branches and a gate",
    paper="CVPR 2023",
    group="updates the backbone",
    settings=BiDistSettings,
    needs=(PICTURES, f"{EXEMPLARS}: 1 picture a class"),
)
class BiDist(PictureLearner):
    """The base model with rows of its own, the tuned last block with its rows, the gate, and a picture a class."""

    values = (*PictureLearner.values, "scale", "seen")
    kept = ("exemplars",)

    def __init__(self, settings: BiDistSettings | None = None, *, seed: int = 0, device: str = "cpu") -> None:
        super().__init__(seed=seed, device=device)
        self.settings = settings or BiDistSettings()
        self.scale, self.seen = self.settings.scale, 0

    def build(self) -> None:
        """The base model, the block that is tuned, and the gate for the classes seen."""
        super().build()
        self.tuned = deepcopy(opened(self.network).last)
        self.network.requires_grad_(False)
        self.gate = perceptron(2 * self.seen, self.settings.hidden, 2, self.generator)

    def fit_base(self, base: BaseSession) -> None:
        """Train a classifier on features for its scale; both branches begin with class means in place of its rows."""
        self.seen = len(base.classes)
        base = self.begin(base)
        assert base.pictures is not None
        self.tuned.load_state_dict(opened(self.network).last.state_dict())
        _, self.scale = classifier(base, self.settings.scale, self.settings.base, self.generator)
        self.base_rows = self.rows = imprinted(base)
        self.exemplars = base.pictures[typical(base.features, base.labels, self.base_rows)]

    def learn(self, session: Session) -> None:
        """Add rows at the new means, tune block, rows and gate together, and keep the most typical new pictures."""
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
        settings, count, views = self.settings, len(shots), self.settings.views
        rows = self.rows.clone().requires_grad_()
        mixer = perceptron(self.base, settings.hidden, 1, self.generator)
        likeness = self.base_rows @ self.base_rows[: self.base].T
        pictures = torch.cat([shots, self.exemplars])
        every = torch.cat([labels, torch.arange(len(self.exemplars), device=self.device)])
        read = [self._read(self.views(pictures)) for _ in range(views)]
        maps, general, own = map(torch.cat, zip(*read, strict=True))
        base, previous = self._scaled(general, self.base_rows), self._scaled(own, self.rows)

        def loss() -> Tensor:
            order = torch.randperm(count, generator=self.generator, device=self.device)
            chosen = torch.cat([order, count + self._draw()])
            targets, novel = every[chosen], every[chosen] >= self.base
            seen = chosen + len(pictures) * self._random(0, views, len(chosen))
            feature = paced(self.tuned(maps[seen]).mean((2, 3)), settings.lr)
            new = self._scaled(feature, paced(rows, settings.lr))
            learned = F.cross_entropy(new[:count], targets[:count])
            replayed = F.cross_entropy(new[count:], targets[count:])
            share = paced(torch.sigmoid(mixer(likeness[targets])), settings.hidden_lr)
            share = torch.where(novel[:, None], share, 1.0)
            teacher = share * base[seen] + (1 - share) * previous[seen]
            kept = distillation(new[count - way :], teacher[count - way :], settings.temperature)
            trusted = (1 - share[count - way :]).sum() / novel[count - way :].sum()
            student = learned + settings.replay * replayed + settings.distillation * kept
            return student + settings.trust * trusted + self._gate_loss(base[seen], new.detach(), targets)

        weights = [rows, *self.tuned.parameters(), *mixer.parameters(), *self.gate.parameters()]
        descend(weights, loss, repeat(1.0, settings.iterations), SGD(nesterov=True))
        self.rows = F.normalize(rows.detach())

    def _gate_loss(self, base: Tensor, new: Tensor, targets: Tensor) -> Tensor:
        """Novel or base, and which class by the merged scores."""
        logits = paced(self._gate_logits(base, new), self.settings.hidden_lr)
        binary = F.cross_entropy(logits, (targets >= self.base).long())
        return self.settings.binary * binary + self.settings.merged * F.cross_entropy(
            merged(logits, base, new), targets
        )

    def _gate_logits(self, base: Tensor, new: Tensor) -> Tensor:
        logits: Tensor = self.gate(torch.cat([base.softmax(1), new.softmax(1)], 1))
        return logits

    def _draw(self) -> Tensor:
        """Labels of exemplars for a step: as many base as novel ones, where there are any."""
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
        """Of the base model, and of the tuned branch, as at test time."""
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
        """The tuned block's, the rows', the gate's and the scale."""
        networks = (weight for network in (self.tuned, self.gate) for weight in network.parameters())
        return sum(weight.numel() for weight in networks) + self.base * self.dimension + self.rows.numel() + 1


def perceptron(inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Two layers, with torch's usual weights drawn from the generator."""
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
