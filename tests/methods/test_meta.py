"""CEC, LIMIT, C-FSCIL and MetaNC: what their attention, episodes, losses and modes compute."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from concm.errors import Misuse
from concm.evaluation.worlds import BASE, World
from concm.features.sessions import BaseSession, Session
from concm.methods import choose
from concm.methods.c_fscil import (
    CFSCIL,
    CFSCILSettings,
    log_loss,
    nudged,
    nudging_loss,
    similarity,
    softabs,
    with_empty_rows,
)
from concm.methods.cec import CEC, Attention, CECSettings, draw_each, pseudo_incremental
from concm.methods.limit import LIMIT, LIMITSettings
from concm.methods.meta_nc import MetaNC, MetaNCSettings, collapse_loss
from concm.methods.ncm import NCM

SHORT = (
    "cec:steps=3",
    "limit:steps=3",
    "c_fscil:steps=3",
    "c_fscil:mode=1,steps=3",
    "c_fscil:mode=2,steps=3",
    "meta_nc:steps=3",
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def attention(dimension, seed=0):
    """One in double precision whose layer norm scales and shifts, as after training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Attention(dimension).double()
        torch.nn.init.normal_(module.norm.weight, 1, 0.3)
        torch.nn.init.normal_(module.norm.bias, 0, 0.3)
        torch.nn.init.normal_(module.out.bias)
    return module


def attended(module, prototypes, query, mask):
    """One query the slow way: all nodes attend to all nodes, then the query is compared with the others."""
    nodes = torch.cat([prototypes, query[None]])
    weights = (module.query(nodes) @ module.key(nodes).T / math.sqrt(nodes.shape[1])).softmax(1)
    refined = module.norm(nodes + mask * module.out(weights @ module.value(nodes)))
    return F.cosine_similarity(refined[:-1], refined[-1:])


def tiny(base_images):
    """A base session of random features with these numbers of images a class."""
    labels = torch.tensor([label for label, count in enumerate(base_images) for _ in range(count)])
    features = torch.rand(len(labels), 7, generator=seeded())
    names = tuple(f"class {label}" for label in range(len(base_images)))
    total = len(base_images) + 1
    return BaseSession.of(Session(0, range(len(base_images)), names, features, labels, None, total=total))


@pytest.mark.parametrize(("classes", "queries", "dimension"), [(1, 1, 3), (5, 4, 8), (12, 3, 32)])
@pytest.mark.parametrize("dropout", [False, True])
def test_attention_scores_each_query_as_if_it_were_a_node_beside_the_prototypes(classes, queries, dimension, dropout):
    module = attention(dimension)
    prototypes = torch.randn(classes, dimension, generator=seeded(1), dtype=torch.double)
    images = torch.randn(queries, dimension, generator=seeded(2), dtype=torch.double)
    mask = 2.0 * (torch.rand(dimension, generator=seeded(3)) > 0.5) if dropout else torch.ones(dimension)
    slow = torch.stack([attended(module, prototypes, image, mask) for image in images])
    torch.testing.assert_close(module(prototypes, images, mask if dropout else None), slow)


def test_attention_follows_the_order_of_the_prototypes():
    module = attention(6)
    prototypes, images = (torch.randn(9, 6, generator=seeded(at), dtype=torch.double) for at in (1, 2))
    order = torch.randperm(9, generator=seeded())
    torch.testing.assert_close(module(prototypes[order], images), module(prototypes, images)[:, order])


@pytest.mark.parametrize("name", ["cec:steps=0", "limit:steps=0"])
def test_an_attention_that_passes_nothing_on_leaves_nearest_class_means_of_centred_features(name):
    world = World.of()
    method = choose(name).build(seed=0, device="cpu")
    method.fit_base(world.sessions[0])
    torch.nn.init.zeros_(method.attention.out.weight)
    torch.nn.init.zeros_(method.attention.out.bias)
    for session in world.sessions[1:]:
        method.learn(session)

    def centred(values):
        return F.normalize(values - values.mean(1, keepdim=True))

    control = NCM()
    control.fit_base(world.sessions[0])
    for session in world.sessions[1:]:
        control.learn(session)
    wanted = centred(world.test) @ centred(control.prototypes).T
    torch.testing.assert_close(method.scores(world.test), wanted, atol=1e-3, rtol=0)


