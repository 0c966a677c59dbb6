"""How sure to be: what is usual is found by rehearsal, and what is said of it comes true where the model holds."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from concm.classifier import rehearsal
from concm.classifier.confidence import SHRINKAGE, Confidence, Usual, expected_scores, likeness
from concm.classifier.rehearsal import SEEN, Plan, rehearse
from concm.engine.concm import Engine
from concm.engine.head import Head
from concm.engine.metric import expected_cosine
from concm.engine.settings import Settings
from concm.features.sessions import BaseSession, Session, statistics
from concm.files import load_tensors, save_tensors

torch.set_num_threads(1)  # bit for bit only holds for one number of threads

DIMENSION = 16
QUICK = Settings(calibrate="none", base_steps=3, steps=3, hidden=16, width=48)
likenesses = st.floats(0.01, 0.99)
finite = st.floats(-5, 5)


def centres(classes: int, seed: int = 0, dimension: int = DIMENSION) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(classes, dimension, generator=random))


def around(centre: Tensor, labels: Tensor, *, spread: float, seed: int) -> Tensor:
    """A photo a label, Gaussian around its class's centre; `spread` is the length that this adds."""
    noise = torch.randn(len(labels), centre.shape[1], generator=torch.Generator().manual_seed(seed))
    return centre[labels] + spread / centre.shape[1] ** 0.5 * noise


def base_session(counts: list[int], *, spread: float = 0.8, seed: int = 0, centre: Tensor | None = None) -> BaseSession:
    centre = centres(len(counts), seed) if centre is None else centre
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    features = around(centre, labels, spread=spread, seed=seed + 1)
    names = tuple(f"class {at}" for at in range(len(counts)))
    return BaseSession.of(Session(0, range(len(counts)), names, features, labels))


def novel_session(
    first: int, shots: list[int], *, spread: float = 0.8, seed: int = 5, centre: Tensor | None = None
) -> Session:
    labels = torch.arange(first, first + len(shots)).repeat_interleave(torch.tensor(shots))
    centre = centres(first + len(shots), seed) if centre is None else centre
    features = around(centre, labels, spread=spread, seed=seed)
    names = tuple(f"class {label}" for label in range(first, first + len(shots)))
    return Session(1, range(first, first + len(shots)), names, features, labels, None)


def taught(base: BaseSession, *shots: int, settings: Settings = QUICK) -> Engine:
    """An engine that learned the base session and then a class a number of shots."""
    engine = Engine(settings)
    engine.fit_base(base)
    if shots:
        engine.learn(novel_session(len(base.classes), list(shots)))
    return engine


def usual(base: int = 3, **changes: Tensor) -> Usual:
    values = {
        "base": torch.linspace(0.5, 0.7, base),
        "likeness": torch.tensor(0.5),
        "shift": torch.tensor([-0.01, 0.02]),
        "width": torch.tensor([0.05, 0.1]),
        "quantiles": torch.linspace(-3, 3, 101),
        "temperature": torch.tensor(0.03),
    }
    return Usual(**{**values, **changes})


def same(one: Usual, other: Usual) -> bool:
    return all(torch.equal(getattr(one, item.name), getattr(other, item.name)) for item in fields(Usual))


# the expected cosine


@given(likeness=likenesses, count=st.integers(1, 40))
def test_the_expected_cosine_is_exact_where_any_two_images_are_equally_alike(likeness, count):
    images = torch.zeros(count + 1, count + 2, dtype=torch.float64)
    images[:, 0] = math.sqrt(likeness)  # what all share, and a direction of each one's own
    images[:, 1:].fill_diagonal_(math.sqrt(1 - likeness))
    new, mean = images[0], images[1:].mean(0)
    found = expected_cosine(torch.tensor(likeness, dtype=torch.float64), torch.tensor(count))
    assert float(found) == pytest.approx(float(F.cosine_similarity(new, mean, dim=0)), abs=1e-9)


