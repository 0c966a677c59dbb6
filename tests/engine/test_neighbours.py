"""Prototypes drawn to the base classes that they look like."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from concm.engine.concm import Engine
from concm.engine.neighbours import Pull
from concm.engine.settings import Settings
from concm.engine.single import Single
from concm.features.sessions import BaseSession, Session

torch.set_num_threads(1)

GROUPS, EACH, DIMENSION, GAMMA = 6, 5, 48, 16.0


def centres(alike: float, seed: int = 0) -> torch.Tensor:
    """Unit vectors in groups: with `alike` near 1 those of a group are nearly the same."""
    random = torch.Generator().manual_seed(seed)
    group = F.normalize(torch.randn(GROUPS, DIMENSION, generator=random)).repeat_interleave(EACH, 0)
    own = F.normalize(torch.randn(GROUPS * EACH, DIMENSION, generator=random))
    return F.normalize(alike**0.5 * group + (1 - alike) ** 0.5 * own)


def images(means: torch.Tensor, count: int, noise: float = 1.0, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(means)).repeat_interleave(count)
    shown = means[labels] + noise * torch.randn(len(labels), DIMENSION, generator=random) / DIMENSION**0.5
    return F.normalize(shown), labels


def test_the_strength_is_what_brings_an_image_nearest_to_others_of_its_class():
    """Against a search over all shares, with each image's neighbours looked up one by one."""
    means = centres(0.7)
    units, labels = images(means, 6)
    found = Pull.of(units, labels, means, GAMMA)
    near = []
    for row, label in zip(units, labels.tolist(), strict=True):
        others = [at for at in range(len(means)) if at != label]
        shares = torch.tensor([GAMMA * float(row @ means[at]) for at in others]).softmax(0)
        near.append(F.normalize(sum(share * means[at] for share, at in zip(shares, others, strict=True)), dim=0))
    pairs = [(a, b) for a in range(len(units)) for b in range(len(units)) if a != b and labels[a] == labels[b]]
    first, second = (torch.tensor(part) for part in zip(*pairs, strict=True))
    product = (units[first] * units[second]).sum(1).mean()
    met = (torch.stack(near)[first] * units[second]).sum(1).mean()
    seen = (torch.stack(near) * units).sum(1).mean()
    shares = torch.linspace(0, 0.99, 2000)
    cosine = ((1 - shares) * product + shares * met) / (1 - 2 * shares * (1 - shares) * (1 - seen)).sqrt()
    best = float(shares[cosine.argmax()])
    assert 0.1 < best < 0.9
    assert found.strength / (1 + found.strength) == pytest.approx(best, abs=0.01)
    assert found.usual == pytest.approx(float(seen), abs=1e-4)


def test_classes_that_have_nothing_in_common_have_no_neighbours():
    apart = torch.eye(DIMENSION)[:GROUPS]
    assert Pull.of(*images(apart, 8), apart, GAMMA).strength < 0.02
    alike, unlike = (Pull.of(*images(means, 6), means, GAMMA).strength for means in (centres(0.8), centres(0.2)))
    assert alike > 3 * unlike


@pytest.mark.parametrize(("classes", "count"), [(2, 5), (5, 1)], ids=["two classes", "one image each"])
def test_where_nothing_can_be_asked_nothing_is_drawn(classes, count):
    means = centres(0.8)[:classes]
    assert Pull.of(*images(means, count), means, GAMMA).strength == 0


def test_few_shots_are_drawn_farther_and_no_shot_not_at_all():
    base, means = centres(0.7), centres(0.7, seed=5)[:4]
    counts = torch.tensor([0, 1, 5, 1000])
    moved = Pull(0.5, 0.5).drawn(means, counts, base, GAMMA)
    away = 1 - (moved * means).sum(1)
    assert away[0] < 1e-6
    assert away[1] > away[2] > away[3]
    assert away[3] < 1e-4
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("alike", [0.3, 0.5, 0.8])
def test_a_base_image_apart_is_drawn_as_if_its_class_were_new(alike):
    means = centres(alike)
    units, labels = images(means, 2)
    pull = Pull(0.6, 0.5)
    found = pull.apart(units, means, F.one_hot(labels, len(means)).bool(), GAMMA)
    for row in range(0, len(units), 7):
        others = torch.arange(len(means)) != labels[row]
        expected = pull.drawn(units[row : row + 1], torch.ones(1), means[others], GAMMA)[0]
        torch.testing.assert_close(found[row], expected)


