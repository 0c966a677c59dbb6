"""Prototype antithesis: the families of classes, its two losses against loops, and what a session changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from concm.data import scenarios
from concm.data.augment import RANDOMS
from concm.data.transform import Transform
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.methods import NAMES, choose
from concm.methods.pa import PASettings, PrototypeAntithesis, ResidualPrototypes, mixed, nearness, related, residuals
from concm.semantics import families
from concm.semantics.families import family
from concm.training.objective import Stage

torch.set_num_threads(1)

BASE = ("bear", "lion", "trout", "shark", "quasar")
"""Two families of two, and a class that no table has."""


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def session(index, first, names, shots=5, seed=0):
    """Features around a centre of each class."""
    centres = 3 * random(len(names), 16, seed=100 + first)
    features = centres.repeat_interleave(shots, 0) + random(len(names) * shots, 16, seed=seed)
    labels = torch.arange(first, first + len(names)).repeat_interleave(shots)
    return Session(index, range(first, first + len(names)), tuple(names), features, labels, None)


def base_session(names=BASE):
    learned = {"families": F.normalize(random(len(related(names)[1]), 16, seed=9))}
    return replace(BaseSession.of(session(0, 0, names, shots=20)), learned=learned)


def after(words, *sessions, names=BASE):
    method = choose(words).build(seed=0, device="cpu")
    method.fit_base(base_session(names))
    for one in sessions:
        method.learn(one)
    return method


# Families


@pytest.mark.parametrize("scenario", ["cub200", "cifar100"])
def test_every_class_of_the_scenario_is_in_its_table_exactly_once(scenario):
    listed = [name for names in families.tables()[scenario].values() for name in names]
    assert sorted(listed) == sorted(scenarios.load_scenario(scenario).names)


@pytest.mark.parametrize("scenario", ["cub200", "cifar100"])
def test_every_class_is_found_by_its_name_and_by_its_folder(scenario):
    found = scenarios.load_scenario(scenario)
    for key, name in zip(found.keys, found.names, strict=True):
        assert family(name) is not None
        assert family(name) == family(key)
        assert family(name).startswith(f"{scenario}: ")


def test_cifar100_has_twenty_superclasses_of_five():
    assert [len(names) for names in families.tables()["cifar100"].values()] == [5] * 20


def test_birds_are_grouped_by_descent_and_not_by_name():
    assert len(families.tables()["cub200"]) == 37
    assert family("House Sparrow") == "cub200: Passeridae" != family("Song Sparrow") == family("Eastern Towhee")
    assert family("Evening Grosbeak") == family("Purple Finch") != family("Blue Grosbeak") == family("Summer Tanager")
    assert family("Spotted Catbird") != family("Gray Catbird") == family("Mockingbird")
    assert family("Artic Tern") == family("Herring Gull") != family("Pomarine Jaeger")
    assert family("Geococcyx") == family("Mangrove Cuckoo")


def test_a_name_that_no_table_has_or_that_two_have_has_no_family(monkeypatch):
    assert family("quasar") is None
    tables = {"cub200": {"Gruidae": ("Crane",)}, "machines": {"lifting": ("crane", "winch")}}
    monkeypatch.setattr(families, "tables", lambda: tables)
    families._families.cache_clear()
    try:
        assert family("crane") is None
        assert family("winch") == "machines: lifting"
    finally:
        families._families.cache_clear()


def test_unknown_classes_are_families_of_their_own_and_known_families_keep_their_places():
    places, found = related(("bear", "quasar", "lion", "pulsar"))
    assert places == [0, 1, 0, 2]
    assert related(("pulsar", "tiger", "trout"), found) == ([2, 0, 3], [*found, "cifar100: fish"])


# The base session


def objective(weights=(1.0, 0.5), names=BASE, seed=0):
    """On features that are the pixels themselves."""
    kinship, weight = weights
    torch.manual_seed(seed)
    transform = Transform(2, 2, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    settings = PASettings(kinship=kinship, family=weight)
    return ResidualPrototypes(Stage(nn.Flatten(), 12, len(names), 9, transform, names), settings)


def pictures(count, seed=0):
    """Of one colour each, which no view changes."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 1, 3), generator=generator, dtype=torch.uint8).expand(count, 2, 2, 3)
    return pixels, torch.rand(count, 1, RANDOMS, generator=generator)


def unit(vector):
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def slow_entropy(scores, label):
    return math.log(sum(math.exp(score) for score in scores)) - scores[label]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 0.5), (0.0, 0.0)])