@pytest.mark.parametrize("likeness", [0.1, 0.3, 0.55, 0.9])
@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_the_expected_cosine_is_the_mean_over_many_random_images(likeness, count):
    random = torch.Generator().manual_seed(count)
    dimension, trials = 400, 200
    own = F.normalize(torch.randn(trials, count + 1, dimension, generator=random), dim=-1)
    shared = F.normalize(torch.randn(trials, 1, dimension, generator=random), dim=-1)
    images = F.normalize(math.sqrt(likeness) * shared + math.sqrt(1 - likeness) * own, dim=-1)
    found = F.cosine_similarity(images[:, 0], images[:, 1:].mean(1), dim=-1)
    expected = expected_cosine(torch.tensor(likeness), torch.tensor(count))
    assert abs(found.mean() - expected) < 5 * found.std() / trials**0.5


@given(one=likenesses, other=likenesses, count=st.integers(1, 1000))
def test_the_more_alike_the_images_the_larger_the_expected_cosine(one, other, count):
    less, more = (expected_cosine(torch.tensor(value), torch.tensor(count)) for value in sorted([one, other]))
    assert less <= more + 1e-7


@given(likeness=likenesses, one=st.integers(1, 1000), other=st.integers(1, 1000))
def test_the_more_images_the_larger_the_expected_cosine_and_never_above_the_root(likeness, one, other):
    value = torch.tensor(likeness)
    less, more = (expected_cosine(value, torch.tensor(count)) for count in sorted([one, other]))
    assert less <= more + 1e-7
    assert likeness - 1e-6 <= less
    assert more <= math.sqrt(likeness) + 1e-6


def test_one_image_is_as_like_as_two_are_and_images_without_likeness_are_not_alike():
    torch.testing.assert_close(expected_cosine(torch.tensor(0.25), torch.tensor(1)), torch.tensor(0.25))
    torch.testing.assert_close(expected_cosine(torch.tensor(0.0), torch.tensor([1, 5, 100])), torch.zeros(3))
    torch.testing.assert_close(expected_cosine(torch.tensor(1.0), torch.tensor([1, 5, 100])), torch.ones(3))


# the bias by the number of shots


def bias(base_photos: int, *shots: int, **changes: object) -> Tensor:
    """Of novel classes of so many shots beside base classes of so many photos."""
    engine = taught(base_session([3, 3, 3]), *[1] * len(shots), settings=replace(QUICK, **changes))
    engine.memory.counts = torch.tensor([base_photos] * 3 + list(shots))
    return engine.head.bias


def test_base_classes_have_no_bias():
    assert torch.equal(bias(10, 1, 5)[:3], torch.zeros(3))
    assert torch.equal(taught(base_session([4, 2, 1])).head.bias, torch.zeros(3))


def test_the_bias_is_the_setting_for_five_shots_beside_many_base_images():
    assert torch.allclose(bias(10**7, 5)[3:], torch.tensor([0.07]), atol=1e-5)
    assert torch.allclose(bias(10**7, 5, novel_bias=0.2)[3:], torch.tensor([0.2]), atol=1e-5)


@pytest.mark.parametrize("base_photos", [1, 5, 500])
def test_the_bias_grows_with_fewer_shots(base_photos):
    found = bias(base_photos, 1, 2, 3, 5, 10, 100)[3:]
    assert (found.diff() < 0).all()


def test_the_bias_is_less_where_base_classes_have_few_images_too():
    found = [float(bias(count, 5)[3]) for count in (1, 2, 5, 20, 1000)]
    assert found == sorted(found)
    assert found[0] < found[-1] - 0.1


@given(shots=st.integers(1, 100), photos=st.integers(1, 100), likeness=likenesses, share=st.floats(0, 1))
def test_the_bias_makes_up_for_what_shots_change_in_the_expected_cosine(shots, photos, likeness, share):
    settings = replace(QUICK, likeness=likeness, prototypes=share)
    engine = Engine(settings)
    engine.memory = SimpleNamespace(counts=torch.tensor([photos, photos, shots]), base=2)

    def cosine(count: float) -> float:
        return likeness / math.sqrt(likeness + (1 - likeness) / count)

    published = math.sqrt(likeness) - cosine(5)
    expected = settings.novel_bias + share * (cosine(photos) - cosine(shots) - published)
    assert engine._bias().tolist() == pytest.approx([0, 0, expected], abs=1e-5)


