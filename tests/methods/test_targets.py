"""Methods with targets fixed beforehand: NC-FSCIL's simplex and dot-regression, OrCo's targets and their pull."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from concm.engine import geometry
from concm.engine.descent import SGD, descend
from concm.errors import Misuse
from concm.evaluation.worlds import BASE, World
from concm.features.sessions import BaseSession, Session
from concm.methods import TOTAL, choose, teach
from concm.methods.nc_fscil import balance, cooled_cosine, dot_regression
from concm.methods.orco import class_directions, contrast, occupied, orthogonality, perturbed, rates_of_passes, versions

torch.set_num_threads(1)
BRIEF = {
    "nc_fscil": "nc_fscil:width=16,base_epochs=3,steps=3",
    "orco": "orco:width=16,hidden=8,least_steps=3,base_epochs=3,epochs=3",
}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learned(words, world, sessions=None):
    method = choose(words).build(seed=0, device="cpu")
    for session in world.sessions[:sessions]:
        teach(method, session)
    return method


# NC-FSCIL


@pytest.mark.parametrize("lengths", [[1.0, 1.0, 1.0], [0.5, 1.0, 2.0]])
def test_dot_regression_is_five_squared_distances_of_the_dot_product_from_the_target_s_length_on_average(lengths):
    vectors, vertices = random(3, 4), F.normalize(random(3, 4, seed=1))
    slow = 0.0
    for vector, vertex, length in zip(vectors, vertices, lengths, strict=True):
        slow += 10 * 0.5 * (float(vector @ (length * vertex)) / math.sqrt(float(vector @ vector)) - length) ** 2 / 3
    assert float(dot_regression(vectors, vertices, torch.tensor(lengths))) == pytest.approx(slow)


def test_dot_regression_only_pulls_a_vector_along_its_own_vertex():
    """The paper's claim: there is no push from other classes in its gradient."""
    vectors, vertices = F.normalize(random(5, 6)).requires_grad_(), geometry.random_simplex(5, 6, torch.Generator())
    (gradient,) = torch.autograd.grad(dot_regression(vectors, vertices, torch.ones(5)), vectors)
    cosines = (vectors * vertices).sum(1, keepdim=True)
    along = -(1 - cosines) * (vertices - cosines * vectors)
    torch.testing.assert_close(gradient, 10 * along / 5)


def test_dot_regression_is_zero_on_the_vertices_whatever_the_length():
    vertices = geometry.random_simplex(5, 6, torch.Generator())
    for lengths in (torch.ones(5), torch.arange(1.0, 6.0)):
        assert float(dot_regression(7 * vertices, vertices, lengths)) == pytest.approx(0, abs=1e-12)


def test_rare_classes_have_longer_targets_and_balanced_ones_unit_targets():
    torch.testing.assert_close(balance(torch.tensor([4, 4, 4, 9])), torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0]).sqrt())
    torch.testing.assert_close(balance(torch.tensor([4, 9, 4, 9])), torch.ones(4))


def test_no_vertex_ever_moves():
    world = World.of()
    before, after = (learned(BRIEF["nc_fscil"], world, count).simplex for count in (1, 3))
    assert torch.equal(before, after)
    cosines = (before @ before.T).fill_diagonal_(-1 / 9)
    torch.testing.assert_close(cosines, torch.full((10, 10), -1 / 9), atol=1e-5, rtol=0)


def test_one_mean_a_class_is_all_that_is_remembered():
    world = World.of(((5, 2), (1,)))
    method = learned(BRIEF["nc_fscil"], world)
    assert torch.equal(method.means[:BASE], world.sessions[0].mean)
    torch.testing.assert_close(method.means[BASE], world.sessions[1].features[:5].mean(0))
    assert method.memory_bytes == 9 * 32 * 4 + 9 * 16 * 4


def test_without_mixing_a_trained_neck_collapses_onto_the_vertices():
    method = learned("nc_fscil:mixing=0,lengths=false,hidden=4,steps=300", World.of())
    scores = method.scores(method.means)
    torch.testing.assert_close(scores, method.simplex @ method.simplex.T, atol=0.25, rtol=0)


