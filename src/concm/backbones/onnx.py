"""The network of an ONNX file, run by onnxruntime: pictures (n, 3, h, w) of floats in, features out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from concm.backbones.modules import Found
from concm.data.scenarios import natural
from concm.data.transform import Transform
from concm.errors import Misuse, extra_needed, in_a_line, loading
from concm.records import from_json
from concm.runtime import onnxruntime

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxNetwork(nn.Module):
    """The first output of an ONNX network; its identity is a digest of all that the file holds."""

    digest: Tensor

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self.register_buffer("digest", torch.frombuffer(bytearray(hashlib.sha256(model).digest()), dtype=torch.uint8))
        self.model, self.session = model, session(model)
        taken = self.session.get_inputs()
        if len(taken) != 1 or taken[0].type != "tensor(float)" or len(taken[0].shape) != 4 or taken[0].shape[1] != 3:
            said = ", ".join(f"{item.name} {item.type} {item.shape}" for item in taken)
            raise Misuse(
                f"an ONNX backbone takes pictures (n, 3, h, w) of floats and nothing else; this one takes {said}"
            )
        self.taken, self.shape = taken[0].name, taken[0].shape
        if isinstance(self.shape[0], int) and self.shape[0] != 1:
            raise Misuse(
                f"this ONNX network takes {self.shape[0]} pictures at a time; export it with a free first axis"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process makes a session of its own."""
        return OnnxNetwork, (self.model,)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) → the first output, on the CPU; one by one where the network was made for that."""
        pixels = np.ascontiguousarray(images.cpu().numpy())
        parts = np.split(pixels, len(pixels)) if self.shape[0] == 1 else [pixels]
        found = [self.session.run(None, {self.taken: part})[0] for part in parts]
        return torch.from_numpy(np.concatenate(found))


def session(model: bytes, threads: int = 1, others: Sequence[int] = ()) -> InferenceSession:
    """A network ready to run on the calling thread: who has several cores calls it from several threads.

    With more `threads`, they share the work on what is run. Where the cores of the `others` are given, each keeps its
    own busy while it waits, but only until the run is over: threads that sleep between two layers, or that wake up on a
    core that waits for them, take longer than one alone.
    """
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(bool(others))))
    if others:
        options.add_session_config_entry("session.force_spinning_stop", "1")
        numbers = ";".join(str(core + 1) for core in others)  # which onnxruntime counts from one
        options.add_session_config_entry("session.intra_op_thread_affinities", numbers)
    options.log_severity_level = 3
    made: InferenceSession = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return made


def found(path: Path) -> Found:
    """The network of a file, with pictures as its metadata `transform` says, or as its input is large."""
    try:
        import onnx

        onnxruntime()
    except ImportError as error:
        raise extra_needed("an ONNX backbone", "onnx") from error
    with loading(path, "ONNX file", "export it again"):
        try:
            model = onnx.load(path)  # with the tensors of files beside it
            network = OnnxNetwork(model.SerializeToString())
        except (Misuse, FileNotFoundError):
            raise
        except Exception as error:  # those of onnxruntime and of its reader have no common type
            raise ValueError(in_a_line(error)) from error
        return Found("onnx", network, _transform(model, network.shape), path.name)


def _transform(model: Any, shape: list[Any]) -> Transform | None:
    for item in model.metadata_props:
        if item.key == "transform":
            return from_json(Transform, json.loads(item.value))
    if not isinstance(shape[2], int):
        return None
    if shape[2] != shape[3]:
        raise Misuse(f"the network takes pictures of {shape[2]} × {shape[3]} pixels; here they are square")
    return natural(shape[2])
