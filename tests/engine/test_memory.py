"""What is remembered is what was seen, and samples follow it."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concm.engine.memory import Memory, class_statistics, spread
from concm.features.sessions import BaseSession, Session


def base_session(classes: int = 4, dimension: int = 6) -> BaseSession:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(10)
    features = torch.randn(len(labels), dimension, generator=generator)
    views = features[:, None] + torch.randn(len(labels), 2, dimension, generator=generator)
    return BaseSession.of(Session(0, range(classes), tuple("abcd"[:classes]), features, labels, views))


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


def shuffled(session: Session) -> Session:
    """The same session with its shots in no order."""
    order = torch.randperm(len(session.labels), generator=torch.Generator().manual_seed(9))
    views = None if session.views is None else session.views[order]
    return replace(session, features=session.features[order], labels=session.labels[order], views=views)


def calibrated(session: Session) -> tuple[torch.Tensor, torch.Tensor]:
    """Statistics whose means are far from those of the shots, as if calibration had moved them."""
    mean, std = class_statistics(session, with_views=True)
    return mean + torch.randn(mean.shape, generator=torch.Generator().manual_seed(5)), std + 0.1


def remembered(*sessions: Session, replay: int = 5, base: BaseSession | None = None) -> Memory:
    memory = Memory.of_base(base or base_session())
    for session in sessions:
        memory.add(session, *calibrated(session), replay=replay)
    return memory


def images_of(session: Session, label: int, replay: int = 5) -> torch.Tensor:
    """The shots of a class that are kept, and their views."""
    rows = [row for row, own in enumerate(session.labels.tolist()) if own == label][:replay]
    views = [] if session.views is None else [view for row in rows for view in session.views[row]]
    return torch.stack([session.features[row] for row in rows] + views)


def moved_images_of(session: Session, label: int, replay: int = 5) -> torch.Tensor:
    """The same, moved so that their mean is the calibrated prototype."""
    images = images_of(session, label, replay)
    return images - images.mean(0) + calibrated(session)[0][label - session.classes.start]


def drawn(memory: Memory, per_base: int, per_novel: int, *, noise: float, around: str, seed: int = 1):
    sampler = memory.sampler(per_base, per_novel, noise=noise, around=around)
    return sampler(torch.Generator().manual_seed(seed)), sampler.labels


def assert_exactly(samples: torch.Tensor, images: torch.Tensor) -> None:
    """Every sample is one of the images, and every image occurs."""
    near = torch.cdist(samples.double(), images.double(), compute_mode="donot_use_mm_for_euclid_dist") < 1e-5
    assert near.any(1).all()
    assert near.any(0).all()


@given(
    per_base=st.integers(0, 6),
    per_novel=st.integers(0, 6),
    replay=st.integers(0, 3),
    around=st.sampled_from(["exemplars", "prototype"]),
    shots=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_every_class_gives_as_many_samples_as_asked(per_base, per_novel, replay, around, shots):
    memory = remembered(novel_session(4, shots), replay=replay)
    samples, labels = drawn(memory, per_base, per_novel, noise=1.0, around=around)
    replays = per_novel if around == "prototype" and replay else 0
    assert torch.bincount(labels, minlength=4 + len(shots)).tolist() == (
        [per_base] * 4 + [per_novel + replays] * len(shots)
    )
    assert samples.shape == (len(labels), 6)
    assert samples.isfinite().all()


@pytest.mark.parametrize("around", ["exemplars", "prototype"])
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_base_samples_lie_around_their_mean_as_wide_as_asked(noise, around):
    memory = remembered(novel_session(4, [5, 5]))
    samples, labels = drawn(memory, 20_000, 1, noise=noise, around=around)
    for label in range(4):
        own = samples[labels == label]
        assert torch.allclose(own.mean(0), memory.mean[label], atol=0.05 * noise)
        assert torch.allclose(own.std(0), noise * memory.std[label], atol=0.05 * noise)


def test_samples_of_a_base_that_is_all_there_is_need_no_novel_class():
    memory = Memory.of_base(base_session())
    for around in ("exemplars", "prototype"):
        samples, labels = drawn(memory, 3, 5, noise=0.0, around=around)
        assert torch.equal(samples, memory.mean.repeat_interleave(3, 0))
        assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("replay", [1, 2, 5])
def test_without_noise_novel_samples_are_the_kept_images_moved_with_their_prototype(replay):
    session = novel_session(4, [5, 4])
    samples, labels = drawn(remembered(session, replay=replay), 1, 600, noise=0.0, around="exemplars")
    for label, shots in zip(session.classes, (5, 4), strict=True):
        images = moved_images_of(session, label, replay)
        assert len(images) == 3 * min(replay, shots)
        assert_exactly(samples[labels == label], images)
        centre = torch.unique(samples[labels == label], dim=0).mean(0)
        assert torch.allclose(centre, calibrated(session)[0][label - 4], atol=1e-5)


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_novel_samples_spread_around_each_image_as_wide_as_asked(noise):
    session = novel_session(4, [3, 2])
    memory = remembered(session)
    samples, labels = drawn(memory, 1, 40_000, noise=noise, around="exemplars")
    for label in session.classes:
        own, images = samples[labels == label], moved_images_of(session, label)
        variance = images.var(0, correction=0) + (noise * memory.std[label]) ** 2
        assert torch.allclose(own.mean(0), memory.mean[label], atol=0.05 * (1 + noise))
        assert torch.allclose(own.std(0), variance.sqrt(), atol=0.05 * (1 + noise))


def test_around_the_prototype_plain_images_are_replayed_beside_it():
    session = novel_session(4, [5, 2])
    samples, labels = drawn(remembered(session), 1, 400, noise=0.0, around="prototype")
    for at, label in enumerate(session.classes):
        own = samples[labels == label]
        is_prototype = (own == calibrated(session)[0][at]).all(1)
        is_stored = (own[:, None] == images_of(session, label)).all(2).any(1)
        assert int(is_prototype.sum()) == int(is_stored.sum()) == 400
        assert not (is_prototype & is_stored).any()
        assert_exactly(own[is_stored], images_of(session, label))


def test_noise_moves_the_prototype_and_leaves_replays_as_they_are():
    session = novel_session(4, [5])
    memory = remembered(session)
    samples, labels = drawn(memory, 1, 20_000, noise=2.0, around="prototype")
    own = samples[labels == 4]
    is_stored = (own[:, None] == images_of(session, 4)).all(2).any(1)
    assert int(is_stored.sum()) == 20_000
    assert torch.allclose(own[~is_stored].mean(0), memory.mean[4], atol=0.1)
    assert torch.allclose(own[~is_stored].std(0), 2 * memory.std[4], atol=0.1)


@pytest.mark.parametrize("around", ["exemplars", "prototype"])
def test_without_exemplars_there_is_only_the_prototype(around):
    session = novel_session(4, [5, 1])
    samples, labels = drawn(remembered(session, replay=0), 2, 7, noise=0.0, around=around)
    assert torch.equal(samples[labels >= 4], calibrated(session)[0].repeat_interleave(7, 0))


@pytest.mark.parametrize("around", ["exemplars", "prototype"])
def test_classes_with_and_without_exemplars_live_side_by_side(around):
    first, second = novel_session(4, [3, 2]), novel_session(6, [4])
    memory = remembered(first, replay=0)
    memory.add(second, *calibrated(second), replay=5)
    samples, labels = drawn(memory, 1, 400, noise=0.0, around=around)
    for label in first.classes:
        assert torch.equal(samples[labels == label], memory.mean[label].expand(400, -1))
    expected = {
        "exemplars": moved_images_of(second, 6),
        "prototype": torch.cat([images_of(second, 6), memory.mean[6:7]]),
    }
    assert_exactly(samples[labels == 6], expected[around])


@given(
    shots=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=3),
    replay=st.integers(1, 5),
    views=st.sampled_from([0, 2]),
    around=st.sampled_from(["exemplars", "prototype"]),
)
def test_every_class_is_drawn_from_its_own_images_however_many_it_has_and_whenever_it_came(
    shots, replay, views, around
):
    sessions, first = [], 4
    for counts in shots:
        sessions.append(shuffled(novel_session(first, counts, views=views)))
        first += len(counts)
    memory = remembered(*sessions, replay=replay, base=base_session() if views else replace(base_session(), views=None))
    samples, labels = drawn(memory, 1, 300, noise=0.0, around=around)
    for session in sessions:
        for at, label in enumerate(session.classes):
            own = samples[labels == label]
            if around == "exemplars":
                assert_exactly(own, moved_images_of(session, label, replay))
            else:
                assert_exactly(own, torch.cat([images_of(session, label, replay), calibrated(session)[0][at : at + 1]]))


def test_the_order_in_which_exemplars_are_kept_does_not_matter():
    session = novel_session(4, [1, 5, 3])
    memory = remembered(session)
    order = torch.tensor([8, 3, 0, 6, 2, 5, 1, 7, 4])
    mixed = deepcopy(memory)
    mixed.exemplars, mixed.labels, mixed.views = memory.exemplars[order], memory.labels[order], memory.views[order]
    assert mixed.labels.tolist() != sorted(mixed.labels.tolist())
    samples, labels = drawn(mixed, 1, 500, noise=0.0, around="exemplars")
    for label in session.classes:
        assert_exactly(samples[labels == label], moved_images_of(session, label))


@given(seed=st.integers(0, 2**31), around=st.sampled_from(["exemplars", "prototype"]))
def test_the_same_seed_gives_the_same_samples_and_the_next_call_others(seed, around):
    sampler = remembered(novel_session(4, [5, 1])).sampler(3, 3, noise=1.0, around=around)
    first, second = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    assert torch.equal(sampler(first), sampler(second))
    assert not torch.equal(sampler(first), sampler(torch.Generator().manual_seed(seed)))


def test_a_sampler_is_not_changed_by_what_is_learned_later():
    memory = remembered(novel_session(4, [5]))
    sampler = memory.sampler(2, 4, noise=1.0, around="exemplars")
    before = sampler(torch.Generator().manual_seed(3))
    memory.add(session := novel_session(5, [5]), *calibrated(session), replay=5)
    assert torch.equal(sampler(torch.Generator().manual_seed(3)), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("around", ["exemplars", "prototype"])
def test_samples_are_of_the_type_of_the_features(around, dtype):
    def typed(session: Session) -> Session:
        values = {name: value for name, value in vars(session).items() if torch.is_tensor(value)}
        return replace(session, **{name: v.to(dtype) for name, v in values.items() if v.is_floating_point()})

    memory = remembered(typed(novel_session(4, [5])), base=typed(base_session()))
    samples, _ = drawn(memory, 2, 3, noise=1.0, around=around)
    assert samples.dtype == dtype


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
    statistics, apart = 3 * 6 * 6, 4 * 6
    floats = statistics + apart + 10 * 6 + 10 * 2 * 6
    assert memory.bytes == 4 * floats + 8 * (6 + 10)


def test_shots_without_views_stand_in_for_them():
    memory = Memory.of_base(base_session())
    session = novel_session(4, [3], views=0)
    memory.add(session, *class_statistics(session, with_views=True), replay=5)
    assert torch.equal(memory.views, session.features[:, None].expand(3, 2, 6))


def test_the_count_of_a_base_class_is_that_of_all_its_images_not_of_those_at_hand():
    session = base_session()
    everything = replace(session, counts=torch.full((4,), 500))
    assert Memory.of_base(everything).counts.tolist() == [500] * 4


def test_shots_may_have_views_where_base_images_have_none():
    session = novel_session(4, [3])
    memory = remembered(session, base=replace(base_session(), views=None))
    samples, labels = drawn(memory, 1, 400, noise=0.0, around="exemplars")
    assert_exactly(samples[labels == 4], moved_images_of(session, 4))


# held-out base images


def unit_session() -> BaseSession:
    """A base session of unit features, as the metric makes them."""
    session = base_session()
    return replace(session, features=torch.nn.functional.normalize(session.features))


HELD = torch.arange(40) % 5 == 0


def test_held_out_images_are_kept_and_the_means_without_them():
    session = unit_session()
    memory = Memory.of_base(session, HELD)
    assert torch.equal(memory.held, session.features[HELD])
    assert torch.equal(memory.held_labels, session.labels[HELD])
    assert torch.equal(memory.mean, session.mean)
    for label in range(4):
        own = session.features[(session.labels == label) & ~HELD].mean(0)
        assert torch.allclose(memory.apart[label], own / own.norm(), atol=1e-6)


def test_means_of_all_images_trained_on_need_not_be_taken_again_where_the_bank_held_out_others():
    session = replace(unit_session(), held=HELD)
    memory = Memory.of_base(session, HELD)
    assert torch.equal(memory.apart, session.mean)
    assert torch.equal(memory.held, session.features[HELD])


def test_a_class_of_which_all_images_are_held_out_keeps_its_mean():
    session = unit_session()
    memory = Memory.of_base(session, HELD | (session.labels == 2))
    assert torch.equal(memory.apart[2], session.mean[2])


def test_nothing_is_held_out_unless_asked():
    memory = Memory.of_base(base_session())
    assert len(memory.held) == len(memory.held_labels) == 0
    assert torch.equal(memory.apart, memory.mean)


@pytest.mark.parametrize("label", [0, 2, 3, 4, 5])
def test_a_forgotten_class_takes_its_held_out_images_with_it(label):
    memory = Memory.of_base(unit_session(), HELD)
    session = novel_session(4, [3, 2])
    memory.add(session, *calibrated(session), replay=5)
    before = {at: (memory.held[memory.held_labels == at], memory.apart[at]) for at in range(4)}
    shown = torch.cat([memory.shown[:label], memory.shown[label + 1 :]])
    memory.forget(label)
    assert memory.base == len(memory.apart) == (3 if label < 4 else 4)
    assert torch.equal(memory.shown, shown)
    for at, (held, apart) in before.items():
        if at != label:
            now = at - (at > label)
            assert torch.equal(memory.held[memory.held_labels == now], held)
            assert torch.equal(memory.apart[now], apart)


def test_what_was_shown_stays_when_prototypes_are_calibrated():
    session = novel_session(4, [3, 2])
    memory = remembered(session)
    shown = memory.shown.clone()
    memory.mean = memory.mean + 1
    assert torch.equal(memory.shown, shown)
    again = novel_session(5, [4])
    memory.revise(again, *class_statistics(again, with_views=True), replay=5)
    assert torch.equal(memory.shown[:5], shown[:5])
    assert torch.equal(memory.shown[5], memory.mean[5])


def test_a_class_without_images_has_no_spread_and_no_exemplars():
    session = novel_session(4, [3, 0])
    mean, std = class_statistics(session, with_views=True)
    assert not mean[1].any()
    assert not std[1].any()
    memory = Memory.of_base(base_session())
    memory.add(session, mean, std, replay=5)
    assert memory.counts[4:].tolist() == [3, 0]
    assert memory.labels.tolist() == [4, 4, 4]