def test_a_session_without_steps_leaves_old_scores_as_they_were():
    """The classifier is the simplex: what a session changes, it changes through the neck."""
    world = World.of()
    before, after = (learned("nc_fscil:steps=0", world, count).scores(world.test) for count in (1, 3))
    torch.testing.assert_close(after[:, :BASE], before)


def test_it_does_not_matter_how_long_the_features_of_a_bank_are():
    """Their length decides how far a step goes, so it is not left to how a bank stores them."""
    world = World.of()
    long = [replace(session, features=30 * session.features) for session in world.sessions]
    long[0] = replace(long[0], mean=30 * long[0].mean, std=30 * long[0].std)
    one, other = (learned(BRIEF["nc_fscil"], replace(world, sessions=each)) for each in (world.sessions, long))
    torch.testing.assert_close(one.scores(world.test), other.scores(30 * world.test), atol=1e-3, rtol=0)


def test_a_neck_that_has_fitted_its_features_long_ago_still_learns_sessions():
    """Decay shrinks one with nothing more to learn; with short features, or unmixed ones, a session breaks it."""
    world = World.of()
    method = learned("nc_fscil:width=16,hidden=1,base_epochs=1500,weight_decay=0.003", world)
    assert float((method.scores(world.test).argmax(1) == world.labels).float().mean()) > 0.9


def test_means_of_earlier_novel_classes_are_repeated_where_asked():
    world, seen = World.of(((5,), (5,), (5,))), []
    method = choose("nc_fscil:repeated=true").build(seed=0, device="cpu")
    method._regress = lambda features, labels, *_, **__: seen.append(labels.bincount().tolist())
    for session in world.sessions:
        teach(method, session)
    assert seen[1:] == [[1] * BASE + [5], [1] * BASE + [2, 5], [1] * BASE + [3, 3, 5]]


@pytest.mark.parametrize("name", ["nc_fscil", "orco"])
def test_the_base_session_is_as_long_as_the_authors_also_on_a_part_of_the_images(name, monkeypatch):
    """Ten thousand images were counted, and the bank holds a few of them."""
    seen: list[int] = []
    home = f"concm.methods.{name}"
    monkeypatch.setattr(f"{home}.descend", lambda weights, loss, rates, *_: seen.append(len(rates)))
    base = replace(World.of().sessions[0], counts=torch.tensor([5000, 1000, 1000, 1000, 1000, 1000]))
    method = choose(f"{name}:width=16,hidden=2").build(seed=0, device="cpu")
    method.fit_base(base)
    batch = {"nc_fscil": 120, "orco": 120}[name]
    epochs = {"nc_fscil": 200, "orco": 10}[name]
    assert seen == [epochs * math.ceil(10_000 / batch)]


@pytest.mark.parametrize(("name", "hidden"), [("nc_fscil", 2.0), ("orco", 2048)])
def test_the_short_form_for_a_cpu_is_a_preset_and_the_authors_form_the_default(name, hidden):
    full, short = choose(name).settings, choose(f"{name}:short").settings
    assert full.hidden == hidden
    assert short.hidden < full.hidden
    assert short.base_epochs < full.base_epochs


def test_presets_have_the_authors_steps():
    for preset, steps in {"mini_imagenet": (100, 170, 8), "cub200": (105, 150, 10)}.items():
        settings = choose(f"nc_fscil:{preset}").settings
        assert (settings.steps[0], settings.steps[-1], len(settings.steps)) == steps


def test_only_the_form_of_cifar_mixes():
    for preset in ("mini_imagenet", "cub200"):
        settings = choose(f"nc_fscil:{preset}").settings
        assert (settings.base_mixing, settings.mixing) == (0, 0)


def test_each_session_has_its_own_number_of_steps_and_those_after_the_last_have_as_many(monkeypatch):
    seen: list[int] = []
    monkeypatch.setattr("concm.methods.nc_fscil.descend", lambda weights, loss, rates, *_: seen.append(len(rates)))
    learned("nc_fscil:width=16,hidden=1,steps=3/5", World.of(((5,), (5,), (5,), (5,))))
    assert seen[1:] == [3, 5, 5, 5]


