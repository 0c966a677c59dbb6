"""Checkpoints, logs and backbone files that are damaged, or come from a stranger, are refused in a sentence."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from concm.backbones.encoder import KIND as BACKBONE
from concm.backbones.references import load_encoder
from concm.backbones.resnet import resnet20
from concm.data.scenarios import natural
from concm.errors import ConcmError
from concm.files import load_tensors, save_tensors
from concm.training import checkpoint
from concm.training.log import Log
from tests.support.mutation import rewrite

TRIALS = 60
META = {"recipe": {"epochs": 2}}
STEPS = 8


class Saved:
    """A small model with momenta, and its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()
        checkpoint.save(path, self.model, self.optimizer, {**META, "step": 3, "seconds": 1.5, "losses": {"loss": 2.5}})

    def load(self) -> tuple[int, float, dict[str, float]]:
        return checkpoint.load(self.path, self.model, self.optimizer, META, STEPS)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "checkpoint.safetensors")


def test_a_checkpoint_comes_back(saved):
    assert saved.load() == (3, 1.5, {"loss": 2.5})


CHANGES = {
    "a step beyond the end": lambda tensors, meta: meta.update(step=10**9),
    "a step before the beginning": lambda tensors, meta: meta.update(step=-1),
    "a step that is no number": lambda tensors, meta: meta.update(step="three"),
    "half a step": lambda tensors, meta: meta.update(step=2.5),
    "no step": lambda tensors, meta: meta.pop("step"),
    "seconds without end": lambda tensors, meta: meta.update(seconds=float("inf")),
    "seconds in words": lambda tensors, meta: meta.update(seconds="few"),
    "losses in words": lambda tensors, meta: meta.update(losses={"loss": "small"}),
    "another part": lambda tensors, meta: tensors.update({"model/other": torch.ones(1)}),
    "a weight less": lambda tensors, meta: tensors.pop("model/weight"),
    "weights of another shape": lambda tensors, meta: tensors.update({"model/weight": torch.ones(9)}),
    "weights that are no numbers": lambda tensors, meta: tensors.update(
        {"model/weight": torch.full((2, 3), torch.nan)}
    ),
    "momenta of another shape": lambda tensors, meta: tensors.update({"momentum/weight": torch.ones(9)}),
    "momenta of nothing": lambda tensors, meta: tensors.update({"momentum/none": torch.ones(9)}),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_checkpoint_that_does_not_fit_is_refused_in_a_sentence(saved, kind):
    tensors, meta = load_tensors(saved.path, checkpoint.KIND)
    CHANGES[kind](tensors, meta)
    save_tensors(saved.path, checkpoint.KIND, tensors, meta)
    with pytest.raises(ConcmError, match=f"{saved.path} is damaged or not a checkpoint") as caught:
        saved.load()
    assert "\n" not in str(caught.value)


def test_whatever_is_changed_a_checkpoint_is_refused_or_can_be_used(saved, tmp_path):
    chance = random.Random(0)
    shutil.copy(saved.path, tmp_path / "whole")
    for _ in range(TRIALS):
        rewrite(tmp_path / "whole", saved.path, chance)
        try:
            step, *_ = saved.load()
        except ConcmError:
            continue
        assert 0 < step <= STEPS


ROW = '{"step": 2, "loss": 1.0}\n'


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe\n", b"[]\n", b"null\n", b'{"step": "two"}\n', b"[" * 100_000 + b"\n", b'{"step": 9}\n', b"7\n"],
    ids=["bytes", "list", "null", "words", "deep", "later", "number"],
)
def test_rows_of_a_log_that_are_none_are_dropped(tmp_path, damage):
    (tmp_path / "log.jsonl").write_bytes(damage + ROW.encode() + damage)
    with Log(tmp_path, writes=True, tensorboard=False, start=4):
        pass
    assert (tmp_path / "log.jsonl").read_text() == ROW


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("backbone") / "backbone.safetensors"
    transform = {"size": 32, "resize": 32, "mean": [0.5] * 3, "std": [0.25] * 3}
    meta = {"name": "resnet20", "transform": transform, "reading": {"turns": [0, 1], "maps": False}}
    save_tensors(path, BACKBONE, resnet20().state_dict(), meta)
    return path


ODD = {
    "a name in a list": {"name": ["resnet20"]},
    "a transform in words": {"transform": "small"},
    "a transform of nothing": {"transform": {}},
    "pictures that fill the memory": {"transform": {"size": 10**6, "resize": 10**6, "mean": [0] * 3, "std": [1] * 3}},
    "a reading in words": {"reading": "all"},
    "a reading of something else": {"reading": {"looks": 3}},
}


@pytest.mark.parametrize("kind", ODD)
def test_a_backbone_file_that_is_none_is_refused_in_a_sentence(backbone, tmp_path, kind):
    tensors, meta = load_tensors(backbone, BACKBONE)
    save_tensors(tmp_path / "odd.safetensors", BACKBONE, tensors, {**meta, **ODD[kind]})
    with pytest.raises(ConcmError) as caught:
        load_encoder(str(tmp_path / "odd.safetensors"), natural(32))
    assert "\n" not in str(caught.value)


def test_whatever_is_changed_a_backbone_file_is_refused_or_can_be_used(backbone, tmp_path):
    chance = random.Random(0)
    for _ in range(TRIALS // 2):
        rewrite(backbone, tmp_path / "odd.safetensors", chance)
        try:
            encoder = load_encoder(str(tmp_path / "odd.safetensors"), natural(32))
        except ConcmError:
            continue
        side = encoder.transform.resize
        assert len(encoder.to(torch.device("cpu"))(torch.zeros(1, side, side, 3, dtype=torch.uint8))) == 1
