"""Structures re-matched to all classes known, and projectors trained to match them (Theorem 1, Eq. 13–15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine import geometry, losses
from concm.engine.descent import AdamW, descend, warmed_cosine
from concm.engine.memory import Sampler, class_sums
from concm.engine.projector import Projector
from concm.engine.settings import Settings
from concm.errors import Misuse


@dataclass(frozen=True)
class Match:
    """Structures (projectors, classes, width), how well the initial ones matched them, and vectors learned freely."""

    structure: Tensor
    smr: float | None
    free: Tensor | None = None


def match(
    networks: Sequence[Projector],
    sampler: Sampler,
    settings: Settings,
    *,
    free: Tensor,
    first: int,
    steps: int,
    seed: int,
    random: torch.Generator,
) -> Match:
    """Train the projectors on samples of all classes; anchors of the contrast are the classes from `first` on.

    `free` are the vectors that were learned before, where the settings ask for such in place of structures.
    """
    initial = projected_means(networks, sampler, random)
    learned, smr = settings.structure == "learned", None
    if learned:
        structure = torch.cat([free, initial[:, free.shape[1] :]], 1).requires_grad_()
    else:
        structure = torch.stack([_target(own, settings, seed + at, random) for at, own in enumerate(initial)])
        pairs = zip(initial, structure, strict=True)
        smr = sum(geometry.matching_rate(*pair) for pair in pairs) / len(networks)
    anchors = torch.arange(first, initial.shape[1], device=initial.device)
    pull = anchors if settings.loss == "match+contrast" else anchors[:0]

    def loss() -> Tensor:
        features, labels = sampler.batch(settings.batch, random)
        value = features.new_zeros(())
        for network, own in zip(networks, structure, strict=True):
            vectors = network(features)
            targets = F.normalize(own) if learned else own
            value = value + losses.matching(vectors, labels, targets, scale=settings.scale)
            if settings.loss != "match":
                value = value + losses.anchored_contrast(vectors, labels, targets, pull, settings.temperature)
        return value

    weights = [weight for network in networks for weight in network.parameters()]
    rates = warmed_cosine(settings.lr, steps, max(1, steps // 10) - 1)
    descend([*weights, *([structure] if learned else [])], loss, rates, AdamW(settings.weight_decay), random=random)
    if learned:  # free vectors are no target, so features are compared with the projected class means
        return Match(projected_means(networks, sampler, random), smr, structure.detach())
    return Match(structure, smr)


@torch.no_grad()
def projected_means(networks: Sequence[Projector], sampler: Sampler, random: torch.Generator) -> Tensor:
    """Initial structures: the mean projection of each class's samples, before the projectors are trained on them."""
    total = torch.zeros(len(networks), len(sampler.std), networks[0].width, device=sampler.labels.device)
    for _ in range(min(8, 1 + 16_384 // len(sampler.labels))):
        samples = sampler(random)
        for at, network in enumerate(networks):
            total[at] += class_sums(network(samples), sampler.labels, total.shape[1])
    return F.normalize(total, dim=-1)


def _target(initial: Tensor, settings: Settings, seed: int, random: torch.Generator) -> Tensor:
    """The structure that a projector is to be matched to."""
    count, width = initial.shape
    if settings.structure == "matched":
        return geometry.nearest_simplex(initial)
    if settings.structure == "fixed":  # the same structure at every session
        room = settings.total or count
        if count > room:
            raise Misuse(f"structure=fixed has room for total={room} classes, and this is the {count}th")
        same = torch.Generator(initial.device).manual_seed(seed)
        return geometry.random_simplex(room, width, same)[:count].to(initial.dtype)
    drawn = geometry.random_simplex(count, width, random).to(initial.dtype)
    return geometry.assigned(initial, drawn) if settings.structure == "greedy" else drawn
