"""Networks of others for tests: timm beside a CPU build of torch, its folders, and ONNX files."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from concm.classifier.export import quiet
from concm.data.transform import Transform

_LIBRARIES: list[Any] = []
"""Definitions of operators last as long as these objects."""


def timm() -> ModuleType:
    """The package, or the test is skipped.

    The torchvision that PyPI has cannot be imported beside a CPU build of torch, for want of two operators. Networks
    do not use them, so that their declarations suffice.
    """
    for package in ("timm", "torchvision"):
        if find_spec(package) is None:
            pytest.skip(f'{package} is not installed: pip install -c constraints.txt -e ".[timm]"')
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
    return importlib.import_module("timm")


def write_folder(folder: Path, architecture: str, weights: dict[str, Tensor], **config: Any) -> str:
    """A network as timm keeps one in a folder; returns how it is named."""
    folder.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    arguments = {"model_args": config.pop("model_args")} if "model_args" in config else {}
    described = {"architecture": architecture, **arguments, "pretrained_cfg": config}
    (folder / "config.json").write_text(json.dumps(described))
    return f"local-dir:{folder}"


def write_onnx(path: Path, network: torch.nn.Module, size: int, transform: Transform | None = None) -> Path:
    """A network as an ONNX file for any number of pictures; its metadata may say how they enter."""
    pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install -e ".[onnx]"')
    pytest.importorskip("onnxscript", reason='onnxscript is not installed: pip install -e ".[onnx]"')
    with quiet():
        program = torch.onnx.export(
            network.eval(),
            (torch.zeros(2, 3, size, size),),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch", min=2)},),
            verbose=False,
        )
    assert program is not None
    if transform is not None:
        program.model.metadata_props["transform"] = json.dumps(asdict(transform))
    program.save(path)
    return path
