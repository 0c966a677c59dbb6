"""Calibration against slow loops, and on classes whose means really are made of attributes."""

import math
from dataclasses import replace

import pytest
import torch

from concm.engine import calibration
from concm.engine.calibration import CalibrationSettings, Calibrator
from concm.features.sessions import BaseSession


class Words:
    """Semantics of made-up classes: their names are their rows."""

    def __init__(self, association: torch.Tensor, words: int = 5) -> None:
        random = torch.Generator().manual_seed(7)
        self.association = association
        self.vectors = torch.randn(association.shape[1], words, generator=random)
        self._classes = torch.randn(len(association), words, generator=random)

    def classes(self, names):
        rows = torch.tensor([int(name) for name in names])
        return self._classes[rows], self.association[rows]


def made_of_attributes(classes: int = 24, attributes: int = 6, dimension: int = 16, images: int = 12):
    """A base session whose class means are sums of attribute directions, seen through much noise."""
    random = torch.Generator().manual_seed(0)
    association = torch.rand(classes, attributes, generator=random) < 0.4
    association[0] = False
    mean = association.float() @ torch.randn(attributes, dimension, generator=random) + 0.1
    labels = torch.arange(classes).repeat_interleave(images)
    features = mean[labels] + 1.5 * torch.randn(len(labels), dimension, generator=random)
    views = features[:, None] + 0.1 * torch.randn(len(labels), 2, dimension, generator=random)
    names = tuple(str(label) for label in range(classes))
    session = BaseSession(
        0,
        range(classes),
        names,
        features,
        labels,
        views,
        mean=mean,
        std=torch.full_like(mean, 1.5),
        counts=torch.full((classes,), images),
    )
    return session, Words(association)


def slow(network: Calibrator, prototype, vector, has) -> torch.Tensor:
    """One class, one attribute at a time."""
    if not has.any():
        return prototype
    own, settings = prototype / network.scale, network.settings
    logits = {}
    for a in has.nonzero().flatten().tolist():
        by_words = network.word_queries(vector) @ network.word_keys(network.vectors[a])
        by_features = network.feature_queries(own) @ network.feature_keys(network.features[a])
        logits[a] = float(by_words + by_features) / 2 / math.sqrt(settings.attention)
    total = sum(math.exp(logit) for logit in logits.values())
    code = network.encoder(own)
    if settings.own_logit is not None:
        total += math.exp(settings.own_logit)
        code = code * math.exp(settings.own_logit) / total
    for a, logit in logits.items():
        code = code + math.exp(logit) / total * network.encoder(network.features[a])
    return network.decoder(code) * network.scale


@pytest.mark.parametrize("own_logit", [None, 1.0])
def test_all_classes_at_once_give_what_one_at_a_time_gives(own_logit):
    session, words = made_of_attributes()
    vectors, association = words.classes(session.names)
    torch.manual_seed(0)
    features = calibration.attribute_features(session.mean, torch.full((24,), 12), association)
    network = Calibrator(features, words.vectors, 2.0, CalibrationSettings(own_logit=own_logit, attention=8, hidden=9))
    network.requires_grad_(False)
    found = network(session.mean, vectors, association)
    for k in range(24):
        assert torch.allclose(found[k], slow(network, session.mean[k], vectors[k], association[k]), atol=1e-5)


def test_an_attribute_looks_like_the_mean_of_all_images_whose_class_has_it():
    mean, counts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]), torch.tensor([30, 10, 7])
    association = torch.tensor([[True, False], [True, False], [False, False]])
    found = calibration.attribute_features(mean, counts, association)
    assert torch.allclose(found, torch.tensor([[0.75, 0.25], [0.0, 0.0]]))


@pytest.mark.promise
def test_a_class_without_attributes_passes_through():
    session, words = made_of_attributes()
    network = calibration.train(session, words, CalibrationSettings(steps=2))
    vectors, association = words.classes(session.names)
    assert torch.equal(network(session.mean, vectors, association)[0], session.mean[0])


def test_an_episode_holds_shots_of_the_right_classes_only():
    session, _ = made_of_attributes()
    exact = replace(session, features=session.mean[session.labels], views=None)
    classes = torch.tensor([3, 0, 20])
    found = calibration.episode(exact, classes, 5, torch.Generator().manual_seed(1))
    assert torch.allclose(found, session.mean[classes], atol=1e-6)


def test_episodes_differ_and_the_same_seed_gives_the_same_network():
    session, words = made_of_attributes()
    random = torch.Generator().manual_seed(1)
    first, second = (calibration.episode(session, torch.arange(24), 5, random) for _ in range(2))
    assert not torch.equal(first, second)
    one, other = (calibration.train(session, words, CalibrationSettings(steps=3), seed=4) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_it_brings_prototypes_of_unseen_classes_nearer_to_their_centres_where_attributes_make_the_means():
    session, words = made_of_attributes(classes=60)
    held = torch.arange(45, 60)
    network = calibration.train(session, words, CalibrationSettings(steps=200), classes=range(45))
    prototypes = calibration.episode(session, held, 2, torch.Generator().manual_seed(3))
    vectors, association = words.classes([session.names[k] for k in held.tolist()])
    before = calibration.agreement(prototypes, session.mean[held])
    after = calibration.agreement(network.calibrate(prototypes, vectors, association, 0.5), session.mean[held])
    assert after > before + 0.02


def test_alpha_one_leaves_prototypes_alone():
    session, words = made_of_attributes()
    network = calibration.train(session, words, CalibrationSettings(steps=2))
    assert torch.equal(network.calibrate(session.mean, *words.classes(session.names), 1.0), session.mean)
