"""Feature banks on disk: one safetensors file or many, whose parts are checked against each other when it is read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concm.backbones.encoder import Identity
from concm.data.scenarios import Scenario, load_scenario
from concm.errors import ConcmError, Misuse, at_least, loading
from concm.features.bank import Bank, Card, Part, Precision, fewest_candidates
from concm.features.split import bank_size, is_split, load_split, save_split
from concm.files import load_tensors, save_tensors
from concm.records import from_json, to_json

KIND = "concm-bank-1"


def save_bank(bank: Bank, path: Path, precision: Precision, shards: int | None = None) -> None:
    """Write a bank; int8 keeps one scale and one offset per dimension, statistics stay float32."""
    if shards is not None:
        at_least(1, shards=shards)
    every = [value for part in bank.parts.values() for value in (part.features, part.views) if value is not None]
    if not all(value.isfinite().all() for value in every):
        raise ConcmError(f"the backbone {bank.encoder.name} gives features that are no numbers; no bank was written")
    tensors: dict[str, Tensor] = {"mean": bank.mean, "std": bank.std, "counts": bank.counts}
    if precision == "int8":
        scale, offset = _grid([value.flatten(0, -2) for value in every])
        tensors |= {"scale": scale, "offset": offset}
    tensors |= {f"learned/{name}": value for name, value in bank.learned.items()}
    tensors |= {f"weights/{name}": value for name, value in bank.weights.items()}
    for name, part in bank.parts.items():
        tensors[f"{name}/labels"] = part.labels.to(torch.int32)
        if part.pictures is not None:
            tensors[f"{name}/pictures"] = part.pictures
        if part.held is not None:
            tensors[f"{name}/held"] = part.held.to(torch.uint8)
        for kind, value in (("features", part.features), ("views", part.views)):
            if value is None:
                continue
            if precision == "int8":
                tensors[f"{name}/{kind}"] = ((value - offset) / scale).round().clamp(-128, 127).to(torch.int8)
            else:
                tensors[f"{name}/{kind}"] = value.to(getattr(torch, precision))
    ids = {name: part.ids for name, part in bank.parts.items() if name != "test"}
    card = to_json(replace(bank.card, precision=precision, bytes=None))
    made = {"card": card, "precision": precision}
    meta = {"scenario": to_json(bank.scenario), "encoder": to_json(bank.encoder), "ids": ids, **made}
    if shards is None:
        save_tensors(path, KIND, tensors, meta)
    else:
        save_split(path, KIND, tensors, meta, shards)


def _grid(features: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Scale and offset (d,) that spread each dimension's range over 256 steps."""
    low = torch.stack([part.amin(0) for part in features if len(part)]).amin(0)
    high = torch.stack([part.amax(0) for part in features if len(part)]).amax(0)
    scale = ((high - low) / 255).clamp(min=1e-12)
    return scale, low + 128 * scale


def load_bank(path: Path, scenario: str | None) -> Bank:
    """Read a bank, as float32; one that was made for another scenario, or is damaged, is refused."""
    tensors, meta = load_split(path, KIND) if is_split(path) else load_tensors(path, KIND)
    with loading(path, "feature bank", "extract it again"):
        bank = _bank(tensors, meta, bank_size(path))
        _consistent(bank)
    if scenario is not None and bank.scenario.name != scenario:
        raise Misuse(f"{path} holds features of scenario {bank.scenario.name}, not of {scenario}")
    return bank


def _bank(tensors: dict[str, Tensor], meta: dict[str, Any], size: int) -> Bank:
    if lacking := {"scenario", "encoder", "ids", "card", "precision"} - meta.keys():
        raise ValueError(f"it lacks {min(lacking)}")
    try:
        return Bank(
            scenario=from_json(Scenario, meta["scenario"]),
            encoder=Identity.read(meta["encoder"]),
            mean=tensors["mean"].float(),
            std=tensors["std"].float(),
            counts=tensors["counts"].long(),
            card=from_json(Card, {**meta["card"], "precision": meta["precision"], "bytes": size}),
            learned=_under("learned/", tensors),
            weights=_under("weights/", tensors),
            **{name: _part(tensors, name, meta["ids"].get(name, [])) for name in ("base", "novel", "test")},
        )
    except Misuse as error:  # of the file, not of the caller
        raise ValueError(error) from error