def test_rates_are_those_of_the_authors_log():
    """Session 2 of their log for CIFAR-100, at some of its fifty steps."""
    rates = cooled_cosine(0.25, 50, 5, 5)
    assert len(rates) == 50
    printed = {1: 0.069916, 4: 0.201069, 5: 0.242537, 15: 0.188125, 30: 0.064375, 44: 0.0028014, 45: 0.0025}
    assert {step: rates[step - 1] for step in printed} == pytest.approx(printed, abs=1e-6)
    assert rates[45:] == pytest.approx([0.00025] * 5)


@pytest.mark.parametrize("early", [True, False])
def test_mixed_features_count_their_first_class_once_more_and_mixed_outputs_do_not(early, monkeypatch):
    """What the authors' code adds up: λ L(a) + (1 − λ) L(b) + L(a) in the base session, half and half in sessions."""
    method, found = learned(BRIEF["nc_fscil"], World.of(), 1), list[float]()
    monkeypatch.setattr(
        "concm.methods.nc_fscil.descend", lambda weights, loss, *_: found.append(float(loss().detach()))
    )
    features, labels, before = random(6, 32).float(), torch.tensor([0, 3, 1, 3, 5, 2]), method.generator.get_state()
    method._regress(features, labels, [0.1], 6, mixing=1.0, early=early)
    method.generator.set_state(before)
    draw, slow = {"generator": method.generator, "device": "cpu"}, 0.0
    rows, _, other = torch.randperm(6, **draw), torch.rand((), **draw), torch.randperm(6, **draw)
    share = float(torch.rand((), **draw)) if early else 0.5
    for one, two in zip(rows, rows[other], strict=True):
        with torch.no_grad():
            if early:
                mixed = method._project(share * features[one] + (1 - share) * features[two])
            else:
                mixed = (method._project(features[one]) + method._project(features[two])) / 2
            mixed = F.normalize(mixed, dim=0)
        first, second = (5 * (float(mixed @ method.simplex[labels[at]]) - 1) ** 2 for at in (one, two))
        slow += (share * first + (1 - share) * second + (first if early else 0.0)) / 6
    assert found == [pytest.approx(slow, rel=1e-4)]


# OrCo


@pytest.mark.parametrize(("count", "width"), [(3, 2), (10, 9), (10, 16), (100, 128)])
def test_the_targets_minimise_the_orthogonality_loss(count, width):
    """Where the authors descend on it, the minimum is known: no random or descended vectors have less."""
    targets = geometry.random_simplex(count, width, torch.Generator().manual_seed(0))
    least = math.log(math.e + (count - 1) * math.exp(-1 / (count - 1)))
    assert float(orthogonality(targets)) == pytest.approx(least, abs=1e-9)
    vectors = random(count, width).requires_grad_()
    descend([vectors], lambda: orthogonality(F.normalize(vectors)), [count / 2] * 200, SGD(momentum=0.0))
    assert float(orthogonality(F.normalize(vectors.detach()))) >= least - 1e-9


def test_targets_that_there_is_room_for_are_nearly_orthogonal():
    method = learned("orco:targets=100,hidden=8,least_steps=0,base_epochs=0", World.of(), 1)
    cosines = (method.targets @ method.targets.T).fill_diagonal_(0)
    assert float(cosines.abs().max()) < 0.011


def test_the_orthogonality_loss_is_that_of_loops():
    vectors = F.normalize(random(4, 3))
    slow = sum(math.log(sum(math.exp(float(one @ other)) for other in vectors)) for one in vectors) / 4
    assert float(orthogonality(vectors)) == pytest.approx(slow)


def test_classes_take_the_free_targets_that_match_best_of_all_assignments():
    method = learned("orco:targets=12,width=16,hidden=8,least_steps=0,base_epochs=0", World.of(), 1)
    free, directions = method.targets[BASE:].clone(), F.normalize(random(3, 16).float())
    known = method.targets[:BASE].clone()
    best = max(itertools.permutations(range(6), 3), key=lambda to: float((directions * free[list(to)]).sum()))
    method._assign(directions)
    assert method.seen == BASE + 3
    assert torch.equal(method.targets[:BASE], known)
    assert torch.equal(method.targets[BASE : BASE + 3], free[list(best)])
    assert torch.equal(method.targets[BASE + 3 :], free[[at for at in range(6) if at not in best]])


