"""Feature banks: what goes through a file and comes back, what is refused, and the sessions cut from a bank."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import save_file

from concm.errors import ConcmError, Misuse
from concm.features.bank import Bank, Part
from concm.features.sessions import BaseSession, Session, draw, published, sessions
from concm.features.storage import KIND
from concm.files import load_tensors, save_tensors, write_whole
from tests.support.data import make_bank, write_lists

PRECISIONS = ["float32", "float16", "int8"]
LABELS = {"base": [0, 1, 0], "novel": [2, 3, 2, 3], "test": [0, 1, 2, 3, 3]}


def saved(tmp_path: Path, bank: Bank, precision: str = "float32") -> Path:
    path = tmp_path / "some.safetensors"
    bank.save(path, precision)
    return path


def parts_of(bank: Bank) -> dict[str, Part]:
    return {"base": bank.base, "novel": bank.novel, "test": bank.test}


def grid_step(bank: Bank) -> torch.Tensor:
    """A 255th of each dimension's range over everything that the bank holds."""
    parts = parts_of(bank).values()
    values = [part.features for part in parts] + [part.views.flatten(0, 1) for part in parts if part.views is not None]
    return (torch.cat(values).amax(0) - torch.cat(values).amin(0)) / 255


def assert_close(found: torch.Tensor, given: torch.Tensor, precision: str, step: torch.Tensor) -> None:
    assert found.dtype == torch.float32
    if precision == "int8":
        rounding = 1e-12 + 8 * torch.finfo(torch.float32).eps * given.abs().max()
        assert ((found - given).abs() <= step / 2 + rounding).all()
    else:
        assert torch.equal(found, given.to(getattr(torch, precision)).float())


# through a file


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(
    values=arrays(np.float32, (12, 3), elements=st.floats(-1e4, 1e4, width=32)),
    scale=st.sampled_from([1.0, 1e-3, 100 / 1e4]),
)
def test_features_survive_a_file(tmp_path_factory, precision, values, scale):
    features = torch.from_numpy(values) * scale
    split = features.split([len(labels) for labels in LABELS.values()])
    bank = replace(
        make_bank(base=2, novel=2, way=1, shot=1, dimension=3),
        **{name: Part(split[at], torch.tensor(LABELS[name])) for at, name in enumerate(LABELS)},
    )
    path = tmp_path_factory.getbasetemp() / f"{precision}.safetensors"
    bank.save(path, precision)
    found = Bank.load(path)
    for name, part in parts_of(bank).items():
        assert_close(parts_of(found)[name].features, part.features, precision, grid_step(bank))
        assert parts_of(found)[name].labels.tolist() == LABELS[name]


@pytest.mark.promise
@pytest.mark.parametrize("precision", PRECISIONS)
def test_everything_else_survives_a_file(tmp_path, precision):
    bank = make_bank()
    found = Bank.load(saved(tmp_path, bank, precision))
    assert found.scenario == bank.scenario
    assert found.encoder == bank.encoder
    assert found.base.ids == bank.base.ids
    assert found.novel.ids == bank.novel.ids
    assert found.counts.tolist() == bank.counts.tolist()
    assert found.card.precision == precision
    assert found.dimension == 5


@pytest.mark.parametrize("precision", PRECISIONS)
def test_statistics_are_exact_whatever_the_precision(tmp_path, precision):
    bank = make_bank()
    found = Bank.load(saved(tmp_path, bank, precision))
    assert found.mean.dtype == found.std.dtype == torch.float32
    assert torch.equal(found.mean, bank.mean)
    assert torch.equal(found.std, bank.std)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_views_survive_a_file(tmp_path, precision):
    bank = make_bank(views=3)
    found = Bank.load(saved(tmp_path, bank, precision))
    for name in ("base", "novel"):
        assert parts_of(found)[name].views.shape == (*parts_of(bank)[name].features.shape[:1], 3, 5)
        assert_close(parts_of(found)[name].views, parts_of(bank)[name].views, precision, grid_step(bank))
    assert found.test.views is None


