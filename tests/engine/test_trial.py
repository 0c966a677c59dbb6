"""What the engine expects of itself, against engines that were taught otherwise and against images it never saw."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.concm import HELD_OUT, Engine
from concm.engine.metric import Metric, softened
from concm.engine.operating import IMPUTED, held_out
from concm.engine.settings import Settings
from concm.engine.single import Single
from concm.engine.trial import LOST, Trial
from concm.features.sessions import BaseSession, Session
from concm.semantics.kinship import kinship
from concm.semantics.semantics import Semantics

torch.set_num_threads(1)

KNOWN = (
    *("dog", "horse", "cow", "sparrow", "eagle", "duck", "salmon", "train", "truck", "bicycle", "apple", "orange"),
    *("banana", "table", "sofa", "bed", "hammer", "knife"),
)
NEW = ("fox", "hawk", "trout", "car", "pear", "chair", "spoon")
BASE, ALL = len(KNOWN), len(KNOWN) + len(NEW)
DIMENSION = 40


class World:
    """Classes that look as akin as their names are (or not at all so), as Gaussian clouds around their centres."""

    def __init__(self, *, noise: float = 0.1, akin: bool = True, seed: int = 0) -> None:
        self.random = torch.Generator().manual_seed(seed)
        every = (*KNOWN, *NEW)
        centres = torch.randn(ALL, DIMENSION, generator=self.random)
        if akin:
            kin = kinship(Semantics.of_names(KNOWN).learn(NEW), every, every)
            centres = torch.linalg.cholesky(kin + 0.05 * torch.eye(ALL)).float() @ centres
        self.centres, self.noise = F.normalize(centres), noise
        self.base = self.session(0, range(BASE), 30)
        self.labels = torch.arange(ALL).repeat(60)
        self.test = self.images(self.labels)

    def images(self, labels: Tensor) -> Tensor:
        return self.centres[labels] + self.noise * torch.randn(len(labels), DIMENSION, generator=self.random)

    def session(self, index: int, classes: range, shots: int, views: int = 0) -> Session:
        """A session of so many images each; a base session if it is the first."""
        labels = torch.arange(classes.start, classes.stop).repeat_interleave(shots)
        features = self.images(labels)
        looks = features[:, None] + 0.02 * torch.randn(len(labels), views, DIMENSION, generator=self.random)
        names = (*KNOWN, *NEW)[classes.start : classes.stop]
        session = Session(index, classes, names, features, labels, looks if views else None)
        return session if index else BaseSession.of(session)

    def right(self, engine: Engine, classes: range) -> float:
        """The share of these classes' test images that is recognised among all."""
        own = (self.labels >= classes.start) & (self.labels < classes.stop)
        return float((engine.scores(self.test[own]).argmax(1) == self.labels[own]).float().mean())


OLD, LATER = range(BASE), range(BASE, ALL)