def test_where_prototypes_do_not_count_shots_do_not_either():
    torch.testing.assert_close(bias(3, 1, 5, 100, prototypes=0.0)[3:], torch.full((3,), 0.07))


# the head


def slow_scores(head: Head, features: Tensor) -> list[list[float]]:
    """One number after another."""

    def unit(values: list[float]) -> list[float]:
        length = math.sqrt(sum(value * value for value in values))
        return [value / length for value in values]

    def times(rows: Tensor, vector: list[float], more: Tensor | None = None) -> list[float]:
        found = [sum(a * b for a, b in zip(row, vector, strict=True)) for row in rows.tolist()]
        return found if more is None else [a + b for a, b in zip(found, more.tolist(), strict=True)]

    table = []
    for row in features.tolist():
        seen = unit(row)
        if head.metric is not None:
            seen = unit(times(head.metric.T, seen))
        hidden = [max(0.0, value) for value in times(head.inner_weight, seen, head.inner_bias)]
        projected = unit(times(head.outer_weight, hidden, head.outer_bias))
        matched, near, share = times(head.structure, projected), times(head.prototypes, seen), float(head.share)
        pairs = zip(matched, near, head.bias.tolist(), strict=True)
        table.append([(1 - share) * structure + share * prototype + bias for structure, prototype, bias in pairs])
    return table


@pytest.mark.parametrize("metric", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("classes", "width"), [(2, 2), (5, 7)])
def test_scores_are_those_of_a_slow_reference(metric, share, classes, width):
    random = torch.Generator().manual_seed(classes)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    head = Head(
        metric=some(4, 4) if metric else None,
        inner_weight=some(6, 4),
        inner_bias=some(6),
        outer_weight=some(width, 6),
        outer_bias=some(width),
        structure=some(classes, width),
        prototypes=some(classes, 4),
        bias=some(classes),
        share=torch.tensor(share),
    )
    features = some(3, 4)
    torch.testing.assert_close(head(features), torch.tensor(slow_scores(head, features)), atol=1e-5, rtol=1e-5)


def test_the_engines_head_is_all_that_scores():
    engine = taught(base_session([4, 4, 4]), 2, 1)
    features = novel_session(3, [2, 2], seed=9).features
    found = torch.tensor(slow_scores(engine.head, features))
    torch.testing.assert_close(engine.scores(features), found, atol=1e-5, rtol=1e-5)
    assert torch.allclose(engine.head.prototypes.norm(dim=1), torch.ones(5))


# probabilities


def confidence(temperature: float, classes: int = 3) -> Confidence:
    known = usual(classes, temperature=torch.tensor(temperature))
    return Confidence(known, torch.zeros(classes), torch.ones(classes))


some_scores = st.lists(st.lists(finite, min_size=3, max_size=3), min_size=1, max_size=6).map(torch.tensor)


@given(some_scores, st.floats(0.005, 10))
def test_probabilities_add_up_to_one_and_are_in_the_order_of_the_scores(scores, temperature):
    found = confidence(temperature).probabilities(scores)
    assert torch.allclose(found.sum(1), torch.ones(len(scores)))
    assert (found >= 0).all()
    ranked = found.gather(1, scores.argsort(1))
    assert (ranked.diff(dim=1) >= -1e-6).all()


@given(some_scores, st.floats(0.005, 10))
def test_the_temperature_does_not_change_the_best_guess(scores, temperature):
    found = confidence(temperature).probabilities(scores)
    best = found.gather(1, scores.argmax(1, keepdim=True))[:, 0]
    torch.testing.assert_close(best, found.max(1).values)