def test_views_beyond_the_features_range_are_not_clipped(tmp_path):
    bank = make_bank()
    bank = replace(bank, base=replace(bank.base, views=3 * bank.base.views))
    found = Bank.load(saved(tmp_path, bank, "int8"))
    assert_close(found.base.views, bank.base.views, "int8", grid_step(bank))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_dimension_that_never_changes_keeps_its_value(tmp_path, precision):
    bank = make_bank()
    value = torch.tensor([0.25, 0, -3])
    constant = {name: Part(value.repeat(len(part.labels), 1), part.labels) for name, part in parts_of(bank).items()}
    statistics = {"mean": torch.zeros(4, 3), "std": torch.ones(4, 3)}
    found = Bank.load(saved(tmp_path, replace(bank, **constant, **statistics), precision))
    assert (found.test.features - value).abs().max() < 1e-6


def test_a_bank_without_novel_classes_survives_a_file(tmp_path):
    found = Bank.load(saved(tmp_path, make_bank().vary(sessions=0), "int8"))
    assert found.novel.features.shape == (0, 5)
    assert [session.index for session in sessions(found, draw(found, 0))] == [0]


def test_int8_takes_a_quarter_of_float32(tmp_path):
    bank = make_bank(images=200, dimension=64)
    sizes = [saved(tmp_path, bank, precision).stat().st_size for precision in ("int8", "float32")]
    assert sizes[0] < 0.35 * sizes[1]


def realistic_bank() -> Bank:
    """12 base and 8 novel classes, 64 non-negative, skewed dimensions of different scale, 40,000 test images."""
    random = np.random.default_rng(0)
    scales = random.lognormal(-1, 0.7, 64)
    centres = random.gamma(1.0, 1.0, (20, 64))

    def part(first: int, last: int, images: int) -> Part:
        labels = np.repeat(np.arange(first, last), images)
        features = np.maximum(centres[labels] + random.normal(0, 1.6, (len(labels), 64)), 0) * scales
        return Part(torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels))

    base = part(0, 12, 100)
    mean = base.features.view(12, 100, 64).mean(1)
    bank = make_bank(base=12, novel=8, way=2, shot=5, dimension=64)
    return replace(bank, base=base, novel=part(12, 20, 20), test=part(0, 20, 2000), mean=mean, std=mean.clone())


def nearest_mean_accuracy(bank: Bank) -> float:
    """In per cent, after the last session."""
    shots = [bank.novel.features[rows].mean(0) for rows in draw(bank, 0).values()]
    means = torch.cat([bank.mean, torch.stack(shots)])
    predicted = (F.normalize(bank.test.features) @ F.normalize(means).T).argmax(1)
    return 100 * (predicted == bank.test.labels).double().mean().item()


def test_int8_moves_nearest_mean_accuracy_by_less_than_a_tenth_of_a_point(tmp_path):
    bank = realistic_bank()
    exact = nearest_mean_accuracy(bank)
    assert 60 < exact < 90, "too hard or too easy to show anything"
    assert abs(nearest_mean_accuracy(Bank.load(saved(tmp_path, bank, "int8"))) - exact) < 0.1


# refused


def test_a_missing_bank_is_named(tmp_path):
    with pytest.raises(ConcmError, match=f"no bank file at {tmp_path / 'gone.safetensors'}"):
        Bank.load(tmp_path / "gone.safetensors")


@pytest.mark.promise
@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.9, 0.9999])
def test_a_truncated_bank_is_refused_by_name(tmp_path, share):
    path = saved(tmp_path, make_bank())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ConcmError, match=f"{path} is damaged or not a bank file"):
        Bank.load(path)


def test_a_text_file_is_refused_by_name(tmp_path):
    path = tmp_path / "some.safetensors"
    path.write_text("this is not a bank " * 100)
    with pytest.raises(ConcmError, match=f"{path} is damaged or not a bank file"):
        Bank.load(path)


def test_a_folder_is_refused_by_name(tmp_path):
    with pytest.raises(ConcmError, match=str(tmp_path)):
        Bank.load(tmp_path)


