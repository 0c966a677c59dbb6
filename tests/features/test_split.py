"""Banks in many files: read as one, and refused as one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from concm.errors import ConcmError, Misuse
from concm.features import split
from concm.features.bank import Bank
from tests.support.data import make_bank
from tests.support.tiny import call, sentence


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_bank().save(tmp_path / "bank", shards=3)
    return tmp_path / "bank"


def shards(folder: Path) -> list[Path]:
    return sorted(set(folder.iterdir()) - {folder / split.INDEX})


@pytest.mark.parametrize(("precision", "count"), [("int8", 3), ("float16", 1), ("float32", 50)])
def test_a_bank_in_many_files_is_the_bank_in_one(tmp_path, precision, count):
    make_bank().save(tmp_path / "one.safetensors", precision)
    make_bank().save(tmp_path / "many", precision, shards=count)
    one, many = Bank.load(tmp_path / "one.safetensors"), Bank.load(tmp_path / "many")
    assert len(shards(tmp_path / "many")) == count
    assert one.digest == many.digest
    assert one.novel.ids == many.novel.ids
    assert torch.equal(one.novel.views, many.novel.views)
    assert many.card.bytes == sum(file.stat().st_size for file in (tmp_path / "many").iterdir())


def test_commands_take_it_as_any_other(folder, capsys):
    assert call("bank", folder, "--draws", 1) == 0
    assert "4 base classes" in capsys.readouterr().out


def test_a_shard_that_is_lost_or_another_s_is_named(folder, capsys):
    first, second, _ = shards(folder)
    content = second.read_bytes()
    second.write_bytes(first.read_bytes())
    assert call("bank", folder) == 1
    assert sentence(capsys.readouterr().err) == f"{second} is damaged: it is not the rows file that was written"
    second.unlink()
    with pytest.raises(ConcmError, match=str(second)):
        Bank.load(folder)
    second.write_bytes(content)
    Bank.load(folder)


def test_an_index_cannot_name_files_elsewhere(folder):
    tensors, meta = split.load_tensors(folder / split.INDEX, "concm-bank-1")
    meta["shards"] = {f"../{folder.name}/{name}": digest for name, digest in meta["shards"].items()}
    split.save_tensors(folder / split.INDEX, "concm-bank-1", tensors, meta)
    with pytest.raises(ConcmError, match="it names no shards of its own folder"):
        Bank.load(folder)


def test_until_a_new_bank_is_whole_the_old_one_is_there_and_then_it_is_gone(folder, monkeypatch):
    (folder / "00000-mine.safetensors").write_text("of somebody else")
    before, other = Bank.load(folder), make_bank(images=9)
    with monkeypatch.context() as patch:
        save, saved = split.save_tensors, []

        def twice(*words):
            saved.append(1)
            if len(saved) == 2:
                raise ConcmError("the disk is full")
            return save(*words)

        patch.setattr(split, "save_tensors", twice)
        with pytest.raises(ConcmError, match="the disk is full"):
            other.save(folder, shards=2)
    assert Bank.load(folder).digest == before.digest
    other.save(folder, "float32", shards=2)
    assert Bank.load(folder).digest == other.digest
    assert (folder / "00000-mine.safetensors").exists()


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path):
    (tmp_path / "bank").write_text("in the way")
    with pytest.raises(Misuse, match="a bank in `shards` is a folder"):
        make_bank().save(tmp_path / "bank", shards=2)
    with pytest.raises(Misuse, match="`shards` must be at least 1"):
        make_bank().save(tmp_path / "other", shards=0)