@given(some_scores)
def test_a_higher_temperature_is_never_surer(scores):
    sure = [confidence(value).probabilities(scores).max(1).values for value in (0.05, 0.5, 5.0)]
    assert (sure[0] >= sure[1] - 1e-6).all()
    assert (sure[1] >= sure[2] - 1e-6).all()


# familiarity


def test_familiarity_is_how_far_the_best_score_lies_above_what_is_usual_for_its_class():
    scores = torch.tensor([[0.9, 0.1], [0.2, 0.7], [0.5, 0.4]])
    judge = Confidence(usual(2), torch.tensor([0.6, 0.9]), torch.tensor([0.1, 0.05]))
    torch.testing.assert_close(judge.familiarity(scores), torch.tensor([3.0, -4.0, -1.0]))


def test_what_is_usual_of_a_class_counts_its_group_and_its_bias():
    engine = taught(base_session([5, 5, 5]), 3, 1)
    known = usual(3)
    judge = Confidence.of(engine, known)
    few = expected_scores(*likeness(engine), engine.memory.counts, known.likeness)[3:]
    torch.testing.assert_close(judge.centre[:3], known.base - 0.01)
    torch.testing.assert_close(judge.centre[3:], few + 0.02 + engine.head.bias[3:])
    assert torch.equal(judge.width, torch.tensor([0.05, 0.05, 0.05, 0.1, 0.1]))
    assert judge.usual is known


@given(
    st.lists(finite, min_size=2, max_size=30).map(sorted),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=10).map(sorted),
)
def test_the_larger_the_rate_the_higher_the_threshold(quantiles, rates):
    judge = Confidence(usual(quantiles=torch.tensor(quantiles)), torch.zeros(3), torch.ones(3))
    found = [judge.threshold(rate) for rate in rates]
    assert found == sorted(found)


@given(st.lists(st.floats(-5, 5, width=32), min_size=101, max_size=101).map(sorted), st.integers(1, 99))
def test_the_threshold_is_the_quantile_of_its_rate(quantiles, at):
    judge = Confidence(usual(quantiles=torch.tensor(quantiles)), torch.zeros(3), torch.ones(3))
    assert judge.threshold(at / 100) == pytest.approx(quantiles[at], abs=1e-4)


def test_nothing_is_unknown_at_rate_0_and_where_nothing_is_known_of_what_is_usual():
    judge = Confidence(usual(), torch.zeros(3), torch.ones(3))
    assert judge.threshold(0) == judge.threshold(0.0) == -math.inf
    assert judge.threshold(0.01) > -math.inf
    silent = Confidence(usual(quantiles=torch.zeros(0)), torch.zeros(3), torch.ones(3))
    assert silent.threshold(0.5) == -math.inf


def slow_likeness(engine: Engine, label: int) -> float:
    own = engine.memory.exemplars[engine.memory.labels == label]
    pairs = [(i, j) for i in range(len(own)) for j in range(len(own)) if i != j]
    return sum(float(F.cosine_similarity(own[i], own[j], dim=0)) for i, j in pairs) / len(pairs) if pairs else 0.0


@pytest.mark.parametrize("replay", [0, 1, 3, 5])
def test_likeness_is_the_mean_cosine_of_two_exemplars(replay):
    engine = taught(base_session([4, 4, 4]), 1, 2, 7, settings=replace(QUICK, replay=replay))
    found, counts = likeness(engine)
    assert counts.tolist() == [0, 0, 0, min(1, replay), min(2, replay), min(7, replay)]
    assert found.tolist() == pytest.approx([slow_likeness(engine, label) for label in range(6)], abs=1e-5)


def test_a_class_is_judged_by_its_own_likeness_the_more_the_more_exemplars_it_has():
    own, common, shots = torch.tensor([0.9]), torch.tensor(0.4), torch.tensor([5])

    def expected(exemplars: int) -> float:
        return float(expected_scores(own, torch.tensor([exemplars]), shots, common))

    assert expected(0) == expected(1) == pytest.approx(float(expected_cosine(common, shots)))
    between = [expected(count) for count in (1, 2, 5, 20, 1000)]
    assert between == sorted(between)
    assert between[-1] == pytest.approx(float(expected_cosine(own, shots)), abs=0.01)
    half = expected_cosine((own + common) / 2, shots)
    assert expected(int(SHRINKAGE)) == pytest.approx(float(half), abs=1e-6)


