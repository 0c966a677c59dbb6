"""A bank or a list that is damaged, or comes from a stranger, is refused in a sentence or can be used."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from concm.errors import ConcmError
from concm.evaluation.controls import nearest_mean
from concm.features.bank import Bank
from concm.features.sessions import draw, published
from concm.features.storage import KIND
from concm.files import load_tensors, save_tensors
from tests.support.data import make_bank
from tests.support.mutation import rewrite

TRIALS = 150


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bank") / "bank.safetensors"
    make_bank().save(path, "int8")
    return path


def changed(path, target, change) -> None:
    tensors, meta = load_tensors(path, KIND)
    change(tensors, meta)
    save_tensors(target, KIND, tensors, meta)


def put(name: str, value):
    def change(tensors: dict[str, Tensor], meta) -> None:
        tensors[name] = value(tensors[name]).contiguous()

    return change


def say(*way: str, value):
    def change(tensors, meta) -> None:
        *outer, last = way
        for key in outer:
            meta = meta[key]
        meta[last] = value

    return change


FIELDS = {
    "a mean of one dimension": put("mean", lambda value: value[0]),
    "labels in a table": put("base/labels", lambda value: value[:, None]),
    "counts of nothing": put("counts", torch.zeros_like),
    "counts of another shape": put("counts", lambda value: value[:, None]),
    "spreads below zero": put("std", lambda value: -value - 1),
    "no base images": put("base/features", lambda value: value[:0]),
    "flat views": put("base/views", lambda value: value.flatten()),
    "features of another width": put("test/features", lambda value: value[:, :2]),
    "ids that are numbers": say("ids", "novel", value=[1] * 48),
    "ids that are a word": say("ids", value="none"),
    "a scenario that is a list": say("scenario", value=[]),
    "fewer names than classes": say("scenario", "names", value=["one"]),
    "a name that moves the cursor": say("scenario", "name", value="\x1b[2J"),
    "no base classes": say("scenario", "base", value=0),
    "more shots than candidates": say("scenario", "shot", value=10**6),
    "a way of nothing": say("scenario", "way", value=0),
    "pictures without pixels": say("scenario", "transform", "size", value=0),
    "pictures that fill the memory": say("scenario", "transform", "resize", value=10**9),
    "deviations of zero": say("scenario", "transform", "std", value=[0, 0, 0]),
    "an encoder in words": say("encoder", value="resnet"),
    "a card in words": say("card", value="none"),
    "training in words": say("card", "training", value="none"),
    "a recipe in words": say("card", "training", value={"recipe": "none"}),
    "another precision": say("precision", value="float8"),
}


@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_of_a_bank_is_checked(file, tmp_path, kind):
    changed(file, tmp_path / "odd.safetensors", FIELDS[kind])
    with pytest.raises(ConcmError, match=f"{tmp_path / 'odd.safetensors'} is damaged") as caught:
        Bank.load(tmp_path / "odd.safetensors")
    assert "\n" not in str(caught.value)


def test_scales_of_double_precision_give_single_features(file, tmp_path):
    changed(file, tmp_path / "odd.safetensors", put("scale", torch.Tensor.double))
    assert Bank.load(tmp_path / "odd.safetensors").test.features.dtype == torch.float32


def test_metadata_that_are_no_table_are_refused(file, tmp_path):
    tensors, _ = load_tensors(file, KIND)
    save_tensors(tmp_path / "odd.safetensors", KIND, tensors, [1])  # type: ignore[arg-type]
    with pytest.raises(ConcmError, match="its metadata is a list"):
        Bank.load(tmp_path / "odd.safetensors")


def test_whatever_is_changed_a_bank_is_refused_or_can_be_used(file, tmp_path):
    chance, refused = random.Random(0), 0
    for _ in range(TRIALS):
        rewrite(file, tmp_path / "odd.safetensors", chance)
        try:
            bank = Bank.load(tmp_path / "odd.safetensors")
        except ConcmError:
            refused += 1
        else:
            nearest_mean(bank, [draw(bank, 0)])
    assert refused > TRIALS // 4


def test_features_that_are_no_numbers_are_not_written(tmp_path):
    bank = make_bank()
    bank.novel.features[0, 0] = torch.nan
    with pytest.raises(ConcmError, match="gives features that are no numbers"):
        bank.save(tmp_path / "bank.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b".", b"..", b"/", b"\x00"])
def test_a_published_list_that_is_none_is_refused_by_its_name(tmp_path, content):
    (tmp_path / "session_2.txt").write_bytes(content)
    with pytest.raises(ConcmError, match=r"session_2\.txt"):
        published(make_bank(), tmp_path)