def test_a_class_keeps_its_target_through_all_sessions():
    world = World.of()
    one, two, three = (learned(BRIEF["orco"], world, count) for count in (1, 2, 3))
    assert torch.equal(one.targets[:BASE], three.targets[:BASE])
    assert torch.equal(two.targets[: BASE + 2], three.targets[: BASE + 2])
    assert {tuple(row) for row in one.targets.tolist()} == {tuple(row) for row in three.targets.tolist()}


def test_every_session_begins_from_the_base_session_s_projector():
    world = World.of()
    words = BRIEF["orco"].replace("base_epochs=3,epochs=3", "base_epochs=3,epochs=0")
    before, after = (learned(words, world, count).scores(world.test) for count in (1, 3))
    torch.testing.assert_close(before, after[:, :BASE])
    moved = learned(BRIEF["orco"], world)
    still = learned(BRIEF["orco"], world, 1)
    for name, weight in still.projector.state_dict().items():
        assert torch.equal(weight, moved.aligned.state_dict()[name])
        assert not torch.equal(weight, moved.projector.state_dict()[name])


def test_the_first_images_of_a_base_class_and_all_shots_are_kept_with_their_views():
    world = World.of(((5, 2), (1,)))
    method = learned(BRIEF["orco"], world)
    assert method.labels.bincount().tolist() == [5] * BASE + [5, 2, 1]
    base = world.sessions[0]
    assert torch.equal(method.images[:5, 0], base.features[:5])
    assert torch.equal(method.images[:5, 1:], base.views[:5])
    assert method.memory_bytes == 38 * 3 * 32 * 4 + 38 * 8 + 9 * 16 * 4


@pytest.mark.parametrize(("targets", "count"), [(3, 8), (8, 8), (8, 3)])
def test_each_target_is_perturbed_as_often_as_another_and_by_no_more_than_half_the_width(targets, count):
    rows = F.normalize(random(targets, 6))
    chosen, near = perturbed(rows, count, 1e-2, torch.Generator().manual_seed(0))
    assert near.shape == (2, count, 6)
    often = torch.bincount(chosen, minlength=targets)
    assert int(often.max() - often.min()) <= 1
    torch.testing.assert_close(near.norm(dim=-1), torch.ones(2, count, dtype=torch.float64))
    moved = torch.linalg.vector_norm(near - rows[chosen], dim=-1)
    assert 0 < float(moved.max()) < 0.005 * math.sqrt(6)
    assert not torch.equal(near[0], near[1])


def test_without_targets_left_none_is_perturbed():
    chosen, near = perturbed(torch.zeros(0, 6), 8, 1e-2, torch.Generator())
    assert (chosen.shape, near.shape) == ((0,), (2, 0, 6))


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 1], [0, 1, 0, 2, 3], [4, 4, 4, 4, 4]])
def test_the_contrast_is_a_mean_over_those_that_share_a_label(labels):
    vectors, terms = F.normalize(random(5, 4)), []
    for i, label in enumerate(labels):
        others = [j for j in range(5) if j != i]
        total = math.log(sum(math.exp(float(vectors[i] @ vectors[j]) / 0.07) for j in others))
        same = [float(vectors[i] @ vectors[j]) / 0.07 - total for j in others if labels[j] == label]
        terms += [-sum(same) / len(same)] if same else []
    assert float(contrast(vectors, torch.tensor(labels), 0.07)) == pytest.approx(sum(terms) / len(terms))


def test_a_contrast_in_which_all_labels_differ_is_zero():
    assert float(contrast(F.normalize(random(3, 4)), torch.arange(3), 0.07)) == 0


def test_orthogonality_sees_first_views_alone_and_in_sessions_those_of_novel_samples(monkeypatch):
    seen: list[tuple[int, set[int]]] = []

    def watched(vectors, labels, targets):
        assert len(vectors) == len(labels)
        seen.append((len(labels), set(labels.tolist())))
        return occupied(vectors, labels, targets)

    monkeypatch.setattr("concm.methods.orco.occupied", watched)
    world = World.of()
    method = choose("orco:width=16,hidden=8,least_steps=1,base_epochs=0,epochs=1").build(seed=0, device="cpu")
    method.fit_base(world.sessions[0])
    batch = min(128, len(world.sessions[0].labels))
    assert seen == [(batch, set(range(BASE)))]
    seen.clear()
    method.learn(world.sessions[1])
    assert seen == [(10, {BASE, BASE + 1})]


