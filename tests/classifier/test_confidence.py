"""How sure to be: probabilities come true, and known photos are refused about as often as was asked for."""

from __future__ import annotations

import math
import shutil
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from concm.classifier import rehearsal
from concm.classifier.confidence import ENOUGH, Confidence, familiarity
from concm.classifier.evaluation import auroc
from concm.classifier.export import KIND
from concm.classifier.rehearsal import ENOUGH_CLASSES, TRUSTS, rehearse
from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.errors import Misuse
from concm.features.sessions import BaseSession, Session
from concm.files import load_tensors, save_tensors
from concm.semantics.kinship import kinship
from concm.semantics.semantics import Semantics
from tests.support.photographs import picture, pictures
from tests.support.zoo import BASE, COUNT, NEW, everything, labels, made, names, opened

CLASSES = 30


def known_scores(count: int, *, temperature: float = 0.05, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores of which the labels are drawn as a softmax of this temperature says."""
    random = torch.Generator().manual_seed(seed)
    scores = 0.1 * torch.randn(count, CLASSES, generator=random)
    labels = torch.multinomial((scores / temperature).softmax(1), 1, generator=random).flatten()
    return scores, labels


def lifted(count: int, by: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores of photos whose own class is above the others by about as much."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    scores = 0.1 * torch.randn(count, CLASSES, generator=random)
    return scores + by * F.one_hot(labels, CLASSES), labels


# on scores


def test_probabilities_add_up_and_keep_the_order():
    scores, truth = known_scores(200)
    found = Confidence.usual(scores, truth).probabilities(scores)
    torch.testing.assert_close(found.sum(1), torch.ones(200))
    assert torch.equal(found.argmax(1), scores.argmax(1))


@pytest.mark.parametrize("temperature", [0.02, 0.05, 0.15])
def test_probabilities_come_true(temperature):
    tried = known_scores(3000, temperature=temperature)
    judge = Confidence.usual(*tried).adapt(*tried)
    assert float(judge.temperature) == pytest.approx(temperature, rel=0.15)
    scores, truth = known_scores(4000, temperature=temperature, seed=1)
    best = judge.probabilities(scores).max(1)
    assert float((best.indices == truth).double().mean()) == pytest.approx(float(best.values.mean()), abs=0.03)


def test_photos_that_are_all_easy_do_not_make_it_certain_whatever_their_number():
    tried = lifted(2000, 1.2)
    careful, given = Confidence.usual(*tried), Confidence.usual(*tried).adapt(*tried)
    assert (tried[0].argmax(1) == tried[1]).all()
    assert careful.temperature > 2 * given.temperature


def test_where_photos_are_hard_the_same_doubt_changes_little():
    tried = known_scores(2000, temperature=0.05)
    careful, given = Confidence.usual(*tried), Confidence.usual(*tried).adapt(*tried)
    assert float(careful.temperature) == pytest.approx(float(given.temperature), rel=0.1)


@pytest.mark.parametrize("rate", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("count", [200, 3000])
def test_of_fresh_photos_of_the_same_kind_about_as_many_are_refused_as_was_asked_for(rate, count):
    judge = Confidence.usual(*lifted(count, 0.6))
    fresh = judge.familiarity(lifted(4000, 0.6, seed=1)[0])
    deviation = math.sqrt(rate * (1 - rate) * (1 / count + 1 / 4000))
    assert abs(float((fresh < judge.threshold(rate)).double().mean()) - rate) < 5 * deviation


def test_strangers_are_less_familiar_and_near_ones_lie_between():
    judge = Confidence.usual(*lifted(1000, 0.6))
    known, near, far = (judge.familiarity(lifted(500, by, seed=1)[0]).mean() for by in (0.6, 0.3, 0.0))
    assert known > near > far


def test_a_photo_that_looks_like_several_classes_is_stranger_than_one_that_looks_like_one():
    judge = Confidence.usual(*lifted(1000, 0.6))
    clear = torch.zeros(1, CLASSES)
    clear[0, 0] = 0.6
    torn = clear.clone()
    torn[0, 1:6] = 0.5
    assert judge.familiarity(torn) < judge.familiarity(clear)


def test_a_photo_is_strange_by_what_is_usual_in_the_class_that_it_is_taken_for():
    tight = torch.arange(CLASSES) < CLASSES // 2  # photos of these classes have all high scores, others have not

    def seen(seed: int, short: float = 0.0) -> tuple[Tensor, Tensor]:
        scores, truth = lifted(1500, 0.6, seed)
        return scores + F.one_hot(truth, CLASSES) * (0.4 * tight[truth] - short)[:, None], truth

    judge = Confidence.usual(*seen(0))
    fresh, strange = seen(1), seen(2, short=0.2)
    by_class = judge.familiarity(fresh[0]), judge.familiarity(strange[0])
    flat = torch.zeros_like(judge.offset)
    alike = (familiarity(scores, flat, judge.centre, judge.width) for scores in (fresh[0], strange[0]))
    assert auroc(*by_class) > auroc(*alike) + 0.03
    for kind in (tight, ~tight):  # no kind of class is refused much more often than was asked for
        assert float((by_class[0][kind[fresh[1]]] < judge.threshold(0.05)).double().mean()) < 0.08


def test_a_class_of_which_nothing_was_tried_is_as_all_others_are():
    scores, truth = lifted(300, 0.6)
    scores, truth = scores[truth > 0], truth[truth > 0]
    offset = Confidence.usual(scores, truth).offset
    assert offset.shape == (CLASSES, 2)
    mean = Confidence.usual(scores, truth, photos=torch.full((len(truth),), 1e-9)).offset
    torch.testing.assert_close(mean, mean[:1].expand(CLASSES, 2))
    torch.testing.assert_close(offset[0], mean[0])
    assert (offset[1:] - mean[1:]).abs().min() > 1e-5


def test_several_rows_that_stand_for_one_photo_count_as_one():
    scores, truth = lifted(60, 0.6)
    scores[truth == 0] += 0.3
    once = Confidence.usual(scores, truth)
    copied = Confidence.usual(scores.repeat(7, 1), truth.repeat(7), photos=torch.full((7 * len(truth),), 1 / 7))
    torch.testing.assert_close(copied.offset, once.offset)
    torch.testing.assert_close(copied.width, once.width)


def test_a_store_without_what_is_usual_in_each_class_is_read():
    tensors = Confidence.usual(*lifted(300, 0.6)).tensors()
    flat = torch.zeros_like(tensors.pop("offset"))
    older, scores = Confidence.read(tensors), lifted(9, 0.3)[0]
    assert torch.equal(older.familiarity(scores), familiarity(scores, flat, older.centre, older.width))
    assert older.adapt(*lifted(100, 0.6)).offset.shape == (0, 2)


@given(one=st.floats(0, 0.99), other=st.floats(0, 0.99))
def test_the_larger_the_rate_the_higher_the_threshold(one, other):
    judge = Confidence.usual(*lifted(100, 0.6))
    low, high = sorted([one, other])
    assert judge.threshold(low) <= judge.threshold(high)
    assert judge.threshold(0) == -math.inf


@pytest.mark.parametrize("count", [0, 1, 2, ENOUGH - 1, ENOUGH])
def test_few_photos_do_not_tell_what_is_unknown(count):
    judge = Confidence.usual(*lifted(count, 0.6))
    assert (judge.threshold(0.5) == -math.inf) == (count < ENOUGH)
    assert judge.familiarity(lifted(3, 0)[0]).isfinite().all()
    torch.testing.assert_close(judge.probabilities(lifted(3, 0)[0]).sum(1), torch.ones(3))


def test_what_is_written_comes_back(tmp_path):
    judge = Confidence.usual(*lifted(50, 0.6)).adapt(*lifted(50, 0.5))
    save_tensors(tmp_path / "file", "concm-test-1", judge.tensors(), {})
    again = Confidence.read(load_tensors(tmp_path / "file", "concm-test-1")[0])
    assert all(torch.equal(value, again.tensors()[name]) for name, value in judge.tensors().items())
    scores = lifted(9, 0.3)[0]
    assert torch.equal(familiarity(scores, again.offset, again.centre, again.width), judge.familiarity(scores))


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": torch.zeros(CLASSES)},
        {"offset": torch.zeros(CLASSES, 2, dtype=torch.complex64)},
        {"offset": torch.tensor([[3e38, -3e38]]).repeat(CLASSES, 1)},
        {"centre": torch.zeros(3)},
        {"width": torch.tensor([1.0, 0.0])},
        {"temperature": torch.tensor(0.0)},
        {"quantiles": torch.tensor([1.0, 0.0])},
        {"adapted": torch.tensor([True])},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_tells_of_nothing_usual_is_refused(wrong):
    with pytest.raises(ValueError, match=r"form|order|above 0|beyond"):
        Confidence.read({**Confidence.usual(*lifted(50, 0.6)).tensors(), **wrong})


# of a store


def shifted(name: str, count: int, first: int = NEW) -> list:
    """Photos that vary far more than those that were learned from."""
    return [picture(name, number, vary=70) for number in range(first, first + count)]


def refused(zoo, first: int) -> float:
    found = zoo.predict([photo for name in BASE for photo in shifted(name, 12, first)])
    return sum(item.unknown for item in found) / len(found)


def test_calibrating_adapts_to_other_conditions_stays_and_is_undone(zoo):
    before, strange = everything(zoo), refused(zoo, 600)
    zoo.calibrate({name: shifted(name, 12) for name in BASE})
    assert (zoo.history[-1].action, names(zoo)) == ("calibrate", list(BASE))
    assert refused(zoo, 600) < min(strange, 0.2)
    adapted = zoo.known().confidence.tensors()
    zoo.learn({"okapi": pictures("okapi", 3)})
    kept = zoo.known().confidence
    assert kept.adapted
    assert [len(adapted.pop("offset")), len(kept.offset)] == [len(BASE), len(BASE) + 1]
    assert all(torch.equal(value, kept.tensors()[name]) for name, value in adapted.items())
    zoo.learn({f"class {at}": pictures(f"class {at}", 3) for at in range(8)})
    assert refused(zoo, 600) < 0.2  # what is usual in each class has changed with the others, and is known anew
    for _ in range(3):
        zoo.undo()
    assert everything(zoo).tensors == before.tensors
    assert refused(zoo, 600) == strange


def test_calibrating_takes_enough_photos_of_known_classes(zoo):
    with pytest.raises(Misuse, match="takes 20 photos or more"):
        zoo.calibrate({"cat": pictures("cat", 5, first=NEW)})
    with pytest.raises(Misuse, match="'yak' is none"):
        zoo.calibrate({"cat": pictures("cat", 20, first=NEW), "yak": pictures("yak", 5)})
    assert zoo.version == 1


def test_calibrating_leaves_out_photos_that_were_taught(zoo, tmp_path):
    photos = {name: shifted(name, 12) for name in BASE}
    other = opened(shutil.copytree(zoo.path, tmp_path / "other"))
    zoo.calibrate(photos)
    other.calibrate({name: [*pictures(name, 10), *own] for name, own in photos.items()})
    assert other.remarks == ["50 of 110 photos were taught, and are left out: they look too familiar"]
    assert other.history[-1].detail == zoo.history[-1].detail
    assert everything(other).tensors == everything(zoo).tensors
    few = {"cat": [*pictures("cat", 10), *shifted("cat", 12)]}
    with pytest.raises(Misuse, match=r"takes 20 photos or more; 12 were given beside the 10 that were taught"):
        zoo.calibrate(few)
    with pytest.raises(Misuse, match="0 were given beside the 48 that were taught"):
        zoo.calibrate({name: pictures(name, COUNT) for name in BASE[:2]})
    assert zoo.version == 2


def test_what_was_exported_judges_alike(zoo, tmp_path):
    (file,) = zoo.export(structure=tmp_path / "knows.structure.safetensors")
    own, (found, meta) = zoo.known().confidence, load_tensors(file, KIND)
    scores = lifted(20, 0.3)[0][:, : len(BASE)]
    usual = (found[name] for name in ("offset", "centre", "width"))
    assert torch.equal(familiarity(scores, *usual), own.familiarity(scores))
    assert torch.equal((scores / found["temperature"]).softmax(1), own.probabilities(scores))
    assert meta["unknown_below"]["0.05"] == own.threshold(0.05)


# the rehearsal, and classes known by their names

ANIMALS = ("cat", "dog", "wolf", "fox", "lion", "tiger", "horse", "cow", "sheep")
THINGS = ("car", "truck", "bus", "train", "chair", "table", "sofa", "lamp", "cup")
NAMES = tuple(name for pair in zip(ANIMALS, THINGS, strict=True) for name in pair)


def looks(follow: bool, more: tuple[str, ...] = ()) -> Tensor:
    """Class means that follow the kinship of names, or not."""
    every = [*NAMES, *more]
    random = torch.Generator().manual_seed(3)
    drawn = torch.randn(len(every), 24, generator=random, dtype=torch.float64)
    if follow:
        kin = kinship(Semantics.of_names(every), every, every)
        values, vectors = torch.linalg.eigh((kin + kin.T) / 2)
        drawn = vectors @ (values.clamp(min=0).sqrt()[:, None] * drawn)
    return F.normalize(drawn).float()


def base(follow: bool, more: tuple[str, ...] = ()) -> SimpleNamespace:
    mean = looks(follow, more)
    random = torch.Generator().manual_seed(4)
    truth = torch.arange(len(NAMES)).repeat_interleave(16)
    features = mean[truth] + 0.15 * torch.randn(len(truth), 24, generator=random)
    return SimpleNamespace(
        session=BaseSession.of(Session(0, range(len(NAMES)), NAMES, features, truth)), mean=mean, random=random
    )


def test_names_are_trusted_where_they_help_and_not_where_they_mislead():
    plans = [rehearse(base(follow).session, "even", unseen=True) for follow in (True, False)]
    assert plans[0].settings.trust > 0
    assert plans[1].settings.trust < 1
    for plan in plans:
        assert plan.settings.prototypes == 1
        assert plan.tried[f"{plan.settings.trust:g}"] >= plan.tried[f"{TRUSTS[0]:g}"]
        assert set(plan.tried) == {f"{trust:g}" for trust in TRUSTS}


@pytest.mark.parametrize(
    ("better", "chosen"), [((9, 9, 8, 0), 0.5), ((1, 2, 3, 1), 0.0), ((-9, -9, -9, -9), 0.5)], ids=str
)
def test_names_are_trusted_otherwise_only_where_that_is_better_in_every_part_of_the_rehearsal(
    monkeypatch, better, chosen
):
    played = iter([70.0, 70.0 + more, 50.0] for more in better)
    monkeypatch.setattr(rehearsal, "_played", lambda base, half, seed, device: [next(played), next(played)])
    plan = rehearse(base(True).session, "even", unseen=True)
    assert plan.settings.trust == chosen
    assert plan.tried == {"0.5": 70.0, "0": 70 + sum(better) / 4, "1": 50.0}


def test_with_few_classes_or_a_backbone_that_saw_the_photos_nothing_is_rehearsed():
    few = base(True).session
    kept = few.labels < ENOUGH_CLASSES - 1
    short = Session(0, range(ENOUGH_CLASSES - 1), NAMES[: ENOUGH_CLASSES - 1], few.features[kept], few.labels[kept])
    plan = rehearse(BaseSession.of(short), "base", unseen=True)
    assert (plan.settings, plan.tried) == (Settings(heads=1, prototypes=1.0, whitening=2.0, lean="base", trust=0.5), {})
    seen = rehearse(few, "novel", unseen=False)
    assert (seen.settings, seen.tried) == (Settings(heads=1, prototypes=1.0, whitening=2.0, lean="novel"), {})


def test_a_name_alone_is_recognised_better_than_by_chance_where_looks_follow_names():
    world = base(True, ("leopard", "van"))
    engine = Engine(Settings(prototypes=1.0))
    engine.fit_base(world.session)
    first = len(NAMES)
    assert engine.kin("leopard") is not None
    assert engine.kin("qwxzv") is None
    engine.learn(Session(1, range(first, first + 2), ("leopard", "van"), torch.empty(0, 24), torch.empty(0).long()))
    truth = torch.arange(first, first + 2).repeat_interleave(100)
    scores = engine.scores(world.mean[truth] + 0.25 * torch.randn(200, 24, generator=world.random))
    assert float((scores[:, first:].argmax(1) + first == truth).double().mean()) > 0.8
    rank = (scores > scores.gather(1, truth[:, None])).sum(1).double()
    assert float(rank.mean()) < scores.shape[1] / 4


def test_leaning_to_new_classes_lifts_them_at_least_as_far():
    world = base(False, ("leopard", "van"))
    first, lifts = len(NAMES), []
    truth = torch.arange(first, first + 2).repeat_interleave(3)
    shots = world.mean[truth] + 0.25 * torch.randn(6, 24, generator=world.random)
    for lean in ("base", "even", "novel"):
        engine = Engine(Settings(prototypes=1.0, lean=lean))
        engine.fit_base(world.session)
        engine.learn(Session(1, range(first, first + 2), ("leopard", "van"), shots, truth))
        lifts.append(engine.point[0])
    assert lifts == sorted(lifts)


@pytest.mark.parametrize("undone", [True, False])
def test_a_class_taught_by_its_name_has_no_photos_until_some_come(tmp_path, undone):
    zoo = made(tmp_path / "zoo", settings=Settings(prototypes=1.0), lean="even")
    before = everything(zoo)
    with pytest.raises(Misuse, match="is not related enough to any base class"):
        zoo.learn_name("qwxzv")
    with pytest.raises(Misuse, match="already"):
        zoo.learn_name("cat")
    zoo.learn_name("wolf")
    row = zoo.classes[-1]
    assert (row.name, row.photos, row.base, zoo.history[-1].detail) == ("wolf", 0, False, "wolf (by its name)")
    if undone:
        zoo.undo()
        assert everything(zoo).tensors == before.tensors
    else:
        zoo.learn({"wolf": pictures("wolf", 4)})
        assert (zoo.classes[-1].name, zoo.classes[-1].photos) == ("wolf", 4)
        assert labels(zoo, "wolf", unknown_rate=0).count("wolf") >= 5
