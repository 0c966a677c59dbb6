"""Equal footing: a method in the engine's metric, with views, and a constant that no test image chose."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.metric import Metric
from concm.engine.operating import held_out, operating_point
from concm.evaluation.worlds import BASE, World
from concm.features.sessions import Session
from concm.methods import Method, choose, teach
from concm.methods.footing import FOLDS, EqualFooting, Footing
from concm.methods.ncm import NCM


def taught(words: str, world: World) -> EqualFooting:
    method = choose(words).build(seed=0, device="cpu")
    for session in world.sessions:
        teach(method, session)
    assert isinstance(method, EqualFooting)
    return method


class Probe(NCM):
    """Remembers what it was shown."""

    def learn(self, session: Session) -> None:
        self.shown = session
        super().learn(session)


def probed(world: World, *, takes_views: bool) -> list[Session]:
    """What the method and each copy of it were shown in the first session."""
    method = EqualFooting(Probe, takes_views=takes_views)
    method.fit_base(world.base)
    method.learn(world.sessions[1])
    return [each.__dict__["shown"] for each in method.methods]


@pytest.mark.promise
def test_the_method_sees_the_engine_s_metric_and_views_as_further_shots():
    world = World.of(((5, 5),))
    base, session = world.base, world.sessions[1]
    held = held_out(base.features, base.labels, 0.2, 0)
    metric = Metric.whitening(base, 3.0, ~held)
    shown = probed(world, takes_views=False)[0]
    torch.testing.assert_close(shown.features[:10], metric(session.features))
    torch.testing.assert_close(shown.features[10:], metric(session.views).flatten(0, 1))
    assert shown.labels.tolist() == [*session.labels.tolist(), *session.labels.repeat_interleave(2).tolist()]
    assert shown.views is None


def test_base_prototypes_are_those_of_the_engine_s_kind():
    base = World.of(((5, 5),)).base
    seen = Footing(seed=0, device="cpu").begin(base)
    assert base.held is None
    for label in base.classes:
        own = seen.features[seen.labels == label].sum(0)
        torch.testing.assert_close(seen.mean[label], own / own.norm())


def test_a_method_with_a_use_for_views_has_them_as_views():
    session = World.of(((5, 5),)).sessions[1]
    shown = probed(World.of(((5, 5),)), takes_views=True)[0]
    assert len(shown.labels) == len(session.labels)
    assert shown.views.shape == session.views.shape


def test_every_copy_learns_without_another_shot_of_each_class_and_its_views():
    whole, *copies = probed(World.of(((5, 5),)), takes_views=False)
    assert len(copies) == FOLDS
    left_out = []
    for shown in copies:
        assert torch.bincount(shown.labels - BASE).tolist() == [4 * 3, 4 * 3]
        missing = [at for at, row in enumerate(whole.features[:10]) if not (shown.features == row).all(1).any()]
        assert whole.labels[missing].tolist() == [BASE, BASE + 1]
        left_out += missing
    assert sorted(left_out) == list(range(10))


def test_shots_that_were_taken_together_are_left_out_together():
    world = World.of(((6,),))
    session = world.sessions[1]
    features = session.features[[0, 0, 0, 1, 2, 3]] + 1e-4 * torch.rand(6, session.features.shape[1])
    twins = replace(world, sessions=(world.base, replace(session, features=features, views=None)))
    _, *copies = probed(twins, takes_views=False)
    assert sorted(len(shown.labels) for shown in copies) == [3, 5, 5, 5, 6]


def by_hand(world: World) -> tuple[Tensor, float]:
    """Scores of nearest class mean on equal footing, and their constant, step by step."""
    base, session = world.base, world.sessions[1]
    held = held_out(base.features, base.labels, 0.2, 0)
    metric = Metric.whitening(base, 3.0, ~held)
    old = torch.stack([metric(base.features[~held & (base.labels == label)]).mean(0) for label in base.classes])
    count = len(session.classes)

    def scores(images: Tensor, shots: Tensor, labels: Tensor) -> Tensor:
        novel = torch.stack([shots[labels == label].flatten(0, 1).mean(0) for label in session.classes])
        return F.normalize(images) @ F.normalize(torch.cat([F.normalize(old), novel])).T

    shots = metric(torch.cat([session.features[:, None], session.views], 1))
    base_images, base_labels = metric(base.features[held]), base.labels[held]
    base_scores, novel_scores, novel_labels = [], [], []
    for fold in range(FOLDS):
        left = torch.arange(len(shots)) % 5 == fold
        known = shots[~left], session.labels[~left]
        turn = torch.arange(len(base_images)) % FOLDS == fold
        base_scores.append((scores(base_images[turn], *known), base_labels[turn]))
        novel_scores.append(scores(shots[left, 0], *known))
        novel_labels.append(session.labels[left])
    point = operating_point(
        (torch.cat([own for own, _ in base_scores]), torch.cat([labels for _, labels in base_scores])),
        (torch.cat(novel_scores), torch.cat(novel_labels)),
        BASE,
        "even",
    )
    found = scores(metric(world.test), shots, session.labels)
    found[:, BASE : BASE + count] += point.constant
    return found, point.constant


@pytest.mark.promise
def test_the_constant_is_the_best_one_for_held_out_base_images_and_left_out_shots():
    world = World.of(((5, 5),))
    method = taught("equal:ncm", world)
    expected, constant = by_hand(world)
    assert method.footing.constant == pytest.approx(constant, abs=1e-4)
    torch.testing.assert_close(method.scores(world.test), expected, rtol=0, atol=1e-4)


def test_no_image_by_which_the_constant_is_found_was_learned():
    world = World.of(((5, 5),))
    footing = Footing(seed=0, device="cpu")
    seen = footing.begin(world.base)
    assert len(seen.labels) + len(footing.held) == len(world.base.labels)
    near = torch.cdist(footing.held, seen.features).amin(1)
    assert (near > 1e-6).all()
    assert seen.counts.tolist() == torch.bincount(seen.labels).tolist()


def test_images_that_the_base_session_held_out_are_those():
    world = World.of(((5,),))
    held = torch.arange(len(world.base.labels)) % 4 == 0
    footing = Footing(seed=0, device="cpu")
    base = replace(world.base, held=held)
    seen = footing.begin(base)
    assert torch.equal(footing.held_labels, base.labels[held])
    assert torch.equal(seen.counts, base.counts)


def test_with_one_shot_nothing_can_be_left_out_and_that_is_said():
    method = taught("equal:ncm", World.of(((1, 1),)))
    assert method.footing.constant == 0
    assert method.remarks == ["no shot can be left out, so nothing is added to novel scores"]


def test_memory_and_parameters_are_those_of_all_copies():
    world = World.of(((5, 5),))
    method, plain = taught("equal:adbs", world), choose("adbs").build(seed=0, device="cpu")
    for session in world.sessions:
        teach(plain, session)
    each: list[Method] = method.methods
    assert method.parameter_count == sum(own.parameter_count for own in each)
    assert method.memory_bytes > (1 + FOLDS) * plain.memory_bytes
