"""The command line: what it lists, what it refuses in one sentence, and banks of anybody's folders."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from concm.backbones import backbones
from concm.backbones.encoder import Encoder
from concm.backbones.resnet import resnet20
from concm.cli.app import app
from concm.cli.options import in_options
from concm.data import scenarios
from concm.data.scenarios import of_folder
from concm.features import bank as banks
from concm.features.sessions import draw, published
from tests.support.data import make_bank, write_class_folders, write_lists
from tests.support.tiny import CUT, call, sentence, typed, write_tiny

COMMANDS = ("train", "features", "bank", "scenarios", "backbones")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained backbone in a file, as good as any other here."""
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("run") / "backbone.safetensors"
    transform = of_folder("ab", base=2, way=1, shot=1, size=32).transform
    Encoder("resnet20", resnet20(), transform, {"dimension": 64}).save(file)
    return file


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def features(data: Path, backbone: Path | str, out: Path, *more: object) -> list[object]:
    return ["features", "folder", "--data", data, "--backbone", backbone, "--out", out, *CUT, *more]


def refusal(capsys, *words: object, code: int) -> str:
    capsys.readouterr()
    assert call(*words) == code
    return sentence(capsys.readouterr().err)


def replaced(words: list[object], option: str, value: object) -> list[object]:
    at = words.index(option)
    return [*words[: at + 1], value, *words[at + 2 :]]


# help and lists


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    assert call(command, "--help") == 0
    assert f"concm {command}" in capsys.readouterr().out


def test_the_help_names_every_command(capsys):
    assert call("--help") == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