def _part(tensors: dict[str, Tensor], name: str, ids: list[str]) -> Part:
    def dense(kind: str) -> Tensor:
        value = tensors[f"{name}/{kind}"]
        return (value * tensors["scale"] + tensors["offset"] if value.dtype == torch.int8 else value).float()

    views = dense("views") if f"{name}/views" in tensors else None
    held = tensors[f"{name}/held"].bool() if f"{name}/held" in tensors else None
    labels, pictures = tensors[f"{name}/labels"].long(), tensors.get(f"{name}/pictures")
    return Part(dense("features"), labels, views, ids, pictures, held)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _consistent(bank: Bank) -> None:
    """Refuse a bank whose parts contradict each other, before anything uses it."""
    scenario = bank.scenario
    classes, base = len(scenario.keys), scenario.base
    if len(scenario.names) != classes:
        raise ValueError(f"its scenario has {classes} classes and {len(scenario.names)} names")
    if strange := [name for name in (scenario.name, *scenario.keys, *scenario.names) if not name.isprintable()]:
        raise ValueError(f"its scenario has the name {strange[0]!r:.50}, which cannot be printed")
    if not all(isinstance(value, dict | None) for value in (bank.card.training, bank.card.recipe)):
        raise ValueError("what it says of its training is no table")
    if bank.mean.ndim != 2 or bank.mean.shape != bank.std.shape or bank.counts.shape != (len(bank.mean),):
        raise ValueError("its statistics do not fit each other")
    if len(bank.mean) != base or not bool((bank.counts > 0).all()):
        raise ValueError(f"it has statistics of {len(bank.mean)} base classes, the scenario has {base}")
    if not (bank.mean.isfinite().all() and bank.std.isfinite().all() and bool((bank.std >= 0).all())):
        raise ValueError("its statistics are not finite")
    if min(bank.layout) < 1 or sum(bank.layout) != bank.dimension:
        widths = " + ".join(map(str, bank.layout))
        raise ValueError(f"its readings have {widths} dimensions, its features {bank.dimension}")
    bounds = {"base": (0, base), "novel": (base, classes), "test": (0, classes)}
    for name, part in bank.parts.items():
        if not _fits(part, range(*bounds[name]), bank.dimension) or not (part.held is None or name == "base"):
            raise ValueError(f"its {name} part does not fit scenario {scenario.name}")
    enough = len(bank.base.labels) and len(bank.test.labels)
    if not enough or fewest_candidates(bank.novel.labels, scenario) < scenario.shot:
        raise ValueError(f"it has too few images for scenario {scenario.name}")
    kept = {part.pictures is not None for part in bank.parts.values()} | {bool(bank.weights)}
    if len(kept) > 1:
        raise ValueError("it has pictures or the backbone in part")
    for name, value in {**bank.learned, **bank.weights}.items():
        if not value.isfinite().all():
            raise ValueError(f"{name} is not finite")


def _fits(part: Part, labels: range, dimension: int) -> bool:
    """Whether features, labels, views, names and pictures of a part are of as many images, and of these classes."""
    count, views, pictures = len(part.labels), part.views, part.pictures
    return (
        part.features.shape == (count, dimension)
        and part.labels.shape == (count,)
        and set(part.labels.tolist()) <= set(labels)
        and bool(part.features.isfinite().all())
        and (not part.ids or len(part.ids) == count)
        and all(isinstance(name, str) for name in part.ids)
        and (views is None or (views.shape == (count, views.shape[1], dimension) and bool(views.isfinite().all())))
        and (part.held is None or part.held.shape == (count,))
        and (pictures is None or (pictures.ndim == 4 and pictures.shape[::3] == (count, 3)))
        and (pictures is None or pictures.dtype == torch.uint8)
    )


def ships(name: str) -> bool:
    """Whether a scenario's bank comes with the package."""
    return _asset(name).exists()


def _asset(name: str) -> Path:
    return Path(str(files("concm") / "assets" / f"{name}.safetensors"))


@cache
def bundled_bank(name: str) -> Bank:
    """The bank that ships with the package."""
    path = _asset(name)
    if not path.exists():
        load_scenario(name)  # gives a hint if the name is misspelt
        raise Misuse(f"no feature bank of {name} ships with concm; make one with `concm features`, then give its file")
    return load_bank(path, name)
