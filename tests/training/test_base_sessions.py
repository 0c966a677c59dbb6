"""Base sessions of methods, from the command line to the method: what is trained, kept, read and refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from concm.backbones import opened
from concm.backbones.encoder import Encoder, Reading
from concm.backbones.references import load_encoder
from concm.backbones.resnet import ResNet12, resnet18_imagenet, resnet20
from concm.data import augment
from concm.data.transform import Transform
from concm.errors import Misuse
from concm.features.bank import Bank
from concm.features.sessions import BaseSession, draw, sessions
from concm.files import load_tensors, save_tensors
from concm.methods import choose, entries
from tests.support.tiny import CUT, call, sentence, weights, write_tiny

TRANSFORM = Transform(32, 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
WITH_OWN = [name for name, entry in entries().items() if entry.objective is not None]


def short(name: str, *changed: str) -> str:
    """A method with changed settings, in its short form and with few steps where it takes long."""
    words = [*(("short", "steps=4") if name == "mamba_fscil" else ()), *changed]
    return f"{name}:{','.join(words)}" if words else name


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"))


def training(data: Path, out: Path, *more: object) -> list[object]:
    return ["train", "folder", "--data", data, "--out", out, *CUT, "--backbone", "resnet20", "--batch", 8, *more]


@pytest.fixture(scope="module", params=WITH_OWN)
def run(request, data, tmp_path_factory) -> tuple[str, Path]:
    """A run of each method's own base session."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    assert call(*training(data, out, "--method", short(request.param), "--epochs", 1)) == 0
    return request.param, out


def test_from_its_base_session_a_method_gets_to_a_row_in_the_table(run, data, tmp_path, capsys):
    name, out = run
    file, table = tmp_path / "bank.safetensors", tmp_path / "table.json"
    assert call("features", "folder", "--data", data, *CUT, "--backbone", out, "--out", file) == 0
    assert Bank.load(file).base_session == name
    words = ("--bank", file, "--out", tmp_path / "out", "--jobs", 1, "--draws", 1)
    assert call("bench", *words, "--method", short(name), "--json", table) == 0, capsys.readouterr().err
    found = json.loads(table.read_text())
    assert [row["method"] for row in found["rows"]] == [short(name), "ncm_metric", "ncm", "ncm_bias"]
    assert found["training"]["recipe"]["method"] == name
    assert found["training"]["recipe"]["epochs"] == 1


def test_a_run_says_whose_base_session_it_was_and_with_which_settings(run):
    name, out = run
    recipe = load_encoder(str(out), TRANSFORM).meta["recipe"]
    assert (recipe["method"], recipe["epochs"], recipe["batch"]) == (name, 1, 8)
    assert recipe["settings"] == json.loads(json.dumps(asdict(choose(short(name)).settings)))


def test_what_is_not_given_is_the_method_s_published_schedule(run):
    name, out = run
    recipe, published = load_encoder(str(out), TRANSFORM).meta["recipe"], entries()[name].objective.schedule
    assert (recipe["lr"], recipe["weight_decay"]) == (published.lr, published.weight_decay)


