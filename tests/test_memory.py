"""What is remembered is what was seen, and samples follow it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concm.data.sessions import Session
from concm.memory import Memory, class_statistics, spread


def base_session(classes: int = 4, dimension: int = 6) -> Session:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(10)
    features = torch.randn(len(labels), dimension, generator=generator)
    mean = torch.stack([features[labels == k].mean(0) for k in range(classes)])
    std = torch.stack([features[labels == k].std(0, correction=0) for k in range(classes)])
    views = features[:, None] + torch.randn(len(labels), 2, dimension, generator=generator)
    return Session(
        0, range(classes), tuple("abcd"[:classes]), features, labels, views, mean, std, torch.full((classes,), 10)
    )


def novel_session(first: int, shots: list[int], *, views: int = 2, dimension: int = 6) -> Session:
    generator = torch.Generator().manual_seed(first)
    labels = torch.cat([torch.full((count,), first + at) for at, count in enumerate(shots)])
    features = torch.randn(len(labels), dimension, generator=generator)
    seen = torch.randn(len(labels), views, dimension, generator=generator) if views else None
    names = tuple(f"class {label}" for label in range(first, first + len(shots)))
    return Session(1, range(first, first + len(shots)), names, features, labels, seen)


@pytest.mark.parametrize("replay", [0, 1, 5])
def test_it_keeps_as_many_exemplars_as_asked_and_not_more_than_there_are(replay):
    memory = Memory.of_base(base_session())
    session = novel_session(4, [5, 1, 3])
    memory.add(session, *class_statistics(session, with_views=False), replay=replay)
    kept = torch.bincount(memory.labels, minlength=7)[4:].tolist()
    assert kept == [min(replay, count) for count in (5, 1, 3)]
    assert memory.counts.tolist() == [10] * 4 + [5, 1, 3]
    assert memory.views.shape == (sum(kept), 2, 6)


def test_old_classes_stay_as_they_were():
    memory = Memory.of_base(base_session())
    before = memory.mean.clone()
    for first in (4, 6):
        session = novel_session(first, [5, 5])
        memory.add(session, *class_statistics(session, with_views=True), replay=5)
    assert torch.equal(memory.mean[:4], before)
    assert len(memory.mean) == 8


def test_samples_follow_the_statistics():
    memory = Memory.of_base(base_session())
    samples, labels = memory.sample(torch.full((4,), 20_000), torch.Generator().manual_seed(1))
    for label in range(4):
        own = samples[labels == label]
        assert torch.allclose(own.mean(0), memory.mean[label], atol=0.05)
        assert torch.allclose(own.std(0), memory.std[label], atol=0.05)


@given(st.lists(st.integers(0, 7), min_size=4, max_size=4), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_every_class_gives_as_many_samples_as_asked_and_the_same_ones_for_the_same_seed(counts, seed):
    memory = Memory.of_base(base_session())
    samples, labels = memory.sample(torch.tensor(counts), torch.Generator().manual_seed(seed))
    again, _ = memory.sample(torch.tensor(counts), torch.Generator().manual_seed(seed))
    assert torch.bincount(labels, minlength=4).tolist() == counts
    assert torch.equal(samples, again)


def test_the_spread_of_a_novel_class_is_its_own_and_that_of_similar_base_classes():
    generator = torch.Generator().manual_seed(2)
    own, prototypes = torch.rand(3, 6, generator=generator), torch.randn(3, 6, generator=generator)
    base_mean, base_std = torch.randn(4, 6, generator=generator), torch.rand(4, 6, generator=generator)
    for k in range(3):
        weights = [
            torch.exp(16 * torch.dot(base_mean[b], prototypes[k]) / base_mean[b].norm() / prototypes[k].norm())
            for b in range(4)
        ]
        borrowed = sum(weight * base_std[b] for b, weight in enumerate(weights)) / sum(weights)
        expected = 0.6 * (own[k] + borrowed)
        assert torch.allclose(spread(own, prototypes, base_mean, base_std, 0.6, 16.0)[k], expected, atol=1e-5)


def test_one_shot_has_no_spread_of_its_own_and_still_a_spread():
    session = novel_session(4, [1], views=0)
    mean, std = class_statistics(session, with_views=True)
    base = base_session()
    assert torch.equal(mean, session.features)
    assert std.abs().max() == 0
    assert (spread(std, mean, base.mean, base.std, 0.6, 16.0) > 0).all()


def test_views_count_as_much_as_the_shots_they_come_from():
    session = novel_session(4, [5])
    mean, _ = class_statistics(session, with_views=True)
    assert torch.allclose(mean[0], torch.cat([session.features, *session.views.unbind(1)]).mean(0), atol=1e-6)


def test_its_size_is_what_its_tensors_take():
    memory = Memory.of_base(base_session())
    session = novel_session(4, [5, 5])
    memory.add(session, *class_statistics(session, with_views=True), replay=5)
    floats = 2 * 6 * 6 + 10 * 6 + 10 * 2 * 6
    assert memory.bytes == 4 * floats + 8 * (6 + 10)


def test_shots_without_views_stand_in_for_them():
    memory = Memory.of_base(base_session())
    session = novel_session(4, [3], views=0)
    memory.add(session, *class_statistics(session, with_views=True), replay=5)
    assert torch.equal(memory.views, session.features[:, None].expand(3, 2, 6))


def test_the_count_of_a_base_class_is_that_of_all_its_images_not_of_those_at_hand():
    session = base_session()
    everything = Session(**{**session.__dict__, "counts": torch.full((4,), 500)})
    assert Memory.of_base(everything).counts.tolist() == [500] * 4