# what the store keeps


@pytest.mark.parametrize("shots", [(), (3, 1)], ids=["base", "novel too"])
def test_what_is_written_comes_back(tmp_path, shots):
    engine = taught(base_session([4, 4, 4]), *shots)
    judge = Confidence.of(engine, usual(3))
    save_tensors(tmp_path / "file", "concm-test-1", judge.usual.tensors(), {})
    again = Confidence.of(engine, Usual(**load_tensors(tmp_path / "file", "concm-test-1")[0]))
    assert same(again.usual, judge.usual)
    assert torch.equal(again.centre, judge.centre)
    assert torch.equal(again.width, judge.width)


@pytest.mark.parametrize(("label", "left"), [(0, [1, 2]), (1, [0, 2]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2])])
def test_without_a_class_the_rest_stays_usual(label, left):
    engine = taught(base_session([4, 4, 4]), 3, 1)
    judge = Confidence.of(engine, usual(3))
    rest = judge.without(label)
    assert torch.equal(rest.base, judge.usual.base[left])
    assert same(replace(rest, base=judge.usual.base), judge.usual)
    engine.forget(label)
    others = [at for at in range(5) if at != label]
    torch.testing.assert_close(Confidence.of(engine, rest).centre, judge.centre[others])
    assert torch.equal(Confidence.of(engine, rest).width, judge.width[others])


def test_what_was_learned_since_is_judged_too():
    engine = taught(base_session([4, 4, 4]))
    judge = Confidence.of(engine, usual(3))
    engine.learn(novel_session(3, [2]))
    assert len(judge.centre) == 3
    renewed = Confidence.of(engine, judge.usual)
    assert len(renewed.centre) == len(renewed.width) == 4
    torch.testing.assert_close(renewed.centre[:3], judge.centre)


# the rehearsal


@pytest.fixture
def seen(monkeypatch) -> list[SimpleNamespace]:
    """What each engine of a rehearsal was shown."""
    made: list[SimpleNamespace] = []

    class Watched(Engine):
        def __init__(self, settings: Settings, **how: object) -> None:
            super().__init__(settings, **how)
            self.notes = SimpleNamespace(settings=settings, base=None, novel=None, judged=None, scores=None)
            made.append(self.notes)

        def fit_base(self, base: BaseSession) -> None:
            self.notes.base = base
            super().fit_base(base)

        def learn(self, session: Session) -> None:
            self.notes.novel = session
            super().learn(session)

        def scores(self, features: Tensor) -> Tensor:
            self.notes.judged, self.notes.scores = features, super().scores(features)
            return self.notes.scores

    monkeypatch.setattr(rehearsal, "Engine", Watched)
    return made


def rows_of(base: Session, features: Tensor) -> list[int]:
    """Which photos of the base session these are; what is none of them is an error."""
    place = {row.numpy().tobytes(): at for at, row in enumerate(base.features)}
    return [place[row.numpy().tobytes()] for row in features]


@pytest.mark.parametrize(
    "counts",
    [[2, 2], [6, 1], [4, 4, 4], [8] * 5, [7, 1, 2, 9, 3], [10] * 12],
    ids=lambda counts: "-".join(map(str, counts)),
)
def test_no_photo_is_judged_by_an_engine_that_was_taught_it(seen, counts):
    base = base_session(counts)
    rehearse(base, QUICK, unseen=True)
    judged = []
    for scene in seen:
        old, held = rows_of(base, scene.base.features), rows_of(base, scene.judged)
        new = [] if scene.novel is None else rows_of(base, scene.novel.features)
        assert not {*old, *new} & {*held}
        assert len({*old, *new, *held}) == len(old) + len(new) + len(held)
        expected = statistics(scene.base.features, scene.base.labels, len(scene.base.classes))
        assert all(map(torch.equal, (scene.base.mean, scene.base.std, scene.base.counts), expected))
        judged += held
    several = [row for row, label in enumerate(base.labels.tolist()) if counts[label] > 1]
    assert set(judged) <= set(several)
    if len(counts) < 4:  # every photo is held out once
        assert sorted(judged) == several


