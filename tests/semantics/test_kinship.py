"""Kinship of names: what it must be whatever the names, and what anybody would say of dogs, cats and buses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concm.semantics.kinship import kinship
from concm.semantics.nameless import Nameless
from concm.semantics.semantics import Semantics

NAMES = ("apple", "bicycle", "bus", "cat", "chair", "dog", "eagle", "oak", "rose", "shark", "sofa", "wolf")
STRANGE = "xyblorvquux"
SENSES = {"bus": "n02924116", "cat": "n02121620", "rose": "n12620196", "shark": "n01482330", "wolf": "n02114100"}
MEANINGS = Semantics.of_names(NAMES, overrides=SENSES)  # so that nothing here depends on how senses are found

some_names = st.lists(st.sampled_from(NAMES), min_size=2, max_size=8, unique=True)


@given(names=some_names)
def test_it_is_symmetric_at_most_one_and_largest_with_itself(names):
    kin = kinship(MEANINGS, names, names)
    assert torch.allclose(kin, kin.T)
    assert torch.allclose(kin.diagonal(), torch.ones(len(names), dtype=torch.float64))
    assert (kin <= 1 + 1e-9).all()
    assert kin.argmax(1).tolist() == list(range(len(names)))


@given(names=some_names)
def test_it_is_a_covariance(names):
    kin = kinship(MEANINGS, names, names)
    assert torch.linalg.eigvalsh(kin).min() > -1e-9


@given(names=some_names, asked=some_names)
def test_a_name_s_kinship_does_not_depend_on_what_else_is_asked(names, asked):
    together = kinship(MEANINGS, asked, names)
    assert together.shape == (len(asked), len(names))
    for at, name in enumerate(asked):
        assert torch.allclose(kinship(MEANINGS, [name], names)[0], together[at])


@pytest.mark.parametrize(
    ("name", "akin", "other"),
    [("dog", "cat", "bus"), ("wolf", "dog", "oak"), ("bus", "bicycle", "eagle"), ("chair", "sofa", "shark")],
)
def test_kin_are_more_akin_than_others(name, akin, other):
    near, far = kinship(MEANINGS, [name], NAMES)[0, [NAMES.index(akin), NAMES.index(other)]]
    assert near > far + 0.1


def test_a_name_that_came_later_has_kin_among_the_known_ones():
    kin = kinship(MEANINGS.learn(["fox", "truck"]), ["fox", "truck"], NAMES)
    assert NAMES[int(kin[0].argmax())] in ("wolf", "dog")
    assert NAMES[int(kin[1].argmax())] in ("bus", "bicycle")


def test_a_name_that_means_nothing_is_akin_to_none_not_even_to_itself():
    every = (*NAMES, STRANGE)
    kin = kinship(Semantics.of_names(every), every, every)
    assert not kin[-1].any()
    assert not kin[:, -1].any()
    assert kin[:-1, :-1].diagonal().min() > 0.99


def test_the_nameless_are_akin_to_none():
    assert torch.equal(kinship(Nameless(), NAMES[:3], NAMES), torch.zeros(3, len(NAMES), dtype=torch.float64))
