"""Methods that go on training the backbone: iCaRL, LCwoF and BiDist."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from concm.engine.descent import paced
from concm.errors import Misuse
from concm.evaluation.worlds import BASE, SIDE, World
from concm.methods import EXEMPLARS, PICTURES, choose
from concm.methods.bidist import amplification, distillation, merged, perceptron, typical
from concm.methods.icarl import herded
from concm.methods.imprint import imprinted
from concm.methods.lcwof import implicit

torch.set_num_threads(1)
BRIEF = {
    "icarl": "icarl:epochs=2",
    "lcwof": "lcwof:novel.steps=3,joint.steps=3",
    "bidist": "bidist:iterations=3,views=2",
}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@cache
def world(shots=((5, 5), (5, 5))):
    return World.of(shots, choice=choose("icarl"))


def learned(words, sessions=None, of=None, seed=0):
    method = choose(words).build(seed=seed, device="cpu")
    first, *later = (of or world()).sessions[:sessions]
    method.fit_base(first)
    for session in later:
        method.learn(session)
    return method


def distance(network, other):
    pairs = zip(network.parameters(), other.parameters(), strict=True)
    return math.sqrt(sum(float((one - two).detach().square().sum()) for one, two in pairs))


# all three


@pytest.mark.parametrize("name", BRIEF)
def test_without_pictures_the_method_says_how_to_get_them(name):
    base = replace(world().sessions[0], pictures=None)
    with pytest.raises(Misuse, match="--keep-pictures"):
        choose(name).build(seed=0, device="cpu").fit_base(base)


@pytest.mark.parametrize("name", BRIEF)
def test_batch_statistics_stay_those_of_the_base_session(name):
    method, wanted = learned(BRIEF[name]), world().sessions[0].backbone.backbone
    kept = dict(method.network.named_buffers())
    assert kept
    assert all(torch.equal(value, kept[key]) for key, value in wanted.named_buffers())


@pytest.mark.parametrize("name", ["icarl", "lcwof"])
def test_the_whole_network_is_trained_in_sessions_and_not_in_the_base_session(name):
    start = world().sessions[0].backbone.backbone
    assert distance(learned(BRIEF[name], 1).network, start) == 0
    pairs = zip(learned(BRIEF[name], 2).network.parameters(), start.parameters(), strict=True)
    assert not any(torch.equal(one, two) for one, two in pairs)


def test_rows_of_both_branches_count_for_all_classes():
    base, later = learned(BRIEF["bidist"], 1), learned(BRIEF["bidist"], 2)
    added = len(later.rows) - len(base.rows)
    gate = sum(weight.numel() for weight in later.gate.parameters()) - sum(w.numel() for w in base.gate.parameters())
    assert added
    assert later.parameter_count - base.parameter_count == gate + 2 * added * later.dimension


@pytest.mark.parametrize("name", BRIEF)
def test_it_declares_the_pictures_it_keeps(name):
    needs = choose(name).needs
    assert PICTURES in needs
    assert sum(need.startswith(EXEMPLARS) for need in needs) == 1


@pytest.mark.parametrize("name", BRIEF)
def test_unusable_settings_are_refused(name):
    wrong = {"icarl": "memory=0", "lcwof": "novel.lr=-1", "bidist": "temperature=0"}
    with pytest.raises(Misuse):
        choose(f"{name}:{wrong[name]}")


# iCaRL


def slowly_herded(vectors, count):
    mean, chosen = vectors.mean(0), []
    for _ in range(count):
        best, least = None, math.inf
        for at in range(len(vectors)):
            if at in chosen:
                continue
            away = float((mean - vectors[[*chosen, at]].mean(0)).norm())
            if away < least:
                best, least = at, away
        chosen.append(best)
    return chosen


@pytest.mark.parametrize(("number", "count"), [(1, 1), (7, 3), (12, 12), (30, 9)])
def test_herding_chooses_what_keeps_the_running_mean_nearest(number, count):
    vectors = F.normalize(random(number, 5))
    assert herded(vectors, count).tolist() == slowly_herded(vectors, count)


def test_fewer_exemplars_are_the_first_of_more_and_there_are_no_more_than_pictures():
    vectors = random(10, 4)
    assert torch.equal(herded(vectors, 4), herded(vectors, 9)[:4])
    assert sorted(herded(vectors, 50).tolist()) == list(range(10))


def test_the_budget_is_shared_by_all_classes_and_never_exceeded():
    each = [3, 2, 2]
    for sessions, count in enumerate(each, 1):
        method = learned("icarl:epochs=1,memory=20", sessions)
        seen = BASE + 2 * (sessions - 1)
        assert method.labels.tolist() == [label for label in range(seen) for _ in range(count)]
        assert method.exemplars.nbytes == len(method.labels) * SIDE * SIDE * 3 <= 20 * SIDE * SIDE * 3
        assert method.memory_bytes == method.exemplars.nbytes + method.labels.nbytes + method.means.nbytes


def test_old_exemplars_that_remain_are_those_chosen_first():
    before, after = (learned("icarl:epochs=1,memory=20", count) for count in (1, 2))
    old = torch.stack([before.exemplars[before.labels == label][:2] for label in range(BASE)])
    assert torch.equal(after.exemplars[: 2 * BASE], old.flatten(0, 1))


def test_a_budget_of_less_than_a_picture_a_class_is_refused():
    with pytest.raises(Misuse, match="7 pictures"):
        learned("icarl:epochs=0,memory=7", 2)


def test_old_outputs_are_drawn_to_what_they_were_and_new_ones_to_the_labels():
    method, seen = learned("icarl", 1), []
    method._descend = lambda weights, read, targets, *_: seen.append(targets)
    rows, session = method.rows, world().sessions[1]
    pictures = torch.cat([session.pictures, method.exemplars])
    method.learn(session)
    (targets,) = seen
    outputs = F.normalize(method.features(pictures)) @ rows.T
    old = outputs.clone().requires_grad_()
    loss = F.binary_cross_entropy_with_logits(old, targets[:, :BASE])
    assert torch.autograd.grad(loss, old)[0].abs().max() < 1e-8, "nothing has changed, so nothing pulls"
    assert targets[:10, BASE:].argmax(1).tolist() == (session.labels - BASE).tolist()
    assert targets[:, BASE:].sum(0).tolist() == [5, 5]
    assert targets[10:, BASE:].sum() == 0


def test_without_training_it_is_the_nearest_mean_of_unit_features():
    method = learned("icarl:epochs=0")
    rows = torch.cat([imprinted(session) for session in world().sessions])
    features = F.normalize(world().sessions[0].features)
    torch.testing.assert_close(method.scores(world().sessions[0].pictures), features @ rows.T, atol=1e-5, rtol=0)


def test_the_base_outputs_recognise_the_base_classes():
    base = world().sessions[0]
    outputs = F.normalize(base.features) @ learned("icarl:base_epochs=300", 1).rows.T
    assert (outputs.argmax(1) == base.labels).float().mean() > 0.95
    assert (outputs > 0).float().mean() < 0.3


# LCwoF


def test_paced_values_are_the_same_and_their_gradient_is_not():
    values = random(4, 3).requires_grad_()
    slow = paced(values, 0.1)
    assert torch.equal(slow, values)
    torch.testing.assert_close(torch.autograd.grad(slow.square().sum(), values)[0], 0.2 * values)


@pytest.mark.parametrize("penalty", [0.0, 3.0, 5e3, 1e9])
def test_the_implicit_rate_makes_the_implicit_step(penalty):
    lr, gradient, away = 0.001, 2.0, 0.7
    rate = implicit(lr, penalty)
    stepped = away - rate * (gradient + 2 * penalty * away)
    assert stepped + 2 * lr * penalty * stepped == pytest.approx(away - lr * gradient)


def test_a_huge_penalty_keeps_the_backbone_where_it_was():
    free, held, fixed = (learned(f"lcwof:penalty={penalty}", 2) for penalty in (0, 5e3, 1e8))
    moved = [distance(method.network, method.anchor) for method in (free, held, fixed)]
    assert moved[0] > 30 * moved[1] > 0
    assert moved[2] < 1e-6


def test_without_steps_it_is_weight_imprinting():
    method = learned("lcwof:novel.steps=0,joint.steps=0")
    twin = choose("imprint").build(seed=0, device="cpu")
    base, *later = world().sessions
    twin.fit_base(base)
    for session in later:
        twin.learn(session)
    torch.testing.assert_close(method.scores(base.pictures), twin.scores(base.features), atol=1e-4, rtol=0)


def test_rates_of_zero_change_nothing_however_many_steps():
    still = "lr=0,{0}.backbone_lr=0,{0}.steps=4"
    words = ",".join(f"{phase}.{still.format(phase)}" for phase in ("novel", "joint"))
    method, start = learned(f"lcwof:{words}"), learned("lcwof:novel.steps=0,joint.steps=0")
    assert distance(method.network, method.anchor) == 0
    torch.testing.assert_close(method.scores(world().test), start.scores(world().test))


def test_the_novel_phase_leaves_old_rows_alone():
    before, after = (learned("lcwof:novel.steps=5,joint.steps=0", count).rows for count in (1, 2))
    torch.testing.assert_close(after[:BASE], before)
    plain = learned("lcwof:novel.steps=0,joint.steps=0", 2).rows
    assert not torch.allclose(after[BASE:], plain[BASE:])


def test_five_pictures_of_each_base_class_and_all_shots_are_kept():
    method = learned(BRIEF["lcwof"], of=world(((1, 1), (5, 2, 9), (1,))))
    assert method.labels.bincount().tolist() == [5] * BASE + [1, 1, 5, 2, 9, 1]
    assert len(method.exemplars) == len(method.labels)


# BiDist


def test_distillation_is_a_softened_divergence():
    student, teacher = random(3, 4), random(3, 4, seed=1)
    slow = 0.0
    for one, two in zip(student, teacher, strict=True):
        soft = [float(value) for value in (one / 16).exp()]
        wanted = [float(value) for value in (two / 16).exp()]
        for p, q in zip(soft, wanted, strict=True):
            slow += 16**2 / 3 * q / sum(wanted) * math.log(q / sum(wanted) * sum(soft) / p)
    assert float(distillation(student, teacher, 16.0)) == pytest.approx(slow)


def test_distillation_is_zero_and_pulls_nowhere_when_nothing_changed():
    student = random(3, 4).requires_grad_()
    loss = distillation(student, student.detach() + 5, 16.0)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-9)
    assert torch.autograd.grad(loss, student)[0].abs().max() < 1e-9


def test_the_gate_believes_one_branch_or_the_other_or_both():
    base, new = random(3, 4), random(3, 4, seed=1)
    gate = torch.tensor([[99.0, 0.0], [0.0, 99.0], [7.0, 7.0]], dtype=torch.float64)
    torch.testing.assert_close(merged(gate, base, new), torch.stack([base[0], new[1], (base[2] + new[2]) / 2]))


def test_the_exemplar_is_the_picture_nearest_to_its_row():
    features, rows = random(12, 5), random(9, 5, seed=1)
    labels = torch.tensor([7, 8, 3] * 4)
    slow = []
    for label in (3, 7, 8):
        own = [at for at in range(12) if labels[at] == label]
        slow.append(max(own, key=lambda at: float(F.normalize(features[at], dim=0) @ F.normalize(rows[label], dim=0))))
    assert typical(features, labels, rows).tolist() == slow


def test_the_small_networks_take_their_weights_from_the_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other = (perceptron(3, 4, 2, torch.Generator().manual_seed(1)) for _ in range(2))
    assert distance(one, other) == 0
    assert torch.equal(before, torch.get_rng_state())
    assert 0 < max(float(weight.detach().abs().max()) for weight in one[0].parameters()) <= 3**-0.5


def test_a_rate_of_zero_leaves_both_branches_at_class_means_whatever_the_gate():
    method = learned("bidist:lr=0,iterations=5,views=2")
    rows = torch.cat([imprinted(session) for session in world().sessions])
    features = F.normalize(world().sessions[1].features)
    torch.testing.assert_close(
        method.scores(world().sessions[1].pictures), method.scale * features @ rows.T, atol=1e-4, rtol=0
    )


def test_only_the_last_block_is_tuned():
    method, start = learned(BRIEF["bidist"]), world().sessions[0].backbone.backbone
    assert distance(method.network, start) == 0
    assert distance(method.tuned, start.last) > 0


def test_the_base_branch_has_class_means_of_the_frozen_network_for_ever():
    method = learned(BRIEF["bidist"])
    rows = torch.cat([imprinted(session) for session in world().sessions])
    torch.testing.assert_close(method.base_rows, rows, atol=1e-5, rtol=0)
    assert not torch.allclose(method.rows, rows, atol=1e-5)


def test_strong_distillation_from_the_base_model_holds_the_tuned_branch_to_it():
    """In the first session both teachers are the base model."""
    held, free = (learned(f"bidist:distillation={weight}", 2) for weight in (100, 0))
    moved = [distance(method.tuned, method.network.last) for method in (held, free)]
    assert moved[0] < moved[1]


def test_the_gate_tells_new_shots_from_base_exemplars():
    method = learned("bidist")
    novel = []
    for pictures in (method.exemplars[:BASE], world().sessions[2].pictures):
        general, own = method._features(pictures)
        scores = method._scaled(general, method.base_rows), method._scaled(own, method.rows)
        novel.append(method._gate_logits(*scores).softmax(1)[:, 1].detach())
    assert novel[0].max() < 0.5 < novel[1].min()


def test_one_picture_a_class_is_kept():
    method = learned(BRIEF["bidist"], of=world(((1, 1), (5, 2, 9), (1,))))
    assert method.exemplars.shape == (12, SIDE, SIDE, 3)
    assert torch.equal(method.exemplars[[6, 7]], world(((1, 1), (5, 2, 9), (1,))).sessions[1].pictures)


def test_half_of_the_exemplars_in_a_step_are_novel_once_there_are_some():
    assert int((learned(BRIEF["bidist"], 1)._draw() < BASE).sum()) == 50
    drawn = learned(BRIEF["bidist"])._draw()
    assert drawn.lt(BASE).tolist() == [True] * 25 + [False] * 25
    assert drawn[25:].unique().tolist() == [6, 7, 8, 9]


def test_a_block_whose_norms_amplify_is_tuned_at_a_smaller_rate():
    """A change of the weights before a norm with fixed statistics moves its output by gain over deviation."""
    norm = nn.BatchNorm2d(4).eval()
    norm.weight.data.fill_(3.0)
    norm.running_var.fill_(0.25)
    block = nn.Sequential(nn.Conv2d(2, 4, 1), norm)
    assert amplification(block) == pytest.approx(6.0, abs=1e-3)
    assert amplification(nn.Conv2d(2, 4, 1)) == 1
    steps = []
    for limit in (100.0, 0.05):
        world = World.of(choice=choose("bidist"))
        method = choose(f"bidist:iterations=3,amplification={limit}").build(seed=0, device="cpu")
        method.fit_base(world.sessions[0])
        before = [weight.detach().clone() for weight in method.tuned.parameters()]
        method.learn(world.sessions[1])
        steps.append(
            sum(float((new.detach() - old).norm()) for new, old in zip(method.tuned.parameters(), before, strict=True))
        )
    assert steps[1] < 0.1 * steps[0]
