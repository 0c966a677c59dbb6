"""Prototypes drawn to the base classes that they look like."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from concm.engine.concm import Engine
from concm.engine.neighbours import drawn, gain, nearness, strength
from concm.engine.settings import Settings
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
    found = strength(units, labels, means, GAMMA)
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
    assert found / (1 + found) == pytest.approx(best, abs=0.01)


def test_classes_that_have_nothing_in_common_have_no_neighbours():
    apart = torch.eye(DIMENSION)[:GROUPS]
    assert strength(*images(apart, 8), apart, GAMMA) < 0.02
    alike, unlike = (strength(*images(means, 6), means, GAMMA) for means in (centres(0.8), centres(0.2)))
    assert alike > 3 * unlike


@pytest.mark.parametrize(("classes", "count"), [(2, 5), (5, 1)], ids=["two classes", "one image each"])
def test_where_nothing_can_be_asked_nothing_is_drawn(classes, count):
    means = centres(0.8)[:classes]
    assert strength(*images(means, count), means, GAMMA) == 0


def test_few_shots_are_drawn_farther_and_no_shot_not_at_all():
    base, means = centres(0.7), centres(0.7, seed=5)[:4]
    counts = torch.tensor([0, 1, 5, 1000])
    moved = drawn(means, counts, base, 0.5, GAMMA)
    away = 1 - (moved * means).sum(1)
    assert away[0] < 1e-6
    assert away[1] > away[2] > away[3]
    assert away[3] < 1e-4
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("alike", [0.4, 0.5, 0.6])
def test_drawn_prototypes_are_nearer_to_their_class_about_as_much_as_is_expected(alike):
    every = centres(alike)
    novel = torch.arange(len(every)) % EACH == 0
    base = every[~novel]
    shots, _ = images(every[novel], 1)
    far = strength(*images(base, 6), base, GAMMA)
    moved = drawn(shots, torch.ones(len(shots)), base, far, GAMMA)
    asked, own = images(every[novel], 40, seed=9)
    before, after = ((asked * means[own]).sum(1).mean() for means in (shots, moved))
    expected = gain(torch.tensor(1.0), far, nearness(shots, base, GAMMA))
    assert after > before
    assert float(expected) == pytest.approx(float(after / before), rel=0.12)


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


def test_an_engine_that_draws_knows_new_classes_better():
    right = []
    for pull in (0.0, 0.5):
        engine, asked, labels = taught(pull=pull)
        assert (engine.pull > 0) == engine.draws == (pull > 0)
        right.append(float((engine.scores(asked).argmax(1) == labels).float().mean()))
    assert right[1] > right[0]


def test_a_state_of_before_is_read_as_it_was_and_learns_as_it_would_now():
    """Older states know of neither neighbours nor reach: their scores stay what they were."""
    engine, asked, _ = taught(pull=0.0, reach=0.0)
    state = engine.state_dict()
    known = json.loads(bytes(state["_extra_state"].tolist()))
    for name in ("pull", "reach"):
        del known["values"][name]
    state["_extra_state"] = torch.tensor(list(json.dumps(known).encode()), dtype=torch.uint8)
    other = Engine(Settings(heads=1, prototypes=1.0, calibrate="none"))
    other.load_state_dict(state)
    torch.testing.assert_close(other.scores(asked), engine.scores(asked))
    other.forget(len(other.names) - 1)
    assert (other.reach, other.pull) == (3.0, 0.0)
