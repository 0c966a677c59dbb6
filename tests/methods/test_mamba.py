"""Mamba-FSCIL: the scan against its recurrence, the silent second branch, its losses, and the base session."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from concm.errors import Misuse
from concm.evaluation.worlds import BASE, DIMENSION, TRANSFORM, Small, World
from concm.methods import choose
from concm.methods.mamba_fscil import (
    Branch,
    MambaFSCILSettings,
    OntoSimplex,
    directions,
    folded,
    likeness,
    loudness,
    misses,
    mix,
    selective_scan,
)
from concm.methods.nc_fscil import dot_regression
from concm.training.objective import Stage

torch.set_num_threads(1)  # bit for bit only holds for one number of threads
BRIEF = "mamba_fscil:short,inner=16,width=32,steps=20"


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@cache
def world():
    return World.of(choice=choose(BRIEF))


def after(words, sessions=None):
    method = choose(words).build(seed=0, device="cpu")
    base, *later = world().sessions[:sessions]
    method.fit_base(base)
    for session in later:
        method.learn(session)
    return method


def read(method, features):
    with torch.no_grad():
        return method.novel(folded(features, method.shape))


def all_of(gate):
    return torch.ones(len(gate), dtype=torch.bool)


def loud(method, features):
    gate = read(method, features).gate
    return float(loudness(gate, all_of(gate)))


def objective(settings):
    torch.manual_seed(0)
    return OntoSimplex(Stage(Small(), DIMENSION, BASE, 10, TRANSFORM), settings)


# The scan


def scanned(signal, delta, a, b, c, orders):
    """The recurrence, number by number."""
    out = torch.zeros_like(signal)
    for picture in range(signal.shape[0]):
        for order in orders:
            for channel in range(signal.shape[2]):
                state = [0.0] * a.shape[1]
                for at in order:
                    step = float(delta[picture, at, channel])
                    for k in range(a.shape[1]):
                        kept = math.exp(step * float(a[channel, k])) * state[k]
                        state[k] = kept + step * float(b[picture, at, k] * signal[picture, at, channel])
                        out[picture, at, channel] += float(c[picture, at, k]) * state[k] / len(orders)
    return out


def problem(height, width, pictures=2, channels=3, state=2):
    positions = height * width
    signal, delta = random(pictures, positions, channels), random(pictures, positions, channels, seed=1).exp()
    a = -random(channels, state, seed=2).exp()
    return signal, delta, a, random(pictures, positions, state, seed=3), random(pictures, positions, state, seed=4)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (2, 3), (3, 1)])
def test_the_scan_is_the_state_space_recurrence_in_every_direction(shape):
    given, orders = problem(*shape), directions(*shape)
    torch.testing.assert_close(selective_scan(*given, orders), scanned(*given, orders))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 4), (7, 7)])
def test_every_direction_visits_every_position_once(shape):
    orders = directions(*shape)
    assert len(orders) == 4
    assert all(sorted(order) == list(range(math.prod(shape))) for order in orders)


def test_directions_go_along_rows_along_columns_and_back():
    grid = torch.arange(6).view(2, 3)
    rows, back, columns, up = directions(2, 3)
    assert rows == grid.flatten().tolist()
    assert columns == grid.T.flatten().tolist()
    assert (back, up) == (rows[::-1], columns[::-1])


def test_one_direction_reads_what_came_before_and_four_read_everything():
    signal, *others = problem(2, 2, pictures=1)

    def seen(orders):
        gradients = torch.autograd.functional.jacobian(lambda x: selective_scan(x, *others, orders)[0].sum(1), signal)
        return gradients[:, 0].abs().sum(-1) > 0

    assert torch.equal(seen(directions(2, 2)[:1]), torch.ones(4, 4).tril().bool())
    assert seen(directions(2, 2)).all()


def test_turning_a_map_turns_what_is_read():
    """All four directions count alike, so a mirrored diagonal or a half turn changes nothing but the places."""
    signal, delta, a, b, c = problem(3, 3)
    found = selective_scan(signal, delta, a, b, c, directions(3, 3))
    for places in (torch.arange(9).view(3, 3).T.flatten(), torch.arange(9).flip(0)):
        moved = selective_scan(
            *(x[:, places] for x in (signal, delta)), a, b[:, places], c[:, places], directions(3, 3)
        )
        torch.testing.assert_close(moved, found[:, places])


def test_a_scan_that_forgets_at_once_reads_each_position_alone():
    signal, delta, a, b, c = problem(2, 2)
    alone = delta * signal * (b * c).sum(-1, keepdim=True)
    torch.testing.assert_close(selective_scan(signal, delta, 1e6 * a, b, c, directions(2, 2)), alone)


def test_the_scan_is_done_in_full_precision_whatever_surrounds_it():
    given = [value.float() for value in problem(2, 2)]
    with torch.autocast("cpu", torch.bfloat16):
        found = selective_scan(*given, directions(2, 2))
    torch.testing.assert_close(found, selective_scan(*given, directions(2, 2)))


def test_the_scan_s_parameters_depend_on_what_it_reads():
    torch.manual_seed(0)
    branch = Branch(5, (2, 2), 8, MambaFSCILSettings(inner=6, state=3, rank=2))
    one, other = branch(random(2, 5, 2, 2).float()).selected
    assert one.shape == (4, 2 + 3 + 3)
    assert not torch.allclose(one, other, atol=1e-3)


# The second branch


def test_the_second_branch_begins_as_nothing_and_can_leave_it():
    torch.manual_seed(0)
    branch = Branch(5, (2, 2), 8, MambaFSCILSettings(inner=6), silent=True)
    reading = branch(random(3, 5, 2, 2).float())
    assert not reading.vectors.any()
    assert not reading.gate.any()
    (gradient,) = torch.autograd.grad(reading.vectors.sum(), branch.gate.weight)
    assert gradient.abs().sum() > 0


def test_before_the_first_session_the_method_is_the_base_session_s_own_classifier():
    trained, method = objective(choose(BRIEF).settings).eval(), choose(BRIEF).build(seed=5, device="cpu")
    base = replace(world().sessions[0], learned=trained.learned())
    method.fit_base(base)
    with torch.no_grad():
        expected = trained.classify(world().test)
    torch.testing.assert_close(method.scores(world().test), expected)


def test_a_session_of_no_steps_changes_no_score_and_adds_vertices():
    before, later = after(BRIEF, 1), after(f"{BRIEF},steps=0", 2)
    scores = later.scores(world().test)
    torch.testing.assert_close(scores[:, :BASE], before.scores(world().test))
    assert scores.shape[1] == BASE + 2


def test_sessions_train_the_second_branch_and_leave_the_first_and_the_simplex():
    before, later = after(BRIEF, 1).state_dict(), after(BRIEF).state_dict()
    for name, value in before.items():
        if name.startswith("neck/") or name == "simplex":
            assert torch.equal(value, later[name]), name
    trained = {name for name in before if name.startswith("novel/") and not torch.equal(before[name], later[name])}
    assert trained == {name for name in before if name.startswith("novel/")}


def test_one_mean_map_a_class_is_kept():
    method, sessions = after(BRIEF), world().sessions
    assert method.memory_bytes == 10 * sessions[0].features.shape[1] * 4 + method.simplex.nbytes
    torch.testing.assert_close(method.means[BASE], sessions[1].features[:5].mean(0))


def test_the_frozen_vectors_of_base_classes_have_the_set_length_and_all_keep_their_ratios():
    for length in (2, 5):
        method = after(f"{BRIEF},length={length}", 1)
        with torch.no_grad():
            raw = method.neck(folded(method.means, method.shape)).norm(dim=1)
        found = method._frozen(method.means).norm(dim=1)
        assert float(found.mean()) == pytest.approx(length, rel=1e-4)
        torch.testing.assert_close(found / found[0], raw / raw[0])


def test_a_class_that_is_rare_in_the_batch_counts_more():
    """Targets of length √(mean count ∕ count), each to be met with a dot product of that length."""
    method, found, labels = after(BRIEF, 1), random(4, 32).float(), torch.tensor([0, 0, 0, 1])
    misses_of = misses(found, method.simplex[labels])
    weights = torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0])
    torch.testing.assert_close(method._regression(found, labels), (weights * misses_of).mean())


def test_images_are_scored_the_same_alone_or_among_thousands():
    method = after(BRIEF)
    many = world().test.repeat(12, 1)
    assert len(many) > 1024
    torch.testing.assert_close(method.scores(many)[-100:], method.scores(world().test))


@pytest.mark.parametrize("change", ["more_base=true", "copies=7"])
def test_copies_of_mean_maps_make_a_difference_from_the_second_session_on(change):
    few = f"{BRIEF},batch=9,steps=3"
    one, other = (after(words, 2).scores(world().test) for words in (few, f"{few},{change}"))
    torch.testing.assert_close(one, other)
    one, other = (after(words).scores(world().test) for words in (few, f"{few},{change}"))
    assert not torch.equal(one, other)


# Losses of sessions


def test_loudness_is_the_length_over_the_number_of_values():
    gate = random(3, 4, 5)
    slow = math.sqrt(sum(float(value) ** 2 for value in gate.flatten())) / 60
    assert float(loudness(gate, all_of(gate))) == pytest.approx(slow)
    assert float(loudness(gate, ~all_of(gate))) == 0


def test_loudness_of_some_rows_does_not_depend_on_the_others():
    gate, rows = random(3, 4, 5), torch.tensor([True, False, True])
    torch.testing.assert_close(loudness(gate, rows), loudness(gate[rows], all_of(gate[rows])))


def test_loudness_of_silence_has_no_gradient_and_no_nan():
    gate = torch.zeros(2, 3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(loudness(gate, all_of(gate)), gate)
    assert torch.equal(gradient, torch.zeros(2, 3, 4))


def test_likeness_is_half_the_absolute_cosines_of_averaged_parameters():
    sizes, old = [2, 3, 3], torch.tensor([True, False, True, False, False])
    selected = random(5, 4, 8)
    slow, start = 0.0, 0
    for size in sizes:
        sums = [[0.0] * size, [0.0] * size]
        for picture in range(5):
            for at in range(4):
                for k in range(size):
                    sums[int(old[picture])][k] += float(selected[picture, at, start + k])
        dot = sum(x * y for x, y in zip(*sums, strict=True))
        slow += abs(dot) / math.hypot(*sums[0]) / math.hypot(*sums[1]) / 2
        start += size
    assert float(likeness(selected, sizes, old)) == pytest.approx(slow)


def test_likeness_lies_between_orthogonal_and_equal_parameters_and_needs_both_groups():
    old = torch.tensor([True, False])
    assert float(likeness(torch.ones(2, 3, 6), [2, 2, 2], old)) == pytest.approx(1.5)
    assert float(likeness(torch.eye(2).repeat(1, 3)[:, None], [2, 2, 2], old)) == 0
    assert float(likeness(torch.ones(2, 3, 6), [2, 2, 2], old | True)) == 0


def test_a_huge_shrink_keeps_the_second_branch_quiet_on_base_images_and_their_scores_as_they_were():
    images, _ = world().known(BASE)
    before = after(BRIEF, 1).scores(images)
    heard, moved = [], []
    for shrink in (0, 1000):
        method = after(f"{BRIEF},shrink={shrink},lr=0.005,steps=60", 2)
        heard.append(loud(method, images))
        moved.append(float((method.scores(images)[:, :BASE] - before).abs().mean()))
    assert heard[0] > 50 * heard[1]
    assert moved[0] > 50 * moved[1]


def test_a_heavier_grow_makes_the_second_branch_louder_on_novel_images():
    shots = world().sessions[1].features
    weights = (0, 100)
    quiet, louder = (loud(after(f"{BRIEF},shrink=0,grow={grow},lr=0.005", 2), shots) for grow in weights)
    assert louder > 2 * quiet


def test_a_heavier_separation_makes_parameters_for_base_and_novel_images_less_alike():
    images, labels = world().known(BASE + 2)
    alike = []
    for separate in (0, 0.1):
        method = after(f"{BRIEF},separate={separate},lr=0.005,steps=40", 2)
        alike.append(float(likeness(read(method, images).selected, method.novel.sizes, labels < BASE)))
    assert alike[1] < alike[0] / 3


# The base session


def test_misses_average_to_dot_regression():
    vectors, vertices = random(4, 6), F.normalize(random(4, 6, seed=1))
    torch.testing.assert_close(misses(vectors, vertices).mean(), dot_regression(vectors, vertices, torch.ones(4)))


def test_pictures_that_are_neither_blended_nor_pasted_stay_as_they_are():
    images, others = uniform(5, 3, 8, 8), uniform(5, 3, 8, 8, seed=1)
    found, share = mix(images, others, uniform(5, 4, seed=2), 0.0, 0.0)
    assert torch.equal(found, images)
    assert torch.equal(share, torch.ones(5))


def test_a_blended_picture_is_a_weighted_mean_of_two():
    images, others, numbers = uniform(5, 3, 8, 8), uniform(5, 3, 8, 8, seed=1), uniform(5, 4, seed=2)
    found, share = mix(images, others, numbers, 1.0, 0.0)
    torch.testing.assert_close(share, numbers[:, 1])
    for one, other, picture, part in zip(images, others, found, share, strict=True):
        torch.testing.assert_close(picture, part * one + (1 - part) * other)


def test_a_pasted_picture_has_a_box_of_another_and_is_its_own_in_the_share_that_is_left():
    images, others = torch.zeros(50, 3, 8, 8), torch.ones(50, 3, 8, 8)
    found, share = mix(images, others, uniform(50, 4), 0.0, 1.0)
    for picture, part in zip(found, share, strict=True):
        rows, columns = (picture[0].amax(axis) for axis in (1, 0))
        assert torch.equal(picture, (rows[:, None] * columns).expand(3, 8, 8))
        assert float(part) == pytest.approx(1 - float(picture.mean()))
    assert 0.3 < float(share.mean()) < 0.9


def test_shares_of_pictures_are_blended_pasted_or_left():
    numbers = uniform(4000, 4)
    found, share = mix(torch.zeros(4000, 3, 4, 4), torch.ones(4000, 3, 4, 4), numbers, 0.5, 0.2)
    untouched = (share == 1).float().mean()
    grey = ((found > 0) & (found < 1)).flatten(1).all(1).float().mean()
    assert float(grey) == pytest.approx(0.5, abs=0.03)
    assert 0.28 < float(untouched) < 0.4


def test_without_mixing_the_base_session_is_dot_regression_of_the_backbone_s_maps():
    settings = MambaFSCILSettings(
        inner=8, state=8, rank=8, width=16, scale_min=1.0, jitter=0.0, blended=0.0, pasted=0.0
    )
    trained = objective(settings).eval()
    pixels = torch.full((4, 16, 16, 3), 90, dtype=torch.uint8) + 40 * torch.arange(4, dtype=torch.uint8).view(
        4, 1, 1, 1
    )
    labels, numbers = torch.tensor([0, 3, 5, 5]), uniform(4, 2, 14)
    numbers[:, 0, 1], numbers[:, 0, 4] = 0.5, 1.0  # square and not mirrored
    loss = trained(pixels, labels, numbers, 0)["loss"]
    maps = trained.backbone.maps(TRANSFORM.centre(pixels))
    expected = dot_regression(trained.neck(maps), trained.simplex[labels], torch.ones(4))
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


def test_mixed_pictures_are_drawn_to_the_vertices_of_both_in_their_shares():
    settings = MambaFSCILSettings(inner=8, state=8, rank=8, width=16, blended=1.0, pasted=0.0)
    trained = objective(settings).eval()
    pixels = torch.zeros(2, 16, 16, 3, dtype=torch.uint8)  # black blends into black
    numbers = uniform(2, 2, 14)
    numbers[:, 1, 0] = torch.tensor([0.9, 0.1])  # so each is the other's partner
    found = trained(pixels, torch.tensor([1, 4]), numbers, 0)["loss"]
    vector = trained.neck(trained.backbone.maps(TRANSFORM.centre(pixels)))
    one, four = (misses(vector[:1], trained.simplex[[at]])[0] for at in (1, 4))
    first, second = numbers[:, 1, 2]
    expected = (first * one + (1 - first) * four + second * four + (1 - second) * one) / 2
    torch.testing.assert_close(found, expected)


def test_a_step_is_a_function_of_its_inputs_alone():
    trained = objective(MambaFSCILSettings(inner=8, state=8, rank=8, width=16)).eval()
    pixels, labels = (255 * uniform(6, 16, 16, 3)).byte(), torch.arange(6)
    one, other = (trained(pixels, labels, uniform(6, 2, 14), 0)["loss"] for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, trained(pixels, labels, uniform(6, 2, 14, seed=1), 0)["loss"])


def test_making_the_objective_leaves_the_backbone_s_statistics_and_mode():
    network = Small()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    OntoSimplex(Stage(network, DIMENSION, BASE, 10, TRANSFORM), MambaFSCILSettings(inner=8, state=8, rank=8, width=16))
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_simplex_has_a_vertex_for_every_class_to_come_and_room_for_it():
    simplex = objective(MambaFSCILSettings(inner=8, state=8, rank=8, width=4)).simplex
    assert simplex.shape == (10, 9)
    cosines = simplex @ simplex.T
    torch.testing.assert_close(cosines, (torch.eye(10) * 10 - 1) / 9)


# Refusals


def test_a_bank_without_what_the_base_session_learned_is_refused():
    with pytest.raises(Misuse, match="--method mamba_fscil"):
        choose(BRIEF).build(seed=0, device="cpu").fit_base(replace(world().sessions[0], learned={}))


def test_other_sizes_than_the_base_session_s_are_refused():
    with pytest.raises(Misuse, match="those of its base session"):
        after("mamba_fscil:short,inner=8,width=32", 1)


def test_more_classes_than_vertices_are_refused():
    method = after(BRIEF)
    last = world().sessions[-1]
    with pytest.raises(Misuse, match="10 vertices and cannot learn 12"):
        method.learn(replace(last, index=3, classes=range(10, 12), labels=last.labels + 2))


@pytest.mark.parametrize("change", ["inner=0", "copies=0", "scale_min=0", "blended=0.7", "pasted=-0.1", "length=0"])
def test_settings_that_make_no_sense_are_refused(change):
    with pytest.raises(Misuse):
        choose(f"mamba_fscil:{change}")


def test_presets_are_the_published_weights():
    mini, cub = (choose(f"mamba_fscil:{name}").settings for name in ("mini_imagenet", "cub200"))
    assert (mini.shrink, mini.grow, mini.separate) == (100, 0, 0.5)
    assert (cub.shrink, cub.grow, cub.separate) == (100, 10, 0.001)


def test_the_default_is_the_authors_form_and_a_cpu_has_a_short_one():
    full, short = choose("mamba_fscil").settings, choose("mamba_fscil:short").settings
    assert (full.state, full.lr, full.mixing, full.steps) == (256, 0.25, 0.75, 200)
    assert (short.state, short.lr, short.mixing, short.steps) == (8, 0.05, 0.0, 100)