def test_what_a_query_scores_does_not_depend_on_the_other_queries():
    world = World.of()
    method = CEC(CECSettings(steps=3))
    method.fit_base(world.sessions[0])
    torch.testing.assert_close(method.scores(world.test[:1]), method.scores(world.test)[:1])


def test_images_are_drawn_from_every_class_without_repeats_where_it_has_enough():
    labels = torch.tensor([2, 0, 1, 2, 0, 2, 0, 2, 1])
    rows = draw_each(labels, 3, seeded())
    assert torch.equal(labels[rows], torch.arange(3)[:, None].expand(3, 3))
    assert [len(set(some)) for some in rows.tolist()] == [3, 2, 3]
    assert not torch.equal(rows, draw_each(labels, 3, seeded(1)))


def test_half_of_a_pseudo_new_image_is_of_the_class_it_copies():
    labels = torch.arange(5).repeat_interleave(4)
    base = replace(tiny([4] * 5), features=F.one_hot(labels).float(), labels=labels, mean=torch.eye(5))
    old, new = pseudo_incremental(base, 3, 50, seeded()).split(3)
    assert torch.equal(old[:, 0], old[:, 49])
    assert bool((old.sum(0) <= 1).all()), "the classes of an episode are different ones"
    rest = 2 * new - old
    assert torch.equal(rest.sort(-1).values, torch.eye(5)[4].expand(3, 50, 5)), "the other half is one image"
    assert bool((rest.mean(1) > 0.05).all()), "of any class"


def test_a_task_of_limit_knows_some_base_classes_by_one_image_and_the_others_by_their_mean():
    base = tiny([6] * 8)
    method = LIMIT(LIMITSettings(way=3, queries=2, steps=0))
    method.fit_base(base)
    prototypes, queries, labels = method.task(base)
    new = (prototypes != base.mean).any(1)
    assert int(new.sum()) == 3
    shots = (prototypes[new][:, None] == base.features).all(-1).nonzero()
    assert torch.equal(base.labels[shots[:, 1]], new.nonzero().flatten())
    rows = (queries[:, None] == base.features).all(-1).nonzero()[:, 1]
    assert torch.equal(base.labels[rows], labels)
    assert labels.bincount().tolist() == [2] * 8
    assert not set(rows.tolist()) & set(shots[:, 1].tolist()), "a shot is not its own query"


@pytest.mark.parametrize("name", ["cec", "limit"])
def test_episodes_teach_the_attention(name):
    world = World.of()
    losses = []
    for steps in (0, 40):
        method = choose(f"{name}:steps={steps},lr=0.05").build(seed=0, device="cpu")
        method.fit_base(world.sessions[0])
        labels = world.sessions[0].labels
        with torch.no_grad():
            losses.append(float(F.cross_entropy(16 * method.scores(world.sessions[0].features), labels)))
    assert losses[1] < 0.8 * losses[0]


def test_softabs_is_even_and_small_only_near_zero():
    cosines = torch.linspace(-1, 1, 201, dtype=torch.double)
    values = softabs(cosines, 10)
    torch.testing.assert_close(values, values.flip(0))
    assert int(values.argmin()) == 100
    assert float(values[100]) == pytest.approx(2 / (1 + math.exp(5)))
    assert float(values[-1]) == pytest.approx(1, abs=0.01)


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize(("images", "classes"), [(1, 2), (4, 3), (7, 60)])
def test_losses_are_those_written_out_over_classes_and_rows_that_are_empty(images, classes):
    cosines = 2 * torch.rand(images, classes, generator=seeded(), dtype=torch.double) - 1
    labels = torch.randint(classes, (images,), generator=seeded())
    logs, collapses = [], []
    for row, label in zip(cosines.tolist(), labels.tolist(), strict=True):
        row += [0.0] * (100 - classes)
        attention = [sigmoid(10 * (c - 0.5)) + sigmoid(10 * (-c - 0.5)) for c in row]
        shares = [weight / sum(attention) for weight in attention]
        logs += [-math.log(s if at == label else 1 - s) for at, s in enumerate(shares)]
        far = [cosine + 1 / 99 for at, cosine in enumerate(row) if at != label]
        against = sum(math.exp(10 * (sigmoid(10 * (f - 0.5)) + sigmoid(10 * (-f - 0.5)))) for f in far)
        collapses.append(-10 * row[label] + math.log(math.exp(10 * row[label]) + against))
    attention = softabs(with_empty_rows(cosines, 100), 10)
    assert float(log_loss(attention, labels)) == pytest.approx(sum(logs) / (100 * images))
    assert float(collapse_loss(cosines, labels, 100, 10, 10)) == pytest.approx(sum(collapses) / images)


