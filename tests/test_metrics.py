"""Metrics against their definitions."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concm.metrics import accuracies, class_mean_accuracies, confusion, harmonic, novel_at, trade_off

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60)


def slow_share(answers: list[tuple[int, int]], among: range) -> float:
    asked = [(label, given) for label, given in answers if label in among]
    return 100 * sum(label == given for label, given in asked) / len(asked) if asked else 0.0


def slow_mixed_up(answers: list[tuple[int, int]], base: int, *, positive: bool) -> float:
    """How often an image of one side, base (positive) or novel, is given a label of the other."""
    asked, wrong = 0, 0
    for label, answer in answers:
        if (label < base) == positive:
            asked += 1
            wrong += (answer < base) != positive
    return 100 * wrong / asked if asked else 0.0


@pytest.mark.promise
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
    assert found.acc == pytest.approx(slow_share(answers, range(7)))
    assert found.acc_base == pytest.approx(old)
    assert found.acc_novel == pytest.approx(new)
    assert found.hm == pytest.approx(2 / (1 / old + 1 / new) if old and new else 0)
    missed, false = slow_mixed_up(answers, base, positive=True), slow_mixed_up(answers, base, positive=False)
    assert found.fnr == pytest.approx(missed)
    assert found.fpr == pytest.approx(false)
    assert found.ber == pytest.approx((missed + false) / 2)


def test_the_harmonic_mean_punishes_the_forgotten_side():
    matrix = torch.tensor([[9, 1, 0], [1, 9, 0], [4, 4, 2]])
    found = accuracies(matrix, 2)
    assert asdict(found) == pytest.approx(
        {"acc": 100 * 20 / 30, "acc_base": 90, "acc_novel": 20, "hm": 2 * 90 * 20 / 110, "ber": 40, "fpr": 80, "fnr": 0}
    )


def test_base_images_called_novel_are_missed_and_novel_ones_called_base_are_false_alarms():
    missed = accuracies(torch.tensor([[0, 0, 4], [0, 4, 0], [0, 0, 4]]), 2)
    false = accuracies(torch.tensor([[4, 0, 0], [0, 4, 0], [3, 0, 1]]), 2)
    assert (missed.fnr, missed.fpr, missed.ber) == (50, 0, 25)
    assert (false.fnr, false.fpr, false.ber) == (0, 75, 37.5)


@given(st.floats(0, 100), st.floats(0, 100))
def test_the_harmonic_mean_lies_between_the_two_and_below_the_plain_mean(one, other):
    found = harmonic(one, other)
    assert min(one, other) - 1e-9 <= found <= (one + other) / 2 + 1e-9
    assert found == harmonic(other, one)


matrices = (
    st.integers(2, 6)
    .flatmap(lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n))
    .map(torch.tensor)
)


@given(matrix=matrices, base=st.integers(1, 5))
def test_class_means_are_means_over_the_classes_that_were_asked_for(matrix, base):
    shares = {label: float(row[label]) / float(row.sum()) for label, row in enumerate(matrix) if int(row.sum())}

    def mean(wanted) -> float:
        found = [share for label, share in shares.items() if wanted(label)]
        return 100 * sum(found) / len(found) if found else 0.0

    found = class_mean_accuracies(matrix, base)
    old, new = mean(lambda label: label < base), mean(lambda label: label >= base)
    assert found.acc == pytest.approx(mean(lambda _: True), rel=1e-5)
    assert found.acc_base == pytest.approx(old, rel=1e-5)
    assert found.acc_novel == pytest.approx(new, rel=1e-5)
    assert found.hm == pytest.approx(2 / (1 / old + 1 / new) if old and new else 0, rel=1e-5)


@given(
    answers=st.integers(1, 8).flatmap(
        lambda images: st.lists(st.lists(st.integers(0, 4), min_size=images, max_size=images), min_size=5, max_size=5)
    ),
    base=st.integers(1, 4),
)
def test_where_classes_have_as_many_images_class_means_are_the_plain_figures(answers, base):
    labels = torch.arange(5).repeat_interleave(len(answers[0]))
    matrix = confusion(labels, torch.tensor(answers).flatten(), 5)
    assert asdict(class_mean_accuracies(matrix, base)) == pytest.approx(asdict(accuracies(matrix, base)), rel=1e-5)


@given(matrix=matrices, base=st.integers(1, 5), times=st.lists(st.integers(1, 20), min_size=6, max_size=6))
def test_class_means_do_not_change_when_a_class_has_its_images_several_times(matrix, base, times):
    more = matrix * torch.tensor(times[: len(matrix)])[:, None]
    found, wanted = (asdict(class_mean_accuracies(some, base)) for some in (more, matrix))
    assert found == pytest.approx(wanted, rel=1e-5)


def test_a_large_class_hides_a_small_one_in_plain_figures_and_not_in_class_means():
    matrix = torch.tensor([[990, 0, 10], [10, 0, 0], [0, 0, 10]])
    assert accuracies(matrix, 2).acc_base == pytest.approx(100 * 990 / 1010)
    assert class_mean_accuracies(matrix, 2).acc_base == pytest.approx(49.5, rel=1e-5)


eighths = st.integers(-16, 16).map(lambda value: value / 8)  # so that sums and ties are exact


@st.composite
def scored(draw, values=eighths):
    """Scores of some images over base and novel classes, their labels, and the number of base classes."""
    classes = draw(st.integers(2, 6))
    images = draw(st.integers(1, 12))
    rows = st.lists(values, min_size=classes, max_size=classes)
    scores = draw(st.lists(rows, min_size=images, max_size=images))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=images, max_size=images))
    return torch.tensor(scores), torch.tensor(labels), draw(st.integers(1, classes - 1))


@settings(max_examples=100)
@given(images=scored(), biases=st.lists(eighths, min_size=1, max_size=8))
def test_the_trade_off_is_that_of_adding_each_bias_and_taking_the_best(images, biases):
    scores, labels, base = images
    old, new = trade_off(scores, labels, base, biases)
    assert len(old) == len(new) == len(biases)
    for at, bias in enumerate(biases):
        raised = scores.clone()
        raised[:, base:] += bias
        answers = list(zip(labels.tolist(), raised.argmax(1).tolist(), strict=True))
        assert old[at] == pytest.approx(slow_share(answers, range(base)))
        assert new[at] == pytest.approx(slow_share(answers, range(base, scores.shape[1])))


@given(images=scored(st.floats(-2, 2, width=32)), biases=st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_raising_novel_scores_never_helps_base_classes_and_never_hurts_novel_ones(images, biases):
    old, new = trade_off(*images, sorted(biases))
    assert (np.diff(old) <= 0).all()
    assert (np.diff(new) >= 0).all()


def test_a_bias_beyond_all_scores_leaves_one_side_nothing():
    random = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(200, 6, generator=random), torch.randint(0, 6, (200,), generator=random)
    old, new = trade_off(scores, labels, 4, np.array([-2.0, 2.0]))
    assert old[1] == new[0] == 0
    among_old = scores[labels < 4][:, :4].argmax(1) == labels[labels < 4]
    among_new = scores[labels >= 4][:, 4:].argmax(1) + 4 == labels[labels >= 4]
    assert old[0] == pytest.approx(100 * float(among_old.double().mean()))
    assert new[1] == pytest.approx(100 * float(among_new.double().mean()))


def test_a_tie_goes_to_the_base_class():
    old, new = trade_off(torch.tensor([[0.5, 0.25], [0.5, 0.25]]), torch.tensor([0, 1]), 1, [0.25, 0.375])
    assert old.tolist() == [100, 0]
    assert new.tolist() == [0, 100]


falling = st.lists(st.integers(0, 100), min_size=1, max_size=8, unique=True).map(lambda x: sorted(x, reverse=True))


@given(old=falling, random=st.randoms(use_true_random=False))
def test_on_a_point_of_the_curve_novel_accuracy_is_that_points_in_whatever_order_points_come(old, random):
    new = sorted(random.uniform(0, 100) for _ in old)
    points = list(zip(old, new, strict=True))
    mixed = random.sample(points, len(points))
    for base, novel in points:
        assert novel_at(base, old, new) == pytest.approx(novel)
        assert novel_at(base, *zip(*mixed, strict=True)) == pytest.approx(novel)


@given(share=st.floats(0, 1))
def test_between_two_points_it_is_on_the_line_between_them(share):
    old, new = [80.0, 60.0, 30.0], [10.0, 40.0, 50.0]
    assert novel_at(80 - 20 * share, old, new) == pytest.approx(10 + 30 * share)
    assert novel_at(60 - 30 * share, old, new) == pytest.approx(40 + 10 * share)


def test_beyond_its_ends_the_curve_goes_on_level():
    old, new = [80.0, 60.0, 30.0], [10.0, 40.0, 50.0]
    assert novel_at(95, old, new) == 10
    assert novel_at(5, old, new) == 50


def test_where_the_curve_is_steep_its_points_are_joined_in_the_order_of_the_bias():
    old, new = [100, 80, 80, 60], [0, 10, 50, 60]
    assert novel_at(90, old, new) == pytest.approx(5)
    assert novel_at(70, old, new) == pytest.approx(55)
