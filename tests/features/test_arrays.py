"""Banks of one's own arrays: whatever they come as, checked against each other, and never sorted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from concm.errors import Misuse
from concm.features.bank import Bank
from concm.features.sessions import draw, sessions

X = np.random.default_rng(0).normal(size=(48, 5)).astype(np.float32)
Y = np.arange(48) % 6
NAMES = ["zebra", "ant", "yak", "bee", "cat", "owl"]


def bank(train=(X, Y), test=(X[:12], Y[:12]), **cut) -> Bank:
    return Bank.from_arrays(train, test, **{"base": 4, "way": 1, "shot": 5, "names": NAMES, **cut})


@pytest.mark.parametrize(
    "form", [np.asarray, torch.from_numpy, lambda values: values.tolist()], ids=["numpy", "torch", "list"]
)
def test_arrays_tensors_and_lists_make_the_same_bank(form):
    made = bank((form(X), form(Y)), (form(X[:12]), form(Y[:12])))
    assert made.digest == bank().digest
    assert (made.scenario.base, made.scenario.sessions, made.dimension) == (4, 2, 5)


@pytest.mark.promise
def test_labels_and_names_are_never_sorted():
    words = [NAMES[label] for label in Y]
    for made in (bank((X, words), (X[:12], words[:12])), bank((X, words), (X[:12], words[:12]), names=None), bank()):
        assert list(made.scenario.names) == NAMES
        assert torch.equal(made.base.labels, torch.from_numpy(Y[Y < 4]))
        assert torch.equal(made.base.features, torch.from_numpy(X[Y < 4]))
        assert torch.equal(made.test.labels, torch.from_numpy(Y[:12]))


def test_statistics_are_those_of_all_base_rows_and_sessions_bring_their_names():
    made = bank()
    np.testing.assert_allclose(made.mean[2].numpy(), X[Y == 2].mean(0), rtol=1e-5)
    assert made.counts.tolist() == [8] * 4
    base, first, second = sessions(made, draw(made, 0))
    assert (base.names, first.names, second.names) == (("zebra", "ant", "yak", "bee"), ("cat",), ("owl",))
    assert len(first.labels) == 5


def test_without_names_numbers_are_names():
    assert bank(names=None).scenario.names[:2] == ("class 0", "class 1")


def test_views_go_with_their_rows():
    views = np.repeat(X[:, None], 3, 1)
    made = bank(views=views)
    assert torch.equal(made.novel.views[:, 1], made.novel.features)
    assert made.card.views == 3


def test_it_goes_through_a_file(tmp_path):
    bank().save(tmp_path / "own.safetensors", "float32")
    again = Bank.load(tmp_path / "own.safetensors")
    assert again.digest == bank().digest
    assert again.scenario == bank().scenario


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": (X[:, :4], Y)}, "dimensions"),
        ({"train": (X, Y[:-1])}, "48 rows of features and 47 labels"),
        ({"train": X}, "pair of features and labels"),
        ({"train": (X[0], Y)}, r"should be \(rows, dimensions\)"),
        ({"train": (np.where(X > 1, np.nan, X), Y)}, "not all finite"),
        ({"train": (X, Y - 1)}, "whole numbers from 0 on"),
        ({"train": (X, Y / 2)}, "whole numbers from 0 on"),
        ({"names": NAMES[:5]}, "label 5, which is none of the 5 classes"),
        ({"names": [*NAMES, "emu"]}, "no row of class 'emu'"),
        ({"names": [*NAMES[:5], "ant"]}, "'ant' stands twice"),
        ({"test": (X, ["ant"] * 48)}, "of the same kind"),
        ({"train": (X, [NAMES[y] for y in Y]), "test": (X, ["gnu"] * 48)}, "label 'gnu', which is none"),
        ({"train": (X, Y > 2)}, "whole numbers from 0 on"),
        ({"names": {0: "ant"}}, "should be a list"),
        ({"shot": 9}, "8 training rows, but 9 shots"),
        ({"base": 1}, "`base` must be at least 2"),
        ({"base": 7}, "only 6 classes"),
        ({"views": X}, "`views` should be"),
        ({"train": ([["a"] * 5] * 48, Y)}, "should be numbers"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_the_argument(change, words):
    with pytest.raises(Misuse, match=words):
        bank(**change)
