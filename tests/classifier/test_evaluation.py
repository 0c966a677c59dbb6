"""What an evaluation says of labelled photos, against slow loops and an example worked by hand."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from concm.classifier.evaluation import Evaluation, auroc, calibration_error, evaluate
from concm.errors import ConcmError
from concm.records import from_json, to_json

NAMES = ["cat", "dog", "okapi", "lynx"]


class Plain:
    """Takes shares of the scores for probabilities and the best score for familiarity."""

    def __init__(self, threshold: float) -> None:
        self.at = threshold
        self.asked: list[float] = []

    def probabilities(self, scores):
        return scores / scores.sum(1, keepdim=True)

    def familiarity(self, scores):
        return scores.max(1).values

    def threshold(self, rate: float) -> float:
        self.asked.append(rate)
        return self.at


def judged(rows, *, base: int = 2, threshold: float = 5.0) -> Evaluation:
    """The evaluation of photos that are given as their class and then a score for each of `NAMES`."""
    scores = torch.tensor([scores for _, *scores in rows], dtype=torch.float32).view(len(rows), len(NAMES))
    return evaluate(scores, [name for name, *_ in rows], NAMES, base, Plain(threshold), 0.25, version=3)


BASE = [
    ("cat", 9, 0, 1, 0),
    ("cat", 4, 3, 0, 0),  # right, and refused
    ("cat", 8, 3, 0, 0),
    ("cat", 0, 0, 7, 0),  # wrong
    ("dog", 1, 5, 0, 0),  # as familiar as it must be
    ("dog", 3, 1, 0, 0),  # wrong, and refused
]
NOVEL = [("okapi", 0, 0, 6, 1), ("okapi", 6, 0, 1, 0)]
STRANGERS = [("tapir", 2, 0, 0, 0), ("tapir", 0, 0, 0, 5), ("yak", 1, 1, 1, 0), ("quagga", 0, 3, 3, 1)]


def test_the_figures_of_an_example_worked_by_hand():
    found = judged([*BASE[:3], *STRANGERS[:2], *NOVEL, *BASE[3:], *STRANGERS[2:]])
    assert (found.version, found.photos, found.classes, found.strangers) == (3, 8, 4, 4)
    assert found.acc == pytest.approx(100 * 5 / 8)
    assert found.acc_base == pytest.approx(100 * 4 / 6)
    assert found.acc_novel == pytest.approx(50)
    assert found.hm == pytest.approx(2 / (6 / 400 + 1 / 50))
    assert found.unknown_rate == pytest.approx(25)
    assert found.refused == pytest.approx(100 * 2 / 8)
    assert found.false_accept == pytest.approx(100 * 1 / 4)
    # 9, 8, 7, 6 and 6 are more familiar than all of 5, 3, 2, 1; the known 5, 4 and 3 than some
    assert found.auroc == pytest.approx(100 * (5 * 4 + 3.5 + 3 + 2.5) / (8 * 4))
    # 5/6 and both 6/7 lie in the same fifteenth, and two of them are right; the others are alone in theirs
    gaps = [1 - 0.9, 1 - 4 / 7, 1 - 8 / 11, 1.0, 0.75, 5 / 6 + 6 / 7 + 6 / 7 - 2]
    assert found.ece == pytest.approx(100 * sum(gaps) / 8, rel=1e-5)
    assert found.by_class == {"cat": (3, 4), "dog": (1, 2), "okapi": (1, 2)}


def test_without_strangers_nothing_is_said_of_them():
    found = judged(BASE + NOVEL)
    assert (found.strangers, found.false_accept, found.auroc) == (0, None, None)
    assert found.refused == pytest.approx(25)


def test_without_novel_photos_nothing_is_said_of_them():
    found = judged(BASE + STRANGERS)
    assert (found.acc_novel, found.hm) == (None, None)
    assert found.acc == found.acc_base == pytest.approx(100 * 4 / 6)


def test_without_base_photos_nothing_is_said_of_them():
    found = judged(NOVEL + STRANGERS)
    assert (found.acc_base, found.hm) == (None, None)
    assert found.acc == found.acc_novel == pytest.approx(50)


def test_photos_of_which_none_is_right_have_an_accuracy_of_0_and_not_none():
    found = judged([BASE[3], NOVEL[1]], base=2)
    assert (found.acc, found.acc_base, found.acc_novel, found.hm) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("threshold", "refused", "false_accept"), [(0, 0, 100), (3, 0, 50), (3.5, 12.5, 25), (6, 37.5, 0), (10, 100, 0)]
)
def test_what_is_less_familiar_than_the_threshold_is_called_unknown(threshold, refused, false_accept):
    found = judged(BASE + NOVEL + STRANGERS, threshold=threshold)
    assert found.refused == pytest.approx(refused)
    assert found.false_accept == pytest.approx(false_accept)


def test_the_threshold_is_the_one_of_the_rate_that_is_asked_for():
    confidence = Plain(5)
    found = evaluate(torch.eye(4), NAMES, NAMES, 2, confidence, 0.05, version=1)
    assert set(confidence.asked) == {0.05}
    assert found.unknown_rate == pytest.approx(5)


def test_accuracies_and_the_threshold_do_not_depend_on_each_other():
    low, high = (judged(BASE + NOVEL + STRANGERS, threshold=threshold) for threshold in (0, 100))
    for name in ("acc", "acc_base", "acc_novel", "hm", "ece", "auroc", "by_class"):
        assert getattr(low, name) == getattr(high, name)


@pytest.mark.parametrize("rows", [STRANGERS, []], ids=["strangers alone", "no photos"])
def test_photos_of_no_known_class_are_told_in_a_sentence(rows):
    with pytest.raises(ConcmError, match="none of these photos is of a known class; known are cat, dog, okapi, lynx"):
        judged(rows)


photos = st.lists(
    st.tuples(st.sampled_from([*NAMES, "tapir", "yak"]), *[st.integers(1, 5) for _ in NAMES]), min_size=1, max_size=25
)


def share(answers) -> float | None:
    answers = list(answers)
    return 100 * sum(answers) / len(answers) if answers else None


@given(photos, st.integers(0, 4), st.integers(1, 6))
def test_figures_are_those_of_a_slow_loop(rows, base, threshold):
    known = [(name, NAMES[scores.index(max(scores))], max(scores)) for name, *scores in rows if name in NAMES]
    strange = [max(scores) for name, *scores in rows if name not in NAMES]
    assume(known)
    found = judged(rows, base=base, threshold=threshold)
    assert (found.photos, found.strangers) == (len(known), len(strange))
    assert found.acc == pytest.approx(share(name == guess for name, guess, _ in known))
    assert found.acc_base == pytest.approx(share(name == guess for name, guess, _ in known if name in NAMES[:base]))
    assert found.acc_novel == pytest.approx(share(name == guess for name, guess, _ in known if name in NAMES[base:]))
    assert (found.hm is None) == (found.acc_base is None or found.acc_novel is None)
    assert found.refused == pytest.approx(share(familiar < threshold for *_, familiar in known))
    assert found.false_accept == pytest.approx(share(familiar >= threshold for familiar in strange))
    assert found.by_class == {
        name: (
            sum(guess == name for truth, guess, _ in known if truth == name),
            sum(truth == name for truth, *_ in known),
        )
        for name in {truth for truth, *_ in known}
    }


# telling known from strange


def slow_auroc(known: list[float], strange: list[float]) -> float:
    wins = 0.0
    for one in known:
        for other in strange:
            wins += 1 if one > other else 0.5 if one == other else 0
    return wins / (len(known) * len(strange))


some = st.lists(st.integers(-3, 3), min_size=1, max_size=12)
fine = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=12)


@given(known=some | fine, strange=some | fine)
def test_auroc_is_that_of_a_slow_double_loop(known, strange):
    found = auroc(torch.tensor(known, dtype=torch.float32), torch.tensor(strange, dtype=torch.float32))
    assert found == pytest.approx(slow_auroc(known, strange))


@pytest.mark.parametrize(
    ("known", "strange", "expected"),
    [([3, 4], [1, 2], 1), ([1, 2], [3, 4], 0), ([1, 1], [1], 0.5), ([1, 3], [2], 0.5), ([2, 2, 3], [2, 3, 1], 11 / 18)],
)
def test_auroc_of_cases_that_can_be_counted(known, strange, expected):
    assert auroc(torch.tensor(known), torch.tensor(strange)) == pytest.approx(expected)


# honest probabilities


def slow_calibration(probabilities: list[list[float]], labels: list[int], bins: int) -> float:
    total = 0.0
    for number in range(bins):
        inside = [
            (max(row), row.index(max(row)) == label)
            for row, label in zip(probabilities, labels, strict=True)
            if min(int(max(row) * bins), bins - 1) == number
        ]
        if inside:
            sure = sum(best for best, _ in inside) / len(inside)
            right = sum(right for _, right in inside) / len(inside)
            total += len(inside) / len(labels) * abs(sure - right)
    return 100 * total


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any)),
        min_size=1,
        max_size=30,
    ),
    bins=st.sampled_from([1, 2, 10, 15]),
)
def test_the_calibration_error_is_that_of_a_slow_loop_over_bins(rows, bins):
    labels = [label for label, _ in rows]
    weights = torch.tensor([weights for _, weights in rows], dtype=torch.float32)
    probabilities = weights / weights.sum(1, keepdim=True)
    expected = slow_calibration(probabilities.tolist(), labels, bins)
    assert calibration_error(probabilities, torch.tensor(labels), bins) == pytest.approx(expected, abs=1e-9)


def two_classes(*groups: tuple[float, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Photos whose best guess has a probability, of which so many are right out of so many."""
    best = torch.tensor([sure for sure, _, count in groups for _ in range(count)], dtype=torch.float64)
    labels = [int(at >= right) for _, right, count in groups for at in range(count)]
    return torch.stack([best, 1 - best], 1), torch.tensor(labels)


