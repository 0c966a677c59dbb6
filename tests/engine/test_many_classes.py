"""What changes with very many classes: nothing that counts, although less is computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from concm.classifier import confidence
from concm.classifier.confidence import Confidence
from concm.engine import concm, lexicon, trial
from concm.engine.concm import Engine, spaced
from concm.engine.operating import NEAR, taken_together
from concm.engine.settings import Settings
from concm.features.sessions import BaseSession, Session, rows_by_class
from concm.semantics.kinship import Family, kinship
from concm.semantics.semantics import Semantics

torch.set_num_threads(1)
NAMES = ("dog", "wolf", "cat", "eagle", "duck", "salmon", "train", "truck", "bicycle", "apple", "orange", "sofa")
NEW = ("fox", "hawk", "trout", "car", "pear", "chair", "blorvquux")
DIMENSION = 24


def features(classes: range, shots: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(len(NAMES) + len(NEW), DIMENSION, generator=torch.Generator().manual_seed(7)))
    labels = torch.arange(classes.start, classes.stop).repeat_interleave(shots)
    return centres[labels] + 0.1 * torch.randn(len(labels), DIMENSION, generator=random), labels


def taught(**changes) -> Engine:
    engine = Engine(Settings(**{"prototypes": 1.0, **changes}))
    own, labels = features(range(len(NAMES)), 12)
    engine.fit_base(BaseSession.of(Session(0, range(len(NAMES)), NAMES, own, labels)))
    span = range(len(NAMES), len(NAMES) + len(NEW))
    own, labels = features(span, 3, seed=1)
    engine.learn(Session(1, span, NEW, own, labels))
    return engine


ASKED = features(range(len(NAMES) + len(NEW)), 8, seed=2)


def right(engine: Engine) -> float:
    return float((engine.scores(ASKED[0]).argmax(1) == ASKED[1]).float().mean())


def test_where_prototypes_have_all_of_the_share_no_structure_is_made():
    engine = taught()
    assert engine.structure.shape[1] == 0
    assert engine.smr is None
    again = Engine(engine.settings)
    again.load_state_dict(engine.state_dict())
    assert torch.equal(engine.scores(ASKED[0]), again.scores(ASKED[0]))
    again.forget(0)
    assert again.scores(ASKED[0]).shape[1] == len(NAMES) + len(NEW) - 1


def test_more_classes_than_structures_are_matched_for_have_prototypes_alone(monkeypatch):
    before = taught(prototypes=0.85)
    assert before.structure.shape[1] == len(NAMES) + len(NEW)
    monkeypatch.setattr(concm, "STRUCTURED", len(NAMES) + 3)
    engine = taught(prototypes=0.85)
    assert engine.structure.shape[1] == 0
    assert [said for said in engine.remarks if "no structure" in said] == [
        f"more than {len(NAMES) + 3} classes have no structure: their scores are prototypes'"
    ]
    assert torch.allclose(engine.scores(ASKED[0]), taught(prototypes=1.0).scores(ASKED[0]))


def test_names_say_the_same_without_the_matrix_of_all_pairs(monkeypatch):
    plain = taught()
    monkeypatch.setattr(lexicon, "AT_ONCE", 0)
    engine = taught()
    assert torch.allclose(plain.memory.mean, engine.memory.mean, atol=1e-5)
    assert plain.remarks == engine.remarks
    assert "'blorvquux' means nothing here" in engine.remarks[-1]


@given(seed=st.integers(0, 10**6))
def test_a_family_multiplies_as_its_kinship_does(seed):
    meanings = Semantics.of_names(NAMES).learn(NEW)
    values = torch.randn(len(NAMES), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kin = kinship(meanings, NEW, NAMES)
    product, akin = Family(meanings, NAMES).times(meanings, NEW, values)
    assert torch.allclose(product, kin @ values)
    assert akin.tolist() == kin.any(1).tolist()


def test_names_are_learned_from_some_of_very_many_base_classes(monkeypatch):
    monkeypatch.setattr(concm, "NAMED", 6)
    engine = taught()
    assert engine.pool == list(NAMES[::2])
    assert engine.prior is not None
    assert len(engine.prior.weights) == 6
    assert right(engine) > 0.9


def test_fewer_images_tried_find_nearly_the_same_operating_point(monkeypatch):
    whole = taught()
    monkeypatch.setattr(trial, "FEW", 8)
    some = taught()
    assert abs(right(some) - right(whole)) < 0.05


@pytest.mark.parametrize(("count", "most"), [(5, 10), (10, 10), (100, 7), (3, 1)])
def test_spaced_numbers_are_in_order_and_as_many_as_asked_for(count, most):
    found = spaced(count, most)
    assert found == sorted(set(found))
    assert len(found) == min(count, most)
    assert set(found) <= set(range(count))


@given(labels=st.lists(st.integers(0, 6), max_size=30))
def test_rows_of_classes_are_those_with_their_label(labels):
    given_labels = torch.tensor(labels, dtype=torch.long)
    rows = rows_by_class(given_labels, 7)
    assert len(rows) == 7
    for label, own in enumerate(rows):
        assert own.tolist() == [at for at, one in enumerate(labels) if one == label]


@given(seed=st.integers(0, 10**6), count=st.integers(1, 40))
def test_images_taken_together_are_chains_of_near_ones_of_a_class(seed, count):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (count,), generator=random)
    unit = F.normalize(torch.randn(count, 2, generator=random))
    group = taken_together(unit, labels, torch.tensor(1.0))
    near = (2 - 2 * unit @ unit.T < NEAR) & (labels[:, None] == labels)
    reached = near | torch.eye(count, dtype=torch.bool)
    for _ in range(count):
        reached = (reached.float() @ reached.float()) > 0
    assert torch.equal(group[:, None] == group, reached)


def test_the_temperature_of_very_many_classes_is_nearly_that_of_all(monkeypatch):
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(3000, (400,), generator=random)
    scores = 0.08 * torch.randn(400, 3000, generator=random)
    scores[torch.arange(400), labels] += 0.3 + 0.05 * torch.randn(400, generator=random)
    exact = Confidence.usual(scores, labels)
    monkeypatch.setattr(confidence, "EVERY", 100)
    near = Confidence.usual(scores, labels)
    assert abs(float((near.temperature / exact.temperature).log())) < 0.15
    assert torch.equal(near.quantiles, exact.quantiles)