def test_the_losses_are_cross_entropies_over_species_and_over_families(weights):
    model, labels = objective(weights), torch.tensor([0, 4, 3, 1, 2, 2])
    pixels, numbers = pictures(len(labels))
    with torch.no_grad():
        losses = model(pixels, labels, numbers, 0)
    rows, kin = ([unit(row) for row in module.weight.tolist()] for module in (model.species, model.families))
    family_of = [0, 0, 1, 1, 2]
    species = grouped = 0.0
    for pixel, label in zip(pixels[:, 0, 0].tolist(), labels.tolist(), strict=True):
        feature = unit([channel for channel in pixel for _ in range(4)])
        scores = [16 * (dot(feature, rows[c]) + weights[1] * dot(feature, kin[family_of[c]])) for c in range(5)]
        species += slow_entropy(scores, label) / len(labels)
        along = dot(feature, rows[label])
        left = unit([value - along * row for value, row in zip(feature, rows[label], strict=True)])
        grouped += slow_entropy([16 * dot(left, row) for row in kin], family_of[label]) / len(labels)
    assert float(losses["species"]) == pytest.approx(species, rel=1e-4)
    assert float(losses["families"]) == pytest.approx(grouped, rel=1e-4)
    assert float(losses["loss"]) == pytest.approx(species + weights[0] * grouped, rel=1e-4)


def test_a_residual_has_nothing_of_its_species_and_no_length():
    features, prototypes = random(7, 5), random(7, 5, seed=1)
    left = residuals(features, prototypes)
    torch.testing.assert_close((left * prototypes).sum(1), torch.zeros(7), atol=1e-6, rtol=0)
    torch.testing.assert_close(left.norm(dim=1), torch.ones(7))
    torch.testing.assert_close(residuals(4 * features, 0.1 * prototypes), left)


def test_a_feature_that_is_its_prototype_leaves_nothing_and_no_wild_gradient():
    prototype = random(1, 5)
    feature = (2 * prototype).requires_grad_()
    left = residuals(feature, prototype)
    (gradient,) = torch.autograd.grad((left * random(1, 5, seed=3)).sum(), feature)
    assert float(left.detach().abs().max()) < 1e-5
    assert float(gradient.norm()) < 1e3


def test_a_class_alone_in_its_family_still_learns_a_residual_prototype():
    model, labels = objective(names=("quasar", "pulsar", "bear")), torch.tensor([0, 1, 2])
    assert model.learned()["families"].shape == (3, 12)
    pixels, numbers = pictures(3)
    model(pixels, labels, numbers, 0)["families"].backward()
    assert bool((model.families.weight.grad.norm(dim=1) > 0).all())


