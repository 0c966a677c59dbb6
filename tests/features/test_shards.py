"""Features from a cluster, shard by shard: as one process finds them, and never twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric

from concm.backbones.encoder import Encoder
from concm.backbones.resnet import resnet20
from concm.data.dataset import Dataset, load_dataset
from concm.data.scenarios import of_folder
from concm.data.unread import Unread
from concm.errors import ConcmError
from concm.features.bank import Bank
from concm.features.extract import extract
from concm.features.shards import Shards
from tests.support.cluster import Inline
from tests.support.data import write_class_folders

torch.set_num_threads(1)
SCENARIO = of_folder("abcd", base=2, way=1, shot=2, size=16)
BATCH = 3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for part, count in (("train", 10), ("test", 3)):
        write_class_folders(tmp_path / "data" / part, dict.fromkeys("abcd", count))
    return tmp_path / "data"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder("resnet20", resnet20(), SCENARIO.transform, {"dimension": 64}).to(torch.device("cpu"))


def dataset(data: Path, unread: bool = True) -> Dataset:
    return load_dataset(SCENARIO, data, unread=unread)[0]


def made(encoder: Encoder, data: Path, cluster: Inline, folder: Path, **how) -> Bank:
    return extract(encoder, dataset(data), Shards(cluster, "cpu", folder), batch=BATCH, **how)


def test_files_are_decoded_when_their_pixels_are_asked_for(data):
    unread, read = dataset(data), dataset(data, unread=False)
    assert isinstance(unread.train.pixels, Unread)
    assert unread.train.pixels.shape == read.train.pixels.shape
    assert (unread.train.pixels[[3, 1]] == read.train.pixels[[3, 1]]).all()
    some = unread.novel.alone()
    assert len(some.pixels.paths) == len(some) == 20
    assert (some.pixels[some.rows] == read.novel.pixels[read.novel.rows]).all()


@pytest.mark.parametrize("views", [0, 2])
def test_a_bank_of_shards_is_that_of_one_process(encoder, data, tmp_path, views):
    there = made(encoder, data, Inline(), tmp_path / "shards", views=views, base_limit=4)
    here = extract(
        encoder,
        dataset(data, unread=False),
        Fabric(accelerator="cpu", devices=1),
        batch=BATCH,
        views=views,
        base_limit=4,
    )
    for name, part in here.parts.items():
        other = there.parts[name]
        assert torch.equal(part.features, other.features)
        assert torch.equal(part.labels, other.labels)
        assert part.ids == other.ids
        assert part.views is None or torch.equal(part.views, other.views)
    assert torch.equal(here.mean, there.mean)


def test_what_is_encoded_is_not_encoded_again(encoder, data, tmp_path):
    folder = tmp_path / "shards"
    with pytest.raises(KeyboardInterrupt):
        made(encoder, data, Inline(most=2), folder)
    whole, rest = Inline(), Inline()
    made(encoder, data, whole, tmp_path / "others")
    made(encoder, data, rest, folder)
    assert rest.done == whole.done - 2 > 0
    again = Inline()
    made(encoder, data, again, folder)
    assert again.done == 0


def test_a_file_that_changed_is_encoded_again(encoder, data, tmp_path):
    made(encoder, data, Inline(), tmp_path / "shards")
    write_class_folders(data / "train", {"d": 11})
    again = Inline()
    made(encoder, data, again, tmp_path / "shards")
    assert again.done > 0


def test_a_broken_picture_is_named_and_what_is_done_stays(encoder, data, tmp_path):
    broken = data / "train" / "d" / "9.png"
    broken.write_bytes(b"no picture")
    with pytest.raises(ConcmError, match=r"9\.png cannot be read as a picture .*; remove it, and the same command"):
        made(encoder, data, Inline(), tmp_path / "shards")
    broken.unlink()
    rest = Inline()
    made(encoder, data, rest, tmp_path / "shards")
    whole = Inline()
    made(encoder, data, whole, tmp_path / "others")
    assert 0 < rest.done < whole.done