def test_every_class_plays_a_new_one_of_at_most_five_shots_once(seen):
    counts = [20, 3, 8, 12, 20, 4, 10]
    base = base_session(counts)
    rehearse(base, QUICK, unseen=True)
    played = []
    for scene in seen:
        labels = base.labels[rows_of(base, scene.novel.features)]
        shots = torch.bincount(labels, minlength=len(counts)).tolist()
        for label, count in enumerate(shots):
            if count:
                played.append(label)
                assert count == min(5, counts[label] // 2)
        assert scene.novel.names == tuple(base.names[label] for label in labels.unique_consecutive().tolist())
        assert set(scene.novel.names) | set(scene.base.names) == set(base.names)
        assert scene.base.names == tuple(name for name in base.names if name not in scene.novel.names)
    assert sorted(played) == list(range(len(counts)))


def test_a_class_of_one_photo_never_plays_a_new_one_and_is_never_judged(seen):
    base = base_session([6, 1, 6, 6, 1, 6])
    rehearse(base, QUICK, unseen=True)
    single = {row for row, label in enumerate(base.labels.tolist()) if label in (1, 4)}
    for scene in seen:
        assert not {"class 1", "class 4"} & set(scene.novel.names if scene.novel else ())
        assert not single & set(rows_of(base, scene.judged))


def test_with_fewer_than_four_classes_none_plays_a_new_one(seen):
    rehearse(base_session([6, 6, 6]), QUICK, unseen=True)
    assert [scene.novel for scene in seen] == [None] * 5


@pytest.mark.parametrize("spread", [0.8, 3.0], ids=["easy", "hard"])
def test_what_is_usual_is_that_of_a_slow_reference(seen, spread):
    base = base_session([8, 5, 11], spread=spread)  # too few classes for a bias or a new one
    plan = rehearse(base, QUICK, unseen=True)
    photos = [
        (int(base.labels[row]), scores.tolist())
        for scene in seen
        for row, scores in zip(rows_of(base, scene.judged), scene.scores, strict=True)
    ]
    average = sum(scores[label] for label, scores in photos) / len(photos)

    def usual_of(label: int, without: int | None = None) -> float:
        own = [scores[label] for at, (truth, scores) in enumerate(photos) if truth == label and at != without]
        return (sum(own) + SHRINKAGE * average) / (len(own) + SHRINKAGE)

    excess = []
    for at, (label, scores) in enumerate(photos):
        taken = max(range(3), key=lambda column: scores[column])
        excess.append(scores[taken] - usual_of(taken, at if taken == label else None))
    mean = sum(excess) / len(excess)
    variance = sum((value - mean) ** 2 for value in excess) / (len(excess) - 1)
    width = math.sqrt(variance * (1 + 1 / len(excess)))
    found = plan.usual
    assert found.base.tolist() == pytest.approx([usual_of(label) for label in range(3)], abs=1e-5)
    assert found.shift.tolist() == pytest.approx([mean] * 2, abs=1e-5)
    assert found.width.tolist() == pytest.approx([width] * 2, abs=1e-5)
    familiar = torch.tensor([(value - mean) / width for value in excess], dtype=torch.float64)
    for at in (25, 50, 75):  # where there are photos enough on both sides
        assert float(found.quantiles[at]) == pytest.approx(float(familiar.quantile(at / 100)), abs=0.15)
    assert float(found.quantiles[1]) == pytest.approx(-2.326, abs=1e-3)  # where there are not, as if normal


def test_the_same_seed_makes_the_same_plan_and_another_another():
    base = base_session([8] * 6)
    first, again, other = (rehearse(base, QUICK, unseen=True, seed=seed) for seed in (0, 0, 1))
    assert same(first.usual, again.usual)
    assert first.settings == again.settings
    assert not torch.equal(first.usual.base, other.usual.base)


def test_the_generator_of_the_process_is_neither_used_nor_moved_by_a_rehearsal():
    base = base_session([6] * 5)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = rehearse(base, QUICK, unseen=True)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(rehearse(base, QUICK, unseen=True).usual, first.usual)


def assert_whole(plan: Plan, classes: int) -> None:
    found = plan.usual
    assert all(getattr(found, item.name).isfinite().all() for item in fields(Usual)), found
    assert found.base.shape == (classes,)
    assert found.shift.shape == found.width.shape == (2,)
    assert (found.width > 0).all()
    assert found.temperature > 0
    assert (found.quantiles.diff() >= 0).all()


@pytest.mark.parametrize(
    "counts",
    [[2, 2], [2, 1], [1, 2], [3, 1], [2, 2, 2], [1, 5, 1], [6, 6, 6], [3, 3, 3, 3], [1, 9, 9, 9], [2] * 9],
    ids=lambda counts: "-".join(map(str, counts)),
)
def test_few_classes_and_few_photos_will_do(counts):
    plan = rehearse(base_session(counts), QUICK, unseen=True)
    assert_whole(plan, len(counts))
    assert plan.remarks == []
    assert Confidence.of(taught(base_session(counts)), plan.usual).threshold(0.05) < 0


@pytest.mark.parametrize("place", range(5))
def test_one_class_of_two_photos_among_classes_of_one_will_do(place):
    counts = [2 if at == place else 1 for at in range(5)]
    assert_whole(rehearse(base_session(counts), QUICK, unseen=True), 5)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_with_one_photo_a_class_nothing_will_be_unknown_and_that_is_said(classes):
    base = base_session([1] * classes)
    plan = rehearse(base, None, unseen=True)
    assert plan.remarks == ["one photo a class does not tell what is usual: nothing will be called unknown"]
    assert not plan.settings.calibrate
    assert_whole(plan, classes)
    assert Confidence.of(taught(base, 2), plan.usual).threshold(0.5) == -math.inf


@pytest.mark.parametrize("counts", [[1, 1], [4, 4], [4] * 6], ids=str)
@pytest.mark.parametrize("unseen", [True, False])
def test_settings_that_are_given_stay(counts, unseen):
    assert rehearse(base_session(counts), QUICK, unseen=unseen).settings == QUICK


def test_with_few_classes_attributes_are_not_tried(seen):
    assert rehearse(base_session([3] * 4), None, unseen=True).settings == Settings(calibrate="none")
    assert {scene.settings for scene in seen} == {Settings(calibrate="none")}


@pytest.mark.parametrize("better", [True, False])
def test_with_enough_classes_attributes_are_used_where_they_help(monkeypatch, better):
    tried = []

    class Biased(Engine):
        """Knows everything, or the contrary, as it is or is not calibrated."""

        def __init__(self, settings: Settings, **how: object) -> None:
            super().__init__(replace(QUICK, base_steps=0, steps=0), **how)
            self.good = settings.calibrate is better
            tried.append(settings)

        def scores(self, features: Tensor) -> Tensor:
            return super().scores(features) * (1 if self.good else -1)

    monkeypatch.setattr(rehearsal, "Engine", Biased)
    monkeypatch.setattr(rehearsal, "ENOUGH_CLASSES", 6)
    plan = rehearse(base_session([4] * 6), None, unseen=True)
    assert plan.settings == Settings(calibrate=better)
    assert set(tried) == {Settings(), Settings(calibrate="none")}


def test_a_backbone_that_saw_the_photos_is_judged_by_figures_from_elsewhere():
    base = base_session([6, 6, 6])
    plan = rehearse(base, QUICK, unseen=False)
    assert_whole(plan, 3)
    found = plan.usual
    assert found.shift.tolist() == pytest.approx([SEEN["base_shift"], SEEN["novel_shift"]])
    assert found.width.tolist() == pytest.approx([SEEN["base_width"], SEEN["novel_width"]])
    assert [float(found.likeness), float(found.temperature)] == pytest.approx([SEEN["likeness"], SEEN["temperature"]])
    scores = taught(base).scores(base.features)
    own = [scores[base.labels == label, label].mean() for label in range(3)]
    torch.testing.assert_close(found.base, torch.stack(own))
    judge = Confidence.of(taught(base), found)
    assert judge.threshold(0.05) == pytest.approx(-1.645, abs=0.01)
    assert judge.threshold(0.5) == pytest.approx(0, abs=1e-6)
    assert rehearse(base_session([1, 1]), QUICK, unseen=False).remarks == []


def test_without_settings_a_backbone_that_saw_the_photos_has_the_usual_ones(monkeypatch):
    class Uncalibrated(Engine):
        def __init__(self, settings: Settings, **how: object) -> None:
            super().__init__(replace(settings, calibrate="none"), **how)

    monkeypatch.setattr(rehearsal, "Engine", Uncalibrated)
    assert rehearse(base_session([3, 3]), None, unseen=False).settings == Settings()


# whether it keeps its word

RATES = (0.02, 0.05, 0.2)
CLASSES, PHOTOS, STRANGERS = 40, 30, 60
SPREAD = 1.1


@pytest.fixture(scope="module")
def world() -> SimpleNamespace:
    """Forty base classes, twenty novel ones of five shots, and sixty that are never taught; all alike in spread."""
    centre = centres(CLASSES + 20 + STRANGERS, dimension=32)
    base = base_session([PHOTOS] * CLASSES, centre=centre, spread=SPREAD)
    plan = rehearse(base, QUICK, unseen=True)
    engine = Engine(QUICK)
    engine.fit_base(base)
    engine.learn(novel_session(CLASSES, [5] * 20, centre=centre, spread=SPREAD))
    return SimpleNamespace(centre=centre, engine=engine, judge=Confidence.of(engine, plan.usual))


def new_photos(world: SimpleNamespace, first: int, last: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(first, last).repeat_interleave(100)
    return world.engine.scores(around(world.centre, labels, spread=SPREAD, seed=99)), labels


def refused(world: SimpleNamespace, first: int, last: int, rate: float) -> float:
    scores, _ = new_photos(world, first, last)
    return float((world.judge.familiarity(scores) < world.judge.threshold(rate)).double().mean())


@pytest.mark.parametrize("rate", RATES)
def test_about_as_many_known_photos_are_refused_as_was_asked_for(world, rate):
    held = CLASSES * PHOTOS
    deviation = math.sqrt(rate * (1 - rate) * (1 / held + 1 / (CLASSES * 100)))
    assert abs(refused(world, 0, CLASSES, rate) - rate) < 5 * deviation


@pytest.mark.parametrize("rate", RATES)
def test_about_as_many_photos_of_few_shot_classes_are_refused_as_was_asked_for(world, rate):
    """Their classes, not their photos, are what there are few of: 20, each off by what its five shots tell of it."""
    deviation = math.sqrt(rate * (1 - rate) / 20)
    assert abs(refused(world, CLASSES, CLASSES + 20, rate) - rate) < 2 * deviation


def test_strangers_are_refused_far_more_often_than_known_photos(world):
    assert refused(world, CLASSES + 20, CLASSES + 20 + STRANGERS, 0.05) > 0.6


def test_probabilities_come_true(world):
    scores, labels = new_photos(world, 0, CLASSES + 20)
    best = world.judge.probabilities(scores).max(1)
    right = (best.indices == labels).double()
    assert right.mean() < 0.99  # else there is nothing to be unsure of
    assert abs(float(best.values.double().mean() - right.mean())) < 0.03
    for low, high in ((0, 0.6), (0.6, 0.9), (0.9, 1.01)):
        there = (best.values >= low) & (best.values < high)
        assert abs(float(best.values[there].double().mean() - right[there].mean())) < 0.1
