"""Feature banks: a scenario's features in one file, from which everything right of the backbone runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from concm.data import scenarios
from concm.data.scenarios import Scenario
from concm.data.transform import Transform
from concm.errors import ConcmError, Misuse
from concm.files import digest, load_tensors, save_tensors
from concm.records import from_json, to_json

if TYPE_CHECKING:
    from concm.backbones.encoder import Encoder

KIND = "concm-bank-1"
Precision = Literal["int8", "float16", "float32"]


@dataclass(frozen=True)
class Part:
    """Features (n, d), labels (n,), augmented views (n, k, d) where there are any, and the pictures' names.

    `pictures` (n, h, w, 3) are there if the bank was made for methods that go on training the backbone.
    """

    features: Tensor
    labels: Tensor
    views: Tensor | None = None
    ids: list[str] = field(default_factory=list)
    pictures: Tensor | None = None

    def where(self, chosen: Tensor) -> Part:
        """The rows marked or numbered in `chosen`."""
        at = chosen.nonzero().flatten() if chosen.dtype == torch.bool else chosen
        ids = [self.ids[i] for i in at.tolist()] if self.ids else []
        views, pictures = (None if value is None else value[at] for value in (self.views, self.pictures))
        return Part(self.features[at], self.labels[at], views, ids, pictures)


@dataclass(frozen=True)
class Bank:
    """Features of base, novel and test images; `mean` and `std` (base classes, d) are over *all* base images.

    `learned` is what the backbone's base session learned for a method beside it, and `weights` are the backbone's own
    where the bank has pictures.
    """

    scenario: Scenario
    encoder: dict[str, Any]
    base: Part
    novel: Part
    test: Part
    mean: Tensor
    std: Tensor
    counts: Tensor
    card: dict[str, Any]
    learned: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def base_session(self) -> str | None:
        """The method whose base session trained the backbone, if it was one's."""
        recipe = (self.card.get("training") or {}).get("recipe") or {}
        name: str | None = recipe.get("method")
        return name

    def backbone(self) -> Encoder:
        """A copy of the backbone, to train further."""
        from concm import backbones
        from concm.backbones.encoder import Encoder

        network = backbones.registered(self.encoder["name"]).build()
        try:
            network.load_state_dict(self.weights)
        except RuntimeError as error:
            raise ConcmError(
                f"this bank does not hold the weights of {self.encoder['name']}; extract it again"
            ) from error
        transform = from_json(Transform, self.encoder["transform"])
        return Encoder(self.encoder["name"], network, transform, self.card["training"], self.encoder["mirror"])

    @property
    def dimension(self) -> int:
        """Of the features."""
        return self.mean.shape[1]

    def vary(self, *, way: int | None = None, shot: int | None = None, sessions: int | None = None) -> Bank:
        """The same features under other ways, shots or a smaller number of sessions."""
        scenario = self.scenario.vary(way=way, shot=shot, sessions=sessions)
        classes = len(scenario.keys)
        fewest = _fewest(self.novel.labels, scenario)
        if fewest < scenario.shot:
            raise Misuse(f"this bank has {fewest} candidates for some novel class, so --shot can be at most {fewest}")
        novel, test = (part.where(part.labels < classes) for part in (self.novel, self.test))
        return replace(self, scenario=scenario, novel=novel, test=test)

    def save(self, path: Path, precision: Precision = "float16") -> None:
        """Write the bank; int8 keeps one scale and one offset per dimension, statistics stay float32."""
        tensors: dict[str, Tensor] = {"mean": self.mean, "std": self.std, "counts": self.counts}
        if precision == "int8":
            every = [value for part in self._parts().values() for value in (part.features, part.views)]
            scale, offset = _grid([value.flatten(0, -2) for value in every if value is not None])
            tensors |= {"scale": scale, "offset": offset}
        tensors |= {f"learned/{name}": value for name, value in self.learned.items()}
        tensors |= {f"weights/{name}": value for name, value in self.weights.items()}
        for name, part in self._parts().items():
            tensors[f"{name}/labels"] = part.labels.to(torch.int32)
            if part.pictures is not None:
                tensors[f"{name}/pictures"] = part.pictures
            for kind, value in (("features", part.features), ("views", part.views)):
                if value is None:
                    continue
                if precision == "int8":
                    tensors[f"{name}/{kind}"] = ((value - offset) / scale).round().clamp(-128, 127).to(torch.int8)
                else:
                    tensors[f"{name}/{kind}"] = value.to(getattr(torch, precision))
        ids = {name: part.ids for name, part in self._parts().items() if name != "test"}
        meta = {"scenario": to_json(self.scenario), "encoder": self.encoder, "ids": ids, "card": self.card}
        save_tensors(path, KIND, tensors, {**meta, "precision": precision})

    def _parts(self) -> dict[str, Part]:
        return {"base": self.base, "novel": self.novel, "test": self.test}