def expected_cosine(likeness: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Expected cosine of an image to the mean of `count` others of its class, if two have the cosine `likeness`."""
    return likeness / (likeness + (1 - likeness) / count).clamp(min=1e-12).sqrt()


def quick(**changes) -> Settings:
    return Settings(**{"heads": 2, "hidden": 32, "width": 40, "base_steps": 10, "steps": 5, **changes})


def taught(world: World, *later: Session, **changes) -> Engine:
    engine = Engine(quick(**changes))
    engine.fit_base(world.base)
    for session in later:
        engine.learn(session)
    return engine


def without(session: Session, row: int) -> Session:
    """The session without one of its shots."""
    kept = torch.arange(len(session.labels)) != row
    views = None if session.views is None else session.views[kept]
    return replace(session, features=session.features[kept], labels=session.labels[kept], views=views)


def only(session: Session, *shots: int) -> Session:
    """The session with so many shots of each of its classes."""
    rows = [
        row
        for label, count in zip(session.classes, shots, strict=True)
        for row in (session.labels == label).nonzero().flatten().tolist()[:count]
    ]
    views = None if session.views is None else session.views[rows]
    return replace(session, features=session.features[rows], labels=session.labels[rows], views=views)


# shots left out


@pytest.mark.promise
@pytest.mark.parametrize("views", [0, 2])
def test_a_shot_left_out_has_the_score_of_an_engine_that_never_saw_it(views):
    """But that the engine's prototype is drawn to its neighbours as one of all shots would be."""
    world = World()
    session = world.session(1, LATER, 4, views)
    engine = taught(world, session, calibrate="none")
    trial = Trial.of(engine)
    assert torch.equal(trial.novel_labels, session.labels)
    alike = engine.likeness()[session.labels]
    raised = expected_cosine(alike, torch.tensor(4)) - expected_cosine(alike, torch.tensor(3))
    assert engine.draws
    for row in range(0, len(session.labels), 3):
        label = int(session.labels[row])
        other = taught(world, without(session, row), calibrate="none")
        shot = softened(other.metric(session.features[row : row + 1]), other.reach)
        left, drawn = other.memory.shown[label : label + 1], other.memory.mean[label]
        expected = float(shot @ other.drawn(left, torch.tensor([4]))[0])
        assert float(trial.novel_scores[row, label] - raised[row]) == pytest.approx(expected, abs=1e-5)
        assert expected != pytest.approx(float(shot @ drawn), abs=1e-5)


def test_where_names_count_too_it_is_nearly_so():
    world = World()
    session = world.session(1, LATER, 4)
    trial = Trial.of(taught(world, session))
    for row in range(0, len(session.labels), 5):
        label = int(session.labels[row])
        other = taught(world, without(session, row))
        shot = other.metric(session.features[row : row + 1])
        expected = float(shot @ F.normalize(other.memory.mean)[label])
        assert expected < float(trial.novel_scores[row, label]) < expected + 0.1


def test_the_scores_of_all_other_classes_are_as_they_are():
    world = World()
    session = world.session(1, LATER, 4)
    engine = taught(world, session)
    trial, prototypes = Trial.of(engine), F.normalize(engine.memory.mean)
    plain = softened(engine.metric(session.features), engine.reach) @ prototypes.T
    others = torch.ones_like(plain, dtype=torch.bool).scatter(1, session.labels[:, None], value=False)
    assert torch.allclose(trial.novel_scores[others], plain[others], atol=1e-6)
    own = [scores.gather(1, session.labels[:, None]).mean() for scores in (trial.novel_scores, plain)]
    assert own[0] < own[1]


def test_near_copies_are_left_out_together():
    world = World()
    session = world.session(1, LATER, 4)
    twice = session.features.clone()
    twice[1::4] = twice[0::4]  # of each class, the second shot is the first again
    trial = Trial.of(taught(world, replace(session, features=twice), calibrate="none"))
    own = trial.novel_scores.gather(1, session.labels[:, None])[:, 0]
    assert torch.allclose(own[0::4], own[1::4], atol=1e-5)
    assert own[0::4].mean() < 0.95  # had only one of the two been left out, it would meet itself


def test_a_single_shot_is_imputed_around_what_is_expected_of_a_class_with_one():
    world = World()
    session = only(world.session(1, LATER, 3), 1, 3, 3, 3, 3, 3, 1)
    engine = taught(world, session, calibrate="none")
    trial = Trial.of(engine)
    assert len(trial.novel_labels) == IMPUTED * len(session.labels)
    guessed = trial.novel_scores[trial.novel_labels == BASE, BASE]
    alike, single = engine.likeness()[BASE], engine.single
    assert single.gain > 0.001
    assert 0 < single.spread < 0.3
    assert guessed.tolist() == sorted(guessed.tolist())
    shown = softened(engine.metric(session.features), engine.reach) @ F.normalize(engine.memory.mean[:BASE]).T
    typical = [float(shown[session.labels == label].amax(1)) for label in (BASE, ALL - 1)]
    risen = single.slope * (typical[0] - sum(typical) / 2)
    expected = float(expected_cosine(alike, torch.tensor(1))) + single.gain + risen
    assert float(guessed.mean()) == pytest.approx(expected, abs=1e-5)
    assert guessed.max() < 1
    assert float(guessed.std()) > 0.01
    left_out = trial.novel_scores[trial.novel_labels == BASE + 1, BASE + 1]
    assert len(torch.unique(left_out)) == 3  # which is repeated, so that every shot counts as much


def test_classes_of_fewer_shots_are_lifted_by_what_they_lack_beside_their_neighbours():
    """Neighbours do more for a class of one shot than for one of many, so that it needs less of a lift."""
    world = World()
    session = only(world.session(1, LATER, 8), 1, 8, 8, 8, 8, 8, 1)
    lacking = []
    for pull in (0.0, 0.5):
        trial = Trial.of(taught(world, session, calibrate="none", pull=pull))
        lacking.append(float(trial.expected[1] - trial.expected[0]))
    assert lacking[0] > lacking[1] > 0


@pytest.mark.parametrize("shots", [1, 4])
def test_without_a_metric_the_length_of_features_does_not_count(shots):
    lifts = []
    for length in (1.0, 20.0):
        world = World()
        session = world.session(1, LATER, shots)
        world.base = BaseSession.of(replace(world.base, features=length * world.base.features))
        longer = replace(session, features=length * session.features)
        engine = taught(world, longer, whitening=None, calibrate="none", prototypes=1.0)
        lifts.append(engine.lift)
    torch.testing.assert_close(lifts[0], lifts[1], atol=2e-3, rtol=0)


# held-out base images


def test_a_held_out_image_meets_all_prototypes_as_they_are_but_its_own_class_s_without_it():
    world = World(noise=0.16)
    engine = taught(world, world.session(1, LATER, 4), calibrate="none")
    trial, memory = Trial.of(engine), engine.memory
    length = memory.held.norm(dim=1, keepdim=True)
    shown = length * softened(F.normalize(memory.held), engine.reach)
    plain = shown @ F.normalize(memory.mean).T
    own = F.one_hot(memory.held_labels, ALL).bool()
    assert torch.allclose(trial.base_scores[~own], plain[~own], atol=1e-6)
    units = engine.metric(world.base.features)
    part = ~held_out(world.base.features, world.base.labels, HELD_OUT, engine.seed)
    assert int(part.sum()) == len(units) - len(memory.held)
    honest = Metric.whitening(world.base, engine.settings.whitening, part)(world.base.features[~part])
    alike = [honest[memory.held_labels == label] for label in OLD]
    alike = torch.stack([(own @ own.T)[~torch.eye(len(own), dtype=torch.bool)].mean() for own in alike]).mean()
    for row in range(0, len(memory.held), 7):
        label = int(memory.held_labels[row])
        own = world.base.labels == label
        rest = F.normalize(units[part & own].mean(0), dim=0)
        worth = float(expected_cosine(alike, own.sum()) / expected_cosine(alike, (part & own).sum()))
        assert worth > 1
        assert float(trial.base_scores[row, label]) == pytest.approx(worth * float(shown[row] @ rest), rel=2e-3)
        assert float(shown[row] @ rest) < float(plain[row, label])


def test_what_is_left_of_a_class_is_a_prototype_of_the_kind_of_all_others():
    world = World(noise=0.3)
    base = replace(world.base, features=world.base.features + 0.3)  # with something that all images have in common
    engine = Engine(Settings(prototypes=1.0, heads=1))
    engine.fit_base(BaseSession.of(base))
    rest, every = F.normalize(engine.memory.apart), F.normalize(engine.memory.mean)
    others = ~torch.eye(BASE, dtype=torch.bool)
    assert abs(float((rest @ every.T - every @ every.T)[others].mean())) < 0.02


@pytest.mark.parametrize("older", [False, True])
def test_a_base_class_learned_again_from_the_same_photos_is_as_it_was(older, monkeypatch):
    if older:  # states of before have what the metric makes of the means of images, and say nothing of it
        monkeypatch.setattr(BaseSession, "complete", False)
    world = World(noise=0.3)
    engine = taught(world)
    monkeypatch.undo()
    before, apart = engine.memory.mean.clone(), engine.memory.apart.clone()
    rows = world.base.labels == 3
    engine.revise({3: (world.base.features[rows], None)})
    torch.testing.assert_close(engine.memory.mean, before)
    torch.testing.assert_close(engine.memory.apart, apart)


def test_states_of_before_have_base_prototypes_of_the_older_kind():
    engine = taught(World())
    known = json.loads(bytes(engine.get_extra_state().tolist()))
    del known["values"]["complete"]
    engine.set_extra_state(torch.frombuffer(bytearray(json.dumps(known).encode()), dtype=torch.uint8))
    assert not engine.complete


def test_samples_of_a_base_class_that_looks_otherwise_now_follow_it():
    world = World()
    engine = taught(world)
    engine.revise({3: (world.images(torch.full((200,), BASE)), None)})
    own = F.normalize(engine.memory.mean[3], dim=0)
    assert float(F.normalize(engine.memory.apart[3], dim=0) @ own) > 0.99


def test_the_metric_is_learned_from_all_images_and_those_held_out_are_compared_as_if_it_was_not():
    world = World(noise=0.16)
    engine = taught(world, world.session(1, LATER, 4), calibrate="none", reach=0.0)
    held = held_out(world.base.features, world.base.labels, HELD_OUT, engine.seed)
    whole, honest = (Metric.whitening(world.base, engine.settings.whitening, seen) for seen in (None, ~held))
    assert torch.equal(engine.metric.matrices[0], whole.matrices[0])
    means, labels = world.base.mean, world.base.labels[held]
    own = F.one_hot(labels, OLD.stop).bool()
    seen, unseen = ((metric(world.base.features[held]) @ metric(means).T)[own].mean() for metric in (whole, honest))
    found = (engine.memory.held @ whole(means).T)[own].mean()
    assert unseen < seen
    assert abs(found - unseen) < (seen - unseen) / 3
    assert torch.equal(engine.memory.held_labels, labels)


def test_a_bank_that_holds_images_out_itself_misses_none_of_them():
    world = World(noise=0.16)
    held = held_out(world.base.features, world.base.labels, HELD_OUT, 0)
    world.base = replace(world.base, held=held)
    assert taught(world, world.session(1, LATER, 4), calibrate="none").whole == 1.0


@pytest.mark.parametrize("photos", [2, 4, 7])
def test_where_one_photo_of_a_class_is_held_out_single_ones_are_still_measured(photos):
    world = World(noise=0.16)
    some = torch.cat([(world.base.labels == label).nonzero().flatten()[:photos] for label in OLD])
    names, features = world.base.names, world.base.features[some]
    world.base = BaseSession.of(Session(0, OLD, names, features, world.base.labels[some]))
    engine = taught(world, world.session(1, LATER, 1), calibrate="none")
    assert len(engine.memory.held) == BASE
    assert engine.single != Single()
    assert 0 < engine.single.spread < 0.3


@pytest.mark.parametrize("photos", [4, 20])
@pytest.mark.parametrize("shrinkage", [0.0, 0.01, 0.1, 0.5, 2.0])
def test_held_out_images_are_about_as_long_as_others_however_little_is_shrunk(photos, shrinkage):
    world = World(noise=0.16)
    some = torch.cat([(world.base.labels == label).nonzero().flatten()[:photos] for label in OLD])
    names, features = world.base.names, world.base.features[some]
    world.base = BaseSession.of(Session(0, OLD, names, features, world.base.labels[some]))
    assert taught(world, whitening=shrinkage, calibrate="none").memory.held.norm(dim=1).max() < 2


@pytest.mark.parametrize("lean", ["base", "even", "novel"])
@pytest.mark.parametrize("noise", [0.1, 0.16])
def test_the_base_accuracy_it_expects_is_the_one_that_comes(noise, lean):
    expected, found, novel = [], [], []
    for seed in range(3):
        world = World(noise=noise, seed=seed)
        engine = taught(world, world.session(1, LATER, 5), lean=lean, prototypes=1.0)
        expected.append(engine.point[1])
        found.append(world.right(engine, OLD))
        novel.append((engine.point[2], world.right(engine, LATER)))
    assert sum(expected) / 3 == pytest.approx(sum(found) / 3, abs=0.04)
    assert sum(one for one, _ in novel) / 3 == pytest.approx(sum(two for _, two in novel) / 3, abs=0.12)


def test_leaning_trades_base_for_novel_accuracy():
    world = World(noise=0.16)
    session = world.session(1, LATER, 2)
    engines = [taught(world, session, lean=lean) for lean in ("base", "even", "novel")]
    constants = [engine.point[0] for engine in engines]
    assert constants == sorted(constants)
    base, novel = ([world.right(engine, kind) for engine in engines] for kind in (OLD, LATER))
    assert base == sorted(base, reverse=True)
    assert novel == sorted(novel)


def test_the_images_held_out_by_the_bank_are_those_tried_and_move_nothing_but_the_operating_point():
    world = World()
    held = torch.arange(len(world.base.labels)) % 5 == 0
    base = replace(world.base, held=held)
    changed = world.base.features.clone()
    changed[held] = changed[held].flip(1)
    one, other = Engine(quick()), Engine(quick())
    one.fit_base(base)
    other.fit_base(replace(base, features=changed))
    session = world.session(1, LATER, 5)
    for engine in (one, other):
        engine.learn(session)
    assert torch.equal(one.memory.held_labels, base.labels[held])
    assert one.point != other.point
    ours, theirs = one.state_dict(), other.state_dict()
    moved = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    assert moved == {"memory.held", "unseen", "lift", "_extra_state"}  # the last of which holds the point


# at the edges


def test_a_given_bias_is_exactly_that_and_nothing_is_held_out_for_it():
    world = World()
    engine = taught(world, world.session(1, LATER, 3), novel_bias=0.05)
    assert engine.lift.tolist() == [0.0] * BASE + [pytest.approx(0.05)] * len(NEW)
    assert engine.point is None
    assert len(engine.memory.held) == 0
    plain = taught(world, world.session(1, LATER, 3), novel_bias=0.0)
    plain.load_state_dict({**engine.state_dict(), "lift": torch.zeros(ALL)})
    difference = engine.scores(world.test) - plain.scores(world.test)
    assert torch.allclose(difference, engine.lift.expand_as(difference), atol=1e-6)


def test_without_novel_classes_nothing_is_lifted():
    engine = taught(World())
    assert engine.point is None
    assert not engine.lift.any()


def test_without_base_classes_nothing_is_lifted_and_more_can_be_learned():
    world = World()
    engine = taught(world, world.session(1, range(BASE, BASE + 3), 5))
    for _ in range(BASE):
        engine.forget(0)
    assert engine.point is None
    assert engine.lift.tolist() == [0.0] * 3
    later = replace(world.session(2, range(BASE + 3, ALL), 5), classes=range(3, 7))
    engine.learn(replace(later, labels=later.labels - BASE))
    assert engine.names == list(NEW)
    own = world.labels >= BASE
    right = engine.scores(world.test[own]).argmax(1) == world.labels[own] - BASE
    assert float(right.float().mean()) > 0.8


def test_without_exemplars_expected_scores_are_made_level():
    world = World()
    engine = taught(world, world.session(1, LATER, 5), replay=0, pull=0)
    assert len(engine.point) == 1
    assert engine.lift[BASE:].min() > 0
    assert min(world.right(engine, OLD), world.right(engine, LATER)) > 0.8


@pytest.mark.parametrize("label", [0, BASE - 1, BASE, ALL - 1])
def test_after_a_class_is_forgotten_a_new_point_is_found_for_the_rest(label):
    world = World()
    engine = taught(world, world.session(1, LATER, 5))
    engine.forget(label)
    assert len(engine.lift) == ALL - 1
    assert len(engine.point) == 3
    assert engine.memory.held_labels.max() == engine.memory.base - 1
    assert len(engine.memory.apart) == engine.memory.base
    trial = Trial.of(engine)
    assert trial.base_scores.shape == (len(engine.memory.held), ALL - 1)
    scores, labels = trial.total(engine.head)
    assert float((scores.argmax(1) == labels).float().mean()) > 0.8


@pytest.mark.parametrize("replay", [0, 1, 5])
@pytest.mark.parametrize("shots", [(1,) * 7, (1, 2, 3, 4, 5, 1, 2), (5,) * 7], ids=str)
def test_any_number_of_shots_and_exemplars_gives_a_finite_point(shots, replay):
    world = World()
    engine = taught(world, only(world.session(1, LATER, 5), *shots), replay=replay)
    assert engine.lift.isfinite().all()
    assert torch.tensor(engine.point).isfinite().all()
    assert world.right(engine, OLD) > 0.8


# several projectors


def test_the_scores_of_several_projectors_are_averaged():
    world = World()
    engine = taught(world, world.session(1, LATER, 5), heads=3, prototypes=0.0, novel_bias=0.0)
    unit = engine.metric(world.test)
    with torch.no_grad():
        each = [network(unit) @ own.T for network, own in zip(engine.projectors, engine.structure, strict=True)]
    assert not torch.allclose(each[0], each[1], atol=1e-3)
    assert torch.allclose(engine.scores(world.test), torch.stack(each).mean(0), atol=1e-5)


# known by its name alone


def known_by_name(world: World, named: range, shots: int = 5) -> Session:
    """A session of the new classes without any image of those `named`."""
    session = world.session(1, LATER, shots)
    return only(session, *(0 if label in named else shots for label in LATER))


@pytest.mark.parametrize("shots", [0, 5])
def test_a_class_without_any_image_is_recognised_by_its_kin(shots):
    """Far better than by chance, and at little cost for the classes of which there are images."""
    found, before, after = [], [], []
    for seed in range(3):
        world = World(seed=seed)
        named = LATER if not shots else range(ALL - 2, ALL)
        engine = taught(world)
        before.append(world.right(engine, OLD))
        engine.learn(known_by_name(world, named))
        after.append(world.right(engine, OLD))
        found.append(world.right(engine, named))
    assert sum(found) / 3 > 0.4 > 5 / ALL
    assert sum(after) / 3 > sum(before) / 3 - 0.12


def test_where_looks_do_not_follow_names_a_name_alone_takes_few_images_from_others():
    for seed in range(3):
        world = World(akin=False, seed=seed)
        last = range(ALL - 1, ALL)
        with_name = taught(world, known_by_name(world, last))
        taken = with_name.scores(world.test[world.labels < BASE]).argmax(1) == ALL - 1
        assert float(taken.float().mean()) < LOST + 0.04
        assert world.right(with_name, OLD) > 0.85
        assert world.right(with_name, range(BASE, ALL - 1)) > 0.8


@pytest.mark.parametrize(
    "changes",
    [{}, {"calibrate": "network"}, {"calibrate": "none"}, {"named": False}, {"replay": 0}, {"whitening": None}],
    ids=str,
)
@pytest.mark.parametrize("named", [range(ALL - 1, ALL), LATER], ids=["one", "all"])
def test_a_class_without_any_image_can_be_learned_improved_and_forgotten(changes, named):
    world = World()
    engine = taught(world, known_by_name(world, named), **changes)
    assert engine.scores(world.test).isfinite().all()
    assert world.right(engine, OLD) > 0.8
    own = world.session(2, range(ALL - 1, ALL), 5)
    engine.revise({ALL - 1: (own.features, None)})
    assert world.right(engine, range(ALL - 1, ALL)) > 0.8
    engine.forget(ALL - 1)
    assert engine.scores(world.test).shape == (len(world.test), ALL - 1)