def test_a_memory_has_room_for_more_classes_than_it_has_rows():
    assert with_empty_rows(torch.ones(2, 5), 3).shape == (2, 5)


@pytest.mark.parametrize("name", ["c_fscil", "meta_nc"])
def test_an_episode_compares_queries_with_summed_shots_and_no_gradient_flows_through_the_prototypes(name):
    base = tiny([4] * 3)
    method = choose(f"{name}:steps=0,shot=3,queries=1").build(seed=0, device="cpu")
    method.fit_base(base)
    torch.nn.init.normal_(method.layer.bias, generator=seeded(1))
    generator = method.generator.get_state()
    found = torch.autograd.grad(method.episode(base), method.layer.weight)[0]
    method.generator.set_state(generator)
    images = base.features[draw_each(base.labels, 4, method.generator)]
    prototypes = torch.stack([sum(method.embed(image) for image in own[:3]) for own in images]).detach()
    queries = torch.stack([method.embed(own[3]) for own in images])
    if name == "c_fscil":
        prototypes, queries = prototypes.tanh(), queries.tanh()
    cosines = torch.stack([F.cosine_similarity(query[None], prototypes) for query in queries])
    wanted = torch.autograd.grad(method.episode_loss(cosines, torch.arange(3)), method.layer.weight)[0]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["c_fscil", "meta_nc"])
def test_features_enter_the_layer_at_the_length_that_is_set_whatever_the_banks(name):
    base = tiny([4] * 3)
    short, long = (choose(f"{name}:steps=3").build(seed=0, device="cpu") for _ in range(2))
    short.fit_base(base)
    long.fit_base(replace(base, features=50 * base.features, mean=50 * base.mean, std=50 * base.std))
    assert float((short.scale * base.features).square().mean()) == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(long.scores(50 * base.features), short.scores(base.features))


def test_c_fscil_takes_a_picture_for_what_it_is_least_orthogonal_to_and_meta_nc_for_what_it_is_most_like():
    base = tiny([3, 3])
    for name, least in (("c_fscil:mode=1,steps=0", 0.0), ("meta_nc:steps=0", -1.0)):
        method = choose(name).build(seed=0, device="cpu")
        method.fit_base(base)
        opposite = method.scores(-base.mean).diag()
        torch.testing.assert_close(opposite, torch.full((2,), 1.0 if least == 0 else least))


def test_neural_collapse_to_the_simplex_of_all_classes_is_where_other_classes_stop_moving():
    total = 5
    simplex = torch.full((total, total), -1 / (total - 1), dtype=torch.double).fill_diagonal_(1).requires_grad_()
    (slope,) = torch.autograd.grad(collapse_loss(simplex, torch.arange(total), total, 10, 10), simplex)
    torch.testing.assert_close(slope - slope.diag().diag(), torch.zeros_like(slope))
    assert bool((slope.diag() < 0).all())


def test_nudging_parts_classes_that_are_alike_and_leaves_orthogonal_ones_where_they_are():
    alike = 0.3 * (torch.randn(8, 64, generator=seeded()) + 1)
    before, after = (float(similarity(p, p).triu(1).abs().mean()) for p in (alike, nudged(alike, 100, 0.1)))
    assert after < before - 0.05
    assert nudging_loss(nudged(alike, 100, 0.1), alike) < nudging_loss(alike, alike)
    torch.testing.assert_close(nudged(torch.eye(8), 100, 0.1), torch.eye(8))


