"""ConCM as an estimator: scikit-learn's verbs, on features of an easy world."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from concm import ConCM, Misuse, Settings

RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(6, 16))
QUICK = Settings(calibrate="none", base_steps=5, steps=5, hidden=32)
WORDS = np.array(["ant", "bee", "cat", "dog", "emu", "fox"])


def rows(labels: list[int], count: int = 8) -> tuple[np.ndarray, np.ndarray]:
    y = np.repeat(labels, count)
    return CENTRES[y] + 0.1 * RANDOM.normal(size=(len(y), 16)), y


def fitted() -> ConCM:
    return ConCM(QUICK).fit(*rows([0, 1, 2, 3]))


@pytest.mark.promise
def test_it_learns_again_and_again_and_forgets_nothing():
    classifier = fitted().learn(*rows([4], 5)).learn(*rows([5], 5))
    features, y = rows([0, 1, 2, 3, 4, 5])
    assert classifier.classes_.tolist() == [0, 1, 2, 3, 4, 5]
    assert classifier.score(features, y) > 0.95
    np.testing.assert_array_equal(
        classifier.predict(features), classifier.classes_[classifier.predict_proba(features).argmax(1)]
    )
    np.testing.assert_allclose(classifier.predict_proba(features).sum(1), 1, rtol=1e-5)


def test_labels_may_be_words_and_come_back_as_words():
    features, y = rows([0, 1, 2])
    classifier = ConCM(QUICK).fit(features, WORDS[y])
    later, labels = rows([5], 5)
    classifier.learn(later, WORDS[labels])
    assert classifier.classes_.tolist() == ["ant", "bee", "cat", "fox"]
    assert set(classifier.predict(later)) == {"fox"}
    assert classifier.engine_.names == ["ant", "bee", "cat", "fox"]


def test_names_are_for_the_engine_and_labels_for_the_user():
    features, y = rows([0, 1, 2])
    classifier = (
        ConCM(QUICK).fit(features, y, names=["ant", "bee", "cat"]).learn(*rows([4, 5], 5), names={4: "emu", 5: "fox"})
    )
    assert classifier.engine_.names == ["ant", "bee", "cat", "emu", "fox"]
    assert classifier.classes_.tolist() == [0, 1, 2, 4, 5]


def test_more_examples_of_a_known_class_make_it_no_new_one():
    classifier = fitted().learn(*rows([3, 4], 5))
    assert classifier.classes_.tolist() == [0, 1, 2, 3, 4]
    assert classifier.score(*rows([3, 4])) == 1


def test_partial_fit_is_fit_and_then_learn():
    classifier = ConCM(QUICK).partial_fit(*rows([0, 1])).partial_fit(*rows([2], 5))
    assert classifier.classes_.tolist() == [0, 1, 2]


def test_tensors_are_as_good_as_arrays():
    features, y = rows([0, 1])
    classifier = ConCM(QUICK).fit(torch.from_numpy(features), torch.from_numpy(y))
    np.testing.assert_array_equal(
        classifier.predict(torch.from_numpy(features)), ConCM(QUICK).fit(features, y).predict(features)
    )


def test_parameters_go_through_get_and_set():
    classifier = ConCM(QUICK, seed=3)
    assert ConCM(**classifier.get_params()).get_params() == {"settings": QUICK, "seed": 3, "device": "cpu"}
    assert classifier.set_params(seed=4).get_params()["seed"] == 4
    with pytest.raises(Misuse, match="no parameter 'speed'"):
        classifier.set_params(speed=1)


def test_only_new_classes_need_a_name():
    classifier = fitted().learn(*rows([3, 4], 5), names={4: "emu"})
    assert classifier.engine_.names[-1] == "emu"


def test_a_refusal_changes_nothing():
    classifier = fitted()
    counts = classifier.engine_.memory.counts.tolist()
    for wrong in (
        lambda: classifier.fit(*rows([0, 1]), names=["a"]),
        lambda: classifier.learn(*rows([3, 4]), names={3: "dog"}),
        lambda: classifier.learn(rows([4])[0], np.repeat("emu", 8)),
        lambda: classifier.learn(rows([4])[0], np.repeat(np.nan, 8)),
    ):
        with pytest.raises(Misuse):
            wrong()
    assert classifier.engine_.memory.counts.tolist() == counts
    assert classifier.classes_.tolist() == [0, 1, 2, 3]
    assert classifier.score(*rows([0, 1, 2, 3])) == 1


def test_fitting_again_forgets_what_was_learned():
    classifier = fitted().learn(*rows([5], 5)).fit(*rows([0, 1]))
    assert classifier.classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: ConCM().predict(CENTRES), "not fitted yet"),
        (lambda: ConCM().learn(*rows([0])), "not fitted yet"),
        (lambda: ConCM().fit(*rows([0])), "two classes or more"),
        (lambda: ConCM().fit(CENTRES[0], [1]), r"\(rows, dimensions\)"),
        (lambda: ConCM().fit(CENTRES, [1, 2]), "one label for each of the 6 rows"),
        (lambda: ConCM().fit(CENTRES * np.nan, np.arange(6)), "NaN"),
        (lambda: ConCM().fit(WORDS[:, None], np.arange(6)), "should be numbers"),
        (lambda: ConCM().fit(CENTRES, np.arange(6), names=["one"]), "1 names for 6 classes"),
        (lambda: ConCM().fit(CENTRES, np.arange(6), names={0: "one"}), "none for the label 1"),
        (lambda: fitted().predict(CENTRES[:, :3]), "3 features, but ConCM was fitted with 16"),
    ],
)
def test_mistakes_are_value_errors_in_a_sentence(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
