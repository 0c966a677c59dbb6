"""The protocol: what a method is shown, and when."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from concm.evaluation.controls import average
from concm.evaluation.protocol import run
from concm.features.bank import Part
from concm.features.sessions import draw
from tests.support.data import make_bank
from tests.support.runs import figures


def test_draws_are_averaged_session_by_session():
    runs = [
        [figures(at, value, value, value, value) for at, value in enumerate(values)] for values in ((10, 20), (30, 60))
    ]
    assert [found["acc"] for found in average(runs)] == [20, 40]
    assert [found["hm"] for found in average(runs)] == [20, 40]


class Perfect:
    """Knows each test image by its first value, which is its class; keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list = []
        self.seen = 0

    def fit_base(self, base) -> None:
        assert self.seen == 0
        self.learn(base)

    def learn(self, session) -> None:
        self.shown.append(session)
        self.seen = session.classes.stop

    def scores(self, features):
        return torch.nn.functional.one_hot(features[:, 0].long(), self.seen).float()


def bank_that_tells():
    """Every feature begins with its label, and ends with 1 in test images and 0 elsewhere."""
    bank = make_bank(base=4, novel=6, way=2)

    def told(part: Part, test: float) -> Part:
        features = part.features.clone()
        features[:, 0], features[:, -1] = part.labels.float(), test
        return replace(part, features=features)

    return replace(bank, base=told(bank.base, 0), novel=told(bank.novel, 0), test=told(bank.test, 1))


def test_a_perfect_method_has_a_hundred_per_cent_everywhere():
    bank = bank_that_tells()
    rows = list(run(Perfect(), bank, draw(bank, 0)))
    assert len(rows) == 4
    perfect = {"acc": 100, "acc_base": 100, "acc_novel": 100, "hm": 100, "ber": 0, "fpr": 0, "fnr": 0}
    for row in rows:
        expected = perfect if row.index else {**perfect, "acc_novel": 0, "hm": 0}
        assert {name: getattr(row, name) for name in expected} == expected
        assert asdict(row.class_means) == expected
        assert row.confusion == (8 * torch.eye(row.classes, dtype=torch.long)).tolist()


def test_the_last_session_has_the_trade_off_and_without_bias_it_is_its_figures():
    bank = bank_that_tells()

    class Unsure(Perfect):
        """Guesses, the same for the same image."""

        def scores(self, features):
            return torch.rand(len(features), self.seen, generator=torch.Generator().manual_seed(0))

    *others, last = run(Unsure(), bank, draw(bank, 0))
    curve = last.trade_off
    plain = curve.bias.index(0)
    assert curve.bias == sorted(curve.bias)
    assert curve.base[plain] == pytest.approx(last.acc_base)
    assert curve.novel[plain] == pytest.approx(last.acc_novel)
    assert curve.novel[0] == curve.base[-1] == 0
    assert all(row.trade_off is None for row in others)


@pytest.mark.promise
def test_a_method_is_never_shown_a_test_image_to_learn_from():
    bank, method = bank_that_tells(), Perfect()
    list(run(method, bank, draw(bank, 0)))
    assert [session.index for session in method.shown] == [0, 1, 2, 3]
    for session in method.shown:
        assert (session.features[:, -1] == 0).all()
        assert set(session.labels.tolist()) == set(session.classes)


def test_after_each_session_the_classes_seen_so_far_are_asked_for():
    bank = bank_that_tells()
    asked = []

    class Listening(Perfect):
        def scores(self, features):
            asked.append(sorted(set(features[:, 0].long().tolist())))
            assert (features[:, -1] == 1).all()
            return super().scores(features)

    list(run(Listening(), bank, draw(bank, 0)))
    assert asked == [list(range(seen)) for seen in (4, 6, 8, 10)]


def test_a_session_is_learned_only_when_its_row_is_asked_for():
    bank, method = bank_that_tells(), Perfect()
    rows = run(method, bank, draw(bank, 0))
    next(rows)
    assert len(method.shown) == 1