def session(index: int, first: int, means: torch.Tensor, count: int, seed: int) -> Session:
    units, labels = images(means, count, noise=1.2, seed=seed)
    names = tuple(f"thing {first + at}" for at in range(len(means)))
    return Session(index, range(first, first + len(means)), names, units, labels + first)


def taught(**changes) -> tuple[Engine, torch.Tensor, torch.Tensor]:
    every = centres(0.8)
    order = torch.cat(
        [(torch.arange(len(every)) % EACH != 0).nonzero(), (torch.arange(len(every)) % EACH == 0).nonzero()]
    )
    every = every[order.flatten()]
    base = len(every) - GROUPS
    engine = Engine(Settings(heads=1, prototypes=1.0, calibrate="none", **changes))
    engine.fit_base(BaseSession.of(session(0, 0, every[:base], 20, 1)))
    engine.learn(session(1, base, every[base:], 1, 2))
    asked, labels = images(every, 30, noise=1.2, seed=7)
    return engine, asked, labels


def test_a_class_that_is_unlike_all_base_classes_is_hardly_drawn():
    base = centres(0.8)
    pull = Pull.of(*images(base, 6), base, GAMMA)
    far = F.normalize(torch.linalg.svd(base)[2][len(base) :])
    like = F.normalize(base[:4] + 0.3 * far[:4])
    moved = [1 - (pull.drawn(means, torch.ones(4), base, GAMMA) * means).sum(1) for means in (far[:4], like)]
    assert moved[0].max() < 0.01 < moved[1].min()


def test_images_are_asked_whatever_their_order_and_number():
    """More images than are asked, sorted by class with as many of each as would be skipped, or by turns."""
    random = torch.Generator().manual_seed(3)
    means = centres(0.8).repeat(40, 1) + 0.3 * torch.randn(1200, DIMENSION, generator=random) / DIMENSION**0.5
    units, labels = images(F.normalize(means), 5)
    turns = torch.arange(len(labels)).view(-1, 5).T.flatten()
    one, other = (Pull.of(units[order], labels[order], means, GAMMA) for order in (torch.arange(len(labels)), turns))
    assert one.strength > 0
    assert other.strength == pytest.approx(one.strength, rel=0.2)


def test_with_two_base_classes_left_nothing_is_drawn():
    engine, _, _ = taught()
    assert engine.draws
    while engine.memory.base > 2:
        engine.forget(0)
    assert not engine.draws
    torch.testing.assert_close(engine.memory.mean[2:], F.normalize(engine.memory.shown[2:]))


def test_an_engine_that_draws_knows_new_classes_better():
    found = []
    for pull in (0.0, 0.5):
        engine, asked, labels = taught(pull=pull)
        assert (engine.pull.strength > 0) == engine.draws == (pull > 0)
        right, new = (engine.scores(asked).argmax(1) == labels).float(), labels >= engine.memory.base
        base, novel = float(right[~new].mean()), float(right[new].mean())
        found.append((novel, 2 * base * novel / (base + novel)))
    assert found[1][0] > found[0][0] + 0.05
    assert found[1][1] > found[0][1]


def test_a_state_of_before_is_read_as_it_was_and_learns_as_it_would_now():
    """Older states know of neither neighbours nor reach: their scores stay what they were."""
    engine, asked, _ = taught(pull=0.0, reach=0.0)
    state = engine.state_dict()
    known = json.loads(bytes(state["_extra_state"].tolist()))
    for name in ("neighbours", "reach", "alone", "whole"):
        del known["values"][name]
    state["_extra_state"] = torch.tensor(list(json.dumps(known).encode()), dtype=torch.uint8)
    other = Engine(Settings(heads=1, prototypes=1.0, calibrate="none"))
    other.load_state_dict(state)
    torch.testing.assert_close(other.scores(asked), engine.scores(asked))
    other.forget(len(other.names) - 1)
    assert (other.reach, other.draws, other.single) == (3.0, False, Single())


def test_what_is_known_of_neighbours_and_single_images_survives_a_state_of_now_and_of_before():
    engine, asked, _ = taught()
    state = engine.state_dict()
    other = Engine(engine.settings)
    other.load_state_dict(state)
    assert (other.pull, other.single) == (engine.pull, engine.single)
    known = json.loads(bytes(state["_extra_state"].tolist()))
    known["values"]["neighbours"].append(0.4)  # which states had for a while
    state["_extra_state"] = torch.tensor(list(json.dumps(known).encode()), dtype=torch.uint8)
    other.load_state_dict(state)
    assert other.pull == engine.pull
    torch.testing.assert_close(other.scores(asked), engine.scores(asked))
