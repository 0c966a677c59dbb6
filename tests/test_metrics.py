"""Metrics against their definitions, and the protocol: what a method is shown, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concm.data.bank import Part
from concm.data.sessions import draw
from concm.evaluation.controls import average
from concm.evaluation.metrics import accuracies, confusion
from concm.evaluation.protocol import run
from conftest import make_bank

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60)


def slow_share(answers: list[tuple[int, int]], among: range) -> float:
    asked = [(label, given) for label, given in answers if label in among]
    return 100 * sum(label == given for label, given in asked) / len(asked) if asked else 0.0


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(answers=pairs, base=st.integers(1, 7))
def test_metrics_are_those_of_a_slow_loop(answers, base):
    labels, predicted = torch.tensor(answers).T
    matrix = confusion(labels, predicted, 7)
    for row in range(7):
        for column in range(7):
            assert matrix[row, column] == answers.count((row, column))
    found = accuracies(matrix, base)
    old, new = slow_share(answers, range(base)), slow_share(answers, range(base, 7))
    assert found["acc"] == pytest.approx(slow_share(answers, range(7)))
    assert found["acc_base"] == pytest.approx(old)
    assert found["acc_novel"] == pytest.approx(new)
    assert found["hm"] == pytest.approx(2 / (1 / old + 1 / new) if old and new else 0)


def test_the_harmonic_mean_punishes_the_forgotten_side():
    matrix = torch.tensor([[9, 1, 0], [1, 9, 0], [4, 4, 2]])
    assert accuracies(matrix, 2) == pytest.approx(
        {"acc": 100 * 20 / 30, "acc_base": 90.0, "acc_novel": 20.0, "hm": 2 * 90 * 20 / 110}
    )


def test_draws_are_averaged_session_by_session():
    def row(value: float) -> dict[str, float]:
        return dict.fromkeys(("acc", "acc_base", "acc_novel", "hm"), value)

    assert average([[row(10), row(20)], [row(30), row(60)]]) == [row(20), row(40)]


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
    assert rows[0] == {"acc": 100, "acc_base": 100, "acc_novel": 0, "hm": 0}
    assert all(row == {"acc": 100, "acc_base": 100, "acc_novel": 100, "hm": 100} for row in rows[1:])


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
