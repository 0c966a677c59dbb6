"""The readings of a bank and its held-out base images: from pictures through a file to the sessions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from concm.backbones.encoder import Encoder, Identity
from concm.backbones.resnet import resnet20
from concm.data.dataset import Dataset, ImageSet
from concm.data.scenarios import of_folder
from concm.errors import ConcmError
from concm.features.bank import Bank
from concm.features.extract import extract
from concm.features.sessions import BaseSession, draw, sessions
from concm.features.storage import KIND
from concm.files import load_tensors, save_tensors
from tests.support.data import make_bank

torch.set_num_threads(1)
SCENARIO = of_folder("abcd", base=2, way=1, shot=2, size=16)
CPU = torch.device("cpu")


def images(per_class: int, seed: int) -> ImageSet:
    labels = np.repeat(np.arange(4), per_class)
    side = SCENARIO.transform.resize
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), side, side, 3), np.uint8)
    return ImageSet(pixels, np.arange(len(labels)), labels, [f"{seed}-{at}" for at in range(len(labels))])


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset(SCENARIO, SCENARIO.transform, images(8, 0), images(2, 1)).holding_out(0.25, seed=0)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder("resnet20", resnet20(), SCENARIO.transform, {"dimension": 64}).to(CPU)


def made(encoder: Encoder, dataset: Dataset, **how) -> Bank:
    return extract(encoder, dataset, Fabric(accelerator="cpu", devices=1), **how)


# readings


def test_a_banks_readings_survive_its_file_and_reach_every_session(encoder, dataset, tmp_path):
    several = replace(encoder, blocks=2, turns=2, looks=3)
    made(several, dataset).save(tmp_path / "bank.safetensors", "float32")
    bank = Bank.load(tmp_path / "bank.safetensors")
    assert bank.encoder == several.identity
    assert (bank.encoder.blocks, bank.encoder.turns, bank.encoder.looks) == (2, 2, 3)
    assert bank.layout == bank.vary(shot=1).layout == (64, 32, 64, 32)
    assert bank.passes == 6
    for session in sessions(bank, draw(bank, 0)):
        assert session.layout == session.to(CPU).layout == replace(session, total=None).layout == bank.layout
        assert session.features.shape[1] == sum(session.layout) == bank.dimension


def test_a_single_reading_is_all_of_the_feature():
    bank = make_bank(dimension=5)
    assert (bank.layout, bank.passes) == ((5,), 1)
    assert all(session.layout == (5,) for session in sessions(bank, draw(bank, 0)))


@pytest.mark.parametrize("layout", [(3, 3), (5, 1), (6, -1), (4,)])
def test_a_layout_that_does_not_add_up_is_refused(tmp_path, layout):
    bank = replace(make_bank(dimension=5), encoder=Identity("none", "", blocks=2, layout=layout))
    bank.save(tmp_path / "bank.safetensors")
    with pytest.raises(ConcmError, match=f"its readings have {layout[0]}.* dimensions, its features 5\\); extract it"):
        Bank.load(tmp_path / "bank.safetensors")


def test_the_bank_of_before_had_a_mirror(tmp_path):
    path = tmp_path / "bank.safetensors"
    make_bank().save(path)
    tensors, meta = load_tensors(path, KIND)
    meta["encoder"] = {"name": "none", "weights": "", "transform": None, "mirror": True}
    save_tensors(path, KIND, tensors, meta)
    assert Bank.load(path).encoder == Identity("none", "", looks=2)


def test_turns_of_a_methods_own_base_session_count_as_passes():
    bank = make_bank()
    card = replace(bank.card, training={"reading": {"turns": [0, 1, 2, 3], "maps": False}})
    assert replace(bank, card=card).passes == 4


# held-out images


def test_held_out_images_follow_the_trained_ones_and_are_marked(encoder, dataset):
    held = dataset.held
    assert held is not None
    bank = made(encoder, dataset, views=2, base_limit=3)
    assert bank.base.held is not None
    assert bank.base.held.tolist() == [False] * 6 + [True] * len(held)
    assert bank.base.ids[6:] == held.ids
    assert bank.base.labels[6:].tolist() == held.labels.tolist()
    torch.testing.assert_close(bank.base.features[6:], encoder.encode(held))
    assert bank.base.views is None
    assert bank.novel.views is not None
    assert bank.novel.held is bank.test.held is None


def test_statistics_are_those_of_the_trained_images(encoder, dataset):
    bank = made(encoder, dataset)
    trained = bank.base.where(~bank.base.held)
    assert bank.counts.tolist() == torch.bincount(trained.labels).tolist() == [6, 6]
    for label in range(2):
        torch.testing.assert_close(bank.mean[label], trained.features[trained.labels == label].mean(0))


def test_pictures_of_held_out_images_are_kept_with_the_others(encoder, dataset):
    bank = made(encoder, dataset, keep_pictures=True)
    torch.testing.assert_close(encoder(bank.base.pictures), bank.base.features)


def test_nothing_is_marked_where_nothing_is_held_out(encoder, dataset):
    assert made(encoder, replace(dataset, held=None)).base.held is None
    bank = make_bank()
    assert next(sessions(bank, draw(bank, 0))).held is None


def marked() -> Bank:
    bank = make_bank()
    return replace(bank, base=replace(bank.base, held=torch.arange(len(bank.base.labels)) % 3 == 0))


def test_the_marks_survive_a_file_parts_of_it_and_other_cuts(tmp_path):
    bank = marked()
    bank.save(tmp_path / "bank.safetensors")
    assert load_tensors(tmp_path / "bank.safetensors", KIND)[0]["base/held"].dtype == torch.uint8
    found = Bank.load(tmp_path / "bank.safetensors")
    assert found.base.held.dtype == torch.bool
    assert torch.equal(found.base.held, bank.base.held)
    assert torch.equal(found.vary(shot=1).base.held, bank.base.held)
    assert torch.equal(found.base.where(torch.tensor([0, 1, 3])).held, torch.tensor([True, False, True]))


def test_methods_are_told_which_rows_were_held_out():
    bank = marked()
    base = next(sessions(bank, draw(bank, 0)))
    assert isinstance(base, BaseSession)
    assert torch.equal(base.to(CPU).held, bank.base.held)


def test_the_marks_count_into_the_digest():
    assert marked().digest != make_bank().digest
    assert marked().digest == marked().digest


def test_marks_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "bank.safetensors"
    marked().save(path)
    tensors, meta = load_tensors(path, KIND)
    for name, value in (
        ("base/held", tensors["base/held"][:-1]),
        ("test/held", torch.zeros_like(tensors["test/labels"])),
    ):
        save_tensors(path, KIND, {**tensors, name: value}, meta)
        with pytest.raises(ConcmError, match=f"its {name.split('/')[0]} part does not fit"):
            Bank.load(path)


# views of base images


def test_base_images_have_views_where_they_are_asked_for_held_out_ones_too(encoder, dataset, tmp_path):
    made(encoder, dataset, views=2, augment="cifar", base_views=True).save(tmp_path / "bank.safetensors", "float32")
    bank = Bank.load(tmp_path / "bank.safetensors")
    assert bank.base.held is not None
    assert bank.base.views.shape == (len(bank.base.labels), 2, 64)
    assert (bank.card.views, bank.card.augment) == (2, "cifar")
    row = int(bank.base.held.nonzero()[0])
    at = dataset.held.ids.index(bank.base.ids[row])
    alone = encoder.encode(dataset.held.where(np.arange(len(dataset.held)) == at), views=2, kind="cifar")
    torch.testing.assert_close(bank.base.views[row], alone[0], rtol=1e-3, atol=1e-3)


def test_without_being_asked_only_candidates_have_views_and_they_are_shifts(encoder, dataset):
    bank = made(encoder, dataset, views=2)
    assert bank.base.views is None
    assert bank.card.augment == "shift"
    other = made(encoder, dataset, views=2, augment="cifar")
    assert not torch.allclose(bank.novel.views, other.novel.views, atol=1e-3)


def test_a_limit_keeps_as_many_test_images_of_every_class(encoder, dataset):
    labels = made(encoder, dataset, test_limit=1).test.labels
    assert labels.tolist() == sorted(set(dataset.test.labels.tolist()))