def test_somebody_elses_safetensors_file_is_refused_by_name(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ConcmError, match=f"{path} is some other safetensors file, not a bank"):
        Bank.load(path)


def test_another_kind_of_our_own_files_is_refused_by_name(tmp_path):
    path = tmp_path / "backbone.safetensors"
    save_tensors(path, "concm-backbone-1", {"weight": torch.zeros(3)}, {})
    with pytest.raises(ConcmError, match=f"{path} is a file of format concm-backbone-1, not a bank"):
        Bank.load(path)


def test_a_bank_of_another_scenario_is_refused_by_both_names(tmp_path):
    path = saved(tmp_path, make_bank())
    assert Bank.load(path, "folder").scenario.name == "folder"
    with pytest.raises(Misuse, match=f"{path} holds features of scenario folder, not of cifar100"):
        Bank.load(path, "cifar100")


def damaged(tmp_path: Path, change, precision: str = "float32") -> Path:
    """A bank of 4 base and 6 novel classes after `change(tensors, meta)`."""
    path = saved(tmp_path, make_bank(), precision)
    tensors, meta = load_tensors(path, KIND)
    change(tensors, meta)
    save_tensors(path, KIND, tensors, meta)
    return path


@pytest.mark.parametrize("name", ["mean", "std", "counts", "base/features", "novel/labels", "test/features", "scale"])
def test_a_bank_that_lacks_a_tensor_is_refused_by_name(tmp_path, name):
    path = damaged(tmp_path, lambda tensors, _: tensors.pop(name), "int8")
    with pytest.raises(ConcmError, match=rf"{path} is damaged or not a feature bank.*{name}"):
        Bank.load(path)


@pytest.mark.parametrize("name", ["scenario", "ids", "encoder", "card", "precision"])
def test_a_bank_that_lacks_metadata_is_refused_by_name(tmp_path, name):
    path = damaged(tmp_path, lambda _, meta: meta.pop(name))
    with pytest.raises(ConcmError, match=str(path)):
        Bank.load(path)


@pytest.mark.parametrize(("part", "label"), [("base", 4), ("base", -1), ("novel", 3), ("novel", 10), ("test", 10)])
def test_labels_out_of_range_are_refused_by_part(tmp_path, part, label):
    path = damaged(tmp_path, lambda tensors, _: tensors[f"{part}/labels"].__setitem__(0, label))
    with pytest.raises(ConcmError, match=f"{path} is damaged .*its {part} part does not fit scenario folder"):
        Bank.load(path)


@pytest.mark.parametrize("name", ["base/features", "base/labels", "novel/features", "novel/views", "test/labels"])
def test_tensors_of_different_lengths_are_refused(tmp_path, name):
    path = damaged(tmp_path, lambda tensors, _: tensors.update({name: tensors[name][:-1]}))
    with pytest.raises(ConcmError, match=f"{path} is damaged .*its {name.split('/')[0]} part does not fit"):
        Bank.load(path)


def test_a_wrong_number_of_picture_names_is_refused(tmp_path):
    path = damaged(tmp_path, lambda _, meta: meta["ids"]["novel"].pop())
    with pytest.raises(ConcmError, match=f"{path} is damaged .*its novel part does not fit"):
        Bank.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["base/features", "base/views", "mean"])
def test_features_that_are_no_numbers_are_refused(tmp_path, name, value):
    path = damaged(tmp_path, lambda tensors, _: tensors[name].view(-1).__setitem__(0, value))
    with pytest.raises(ConcmError, match=str(path)):
        Bank.load(path)


@pytest.mark.parametrize("names", [["mean", "std"], ["mean"], ["std"], ["counts"]], ids="+".join)
def test_statistics_for_another_number_of_classes_are_refused(tmp_path, names):
    path = damaged(tmp_path, lambda tensors, _: tensors.update({name: tensors[name][:3] for name in names}))
    with pytest.raises(ConcmError, match=f"{path} is damaged .* statistics "):
        Bank.load(path)


# writing whole files