@pytest.mark.promise
def test_help_imports_nothing_slow():
    program = (
        "import sys\nfrom concm.cli.app import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "slow = ('torch', 'lightning_fabric', 'matplotlib', 'numpy.testing')\n"
        "sys.stderr.write(','.join(name for name in slow if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "train" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], 'Did you mean "train"?'),
        (["bank", "--shto", "1"], "Did you mean --shot?"),
        (["bank", "--quite-unknown"], "--quite-unknown"),
        (["bank", "--shot", "many"], "--shot"),
        (["train", "folder"], "--data"),
        (["features", "folder", "--data", "x", "--backbone", "y", "--out", "z", "--precision", "int4"], "int4"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_words_that_are_not_understood_are_refused(capsys, words, hint):
    assert call(*words) == 2
    err = capsys.readouterr().err
    assert hint in err
    assert "Traceback" not in err


def test_all_scenarios_are_listed(capsys):
    assert call("scenarios") == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert listed == scenarios.names()


def test_all_backbones_are_listed(capsys):
    assert call("backbones") == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert all([backbone.name, str(backbone.dimension)] in lines for backbone in backbones())


def test_the_version_is_printed(capsys):
    assert call("--version") == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)


# banks of a folder


def rows_in(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if "±" in line and line[0].isdigit()]


@pytest.mark.parametrize("precision", ["int8", "float16", "float32"])
def test_a_folder_becomes_a_bank_that_can_be_shown(data, backbone, tmp_path, capsys, precision):
    file = tmp_path / "tiny.safetensors"
    limits = ["--views", 2, "--base-limit", 3, "--novel-limit", 6]
    assert call(*features(data, backbone, file, "--precision", precision, *limits)) == 0
    assert f"wrote {file}" in capsys.readouterr().out
    bank = banks.Bank.load(file)
    assert bank.card.precision == precision
    assert torch.bincount(bank.base.labels).tolist() == [3] * 4
    assert torch.bincount(bank.novel.labels).tolist() == [0] * 4 + [6] * 2
    assert bank.base.views is None
    assert bank.novel.views.shape == (12, 2, 64)
    assert bank.counts.tolist() == [8] * 4
    assert len(bank.test.labels) == 12
    assert call("bank", file, "--draws", 2) == 0
    out = capsys.readouterr().out
    assert "folder: 4 base classes, then 2 sessions of 1-way 5-shot" in out
    assert "12 images of    2 classes, 2 views each" in out
    assert [row[:2] for row in rows_in(out)] == [["0", "4"], ["1", "5"], ["2", "6"]]


def test_a_bank_is_made_of_the_readings_that_were_asked_for(data, backbone, tmp_path, capsys):
    file = tmp_path / "bank.safetensors"
    assert call(*features(data, backbone, file, "--blocks", 2, "--turns", 2, "--looks", 2)) == 0
    assert "192 dimensions (64 + 32 + 64 + 32), forward passes per picture: 4" in capsys.readouterr().out
    found = banks.Bank.load(file)
    assert (found.encoder.blocks, found.encoder.turns, found.encoder.looks) == (2, 2, 2)
    for words, why in (
        (("--turns", 3), "--turns is one of 1, 2, 4, not 3"),
        (("--looks", 11), "--looks must be at most 10, not 11"),
        (("--blocks", 4), "--blocks is 4, and ResNet shows 3"),
    ):
        assert refusal(capsys, *features(data, backbone, file, *words), code=2) == why


def test_a_bank_can_be_made_of_larger_pictures(data, backbone, tmp_path, capsys):
    for name, words in (("plain", []), ("large", ["--size", 48])):
        assert call(*features(data, backbone, tmp_path / name, "--precision", "float32", *words)) == 0
    plain, large = banks.Bank.load(tmp_path / "plain"), banks.Bank.load(tmp_path / "large")
    assert (plain.encoder.transform.size, large.encoder.transform.size) == (32, 48)
    assert plain.test.features.shape == large.test.features.shape
    assert not torch.allclose(plain.test.features, large.test.features, atol=1e-3)
    assert refusal(capsys, *features(data, backbone, tmp_path / "none", "--size", 0), code=2).endswith(
        "--size must be at least 1, not 0"
    )


def test_limits_keep_a_part_of_the_same_features(data, backbone, tmp_path):
    for name, limits in (("all", []), ("some", ["--base-limit", 2, "--novel-limit", 5])):
        assert call(*features(data, backbone, tmp_path / name, "--precision", "float32", *limits)) == 0
    every, some = banks.Bank.load(tmp_path / "all"), banks.Bank.load(tmp_path / "some")
    place = {name: row for row, name in enumerate(every.base.ids)}
    assert torch.equal(some.base.features, every.base.features[[place[name] for name in some.base.ids]])
    assert torch.equal(some.mean, every.mean)
    assert torch.equal(some.test.features, every.test.features)


def test_a_limit_keeps_the_pictures_of_published_lists_first(data, backbone, tmp_path):
    assert call(*features(data, backbone, tmp_path / "all")) == 0
    every = banks.Bank.load(tmp_path / "all")
    for seed in (0, 1):
        lists = write_lists(tmp_path / f"lists{seed}", every, draw(every, seed))
        limits = ["--novel-limit", every.scenario.shot, "--splits", lists]
        assert call(*features(data, backbone, tmp_path / "some", *limits)) == 0
        some = banks.Bank.load(tmp_path / "some")
        for label, rows in published(some, lists).items():
            names = [every.novel.ids[row] for row in published(every, lists)[label]]
            assert [some.novel.ids[row] for row in rows] == names


@pytest.mark.slow
def test_two_processes_extract_the_bank_of_one(data, backbone, tmp_path):
    more = ("--views", 2, "--precision", "float32")
    assert call(*features(data, backbone, tmp_path / "one", *more)) == 0
    done = typed(*features(data, backbone, tmp_path / "two", "--devices", 2, *more))
    assert done.returncode == 0, done.stderr
    one, two = (banks.Bank.load(tmp_path / name) for name in ("one", "two"))
    for name in ("base", "novel", "test"):
        ours, theirs = getattr(one, name), getattr(two, name)
        assert ours.labels.tolist() == theirs.labels.tolist()
        assert ours.ids == theirs.ids
        torch.testing.assert_close(ours.features, theirs.features, rtol=0, atol=1e-5)
        if ours.views is not None:
            torch.testing.assert_close(ours.views, theirs.views, rtol=0, atol=1e-5)
    torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=1e-5)