def test_a_batch_without_novel_samples_leaves_all_targets_where_they_are():
    targets, none = F.normalize(random(4, 3)), torch.zeros(0, 3, dtype=torch.float64)
    torch.testing.assert_close(occupied(none, torch.zeros(0, dtype=torch.long), targets), targets)


def steps_taken(words, world, monkeypatch):
    """The rates, weight decay and dampening of each session."""
    found: list[tuple[list[float], SGD]] = []
    monkeypatch.setattr("concm.methods.orco.descend", lambda weights, loss, rates, how: found.append((rates, how)))
    learned(words, world)
    return found


def test_the_base_session_has_one_rate_and_sessions_rise_and_fall(monkeypatch):
    (base, at_base), (session, at_session), *_ = steps_taken("orco:width=16,hidden=8", World.of(), monkeypatch)
    assert set(base) == {0.25}
    assert (session[0], max(session)) == (3e-5, pytest.approx(0.1))
    assert 0 < session[-1] < 1e-4
    assert at_base == SGD(momentum=0.9, dampening=0.9, weight_decay=5e-4, from_rest=True)
    assert at_session == SGD(momentum=0.9, dampening=0.9, weight_decay=1e-4)


def test_on_cub200_the_base_session_s_rate_rises_and_falls_too(monkeypatch):
    (base, at_base), (_, at_session), *_ = steps_taken("orco:cub200,width=16,hidden=8", World.of(), monkeypatch)
    assert (base[0], max(base)) == (3e-5, pytest.approx(0.025))
    assert (at_base.weight_decay, at_session.weight_decay) == (5e-4, 1e-5)


def test_a_rate_is_that_of_its_pass_and_is_torch_s_linear_rise_and_half_cosine():
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 3e-5 / 0.1, 1.0, 9)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 90)
    slow = []
    for at in range(100):
        slow += [optimizer.param_groups[0]["lr"]] * 6
        optimizer.step()
        if at < 9:
            rise.step()
        elif at >= 10:
            fall.step()
    assert rates_of_passes(0.1, 600, 100, 0.1) == pytest.approx(slow)


@pytest.mark.parametrize(("steps", "passes"), [(0, 0), (0, 100), (7, 0), (7, 1), (3, 0.5), (100, 20)])
def test_any_number_of_steps_has_as_many_rates(steps, passes):
    rates = rates_of_passes(0.1, steps, passes, 0.1)
    assert len(rates) == steps
    assert all(0 < rate <= 0.1 for rate in rates)


def test_means_stand_for_the_targets_of_the_classes_in_a_batch():
    targets, vectors = F.normalize(random(4, 3)), F.normalize(random(3, 3, seed=1))
    found = occupied(vectors, torch.tensor([2, 0, 2]), targets)
    torch.testing.assert_close(found[[1, 3]], targets[[1, 3]])
    torch.testing.assert_close(found[0], vectors[1])
    torch.testing.assert_close(found[2], F.normalize(vectors[0] + vectors[2], dim=0))


def test_a_class_points_where_its_mean_does():
    vectors = random(4, 3)
    found = class_directions(vectors, torch.tensor([1, 0, 1, 1]))
    torch.testing.assert_close(found[0], F.normalize(vectors[1], dim=0))
    torch.testing.assert_close(found[1], F.normalize(vectors[[0, 2, 3]].mean(0), dim=0))


def test_too_few_versions_come_again_and_too_many_are_left_out():
    session = World.of().sessions[1]
    assert versions(session).shape == (10, 3, 32)
    assert torch.equal(versions(session, 5)[:, 3:], versions(session)[:, :2])
    assert torch.equal(versions(replace(session, views=None), 2), session.features[:, None].expand(-1, 2, -1))


