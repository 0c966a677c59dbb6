"""The CIFAR-100 bank that ships with concm: what it holds, what storing it cost, and what users see of it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch

from concm.evaluation.controls import average, nearest_mean
from concm.features.bank import Bank
from concm.features.sessions import draw
from tests.support.tiny import call, complaints, sentence, typed

FILE = Path(str(files("concm") / "assets" / "cifar100.safetensors"))


@pytest.fixture(scope="module")
def bank():
    return Bank.bundled()


def test_it_is_small_enough_for_a_wheel():
    assert FILE.stat().st_size <= 18_000_000


def test_it_is_cifar100_cut_as_the_field_cuts_it(bank):
    scenario = bank.scenario
    assert (scenario.name, scenario.base, len(scenario.keys)) == ("cifar100", 60, 100)
    assert (scenario.sessions, scenario.way, scenario.shot) == (8, 5, 5)


def test_it_has_all_test_images(bank):
    assert torch.bincount(bank.test.labels).tolist() == [100] * 100


def test_its_statistics_are_over_all_base_images_that_were_trained_on(bank):
    held = torch.bincount(bank.base.labels[bank.base.held], minlength=60)
    assert (bank.counts + held).tolist() == [500] * 60
    assert held.tolist() == [10] * 60


def test_every_class_has_candidates_and_every_candidate_has_views(bank):
    for part, classes in ((bank.base, range(60)), (bank.novel, range(60, 100))):
        counts = torch.bincount(part.labels, minlength=100)[classes.start : classes.stop]
        assert counts.min() == counts.max() >= 30
        assert len(set(part.ids)) == len(part.labels)
    assert bank.novel.views.shape == (len(bank.novel.labels), 3, bank.dimension)
    assert bank.base.views is None


def test_views_resemble_their_picture_more_than_another(bank):
    views = torch.nn.functional.normalize(bank.novel.views[:, 0])
    pictures = torch.nn.functional.normalize(bank.novel.features)
    other = pictures.roll(len(pictures) // 2, 0)
    assert ((views * pictures).sum(1) > (views * other).sum(1)).float().mean() > 0.99


def test_int8_costs_at_most_a_tenth_of_a_point_in_every_session(bank):
    stored = average(nearest_mean(bank, [draw(bank, seed) for seed in range(5)]))
    recorded = bank.card.nearest_mean
    assert bank.card.precision == "int8"
    assert len(recorded) == len(stored) == 9
    for index, (ours, theirs) in enumerate(zip(stored, recorded, strict=True)):
        assert ours["acc"] == pytest.approx(theirs["acc"], abs=0.1), f"session {index}"


def test_it_is_as_good_as_promised(bank):
    assert bank.card.training["base_accuracy"] >= 82.8
    assert bank.card.nearest_mean[-1]["acc"] >= 59.0


# as a user types it


@pytest.mark.slow
def test_it_is_shown_without_any_argument():
    done = typed("bank")
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert "cifar100: 60 base classes, then 8 sessions of 5-way 5-shot" in done.stdout
    table = [line.split() for line in done.stdout.splitlines() if "±" in line and line[0].isdigit()]
    assert [row[:2] for row in table] == [[str(at), str(60 + 5 * at)] for at in range(9)]
    assert float(table[-1][2]) >= 59.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "summary", "rows"),
    [
        (["--shot", "1"], "8 sessions of 5-way 1-shot", 9),
        (["--way", "2", "--sessions", "20"], "20 sessions of 2-way 5-shot", 21),
        (["--sessions", "3"], "3 sessions of 5-way 5-shot", 4),
    ],
)
def test_it_can_be_cut_otherwise(options, summary, rows, capsys):
    assert call("bank", "--draws", 1, *options) == 0
    said, complained = capsys.readouterr()
    assert complaints(complained) == []
    assert summary in said
    assert "of 1 draws" in said
    assert sum("±" in line and line[0].isdigit() for line in said.splitlines()) == rows


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--shot", "99"], "--shot can be at most 36"),
        (["--sessions", "99"], "40 novel classes make 8 sessions of 5-way, not 99"),
        (["--draws", "0"], "--draws must be at least 1"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_what_it_cannot_give_is_refused(options, why, capsys):
    assert call("bank", *options) == 2
    assert why in sentence(capsys.readouterr().err)