def test_some_steps_of_the_base_session_lower_both_losses():
    model, labels = objective(), torch.arange(5).repeat(4)
    pixels, numbers = pictures(5)
    pixels, numbers = pixels.repeat(4, 1, 1, 1), numbers.repeat(4, 1, 1)
    with torch.no_grad():
        before = model(pixels, labels, numbers, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(50):
        optimizer.zero_grad()
        model(pixels, labels, numbers, 0)["loss"].backward()
        optimizer.step()
    with torch.no_grad():
        now = model(pixels, labels, numbers, 0)
    assert all(float(now[name]) < 0.5 * float(before[name]) for name in ("species", "families"))


# Sessions


def test_without_the_family_s_weight_and_steps_it_is_nearest_class_mean():
    sessions = session(1, 5, ("tiger", "rose")), session(2, 7, ("pulsar",))
    ncm = choose("ncm").build(seed=0, device="cpu")
    ncm.fit_base(base_session())
    for one in sessions:
        ncm.learn(one)
    features = random(20, 16, seed=4)
    torch.testing.assert_close(after("pa:family=0,steps=0", *sessions).scores(features), ncm.scores(features))


@pytest.mark.parametrize("weight", [0.1, 1.0])
def test_a_class_alone_in_its_family_scores_as_nearest_mean_up_to_the_weight(weight):
    """Nothing is mixed into its shots, so that its row stays where shots alone put it."""
    alone, features = session(1, 5, ("rose",)), random(50, 16, seed=4)
    scores = after(f"pa:family={weight},steps=0", alone).scores(features)[:, 5]
    cosines = F.normalize(features) @ F.normalize(alone.features.mean(0), dim=0)
    assert float((scores - cosines).abs().max()) <= weight
    trained = [after(f"pa:family={weight},mixing={share}", alone).scores(features) for share in (0, 1)]
    torch.testing.assert_close(*trained)


def test_scores_are_the_sum_of_the_cosines_to_species_and_family():
    method, features = after("pa:family=0.7", session(1, 5, ("tiger", "rose"))), random(3, 16, seed=4)
    family_of = [0, 0, 1, 1, 2, 0, 3]
    for scores, feature in zip(method.scores(features).tolist(), features.tolist(), strict=True):
        for label, score in enumerate(scores):
            row, kin = method.prototypes[label].tolist(), method.residuals[family_of[label]].tolist()
            assert score == pytest.approx(dot(unit(feature), unit(row)) + 0.7 * dot(unit(feature), unit(kin)), abs=1e-5)


def test_a_new_species_of_a_known_family_shares_its_residual_prototype():
    method = after("pa", session(1, 5, ("tiger", "ray")))
    assert torch.equal(method.residuals, base_session().learned["families"])
    assert method.family_of.tolist() == [0, 0, 1, 1, 2, 0, 1]


def test_a_family_that_a_session_brings_gets_one_residual_prototype_of_its_own():
    """What its classes' means have beyond the base classes; a later species of that family shares it."""
    first = session(1, 5, ("rose", "tulip", "pulsar"))
    method = after("pa", first, session(2, 8, ("poppy",)))
    assert method.family_of.tolist()[5:] == [3, 3, 4, 3]
    means = F.normalize(torch.stack([first.features[first.labels == label].mean(0) for label in (5, 6, 7)]))
    shared = F.normalize(base_session().mean).mean(0)
    torch.testing.assert_close(method.residuals[3], F.normalize(means[:2].mean(0) - shared, dim=0))
    torch.testing.assert_close(method.residuals[4], F.normalize(means[2] - shared, dim=0))


def test_old_rows_never_change():
    first, second = session(1, 5, ("tiger", "rose")), session(2, 7, ("wolf", "pulsar"))
    before, now = after("pa", first), after("pa", first, second)
    assert torch.equal(now.prototypes[:7], before.prototypes)
    assert torch.equal(now.residuals[:4], before.residuals)
    features = random(20, 16, seed=4)
    torch.testing.assert_close(now.scores(features)[:, :7], before.scores(features))


def test_synthetic_samples_lie_between_shots_and_their_family_s_residual_prototype():
    units, rows = F.normalize(random(4, 6)), F.normalize(random(4, 6, seed=1))
    torch.testing.assert_close(mixed(units, rows, torch.zeros(4, 1)), units)
    torch.testing.assert_close(mixed(units, rows, torch.ones(4, 1)), rows)
    halfway = mixed(units, rows, torch.full((4, 1), 0.5))
    torch.testing.assert_close((halfway * units).sum(1), (halfway * rows).sum(1))


def test_mixing_draws_the_rows_of_new_species_to_their_family_where_it_is_known():
    new = session(1, 5, ("tiger", "pulsar"), shots=3)
    plain, blended = (after(f"pa:mixing={share},scale=2,lr=0.1", new) for share in (0, 0.5))
    tiger, pulsar = ((blended.prototypes - plain.prototypes)[5:] * plain.residuals[[0, 3]]).sum(1).tolist()
    assert tiger > 0.05 > 0.01 > abs(pulsar)


def test_the_base_session_is_one_graph_and_its_losses_are_exact_in_low_precision():
    model, labels = objective(), torch.arange(5)
    pixels, numbers = pictures(5)
    wanted = model(pixels, labels, numbers, 0)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(pixels, labels, numbers, 0), wanted)


def test_learned_rows_tell_the_shots_and_synthetic_samples_apart_better_than_their_means():
    new = session(1, 5, ("tiger", "leopard", "wolf"), shots=4, seed=7)
    start, end = after("pa:steps=0", new), after("pa", new)
    kin = end.residuals[end.family_of[new.labels]]
    samples = torch.cat([new.features, mixed(F.normalize(new.features), kin, torch.full((12, 1), 0.25))])
    losses = [F.cross_entropy(16 * method.scores(samples), new.labels.repeat(2)) for method in (start, end)]
    assert float(losses[1]) < float(losses[0])


def test_the_length_of_features_makes_no_difference():
    method, features = after("pa", session(1, 5, ("tiger",))), random(5, 16, seed=4)
    torch.testing.assert_close(method.scores(7 * features), method.scores(features))


def test_classes_of_one_family_differ_by_their_species_alone():
    species, kin, features = random(3, 6), random(1, 6, seed=1), random(5, 6, seed=2)
    one, other = (nearness(features, species, kin, torch.zeros(3, dtype=torch.long), weight=w) for w in (0.0, 3.0))
    torch.testing.assert_close(one - one[:, :1], other - other[:, :1])


def test_only_prototypes_are_kept():
    method = after("pa", session(1, 5, ("tiger", "rose")))
    assert method.memory_bytes == (7 + 4) * 16 * 4 + 7 * 8  # and the family of each
    assert method.parameter_count == (3 + 2) * 16
    assert choose("pa").needs == (NAMES,)


def test_it_needs_what_its_own_base_session_learned_of_these_classes():
    for learned in ({}, {"families": random(2, 16)}):
        with pytest.raises(Misuse, match="--method pa"):
            PrototypeAntithesis().fit_base(replace(base_session(), learned=learned))


@pytest.mark.parametrize("change", ["scale=0", "lr=0", "mixing=1.5", "family=-1", "kinship=-1", "steps=-1"])
def test_settings_without_a_meaning_are_refused(change):
    with pytest.raises(Misuse, match=change.split("=")[0]):
        choose(f"pa:{change}")