def test_it_learns_without_views():
    world = World.of()
    bare = replace(world, sessions=tuple(replace(session, views=None) for session in world.sessions))
    for sessions, seen, least in ((1, BASE, 0.9), (3, 10, 0.6)):
        method, (features, labels) = learned("orco:hidden=64", bare, sessions), world.known(seen)
        assert float((method.scores(features).argmax(1) == labels).double().mean()) > least


def test_it_says_that_nothing_has_a_second_view_where_base_images_have_none():
    world = World.of()
    base, *later = world.sessions
    bare = replace(world, sessions=(replace(base, views=None), *later))
    said = ["this bank has no views of base images, so no image or shot has a second view"]
    method = learned(BRIEF["orco"], bare)
    assert (method.remarks, method.images.shape[1]) == (said, 1)
    loaded = choose(BRIEF["orco"]).build(seed=0, device="cpu")
    loaded.load_state_dict(method.state_dict())
    assert loaded.remarks == said
    assert learned(BRIEF["orco"], world).remarks == []


@pytest.mark.parametrize("seed", range(4))
def test_no_seed_puts_classes_of_many_dimensions_in_one_place(seed):
    """With a first step that is not damped the last of these ends at chance."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(30).repeat_interleave(10)
    features = torch.rand(30, 640, generator=generator)[labels] + 0.3 * torch.randn(300, 640, generator=generator)
    names = tuple(f"class {label}" for label in range(30))
    method = choose("orco:hidden=64,least_steps=100").build(seed=seed, device="cpu")
    method.fit_base(BaseSession.of(Session(0, range(30), names, features.relu(), labels, None, total=60)))
    assert float((method.scores(features.relu()).argmax(1) == labels).double().mean()) > 0.95


def test_the_length_of_features_makes_no_difference():
    world = World.of()
    method = learned(BRIEF["orco"], world)
    torch.testing.assert_close(method.scores(9 * world.test), method.scores(world.test))


def test_base_images_keep_away_from_free_targets():
    """What the contrast with unassigned targets is for: room where novel classes will be."""
    world = World.of()
    method = learned("orco:hidden=64", world, 1)
    with torch.no_grad():
        free = method.projector(world.known(BASE)[0]) @ method.targets[BASE:].T
    assert float(free.max()) < 0.3


# both


@pytest.mark.parametrize("name", BRIEF)
def test_more_classes_than_were_announced_are_refused(name):
    world = World.of()
    short = tuple(replace(session, total=BASE + 2) for session in world.sessions)
    method = learned(BRIEF[name], replace(world, sessions=short), 2)
    with pytest.raises(Misuse, match="cannot learn 10"):
        method.learn(short[2])
    with pytest.raises(Misuse, match=f"cannot learn {BASE}"):
        choose(name).build(seed=0, device="cpu").fit_base(replace(short[0], total=BASE - 1))


@pytest.mark.parametrize("name", BRIEF)
def test_an_unknown_total_is_refused(name):
    base = replace(World.of().sessions[0], total=None)
    with pytest.raises(Misuse, match="every class to come"):
        choose(name).build(seed=0, device="cpu").fit_base(base)


def test_with_a_number_of_targets_the_total_need_not_be_known():
    base = replace(World.of().sessions[0], total=None)
    choice = choose("orco:targets=20,hidden=8,least_steps=1")
    assert TOTAL not in choice.settings.needs
    assert TOTAL in choose("orco").settings.needs
    method = choice.build(seed=0, device="cpu")
    method.fit_base(base)
    assert len(method.targets) == 20


@pytest.mark.parametrize("name", BRIEF)
def test_more_classes_than_dimensions_widen_the_space(name):
    world = World.of()
    wide = replace(world, sessions=tuple(replace(session, total=40) for session in world.sessions))
    method = learned(BRIEF[name], wide)
    assert (method.simplex if name == "nc_fscil" else method.targets).shape == (40, 39)


@pytest.mark.parametrize("words", ["nc_fscil:batch=0", "nc_fscil:steps=-1", "orco:exemplars=0", "orco:temperature=0"])
def test_settings_that_make_no_sense_are_refused(words):
    with pytest.raises(Misuse, match="must be"):
        choose(words)
