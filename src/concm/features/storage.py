"""Feature banks on disk: one safetensors file, whose parts are checked against each other when it is read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from concm.backbones.encoder import Identity
from concm.data.scenarios import Scenario, load_scenario
from concm.errors import ConcmError, Misuse
from concm.features.bank import Bank, Card, Part, Precision
from concm.files import load_tensors, save_tensors
from concm.records import from_json, to_json

KIND = "concm-bank-1"


def save_bank(bank: Bank, path: Path, precision: Precision) -> None:
    """Write a bank; int8 keeps one scale and one offset per dimension, statistics stay float32."""
    tensors: dict[str, Tensor] = {"mean": bank.mean, "std": bank.std, "counts": bank.counts}
    if precision == "int8":
        every = [value for part in bank.parts.values() for value in (part.features, part.views)]
        scale, offset = _grid([value.flatten(0, -2) for value in every if value is not None])
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
    meta = {"scenario": to_json(bank.scenario), "encoder": to_json(bank.encoder), "ids": ids}
    card = to_json(replace(bank.card, precision=precision, bytes=None))
    save_tensors(path, KIND, tensors, {**meta, "card": card, "precision": precision})


def _grid(features: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Scale and offset (d,) that spread each dimension's range over 256 steps."""
    low = torch.stack([part.amin(0) for part in features if len(part)]).amin(0)
    high = torch.stack([part.amax(0) for part in features if len(part)]).amax(0)
    scale = ((high - low) / 255).clamp(min=1e-12)
    return scale, low + 128 * scale


def load_bank(path: Path, scenario: str | None) -> Bank:
    """Read a bank, as float32; one that was made for another scenario, or is damaged, is refused."""
    tensors, meta = load_tensors(path, KIND)
    try:
        found = from_json(Scenario, meta["scenario"])
        card = {**meta["card"], "precision": meta["precision"], "bytes": path.stat().st_size}
        bank = Bank(
            scenario=found,
            encoder=Identity.read(meta["encoder"]),
            mean=tensors["mean"],
            std=tensors["std"],
            counts=tensors["counts"],
            card=from_json(Card, card),
            learned=_under("learned/", tensors),
            weights=_under("weights/", tensors),
            **{name: _part(tensors, name, meta["ids"].get(name, [])) for name in ("base", "novel", "test")},
        )
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ConcmError(f"{path} lacks part of a feature bank ({error}); extract it again") from error
    if scenario is not None and found.name != scenario:
        raise Misuse(f"{path} holds features of scenario {found.name}, not of {scenario}")
    _consistent(bank, path)
    return bank


def _part(tensors: dict[str, Tensor], name: str, ids: list[str]) -> Part:
    def dense(kind: str) -> Tensor:
        value = tensors[f"{name}/{kind}"]
        return value.float() * tensors["scale"] + tensors["offset"] if value.dtype == torch.int8 else value.float()

    views = dense("views") if f"{name}/views" in tensors else None
    held = tensors[f"{name}/held"].bool() if f"{name}/held" in tensors else None
    labels, pictures = tensors[f"{name}/labels"].long(), tensors.get(f"{name}/pictures")
    return Part(dense("features"), labels, views, ids, pictures, held)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _consistent(bank: Bank, path: Path) -> None:
    """Refuse a bank whose parts contradict each other, before anything uses it."""
    classes, base = len(bank.scenario.keys), bank.scenario.base
    for name, part, first, last in (
        ("base", bank.base, 0, base),
        ("novel", bank.novel, base, classes),
        ("test", bank.test, 0, classes),
    ):
        fits = part.features.shape == (len(part.labels), bank.dimension) and len(part.ids) in (0, len(part.labels))
        fits = fits and (part.pictures is None or len(part.pictures) == len(part.labels))
        fits = fits and (part.held is None or (name == "base" and part.held.shape == part.labels.shape))
        labels = set(part.labels.tolist())
        if part.views is not None:
            fits = fits and part.views.shape == (len(part.labels), part.views.shape[1], bank.dimension)
            fits = fits and bool(part.views.isfinite().all())
        if not fits or not labels <= set(range(first, last)) or not part.features.isfinite().all():
            raise ConcmError(f"{path}: its {name} part does not fit scenario {bank.scenario.name}; extract it again")
    if min(bank.layout) < 1 or sum(bank.layout) != bank.dimension:
        widths = " + ".join(map(str, bank.layout))
        raise ConcmError(
            f"{path}: its readings have {widths} dimensions, its features {bank.dimension}; extract it again"
        )
    kept = {part.pictures is not None for part in (bank.base, bank.novel, bank.test)} | {bool(bank.weights)}
    if len(kept) > 1:
        raise ConcmError(f"{path}: it has pictures or the backbone in part; extract it again")
    if not (bank.mean.isfinite().all() and bank.std.isfinite().all()):
        raise ConcmError(f"{path}: its statistics are not finite; extract it again")
    if bank.mean.shape != bank.std.shape or not len(bank.mean) == len(bank.counts) == base:
        raise ConcmError(f"{path}: it has statistics of {len(bank.mean)} base classes, the scenario has {base}")


@cache
def bundled_bank(name: str) -> Bank:
    """The bank that ships with the package."""
    path = Path(str(files("concm") / "assets" / f"{name}.safetensors"))
    if not path.exists():
        load_scenario(name)  # gives a hint if the name is misspelt
        raise Misuse(f"no feature bank of {name} ships with concm; make one with `concm features`, then give its file")
    return load_bank(path, name)