def test_two_runs_with_the_same_seed_are_the_same(run, data, tmp_path):
    name, out = run
    assert call(*training(data, tmp_path / "again", "--method", short(name), "--epochs", 1)) == 0
    one, other = weights(out), weights(tmp_path / "again")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--method", "teen"), "teen has no base session of its own: train without --method and use its bank"),
        (("--method", "closer", "--grey", "0.5"), "--grey belongs to our own base session"),
        (("--method", "clsoer"), "no method called 'clsoer'; did you mean closer"),
        (("--method", "closer:closness=1"), "no setting called 'closness'"),
        (("--method", "closer", "--epochs", "0"), "setting epochs must be more than 0, not 0"),
    ],
)
def test_what_cannot_be_trained_is_refused(words, wanted, data, tmp_path, capsys):
    assert call("train", "folder", "--data", data, "--out", tmp_path / "run", *CUT, *words) == 2
    assert wanted in sentence(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_settings_of_the_base_session_are_those_of_the_bank(run, data, tmp_path, capsys):
    name, out = run
    file = tmp_path / "bank.safetensors"
    assert call("features", "folder", "--data", data, *CUT, "--backbone", out, "--out", file) == 0
    capsys.readouterr()
    own = {"closer": "spread=0.7", "fact": "gamma=0.7", "pa": "kinship=0.7", "s3c": "narrow=0.7"}
    changed = own.get(name, "jitter=0.7")
    assert call("bench", "--bank", file, "--out", tmp_path / "out", "--method", short(name, changed)) == 2
    setting = changed.partition("=")[0]
    assert f"write {name}:{setting}={getattr(entries()[name].settings, setting)}" in sentence(capsys.readouterr().err)


def test_a_method_does_not_run_on_a_bank_of_another_base_session(capsys):
    assert call("bench", "--method", "closer") == 2
    assert sentence(capsys.readouterr().err) == (
        "closer has a base session of its own: run it on a bank of `concm train --method closer`"
    )


def test_a_method_that_trains_the_backbone_wants_pictures(capsys):
    assert call("bench", "--method", "icarl") == 2
    assert "run it on a bank of `concm features --keep-pictures`" in sentence(capsys.readouterr().err)


# how a backbone is read


class Numbered(nn.Module):
    """Its maps are the picture, so that what was read can be seen."""

    def maps(self, images: Tensor) -> Tensor:
        return images

    def forward(self, images: Tensor) -> Tensor:
        return images[:, 0, 0]


def test_turns_are_read_side_by_side():
    images = torch.rand(2, 3, 4, 4)
    read = Reading(Numbered(), (0, 2))(images)
    turned = augment.turn(images, torch.tensor([2, 2]))
    assert torch.equal(read, torch.cat([images[:, 0, 0], turned[:, 0, 0]], 1))


def test_maps_are_kept_flat():
    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(Reading(Numbered(), maps=True)(images), images.flatten(1))


def test_a_plain_reading_is_the_network_itself():
    network = Numbered()
    assert Reading.of(network, (0,), False) is network


@pytest.mark.parametrize(("turns", "maps", "width"), [((0,), False, 64), ((0, 2), False, 128), ((0,), True, 64 * 64)])
def test_reading_and_what_was_learned_come_back_from_disk(turns, maps, width, tmp_path):
    torch.manual_seed(0)
    network = Reading.of(resnet20(), turns, maps)
    learned = {"virtual": torch.rand(3, 4)}
    encoder = Encoder("resnet20", network, TRANSFORM, {"dimension": 64}, learned=learned).to(torch.device("cpu"))
    encoder.save(tmp_path / "backbone.safetensors")
    back = load_encoder(str(tmp_path), TRANSFORM).to(torch.device("cpu"))
    pixels = torch.randint(256, (2, 32, 32, 3), dtype=torch.uint8)
    assert back(pixels).shape == (2, width)
    torch.testing.assert_close(back(pixels), encoder(pixels))
    assert torch.equal(back.learned["virtual"], learned["virtual"])
    assert back.identity == encoder.identity


@pytest.mark.parametrize("make", [ResNet12, resnet18_imagenet, resnet20])
def test_the_two_halves_of_a_network_are_the_whole(make):
    network = make().eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        maps = network.back(network.front(images))
        assert torch.equal(maps, network.maps(images))
        torch.testing.assert_close(maps.mean((2, 3)), network(images))
    assert opened(network) is network


def test_a_network_that_does_not_show_its_maps_is_refused():
    with pytest.raises(Misuse, match="Flatten does not show its maps"):
        opened(nn.Flatten())


# banks with pictures


def test_a_bank_with_pictures_has_them_and_a_copy_of_the_backbone(data, tmp_path):
    assert call(*training(data, tmp_path / "run", "--epochs", 1)) == 0
    file = tmp_path / "bank.safetensors"
    words = ("--data", data, *CUT, "--backbone", tmp_path / "run", "--out", file, "--precision", "float32")
    assert call("features", "folder", *words, "--keep-pictures") == 0
    bank = Bank.load(file)
    for session in sessions(bank, draw(bank, 0)):
        assert session.pictures is not None
        assert session.pictures.shape == (len(session.labels), 32, 32, 3)
        encoder = bank.backbone().to(torch.device("cpu"))
        torch.testing.assert_close(encoder(session.pictures), session.features, atol=1e-5, rtol=1e-5)
        assert isinstance(session, BaseSession) == (session.index == 0)
        assert not isinstance(session, BaseSession) or session.backbone is not None


@pytest.mark.parametrize("how", [("--method", "savc"), ()], ids=["turned", "looks"])
def test_pictures_are_kept_of_plain_backbones_only(how, data, tmp_path, capsys):
    assert call(*training(data, tmp_path / "run", "--epochs", 1, *how)) == 0
    capsys.readouterr()
    words = ("--data", data, *CUT, "--backbone", tmp_path / "run", "--out", tmp_path / "bank.safetensors")
    assert call("features", "folder", *words, "--keep-pictures", *(() if how else ("--looks", 2))) == 2
    assert sentence(capsys.readouterr().err).startswith("--keep-pictures keeps the backbone for methods")


@pytest.mark.parametrize("lost", ["weights/", "test/pictures"])
def test_a_bank_that_lost_part_of_its_pictures_is_refused(lost, data, tmp_path, capsys):
    assert call(*training(data, tmp_path / "run", "--epochs", 1)) == 0
    file = tmp_path / "bank.safetensors"
    words = ("--data", data, *CUT, "--backbone", tmp_path / "run", "--out", file)
    assert call("features", "folder", *words, "--keep-pictures") == 0
    tensors, meta = load_tensors(file, "concm-bank-1")
    save_tensors(file, "concm-bank-1", {name: v for name, v in tensors.items() if not name.startswith(lost)}, meta)
    capsys.readouterr()
    assert call("bank", file) == 1
    assert sentence(capsys.readouterr().err) == (
        f"{file} is damaged or not a feature bank (it has pictures or the backbone in part); extract it again"
    )


def test_a_bank_without_pictures_has_no_backbone(data, tmp_path):
    assert call(*training(data, tmp_path / "run", "--epochs", 1)) == 0
    file = tmp_path / "bank.safetensors"
    assert call("features", "folder", "--data", data, *CUT, "--backbone", tmp_path / "run", "--out", file) == 0
    bank = Bank.load(file)
    assert (bank.weights, bank.learned, bank.base_session) == ({}, {}, None)
    base, *later = sessions(bank, draw(bank, 0))
    assert base.backbone is None
    assert all(session.pictures is None for session in (base, *later))
