"""What is expected of a class with a single image: against a slow reference, and against what comes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine.metric import softened
from concm.engine.neighbours import Pull
from concm.engine.prior import cosine
from concm.engine.single import Single

torch.set_num_threads(1)

GROUPS, EACH, DIMENSION, GAMMA, REACH = 12, 5, 48, 16.0, 3.0
PULL = Pull(0.6, 0.5)


def centres(alike: float, seed: int = 0) -> Tensor:
    """Unit vectors in groups: with `alike` near 1 those of a group are nearly the same."""
    random = torch.Generator().manual_seed(seed)
    group = F.normalize(torch.randn(GROUPS, DIMENSION, generator=random)).repeat_interleave(EACH, 0)
    own = F.normalize(torch.randn(GROUPS * EACH, DIMENSION, generator=random))
    return F.normalize(alike**0.5 * group + (1 - alike) ** 0.5 * own)


def images(means: Tensor, count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images some of which are more typical than others, of their class as of its group."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(means)).repeat_interleave(count)
    noise = torch.randn(len(labels), DIMENSION, generator=random) / DIMENSION**0.5
    strange = 0.5 + torch.rand(len(labels), 1, generator=random)
    return F.normalize(means[labels] + strange * noise), labels


def nameless(means: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(means), torch.zeros(len(means))


def of(asked, means, names, pull=PULL, *, shots=None, near=0.0) -> Single:
    """By each of the images, or by others."""
    return Single.of(asked, asked if shots is None else shots, means, names, pull, near=near, reach=REACH, gamma=GAMMA)


@pytest.mark.parametrize("named", [False, True])
def test_it_is_that_of_all_pairs_played_one_by_one(named):
    means = centres(0.7)
    units, labels = images(means, 3)
    names = nameless(means)
    if named:
        names = (
            0.5 * means + 0.02 * torch.randn(means.shape, generator=torch.Generator().manual_seed(5)),
            names[1] + 0.3,
        )
    shown = softened(units, REACH)
    found, beside, plain = [], [], []
    alike = [
        float(a @ b)
        for at, a in enumerate(units)
        for to, b in enumerate(units)
        if at != to and labels[at] == labels[to]
    ]
    alike = torch.tensor(alike).mean()
    for asked, label in enumerate(labels.tolist()):
        others = torch.arange(len(means)) != label
        for shot in (labels == label).nonzero().flatten().tolist():
            if shot != asked:
                said, share = names[0][label], names[1][label]
                mean = F.normalize((1 - share) * units[shot] + share * said, dim=0)
                drawn = PULL.drawn(mean[None], torch.ones(1), means[others], GAMMA)[0]
                found.append(float(shown[asked] @ drawn))
                beside.append(float((means[others] @ shown[asked]).max()))
                plain.append(float(cosine(alike, units[shot] @ said, said @ said, share, torch.tensor(1.0))))
    found, beside, plain = (torch.tensor(part) for part in (found, beside, plain))
    slope = torch.linalg.lstsq(torch.stack([beside, torch.ones_like(beside)], 1), found[:, None]).solution[:, 0]
    rest = found - slope[0] * beside - slope[1]
    single = of((units, labels), means, names)
    assert single.gain == pytest.approx(float(found.mean() - plain.mean()), abs=1e-5)
    assert single.slope == pytest.approx(float(slope[0]), abs=1e-4)
    assert single.spread == pytest.approx(float(rest.std(correction=0)), abs=1e-5)


@pytest.mark.promise
@pytest.mark.parametrize("alike", [0.2, 0.5, 0.8])
def test_new_classes_of_one_image_are_what_base_classes_made_one_expect(alike):
    every = centres(alike)
    new = torch.arange(len(every)) % EACH == 0
    base, (shots, _), (asked, own) = every[~new], images(every[new], 1), images(every[new], 40, seed=9)
    pull = Pull.of(*images(base, 6), base, GAMMA)
    single = of(images(base, 6, seed=3), base, nameless(base), pull)
    drawn = pull.drawn(shots, torch.ones(len(shots)), base, GAMMA)
    shown = softened(asked, REACH)
    found = (shown * drawn[own]).sum(1)
    gained = float(found.mean() - (asked * shots[own]).sum(1).mean())
    assert single.gain == pytest.approx(gained, abs=0.03)
    beside = (shown @ base.T).amax(1)
    correlated = float(torch.corrcoef(torch.stack([found, beside]))[0, 1])
    expected = single.slope * float(beside.std()) / (single.slope**2 * float(beside.var()) + single.spread**2) ** 0.5
    assert expected == pytest.approx(correlated, abs=0.2)
    assert (single.slope**2 * float(beside.var()) + single.spread**2) ** 0.5 == pytest.approx(
        float(found.std()), rel=0.3
    )


def test_where_images_differ_in_how_typical_they_are_scores_rise_together():
    means = centres(0.8)
    assert of(images(means, 5), means, nameless(means)).slope > 0.2


@pytest.mark.parametrize(("classes", "count"), [(1, 6), (20, 1), (20, 0)], ids=["one class", "one image each", "none"])
def test_where_nothing_can_be_asked_little_is_said(classes, count):
    means = centres(0.8)[:classes]
    assert of(images(means, count), means, nameless(means)) == Single()


def test_of_many_images_whole_classes_are_asked():
    means = centres(0.7)
    units, labels = images(means, 120)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    whole = of((units, labels), means, nameless(means))
    mixed = of((units[order], labels[order]), means, nameless(means))
    assert mixed.gain == pytest.approx(whole.gain, abs=0.02)
    assert mixed.spread == pytest.approx(whole.spread, abs=0.02)


def test_other_images_of_a_class_can_play_its_only_shot():
    means = centres(0.7)
    asked, shots = images(means, 1), images(means, 6, seed=4)
    alone, both = of(asked, means, nameless(means), shots=shots), of(shots, means, nameless(means))
    assert of(asked, means, nameless(means)) == Single()
    assert alone.gain == pytest.approx(both.gain, abs=0.02)
    assert alone.spread == pytest.approx(both.spread, rel=0.3)


def test_images_that_were_taken_together_do_not_play_with_each_other():
    means = centres(0.7)
    units, labels = images(means, 3)
    twice = F.normalize(units.repeat(2, 1) + 0.003 * torch.randn(2 * len(units), DIMENSION))
    apart, copied = (
        of((units, labels), means, nameless(means)),
        of((twice, labels.repeat(2)), means, nameless(means), near=0.1),
    )
    assert copied.gain == pytest.approx(apart.gain, abs=0.005)
    assert copied.spread == pytest.approx(apart.spread, abs=0.005)
    assert of((twice, labels.repeat(2)), means, nameless(means)).spread > 1.2 * apart.spread