def full_disk(monkeypatch) -> None:
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    path = tmp_path / "some.safetensors"
    write_whole(path, b"old")
    full_disk(monkeypatch)
    with pytest.raises(ConcmError, match=f"cannot write {path}: No space left on device"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_bank_readable(tmp_path, monkeypatch):
    path = saved(tmp_path, make_bank())
    full_disk(monkeypatch)
    with pytest.raises(ConcmError, match=str(path)):
        make_bank(dimension=7).save(path)
    assert Bank.load(path).dimension == 5


def test_an_interruption_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    path = tmp_path / "some.safetensors"
    write_whole(path, b"old")
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_whole_file_replaces_the_old_one_and_makes_its_folder(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    for data in (b"first", b"second"):
        write_whole(path, data)
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConcmError, match=f"cannot write {tmp_path / 'file' / 'bank'}"):
        write_whole(tmp_path / "file" / "bank", b"data")


# variants


def test_a_variant_with_fewer_sessions_keeps_only_their_classes():
    bank = make_bank().vary(sessions=2)
    assert bank.novel.labels.unique().tolist() == [4, 5, 6, 7]
    assert bank.test.labels.unique().tolist() == list(range(8))
    assert len(bank.novel.ids) == len(bank.novel.labels) == len(bank.novel.features) == len(bank.novel.views)


def test_more_shots_than_candidates_are_refused_with_the_number_there_is():
    assert make_bank(images=8).vary(shot=8).scenario.shot == 8
    with pytest.raises(Misuse, match="`shot` can be at most 8"):
        make_bank(images=8).vary(shot=9)


# sessions


def test_the_base_session_brings_base_features_and_statistics():
    bank = make_bank()
    first = next(sessions(bank, draw(bank, 0)))
    assert isinstance(first, BaseSession)
    assert (first.index, first.classes) == (0, range(4))
    assert first.names == ("class 00", "class 01", "class 02", "class 03")
    assert torch.equal(first.features, bank.base.features)
    assert torch.equal(first.labels, bank.base.labels)
    assert torch.equal(first.views, bank.base.views)
    assert torch.equal(first.mean, bank.mean)
    assert torch.equal(first.std, bank.std)


def test_each_session_brings_the_shots_of_its_own_classes():
    bank = make_bank(way=4)  # 6 novel classes: the last session is smaller
    shots = draw(bank, 0)
    later = list(sessions(bank, shots))[1:]
    assert [session.index for session in later] == [1, 2]
    assert [session.classes for session in later] == [range(4, 8), range(8, 10)]
    assert later[1].names == ("class 08", "class 09")
    for session in later:
        rows = [row for label in session.classes for row in shots[label]]
        assert session.labels.tolist() == [label for label in session.classes for _ in range(5)]
        assert torch.equal(session.features, bank.novel.features[rows])
        assert torch.equal(session.views, bank.novel.views[rows])
        assert type(session) is Session


def test_a_draw_takes_different_candidates_of_the_right_class():
    bank = make_bank()
    shots = draw(bank, 0)
    assert list(shots) == list(range(4, 10))
    for label, rows in shots.items():
        assert len(set(rows)) == 5
        assert bank.novel.labels[rows].tolist() == [label] * 5


def test_draws_depend_on_the_seed_alone():
    bank = make_bank()
    assert draw(bank, 1) == draw(make_bank(), 1)
    assert all(draw(bank, 1)[label] != draw(bank, 2)[label] for label in range(4, 10))


@pytest.mark.parametrize("seed", range(5))
def test_one_shot_is_among_the_five(seed):
    one, five = (draw(make_bank().vary(shot=shot), seed) for shot in (1, 5))
    assert all(len(one[label]) == 1 and set(one[label]) < set(five[label]) for label in range(4, 10))


@pytest.mark.parametrize("asked", [{"way": 1}, {"way": 6}, {"sessions": 1}, {"way": 3, "sessions": 1}])
def test_a_classs_shots_do_not_depend_on_the_other_classes(asked):
    bank = make_bank()
    varied = bank.vary(**asked)
    shots, expected = draw(varied, 3), draw(bank, 3)
    for label in range(4, len(varied.scenario.keys)):
        names = [varied.novel.ids[row] for row in shots[label]]
        assert names == [bank.novel.ids[row] for row in expected[label]]


# published lists


def renamed(bank: Bank, name: str) -> Bank:
    ids = [name.format(row=row, label=int(label)) for row, label in enumerate(bank.novel.labels)]
    return replace(bank, novel=replace(bank.novel, ids=ids))


def test_published_numbers_are_resolved(tmp_path):
    bank = make_bank()
    shots = draw(bank, 5)
    assert published(bank, write_lists(tmp_path / "lists", bank, shots)) == shots


@pytest.mark.parametrize("name", ["{label}/photo_{row}.jpg", "photo_{row}.jpg"], ids=["with folder", "name alone"])
@pytest.mark.parametrize("line", ["{}", "data/images/{}", "MINI-ImageNet/train/n0/{}"])
def test_published_paths_are_resolved_by_file_name(tmp_path, name, line):
    bank = renamed(make_bank(), name)
    shots = draw(bank, 5)
    assert published(bank, write_lists(tmp_path / "lists", bank, shots, line.format)) == shots


def numbered_anew(bank: Bank, name: str) -> Bank:
    """Candidates that have a number within their class, so that file names alone may not tell them apart."""
    labels = bank.novel.labels.tolist()
    numbers = [labels[:row].count(label) for row, label in enumerate(labels)]
    ids = [
        name.format(label=labels[row], number=number, half=number // 2, row=row) for row, number in enumerate(numbers)
    ]
    return replace(bank, novel=replace(bank.novel, ids=ids))


@pytest.mark.parametrize(
    "name", ["class_{label}/{number}.jpg", "{row}/{label}_{half}.jpg"], ids=["another class", "the same"]
)
def test_a_published_path_is_never_taken_for_a_picture_of_the_same_file_name(tmp_path, name):
    bank = numbered_anew(make_bank(), name)
    shots = draw(bank, 5)
    assert published(bank, write_lists(tmp_path / "lists", bank, shots, "data/images/{}".format)) == shots


def test_a_published_file_name_that_two_pictures_have_is_refused(tmp_path):
    bank = numbered_anew(make_bank(novel=2), "{row}/{label}_{half}.jpg")
    lists = write_lists(tmp_path / "lists", bank, draw(bank, 5))
    (lists / "session_2.txt").write_text("".join(f"{label}_{at % 4}.jpg\n" for label in (4, 5) for at in range(5)))
    with pytest.raises(ConcmError, match=rf"{lists / 'session_2.txt'} .*4_0\.jpg"):
        published(bank, lists)


def test_published_lists_give_fewer_shots_from_their_beginning(tmp_path):
    bank = make_bank()
    shots = draw(bank, 5)
    lists = write_lists(tmp_path / "lists", bank, shots)
    assert published(bank.vary(shot=1), lists) == {label: rows[:1] for label, rows in shots.items()}


def test_an_unknown_picture_is_named_with_its_list(tmp_path):
    bank = make_bank()
    lists = write_lists(tmp_path / "lists", bank, draw(bank, 5))
    (lists / "session_3.txt").write_text("31415\n")
    with pytest.raises(ConcmError, match=f"{lists / 'session_3.txt'} names 31415, .* not among the 48 candidates"):
        published(bank, lists)


def test_a_missing_list_is_named(tmp_path):
    bank = make_bank()
    lists = write_lists(tmp_path / "lists", bank, draw(bank, 5))
    (lists / "session_4.txt").unlink()
    with pytest.raises(ConcmError, match=f"no index list at {lists / 'session_4.txt'}"):
        published(bank, lists)


def test_a_list_with_too_few_shots_is_refused_by_class(tmp_path):
    bank = make_bank()
    shots = draw(bank, 5)
    shots[7] = shots[7][:4]
    lists = write_lists(tmp_path / "lists", bank, shots)
    with pytest.raises(ConcmError, match=f"{lists} has fewer than 5 shots of class 'class_07'"):
        published(bank, lists)