def test_a_picture_that_is_none_is_refused_by_name_or_skipped(data, backbone, tmp_path, capsys):
    folder = write_tiny(tmp_path / "data")
    text = folder / "train" / "base_1" / "text.jpg"
    text.write_text("not a picture")
    out = tmp_path / "tiny.safetensors"
    said = refusal(capsys, *features(folder, backbone, out), code=1)
    assert said.startswith(f"{text} cannot be read as a picture")
    assert "--broken skip" in said
    assert not out.exists()
    assert call(*features(folder, backbone, out, "--broken", "skip")) == 0
    assert sentence(capsys.readouterr().err).startswith(f"skipped: {text}")
    assert call(*features(data, backbone, tmp_path / "clean", "--precision", "float16")) == 0
    assert torch.equal(banks.Bank.load(out).base.features, banks.Bank.load(tmp_path / "clean").base.features)


# mistakes with folders


def test_a_folder_that_is_not_there_is_refused(backbone, tmp_path, capsys):
    said = refusal(capsys, *features(tmp_path / "none", backbone, tmp_path / "out"), code=1)
    assert said.startswith(f"no data folder at {tmp_path / 'none'}")


def test_an_empty_folder_is_refused(backbone, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    said = refusal(capsys, *features(tmp_path / "empty", backbone, tmp_path / "out"), code=1)
    assert said.startswith(f"no pictures in {tmp_path / 'empty'}")


def test_two_folders_that_read_as_one_class_name_are_refused(backbone, tmp_path, capsys):
    write_class_folders(tmp_path / "data", dict.fromkeys(["a_b", "a b", "c", "d", "e"], 6))
    said = refusal(capsys, *features(tmp_path / "data", backbone, tmp_path / "out"), code=2)
    assert "class name given twice: a b" in said


def test_a_class_with_fewer_pictures_than_shots_is_named(data, backbone, tmp_path, capsys):
    words = replaced(features(data, backbone, tmp_path / "out"), "--shot", 9)
    assert "class 'novel_4' has 8 training pictures" in refusal(capsys, *words, code=1)


@pytest.mark.parametrize(
    ("option", "value", "code", "why"),
    [
        ("--base", 7, 2, "--base is 7, but there are only 6 classes"),
        ("--base", 1, 2, "--base must be at least 2"),
        ("--way", 0, 2, "--way must be at least 1"),
        ("--backbone", "resnet12", 2, "resnet12 comes without weights"),
        ("--backbone", "resent12", 2, "did you mean resnet12?"),
    ],
)
def test_a_wrong_value_is_refused(data, backbone, tmp_path, capsys, option, value, code, why):
    words = replaced(features(data, backbone, tmp_path / "out"), option, value)
    assert why in refusal(capsys, *words, code=code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--sessions", 9],
        ["--batch", 0],
        ["--batch", -1],
        ["--views", -1],
        ["--base-limit", 0],
        ["--novel-limit", 2],
        ["--seed", -1, "--base-limit", 2],
        ["--devices", 0],
    ],
    ids=str,
)
def test_a_number_that_makes_no_sense_is_refused(data, backbone, tmp_path, capsys, options):
    capsys.readouterr()
    assert call(*features(data, backbone, tmp_path / "out", *options)) in (1, 2)
    sentence(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_folder_needs_to_know_its_base_classes(data, backbone, tmp_path, capsys):
    words = features(data, backbone, tmp_path / "out")
    at = words.index("--base")
    assert "scenario folder needs --base" in refusal(capsys, *words[:at], *words[at + 2 :], code=2)


def test_a_bundled_scenario_takes_no_base_and_finds_no_foreign_classes(data, backbone, tmp_path, capsys):
    words = ["cifar100" if word == "folder" else word for word in features(data, backbone, tmp_path / "out")]
    assert "cifar100 has its own base classes" in refusal(capsys, *words, code=2)
    at = words.index("--base")
    said = refusal(capsys, *words[:at], *words[at + 2 :], code=1)
    assert "no training pictures of 100 of the 100 classes of scenario cifar100" in said


def test_a_misspelt_scenario_gives_the_nearest(data, backbone, tmp_path, capsys):
    words = ["cifar10" if word == "folder" else word for word in features(data, backbone, tmp_path / "out")]
    assert refusal(capsys, *words, code=2) == "no scenario called 'cifar10'; did you mean cifar100?"


# mistakes with files


def test_a_bank_that_is_none_is_refused(backbone, tmp_path, capsys):
    junk = tmp_path / "junk.safetensors"
    junk.write_bytes(b"junk")
    assert f"{junk} is damaged or not a bank file" in refusal(capsys, "bank", junk, code=1)
    assert refusal(capsys, "bank", tmp_path / "none", code=1) == f"no bank file at {tmp_path / 'none'}"
    assert "a file of format concm-backbone-1, not a bank" in refusal(capsys, "bank", backbone, code=1)
    assert str(tmp_path) in refusal(capsys, "bank", tmp_path, code=1)


def test_a_truncated_bank_is_refused(tmp_path, capsys):
    file = tmp_path / "bank.safetensors"
    make_bank().save(file)
    file.write_bytes(file.read_bytes()[:-10])
    assert f"{file} is damaged" in refusal(capsys, "bank", file, code=1)


def test_published_shots_that_are_not_there_are_refused(tmp_path, capsys):
    file = tmp_path / "bank.safetensors"
    make_bank().save(file)
    said = refusal(capsys, "bank", file, "--splits", tmp_path, code=1)
    assert said.startswith(f"no index list at {tmp_path / 'session_2.txt'}")


def test_a_place_that_cannot_be_written_is_refused(data, backbone, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "bank.safetensors"
    assert f"cannot write {out}" in refusal(capsys, *features(data, backbone, out), code=1)


def test_a_full_disk_leaves_nothing_half_written(data, backbone, tmp_path, monkeypatch, capsys):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "new" / "bank.safetensors"
    assert call(*features(data, backbone, tmp_path / "warm.safetensors")) == 0
    monkeypatch.setattr(os, "fsync", full)
    assert os.strerror(errno.ENOSPC) in refusal(capsys, *features(data, backbone, out), code=1)
    assert list(out.parent.iterdir()) == []


def test_ctrl_c_is_a_sentence_too(data, backbone, tmp_path, monkeypatch, capsys):
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Encoder, "encode", pressed)
    assert "interrupted" in refusal(capsys, *features(data, backbone, tmp_path / "out"), code=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_mistakes_typed_into_a_shell_show_no_traceback(tmp_path):
    done = typed("bank", tmp_path / "none")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr


def test_attributes_of_names_are_shown_and_no_name_is_a_mistake(capsys):
    assert call("attributes", "crane", "--among", "cifar100") == 0
    shown = capsys.readouterr().out
    assert "n02012849" in shown
    assert "wing" in shown
    assert call("attributes") == 2
    assert "takes class names" in sentence(capsys.readouterr().err)


def test_a_backbone_trained_for_validation_gives_a_bank_to_tune_on(data, backbone, tmp_path, capsys):
    train = ["train", "folder", "--data", data, "--out", tmp_path / "run", *CUT, "--backbone", "resnet20"]
    assert call(*train, "--epochs", 1, "--batch", 8, "--seed", 3, "--validate") == 0
    out = tmp_path / "bank.safetensors"
    assert call(*features(data, tmp_path / "run", out, "--validate")) == 0
    bank = banks.Bank.load(out)
    whole = of_folder([path.name for path in (data / "train").iterdir()], base=4, way=1, shot=5, size=32)
    assert bank.scenario.name == "folder-validation"
    assert sorted(bank.scenario.keys) == sorted(whole.keys[:4])
    assert bank.scenario.base == 3
    assert len(bank.base.labels) + len(bank.novel.labels) + len(bank.test.labels) == 4 * 8
    said = refusal(capsys, *features(data, backbone, tmp_path / "other.safetensors", "--validate"), code=2)
    assert "trained with --validate" in said


@pytest.mark.promise
def test_the_arguments_that_a_library_s_sentence_names_are_shown_as_options():
    sentence = 'remove it, or say `broken="skip"`; `novel_limit` is too small, see `concm features` and `no_option`'
    shown = "remove it, or say --broken skip; --novel-limit is too small, see `concm features` and `no_option`"
    assert in_options(sentence, app) == shown
