"""Damage from a seed: bytes, values of JSON and tensors of files changed as accidents and strangers change them."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

ODD = (
    None,
    True,
    -1,
    0,
    1,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "word",
    "\x1b[2J",
    "é" * 500,
    [],
    [[]],
    {},
    [0, 1],
)
NAMES = ("", "/etc/passwd", "../x", "os:system", "[/bold]", "a" * 10_000)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [path, *(place for key, own in inner for place in places(own, (*path, key)))]


def with_other_value(value: Any, chance: random.Random) -> Any:
    """The same JSON value with something odd in one place, or without it."""
    whole = {"": copy.deepcopy(value)}
    *way, last = ("", *chance.choice(places(value)))
    holder: Any = whole
    for key in way:
        holder = holder[key]
    if isinstance(holder, dict) and last != "" and chance.random() < 0.2:
        del holder[last]
    else:
        holder[last] = chance.choice((*ODD, *NAMES))
    return whole[""]


def with_other_bytes(data: bytes, chance: random.Random) -> bytes:
    """The same bytes, some of them changed, lost, doubled or cut off."""
    changed = bytearray(data)
    at = chance.randrange(len(changed) + 1)
    match chance.randrange(5):
        case 0:
            return bytes(changed[:at])
        case 1:
            return bytes(changed[:at] + changed[at + chance.randrange(1, 64) :])
        case 2:
            return bytes(changed[:at] + chance.randbytes(chance.randrange(1, 64)) + changed[at:])
        case _:
            for _ in range(chance.choice((1, 1, 4, 64)) if changed else 0):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            return bytes(changed)


def other_tensor(value: Tensor, chance: random.Random) -> Tensor:
    """A tensor of another shape, kind or content."""
    ways = (
        lambda: value[:0],
        lambda: value.flatten(),
        lambda: value[None],
        lambda: value[..., :1],
        lambda: torch.cat([value.reshape(-1), value.reshape(-1)]),
        lambda: value.double(),
        lambda: value.long(),
        lambda: value.to(torch.bool),
        lambda: value.float() * float("nan"),
        lambda: value.float() + float("inf"),
        lambda: value.float() * 1e30,
        lambda: -value.float() - 1,
        lambda: torch.zeros_like(value),
        lambda: torch.tensor(0.5),
        lambda: torch.full((3,), 10**15),
    )
    try:
        return chance.choice(ways)().contiguous()
    except (IndexError, RuntimeError):
        return torch.tensor(-1)


def rewrite(path: Path, target: Path, chance: random.Random) -> None:
    """Write one of our safetensors files again with one thing changed: a tensor, the metadata, or some bytes."""
    kind = chance.randrange(3)
    if kind == 0:
        target.write_bytes(with_other_bytes(path.read_bytes(), chance))
        return
    with safe_open(path, "pt") as file:
        head, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if kind == 1:
        head["meta"] = json.dumps(with_other_value(json.loads(head["meta"]), chance))
    else:
        name = chance.choice(sorted(tensors))
        if chance.random() < 0.2:
            del tensors[name]
        else:
            tensors[name] = other_tensor(tensors[name], chance)
    save_file(tensors, target, head)