def _fewest(labels: Tensor, scenario: Scenario) -> int:
    """Candidates of the novel class that has fewest."""
    counts = torch.bincount(labels, minlength=len(scenario.keys))[scenario.base : len(scenario.keys)]
    return int(counts.min()) if len(counts) else scenario.shot


def _grid(features: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Scale and offset (d,) that spread each dimension's range over 256 steps."""
    low = torch.stack([part.amin(0) for part in features if len(part)]).amin(0)
    high = torch.stack([part.amax(0) for part in features if len(part)]).amax(0)
    scale = ((high - low) / 255).clamp(min=1e-12)
    return scale, low + 128 * scale


def load(path: Path, scenario: str | None = None) -> Bank:
    """Read a bank, as float32; one that was made for another scenario is refused."""
    tensors, meta = load_tensors(path, KIND)
    try:
        found = from_json(Scenario, meta["scenario"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConcmError(f"{path} lacks part of a feature bank ({error}); extract it again") from error
    if scenario is not None and found.name != scenario:
        raise Misuse(f"{path} holds features of scenario {found.name}, not of {scenario}")
    try:
        parts = {name: _part(tensors, name, meta["ids"].get(name, [])) for name in ("base", "novel", "test")}
        bank = Bank(
            scenario=found,
            encoder=meta["encoder"],
            mean=tensors["mean"],
            std=tensors["std"],
            counts=tensors["counts"],
            card={**meta["card"], "precision": meta["precision"], "bytes": path.stat().st_size}
            | {"digest": _identity(tensors, meta["scenario"])},
            learned=_under("learned/", tensors),
            weights=_under("weights/", tensors),
            **parts,
        )
    except (KeyError, RuntimeError) as error:
        raise ConcmError(f"{path} lacks part of a feature bank ({error}); extract it again") from error
    _consistent(bank, path)
    return bank


def _identity(tensors: dict[str, Tensor], scenario: dict[str, Any]) -> str:
    """Of all features and class names: two banks of the same backbone and size are not the same."""
    return blake2b((digest(tensors) + json.dumps(scenario, sort_keys=True)).encode(), digest_size=8).hexdigest()


def _part(tensors: dict[str, Tensor], name: str, ids: list[str]) -> Part:
    def dense(kind: str) -> Tensor:
        value = tensors[f"{name}/{kind}"]
        return value.float() * tensors["scale"] + tensors["offset"] if value.dtype == torch.int8 else value.float()

    views = dense("views") if f"{name}/views" in tensors else None
    return Part(dense("features"), tensors[f"{name}/labels"].long(), views, ids, tensors.get(f"{name}/pictures"))


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _consistent(bank: Bank, path: Path) -> None:
    """A bank whose parts contradict each other is refused here, not somewhere downstream."""
    classes, base = len(bank.scenario.keys), bank.scenario.base
    for name, part, first, last in (
        ("base", bank.base, 0, base),
        ("novel", bank.novel, base, classes),
        ("test", bank.test, 0, classes),
    ):
        fits = part.features.shape == (len(part.labels), bank.dimension) and len(part.ids) in (0, len(part.labels))
        fits = fits and (part.pictures is None or len(part.pictures) == len(part.labels))
        labels = set(part.labels.tolist())
        if part.views is not None:
            fits = fits and part.views.shape == (len(part.labels), part.views.shape[1], bank.dimension)
            fits = fits and bool(part.views.isfinite().all())
        if not fits or not labels <= set(range(first, last)) or not part.features.isfinite().all():
            raise ConcmError(f"{path}: its {name} part does not fit scenario {bank.scenario.name}; extract it again")
    kept = {part.pictures is not None for part in (bank.base, bank.novel, bank.test)} | {bool(bank.weights)}
    if len(kept) > 1:
        raise ConcmError(f"{path}: it has pictures or the backbone in part; extract it again")
    if not (bank.mean.isfinite().all() and bank.std.isfinite().all()):
        raise ConcmError(f"{path}: its statistics are not finite; extract it again")
    if bank.mean.shape != bank.std.shape or not len(bank.mean) == len(bank.counts) == base:
        raise ConcmError(f"{path}: it has statistics of {len(bank.mean)} base classes, the scenario has {base}")


@cache
def bundled(name: str = "cifar100") -> Bank:
    """The bank that ships with the package."""
    path = Path(str(files("concm") / "assets" / f"{name}.safetensors"))
    if not path.exists():
        scenarios.load(name)  # a misspelt name has a hint of its own
        raise Misuse(f"no feature bank of {name} ships with concm; make one with `concm features`, then give its file")
    return load(path, name)
