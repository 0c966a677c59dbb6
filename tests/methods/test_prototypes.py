"""Weight imprinting, TEEN and ADBS: closed forms, slow references, and cases in which they are something simpler."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from concm.errors import Misuse
from concm.evaluation.worlds import BASE, World
from concm.methods import choose
from concm.methods.adbs import inter_class
from concm.methods.imprint import BaseTraining, imprinted, learned_rows
from concm.methods.teen import calibrate

torch.set_num_threads(1)  # bit for bit only holds for one number of threads


def after(words: str, world: World, sessions: int | None = None):
    """The method as a user writes it, after the world's first sessions."""
    method = choose(words).build(seed=0, device="cpu")
    base, *later = world.sessions[:sessions]
    method.fit_base(base)
    for session in later:
        method.learn(session)
    return method


def vectors(count: int, dimension: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Weight imprinting


def test_an_imprinted_row_is_the_unit_mean_of_unit_shots():
    session = World.of(((2, 3),)).sessions[1]
    units = session.features / session.features.norm(dim=1, keepdim=True)
    sums = torch.stack([units[0] + units[1], units[2] + units[3] + units[4]])
    torch.testing.assert_close(imprinted(session), sums / sums.norm(dim=1, keepdim=True))


def test_the_length_of_a_shot_s_feature_does_not_change_what_is_imprinted():
    session = World.of().sessions[1]
    lengths = torch.linspace(0.1, 10, len(session.features))[:, None]
    longer = replace(session, features=session.features * lengths)
    torch.testing.assert_close(imprinted(longer), imprinted(session))
    assert not torch.allclose(F.normalize(longer.features[:5].mean(0), dim=0), imprinted(session)[0], atol=1e-3)


def test_imprinting_one_shot_scores_new_classes_as_nearest_class_mean_does():
    world = World.of(((1, 1), (1,)))
    imprint, ncm = after("imprint", world), after("ncm", world)
    expected = ncm.scores(world.test)[:, BASE:]
    torch.testing.assert_close(imprint.scores(world.test)[:, BASE:] / imprint.scale, expected)


def test_imprinting_leaves_the_learned_rows_and_they_are_not_the_means():
    world = World.of()
    learned = after("imprint", world, 1).weights
    assert torch.equal(after("imprint", world).weights[:BASE], learned)
    assert float((learned * F.normalize(world.sessions[0].mean)).sum(1).max()) < 0.99


def test_the_scale_is_learned():
    assert after("imprint", World.of(), 1).scale != pytest.approx(16, abs=0.01)


def test_base_training_is_torch_s_own_sgd_with_a_cosine_schedule():
    base, settings = World.of().sessions[0], BaseTraining(epochs=4, batch=50, lr=0.3, weight_decay=0.01)
    scale = torch.tensor(7.0, requires_grad=True)
    loss = lambda cosines, labels, _: F.cross_entropy(scale * cosines, labels)  # noqa: E731
    found = learned_rows(base, loss, [scale], settings, torch.Generator().manual_seed(5))

    random = torch.Generator().manual_seed(5)
    rows = F.normalize(torch.randn(BASE, base.features.shape[1], generator=random)).requires_grad_()
    other = torch.tensor(7.0, requires_grad=True)
    optimizer = torch.optim.SGD([rows, other], lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(4):
        for chosen in torch.randperm(len(base.features), generator=random).split(50):
            optimizer.zero_grad()
            cosines = F.cosine_similarity(base.features[chosen][:, None], rows[None], dim=2)
            F.cross_entropy(other * cosines, base.labels[chosen]).backward()
            optimizer.step()
        schedule.step()
    torch.testing.assert_close(found, F.normalize(rows.detach()), atol=1e-5, rtol=1e-4)
    assert float(scale.detach()) == pytest.approx(float(other.detach()), abs=1e-3)


# TEEN


@pytest.mark.promise
def test_calibration_is_the_published_formula():
    novel, base, alpha, tau = vectors(3, 7), vectors(4, 7, seed=1), 0.3, 16.0
    found = calibrate(novel, base, alpha, tau)
    for at, mean in enumerate(novel):
        unit = mean / mean.norm()
        shares = [math.exp(tau * float(unit @ row) / float(row.norm())) for row in base]
        towards = sum(share / sum(shares) * row / row.norm() for share, row in zip(shares, base, strict=True))
        torch.testing.assert_close(found[at], (1 - alpha) * unit + alpha * towards / towards.norm())


def test_teen_that_moves_nothing_is_nearest_class_mean():
    world = World.of(((5, 1), (3,)))
    torch.testing.assert_close(after("teen:alpha=0", world).scores(world.test), after("ncm", world).scores(world.test))


def test_the_sharpest_weights_move_towards_the_nearest_base_prototype_alone():
    novel, base = vectors(5, 9), F.normalize(vectors(6, 9, seed=1))
    nearest = base[(F.normalize(novel) @ base.T).argmax(1)]
    torch.testing.assert_close(calibrate(novel, base, 1.0, 1e6), nearest)


def test_without_sharpness_all_new_classes_move_towards_one_point():
    found = calibrate(vectors(5, 9), vectors(6, 9, seed=1), 1.0, 0.0)
    torch.testing.assert_close(found, found[:1].expand(5, -1))


def test_teen_does_not_touch_base_scores_and_brings_new_prototypes_nearer_to_base_ones():
    world = World.of()
    teen, ncm = after("teen:alpha=0.5", world), after("ncm", world)
    torch.testing.assert_close(teen.scores(world.test)[:, :BASE], ncm.scores(world.test)[:, :BASE])
    base = F.normalize(ncm.prototypes[:BASE])
    near = [(F.normalize(method.prototypes[BASE:]) @ base.T).max(1).values for method in (teen, ncm)]
    assert bool((near[0] > near[1]).all())


def test_teen_s_prototype_of_a_class_does_not_depend_on_the_sessions_before():
    base, first, second = World.of().sessions
    straight = after("teen:alpha=0.5", replace(World.of(), sessions=(base, first, second))).prototypes
    turned = after("teen:alpha=0.5", replace(World.of(), sessions=(base, second, first))).prototypes
    torch.testing.assert_close(straight[BASE : BASE + 2], turned[BASE + 2 :])
    torch.testing.assert_close(straight[BASE + 2 :], turned[BASE : BASE + 2])


# ADBS


def test_the_inter_class_constraint_is_the_published_one():
    rows, margins = F.normalize(vectors(5, 3)), vectors(5, 1, seed=1)[:, 0] + 0.5
    total = 0.0
    for i in range(5):
        for j in range(5):
            cosine = float(rows[i] @ rows[j])
            total += max(0.0, (1 - cosine) - (float(margins[j]) - float(margins[i]) * cosine)) / 25
    assert float(inter_class(rows, margins)) == pytest.approx(total)
    assert total > 0


@pytest.mark.parametrize("margin", [1.0, 1.5])
def test_equal_margins_of_one_or_more_meet_the_constraint(margin):
    rows = F.normalize(vectors(5, 3))
    assert float(inter_class(rows, torch.full((5,), margin, dtype=torch.float64))) == pytest.approx(0, abs=1e-12)


def test_adbs_with_means_for_rows_and_untrained_margins_is_nearest_class_mean():
    world = World.of(((5, 1), (3,)))
    plain = after("adbs:rows=means,base.epochs=0,steps=0", world)
    torch.testing.assert_close(plain.scores(world.test) / 16, after("ncm", world).scores(world.test))


def test_new_margins_start_from_the_mean_of_all_before():
    method = after("adbs:steps=0", World.of())
    assert method.margins.std() > 0
    torch.testing.assert_close(method.margins[BASE:], method.margins[:BASE].mean().expand(4))


def test_a_session_trains_new_margins_only():
    world = World.of()
    before, then = after("adbs", world, 2), after("adbs", world)
    assert torch.equal(then.margins[: BASE + 2], before.margins)
    assert torch.equal(then.weights[: BASE + 2], before.weights)
    assert not torch.allclose(then.margins[BASE + 2 :], before.margins.mean(), atol=1e-5)


@pytest.mark.parametrize("preset", ["adbs", "adbs:mini_imagenet", "adbs:cub200"])
def test_new_margins_are_those_of_torch_s_own_sgd(preset):
    world = World.of(((5, 2),))
    found, session = after(preset, world), world.sessions[1]
    settings, cosines = choose(preset).settings, F.normalize(session.features) @ found.weights.T
    old = found.margins[:BASE]
    new = old.mean().repeat(2).requires_grad_()
    optimizer = torch.optim.SGD([new], lr=settings.lr, momentum=0.9, dampening=0.9)
    for _ in range(settings.steps):
        margins = torch.cat([old, new])
        optimizer.zero_grad()
        loss = F.cross_entropy(16 * margins.abs() * cosines, session.labels)
        (loss + 0.01 * inter_class(found.weights, margins)).backward()
        optimizer.step()
    torch.testing.assert_close(found.margins[BASE:], new.detach())


def test_a_new_class_whose_shots_look_like_a_base_class_is_given_more_room():
    world = World.of(((5, 5),))
    base, session = world.sessions
    lookalike = 0.6 * base.mean[0] + 0.4 * session.features[:5]
    features = torch.cat([lookalike, session.features[5:]])
    method = after("adbs:rows=means", replace(world, sessions=(base, replace(session, features=features))))
    assert method.margins[BASE] > method.margins[BASE + 1] >= method.margins[:BASE].mean()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("teen:alpha=1.5", "setting alpha must be at least 0 and at most 1, not 1.5"),
        ("teen:tau=-1", "setting tau must be at least 0, not -1"),
        ("imprint:scale=0", "setting scale must be more than 0, not 0"),
        ("imprint:base.batch=0", "setting batch must be at least 1, not 0"),
        ("adbs:steps=-1", "setting steps must be at least 0, not -1"),
        ("adbs:base.lr=0", "setting lr must be more than 0, not 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(words, sentence):
    with pytest.raises(Misuse, match=sentence):
        choose(words)


# the strong control

READ = ("features", "views", "mean", "std")
"""What of a session is features."""


def common_part(features, labels):
    """Most of what the class means of unit features have in common."""
    unit = F.normalize(features)
    common = torch.stack([unit[labels == label].mean(0) for label in labels.unique()]).mean(0)
    rest = 0.35 * (unit - common).square().sum(1).mean().sqrt() / common.norm()
    return common * (1 - rest).clamp(min=0)


def without_the_common(world: World) -> World:
    """The world with unit features, without most of what its base classes have in common."""
    base = world.sessions[0]
    centre = common_part(base.features, base.labels)

    def left(features):
        return F.normalize(F.normalize(features, dim=-1) - centre, dim=-1)

    sessions = [replace(session, features=left(session.features)) for session in world.sessions]
    return replace(world, sessions=tuple(sessions), test=left(world.test))


def test_without_views_and_with_all_shrinkage_the_strong_control_is_the_cosine_to_unit_means_of_what_is_left():
    world = World.of()
    strong = after("ncm_metric:whitening=1e9,views=false", world).scores(world.test)
    left = without_the_common(world)
    prototypes = torch.cat([imprinted(session) for session in left.sessions])
    torch.testing.assert_close(strong, left.test @ prototypes.T, atol=1e-4, rtol=0)


def test_the_strong_control_is_the_engine_s_prototypes_alone():
    world = World.of()
    engine = after("concm:calibrate=none,prototypes=1,pull=0,reach=0,novel_bias=0,steps=1,base_steps=1", world)
    torch.testing.assert_close(engine.scores(world.test), after("ncm_metric", world).scores(world.test))


def side_by_side(world: World, *widths: int) -> World:
    """The same features, said to be readings of these widths."""
    return replace(world, sessions=tuple(replace(session, layout=widths) for session in world.sessions))


def part_of(world: World, *, first: int = 0, last: int | None = None) -> World:
    """The world as one of its readings sees it."""

    def cut(session):
        own = {
            name: value[..., first:last] for name, value in vars(session).items() if name in READ and value is not None
        }
        return replace(session, **own)

    return replace(world, sessions=tuple(cut(session) for session in world.sessions), test=world.test[..., first:last])


def test_the_strong_control_adds_up_the_cosines_of_readings_by_the_lengths_that_are_left():
    world = World.of(((1, 1), (1,)))  # of one shot each without views, so that a prototype is one image
    new = slice(len(world.sessions[0].classes), None)
    both = after("ncm_metric:views=false", side_by_side(world, 20, 12)).scores(world.test)[:, new]
    parts = part_of(world, last=20), part_of(world, first=20)
    lengths = []
    for own in parts:
        base = own.sessions[0]
        left = F.normalize(base.features) - common_part(base.features, base.labels)
        lengths.append(base.features.norm(dim=1).mean() * left.norm(dim=1).mean())
    shares = torch.stack(lengths).square() / torch.stack(lengths).square().sum()
    alone = [after("ncm_metric:views=false", own).scores(own.test)[:, new] for own in parts]
    torch.testing.assert_close(both, shares[0] * alone[0] + shares[1] * alone[1])
    assert not torch.allclose(both, after("ncm_metric:views=false", world).scores(world.test)[:, new], atol=1e-3)


def test_the_strong_control_with_readings_is_the_engine_s_prototypes_too_and_survives_its_state():
    world = side_by_side(World.of(), 8, 8, 16)
    engine = after("concm:calibrate=none,prototypes=1,pull=0,reach=0,novel_bias=0,steps=1,base_steps=1", world)
    strong = after("ncm_metric", world)
    torch.testing.assert_close(engine.scores(world.test), strong.scores(world.test))
    again = choose("ncm_metric").build(seed=1, device="cpu")
    again.load_state_dict(strong.state_dict())
    assert torch.equal(again.scores(world.test), strong.scores(world.test))
    assert [matrix.shape[1] for matrix in again.metric.matrices] == [8, 8, 16]


@pytest.mark.parametrize("calibrate", ["names", "network"])
def test_without_names_calibration_does_not_depend_on_them(calibrate):
    world = World.of()
    words = f"concm:named=false,calibrate={calibrate},calibration.steps=3,base_steps=2,steps=2"
    renamed = replace(
        world, sessions=tuple(replace(s, names=tuple(f"thing {at}" for at in s.classes)) for s in world.sessions)
    )
    one, other = (after(words, some).scores(world.test) for some in (world, renamed))
    torch.testing.assert_close(one, other)
    assert "class names" not in choose(words).needs