def test_realignment_decays_weights_and_goes_on_with_the_momentum_of_earlier_sessions():
    world = World.of()
    base, first, _ = world.sessions
    method = CFSCIL(CFSCILSettings(steps=0, bipolar_steps=3))
    method.fit_base(base)
    weight = method.layer.weight.detach().clone().requires_grad_()
    bias = method.layer.bias.detach().clone().requires_grad_()
    momenta = [method.momenta[:, :-1].clone(), method.momenta[:, -1].clone()]
    assert all(bool(momentum.any()) for momentum in momenta)
    method.learn(first)
    features = method.scale * method.means
    targets = F.linear(features, weight, bias).detach().sign()
    for _ in range(3):
        loss = -F.cosine_similarity(F.linear(features, weight, bias).tanh(), targets).mean()
        slopes = torch.autograd.grad(loss, [weight, bias])
        with torch.no_grad():
            for part, slope, momentum in zip((weight, bias), slopes, momenta, strict=True):
                slope = slope + 5e-4 * part
                momentum.mul_(0.9).add_(slope)
                part -= 0.01 * (slope + 0.9 * momentum)
    torch.testing.assert_close(method.layer.weight, weight)
    torch.testing.assert_close(method.layer.bias, bias)


def test_mode_two_moves_the_layer_towards_bipolar_prototypes_and_mode_three_apart():
    base = World.of().sessions[0]
    still, bipolar, apart = (CFSCIL(CFSCILSettings(mode=mode, steps=20, align_lr=0.1)) for mode in (1, 2, 3))
    for method in (still, bipolar, apart):
        method.fit_base(base)
    with torch.no_grad():
        original, signed, parted = (method.embed(base.mean) for method in (still, bipolar, apart))
    target = original.sign()
    assert F.cosine_similarity(signed.tanh(), target).mean() > F.cosine_similarity(original.tanh(), target).mean()
    assert similarity(parted, parted).triu(1).mean() < similarity(original, original).triu(1).mean()


def test_mode_one_with_a_layer_that_hardly_scales_is_nearest_class_mean():
    world = World.of()
    dimension = world.test.shape[1]
    method, control = CFSCIL(CFSCILSettings(mode=1, steps=0, width=dimension)), NCM()
    method.fit_base(world.sessions[0])
    method.layer.weight.data = 1e-3 * torch.eye(dimension)
    control.fit_base(world.sessions[0])
    for session in world.sessions[1:]:
        method.learn(session)
        control.learn(session)
    torch.testing.assert_close(method.scores(world.test), control.scores(world.test))


@pytest.mark.parametrize(
    ("name", "changes"), [("c_fscil:mode=1,steps=3", False), ("meta_nc:steps=3", False), ("c_fscil:steps=3", True)]
)
def test_only_a_realigned_layer_changes_what_old_classes_score(name, changes):
    world = World.of()
    method = choose(name).build(seed=0, device="cpu")
    method.fit_base(world.sessions[0])
    before = method.scores(world.test)
    method.learn(world.sessions[1])
    assert torch.allclose(method.scores(world.test)[:, :BASE], before, atol=1e-6) is not changes


def test_meta_nc_must_know_how_many_classes_will_come():
    world = World.of()
    base, first, second = world.sessions
    with pytest.raises(Misuse, match="told their number"):
        MetaNC().fit_base(replace(base, total=None))
    method = MetaNC(MetaNCSettings(steps=1))
    method.fit_base(replace(base, total=first.classes.stop))
    method.learn(first)
    with pytest.raises(Misuse, match="for 8 classes"):
        method.learn(second)


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("images", [[1], [1, 1], [3, 1, 9]])
def test_a_base_session_may_be_as_small_as_one_image(name, images):
    base = tiny(images)
    method = choose(name).build(seed=0, device="cpu")
    method.fit_base(base)
    shot = torch.rand(1, 7, generator=seeded(1))
    label = len(images)
    method.learn(Session(1, range(label, label + 1), ("new",), shot, torch.tensor([label]), None, total=label + 1))
    scores = method.scores(base.features)
    assert tuple(scores.shape) == (len(base.features), label + 1)
    assert bool(scores.isfinite().all())


@pytest.mark.parametrize(
    "words", ["cec:way=0", "limit:lr=0", "c_fscil:mode=4", "c_fscil:nudge_steps=-1", "meta_nc:scale=0"]
)
def test_settings_that_make_no_sense_are_refused(words):
    with pytest.raises(Misuse):
        choose(words)


def test_limit_has_the_papers_settings_for_other_data():
    assert choose("limit:mini_imagenet").settings == LIMITSettings.mini_imagenet()
    assert choose("limit:cub200,steps=5").settings == replace(LIMITSettings.cub200(), steps=5)
