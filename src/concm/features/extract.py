"""Makes a feature bank of a dataset: the one place where pictures become features."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress, TaskID
from torch import Tensor

from concm.backbones.encoder import Encoder
from concm.data.dataset import Dataset, ImageSet
from concm.data.views import Augment
from concm.errors import Misuse, enough_memory
from concm.features.bank import Bank, Card, Part
from concm.features.sessions import Finder, statistics
from concm.features.shards import Shards
from concm.progress import bar


def extract(
    encoder: Encoder,
    dataset: Dataset,
    where: Fabric | Shards,
    *,
    views: int = 0,
    augment: Augment = "shift",
    base_views: bool = False,
    keep_pictures: bool = False,
    base_limit: int | None = None,
    novel_limit: int | None = None,
    test_limit: int | None = None,
    listed: Collection[str] = (),
    batch: int = 256,
    seed: int = 0,
) -> Bank:
    """Encode base, novel and test images, `views` of the candidate shots, and base statistics.

    With `base_views` the base images that are kept have views too. The limits keep so many images per class (a seeded
    choice, after the candidates that are `listed`); statistics always come from all base images that were trained on.
    Those that were held out of training follow them in the base part, marked. With `keep_pictures` the bank also has
    the pictures and the backbone, for methods that go on training it.
    """
    if keep_pictures and not encoder.plain:
        raise Misuse(
            "`keep_pictures` keeps the backbone for methods that go on training it: that takes one of `concm train` "
            "whose features are its own, without `blocks`, `turns`, `looks` or maps"
        )
    begun = time.perf_counter()
    encoder.to(where.device if isinstance(where, Fabric) else torch.device("cpu"))
    base, held, novel, test = dataset.base, dataset.held, dataset.novel, limited(dataset.test, test_limit, seed)
    some_base, some_novel = limited(base, base_limit, seed), limited(novel, novel_limit, seed, listed)
    sets = {"base": base, "held-out": held, "novel": some_novel, "test": test}
    jobs = [(f"{name} images", images, 0) for name, images in sets.items() if images is not None]
    viewed = {"novel": some_novel, **({"base": some_base, "held-out": held} if base_views else {})}
    if views:
        jobs += [(f"views of {name} images", images, views) for name, images in viewed.items() if images is not None]
    done: dict[str, Tensor] = {}
    with bar() as progress:
        for title, images, count in jobs:
            task = progress.add_task(title, total=len(images), note="")
            tick = partial(_tick, progress, task, where.world_size if isinstance(where, Fabric) else 1)
            encode = partial(_shared_out, where) if isinstance(where, Fabric) else where.encode
            done[title] = encode(encoder, images, (count, augment), seed, batch, tick)
    mean, std, counts = statistics(done["base images"], torch.from_numpy(base.labels), dataset.scenario.base)
    place = {row: at for at, row in enumerate(base.rows.tolist())}
    kept = torch.tensor([place[row] for row in some_base.rows.tolist()])

    def part(name: str, images: ImageSet) -> Part:
        features = done[f"{name} images"]
        return Part(
            features=features[kept] if name == "base" else features,
            labels=torch.from_numpy(images.labels),
            views=done.get(f"views of {name} images"),
            ids=images.ids,
            pictures=torch.from_numpy(images.pixels[images.rows]) if keep_pictures else None,
        )

    trained = part("base", some_base)
    card = Card(encoder.meta, views, augment, round(time.perf_counter() - begun, 1))
    return Bank(
        scenario=dataset.scenario,
        encoder=encoder.identity,
        base=trained if held is None else _followed(trained, part("held-out", held)),
        novel=part("novel", some_novel),
        test=part("test", test),
        mean=mean,
        std=std,
        counts=counts,
        card=card,
        learned=encoder.learned,
        weights=dict(encoder.network.state_dict()) if keep_pictures else {},
    )


def limited(images: ImageSet, limit: int | None, seed: int, listed: Collection[str] = ()) -> ImageSet:
    """At most `limit` images of each class, drawn with a seed; those that are `listed` by name come first."""
    if limit is None:
        return images
    if limit < 1:
        raise Misuse(f"a bank needs at least one image per class, not {limit}")
    find = Finder(images.ids)
    first = {row for name in listed for row in find(name)}
    keep = np.zeros(len(images), dtype=bool)
    for label in np.unique(images.labels):
        rows = np.random.default_rng((seed, int(label))).permutation(np.flatnonzero(images.labels == label))
        keep[sorted(rows.tolist(), key=lambda row: row not in first)[:limit]] = True
    return images.where(keep)


def _tick(progress: Progress, task: TaskID, world: int, count: int) -> None:
    progress.advance(task, count * world)


def _followed(trained: Part, held: Part) -> Part:
    """The base part: images that were trained on, then those that were not, which it marks."""
    pictures, views = (
        [value for part in (trained, held) if (value := getattr(part, kind)) is not None]
        for kind in ("pictures", "views")
    )
    return Part(
        features=torch.cat([trained.features, held.features]),
        labels=torch.cat([trained.labels, held.labels]),
        views=torch.cat(views) if views else None,
        ids=trained.ids + held.ids,
        pictures=torch.cat(pictures) if pictures else None,
        held=torch.arange(len(trained.labels) + len(held.labels)) >= len(trained.labels),
    )


def _shared_out(
    fabric: Fabric,
    encoder: Encoder,
    images: ImageSet,
    views: tuple[int, Augment],
    seed: int,
    batch: int,
    tick: Callable[[int], None],
) -> Tensor:
    """Let each of n processes encode every n-th image; all of them get all features."""
    world, rank = fabric.world_size, fabric.global_rank
    mine = images.where(np.arange(len(images)) % world == rank)
    with enough_memory(f"the device is out of memory encoding {batch} pictures at once; try `batch={batch // 2}`"):
        features = encoder.encode(mine, views=views[0], kind=views[1], seed=seed, batch=batch, tick=tick)
    if world == 1:
        return features
    longest = -(-len(images) // world)
    padded = torch.zeros(longest, *features.shape[1:], dtype=features.dtype)
    padded[: len(features)] = features
    everything = fabric.all_gather(padded.to(fabric.device))
    assert isinstance(everything, Tensor)
    return everything.transpose(0, 1).flatten(0, 1)[: len(images)].cpu()