def test_probabilities_that_come_true_have_no_calibration_error():
    assert calibration_error(*two_classes((0.7, 7, 10), (0.55, 11, 20), (0.95, 19, 20), (1, 3, 3))) == pytest.approx(0)


@pytest.mark.parametrize(("sure", "right", "expected"), [(1, 0, 100), (1, 4, 0), (0.75, 4, 25), (0.75, 2, 25)])
def test_too_much_and_too_little_confidence_are_errors_alike(sure, right, expected):
    assert calibration_error(*two_classes((sure, right, 4))) == pytest.approx(expected)


def test_errors_in_different_bins_do_not_cancel_and_count_by_their_photos():
    assert calibration_error(*two_classes((0.9, 0, 1), (0.6, 3, 3))) == pytest.approx((90 + 3 * 40) / 4)


def test_no_photos_have_no_calibration_error():
    assert calibration_error(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)) == 0


# files


@pytest.mark.parametrize("rows", [BASE + NOVEL + STRANGERS, BASE, NOVEL], ids=["all", "base alone", "novel alone"])
def test_an_evaluation_comes_back_from_json(rows):
    found = judged(rows)
    assert from_json(Evaluation, json.loads(json.dumps(to_json(found)))) == found
    assert from_json(Evaluation, to_json(found)) == found
