"""Parts of docs/scale.md, simulated: classes on several shards, and what is left of the structure where C > d + 1.

    python bench/sharding.py [--classes 100000] [--shards 10] [--json FILE]

Shards score their own classes; what they send to be merged is checked against scores of all classes in one place.
The structure is the tight frame nearest to the class means, from sums that shards can add up.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from concm.classifier.confidence import NEXT

DIMENSION, PHOTOS, SPREAD = 512, 64, 0.03


def answers(unit: Tensor, prototypes: Tensor, first: int, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """What one shard says of photos (n, d): its best scores (n, k), their classes, and the sum behind probabilities."""
    scores = unit @ prototypes.T
    best = scores.topk(min(1 + NEXT, scores.shape[1]), 1)
    return best.values, best.indices + first, (scores / temperature).logsumexp(1)


def merged(said: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """The same for all classes, from what the shards say."""
    values, classes, sums = (
        torch.cat(parts, 1) for parts in ([s[0] for s in said], [s[1] for s in said], [s[2][:, None] for s in said])
    )
    best = values.topk(1 + NEXT, 1)
    return best.values, classes.gather(1, best.indices), sums.logsumexp(1)


def nearest_frame(shards: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The tight frame nearest to the means (n, d) on all shards, shard by shard, and what they add up (d, d).

    With more classes than dimensions there is no simplex. Of all tight frames, the polar factor of the means is
    nearest, as Theorem 1 has it for the simplex; it takes one sum of d × d numbers over the shards.
    """
    count = sum(map(len, shards))
    total = sum((own.double().T @ own.double() for own in shards), torch.zeros(DIMENSION, DIMENSION).double())
    values, vectors = torch.linalg.eigh(total)
    turn = (vectors * (values.clamp(min=1e-12) / (count / DIMENSION)).rsqrt()) @ vectors.T
    return [(own.double() @ turn).to(own.dtype) for own in shards], total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    random = torch.Generator().manual_seed(0)
    # Means of real classes crowd in some directions: here their spread falls with the dimension.
    scale = torch.linspace(2, 0.2, DIMENSION)
    prototypes = F.normalize(scale * torch.randn(options.classes, DIMENSION, generator=random))
    shown = torch.randint(options.classes, (PHOTOS,), generator=random)
    asked = F.normalize(prototypes[shown] + SPREAD * torch.randn(PHOTOS, DIMENSION, generator=random))
    shards = list(prototypes.chunk(options.shards))
    firsts = [sum(map(len, shards[:at])) for at in range(len(shards))]
    used = time.process_time()
    whole = answers(asked, prototypes, 0, 1 / 30)
    in_one_place = time.process_time() - used
    said, each = [], []
    for own, first in zip(shards, firsts, strict=True):
        used = time.process_time()
        said.append(answers(asked, own, first, 1 / 30))
        each.append(time.process_time() - used)
    together = merged(said)
    used = time.process_time()
    frame, _ = nearest_frame(shards)
    framed = time.process_time() - used
    every = torch.cat(frame)
    unit = F.normalize(every)
    some = unit[torch.randperm(len(unit), generator=random)[:2000]]
    cosines = (some @ unit.T).square().sum(1) - 1
    found: dict[str, Any] = {
        "classes": options.classes,
        "shards": options.shards,
        "same_best": bool((whole[1][:, 0] == together[1][:, 0]).all()),
        "largest_difference": float(max((whole[0] - together[0]).abs().max(), (whole[2] - together[2]).abs().max())),
        "bytes_per_photo_and_shard": (1 + NEXT) * 8 + 4,
        "cpu_per_photo_in_one_place_ms": 1000 * in_one_place / PHOTOS,
        "cpu_per_photo_and_shard_ms": 1000 * sum(each) / len(each) / PHOTOS,
        "frame_cpu_s": framed,
        "matching_rate": float(F.cosine_similarity(prototypes, every).mean()),
        "mean_square_cosine": float(cosines.mean() / (len(unit) - 1)),
        "mean_square_cosine_before": float(
            ((F.normalize(prototypes)[:2000] @ prototypes.T).square().sum(1) - 1).mean() / (len(unit) - 1)
        ),
        "welch_bound": (options.classes - DIMENSION) / (DIMENSION * (options.classes - 1)),
    }
    for name, value in found.items():
        print(f"{name:32} {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
