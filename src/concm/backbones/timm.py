"""Networks of timm: by name, from the Hugging Face hub, or from a folder; and those that a store has kept.

A store keeps the weights of such a network. When it is opened, only timm's own architectures are looked up by name,
and nothing is fetched.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from concm.backbones.modules import Found, configured
from concm.backbones.registry import SOURCES
from concm.data.transform import Transform
from concm.errors import ConcmError, Misuse, extra_needed, in_a_line

KEPT = "timm:"


def found(reference: str) -> Found:
    """The network that `timm:NAME`, `hf-hub:OWNER/NAME` or `local-dir:FOLDER` names, with its weights, as features."""
    timm = _timm()
    name = reference.removeprefix(KEPT)
    try:
        kept, arguments = _architecture(name)
        network = timm.create_model(name, pretrained=True, num_classes=0)
        config: dict[str, Any] = network.pretrained_cfg
        transform = configured(timm.data.resolve_data_config(pretrained_cfg=config, model=network))
    except Misuse:
        raise
    except Exception as error:  # what timm, the hub and the files may raise has no common type
        raise Misuse(f"timm cannot load {reference}: {in_a_line(error) or type(error).__name__}") from error
    licence = config.get("license") or "unknown"
    return Found(reference if arguments else f"{KEPT}{kept}", network, transform, reference, str(licence))


def _architecture(name: str) -> tuple[str, Mapping[str, Any]]:
    """The name of the architecture, and the arguments that it is made with beside its name."""
    if not re.match(SOURCES, name):
        return name, {}
    source, _, place = name.partition(":")
    hub = importlib.import_module("timm.models._hub")
    read = hub.load_model_config_from_hf if source == "hf-hub" else hub.load_model_config_from_path
    _, architecture, arguments = read(place)
    return architecture, arguments or {}


def kept(name: str, transform: Transform, state: Mapping[str, Tensor]) -> nn.Module:
    """The network that a file names and has the weights of; it is not made unless it is as large as they are."""
    timm, architecture = _timm(), name.removeprefix(KEPT).partition(".")[0]
    if not timm.is_model(architecture):
        raise Misuse(f"the installed timm has no network called {architecture!r}: pip install --upgrade timm")
    size = {"input_size": (3, transform.size, transform.size)}
    build = partial(timm.create_model, architecture, num_classes=0, pretrained_cfg_overlay=size)
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in build().state_dict().items()}
    if shapes != {key: value.shape for key, value in state.items()}:
        raise ConcmError(f"this file does not hold the weights of {name}")
    network: nn.Module = build()
    network.load_state_dict(state)
    return network


def _timm() -> ModuleType:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise extra_needed("a network of timm", "timm") from error
    except (ImportError, RuntimeError) as error:  # RuntimeError: operators that its torchvision was built with
        raise Misuse(
            f"timm cannot be imported ({in_a_line(error)}): it needs the torchvision that was built with this torch; "
            "install both from the same index"
        ) from error
