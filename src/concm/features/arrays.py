"""Banks of a user's own arrays: checked, split into base and novel classes, and never sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from concm.backbones.encoder import Identity
from concm.data.scenarios import Scenario, natural
from concm.errors import Misuse
from concm.features.bank import Bank, Card, Part
from concm.features.sessions import statistics
from concm.files import digest


def bank_of_arrays(
    train: Any, test: Any, *, names: Sequence[str] | None, base: int, way: int, shot: int, views: Any
) -> Bank:
    """A bank of arrays, as `Bank.from_arrays` describes it."""
    (features, given), (asked, wanted) = _pair(train, "train"), _pair(test, "test")
    if asked.shape[1] != features.shape[1]:
        raise Misuse(f"`train` has {features.shape[1]} dimensions and `test` {asked.shape[1]}; they must be the same")
    order = _names(given, names)
    words = isinstance(given[0], str)
    labels, truth = _numbers(given, order, "train", words), _numbers(wanted, order, "test", words)
    counts = torch.bincount(labels, minlength=len(order))
    if empty := [name for name, count in zip(order, counts.tolist(), strict=True) if not count]:
        raise Misuse(f"`train` has no row of class {empty[0]!r}; every class that is named needs some")
    title = f"arrays: {base} base classes, then {way}-way {shot}-shot sessions"
    scenario = Scenario("arrays", title, tuple(order), tuple(order), base, way, shot, natural(224))
    fewest = int(counts[base:].min()) if base < len(order) else shot
    if fewest < shot:
        short = order[base + int(counts[base:].argmin())]
        raise Misuse(f"class {short!r} has {fewest} training rows, but {shot} shots are asked for: lower `shot`")
    looks = None if views is None else _floats(views, "views")
    if looks is not None and (looks.ndim != 3 or looks.shape[::2] != features.shape):
        raise Misuse(f"`views` should be ({len(features)}, k, {features.shape[1]}), not {tuple(looks.shape)}")
    every = Part(features, labels, looks)
    old = every.where(labels < base)
    mean, std, seen = statistics(old.features, old.labels, base)
    return Bank(
        scenario=scenario,
        encoder=Identity("arrays", digest({"train": features, "test": asked})),
        base=old,
        novel=every.where(labels >= base),
        test=Part(asked, truth),
        mean=mean,
        std=std,
        counts=seen,
        card=Card(views=0 if looks is None else looks.shape[1]),
    )


def _pair(given: Any, what: str) -> tuple[Tensor, list[Any]]:
    """Features (n, d) and as many labels."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise Misuse(f"`{what}` should be a pair of features and labels")
    features = _floats(given[0], what)
    if features.ndim != 2 or not features.numel():
        raise Misuse(f"features of `{what}` should be (rows, dimensions), not {tuple(features.shape)}")
    labels = [label.item() if hasattr(label, "item") else label for label in given[1]]
    if len(labels) != len(features):
        raise Misuse(f"`{what}` has {len(features)} rows of features and {len(labels)} labels")
    return features, labels


def _floats(values: Any, what: str) -> Tensor:
    try:
        own = values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, np.float32))
        found = own.float().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise Misuse(f"features of `{what}` should be numbers: {error}") from error
    if not found.isfinite().all():
        raise Misuse(f"features of `{what}` are not all finite")
    return found


def _names(labels: list[Any], names: Sequence[str] | None) -> list[str]:
    """All class names in the order in which the classes come."""
    words = all(isinstance(label, str) for label in labels)
    if not words and not all(type(label) is int and label >= 0 for label in labels):
        raise Misuse("labels of `train` should be whole numbers from 0 on, or class names")
    if names is None:
        return list(dict.fromkeys(labels)) if words else [f"class {at}" for at in range(max(labels) + 1)]
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise Misuse("`names` should be a list of class names, in the order in which the classes come")
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        raise Misuse(f"class {twice[0]!r} stands twice among `names`")
    return [str(name) for name in names]


def _numbers(labels: list[Any], names: list[str], what: str, words: bool) -> Tensor:
    """Labels as indices into the names."""
    place = {name: at for at, name in enumerate(names)}
    if len({isinstance(label, str) for label in labels}) > 1 or words != isinstance(labels[0], str):
        raise Misuse(f"labels of `{what}` should be of the same kind as those of `train`: all numbers, or all names")
    found = [label if isinstance(label, int) else place.get(label, -1) for label in labels]
    for label, number in zip(labels, found, strict=True):
        if not 0 <= number < len(names):
            raise Misuse(f"`{what}` has the label {label!r}, which is none of the {len(names)} classes")
    return torch.tensor(found)
