"""Evaluating a classifier on labelled photos."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from concm.classifier.evaluation import Evaluation
from concm.errors import ConcmError
from concm.records import from_json
from tests.support.photographs import picture, pictures, write_world
from tests.support.zoo import (
    BASE,
    NEW,
    everything,
    loaded,
    names,
    new_photos,
    opened,
)


def test_an_evaluations_figures_are_those_of_its_predictions(zoo, tmp_path):
    zoo.learn({"okapi": pictures("okapi", 1), "emu": pictures("cat", 2, first=60)})  # an emu that looks like a cat
    photos = write_world(tmp_path / "test", (*BASE, "okapi", "emu", "yak", "elk"), 9, first=NEW)
    result = zoo.evaluate(tmp_path / "test", unknown_rate=0.2)
    found = [(name, item) for name in photos for item in zoo.predict(photos[name], unknown_rate=0.2)]
    known = [(name, item) for name, item in found if name in names(zoo)]
    strange = [item for name, item in found if name not in names(zoo)]

    def per_cent(answers) -> float:
        answers = list(answers)
        return 100 * sum(answers) / len(answers)

    assert isinstance(result, Evaluation)
    assert (result.version, result.photos, result.classes, result.strangers) == (2, 63, 7, 18)
    assert result.unknown_rate == 20
    best = [(name, item.top[0][0], item) for name, item in known]
    assert result.acc == pytest.approx(per_cent(name == guess for name, guess, _ in best))
    base = per_cent(name == guess for name, guess, _ in best if name in BASE)
    novel = per_cent(name == guess for name, guess, _ in best if name not in BASE)
    assert (result.acc_base, result.acc_novel) == pytest.approx((base, novel))
    assert result.hm == pytest.approx(2 * base * novel / (base + novel))
    assert result.acc < 100
    assert result.refused == pytest.approx(per_cent(item.unknown for _, item in known))
    assert result.false_accept == pytest.approx(per_cent(not item.unknown for item in strange))
    of = zoo.known()
    pixels = np.stack([loaded(path) for paths in photos.values() for path in paths])
    familiar = of.confidence.familiarity(of.scores(zoo.encoder(torch.from_numpy(pixels))))
    near, far = familiar[: len(known)], familiar[len(known) :]
    assert result.auroc == pytest.approx(100 * float((near[:, None] > far).float().mean()), abs=0.1)
    assert result.auroc > 80
    assert result.by_class == {
        name: (sum(guess == name for own, guess, _ in best if own == name), 9) for name in names(zoo)
    }
    mean = 100 * sum(item.score for _, item in known) / len(known)
    assert result.ece >= abs(mean - result.acc) - 1e-4  # the gap of the whole is at most the sum of its parts'


def test_an_evaluation_is_kept_with_its_version_and_goes_with_it(zoo, tmp_path):
    photos = {"cat": new_photos("cat"), "yak": new_photos("yak")}
    write_world(tmp_path / "test", ("cat", "dog"), 3, first=NEW)
    first = zoo.evaluate(photos)
    zoo.learn({"yak": pictures("yak", 3)})
    second = zoo.evaluate(tmp_path / "test")
    assert (first.strangers, second.strangers) == (6, 0)
    rows = opened(zoo.path).store.evaluations()
    assert [(row.version, row.source) for row in rows] == [(1, "photos in memory"), (2, str(tmp_path / "test"))]
    assert [from_json(Evaluation, row.result) for row in rows] == [first, second]
    zoo.undo()
    assert [row.version for row in zoo.store.evaluations()] == [1]


def test_figures_that_cannot_be_kept_are_given_all_the_same(zoo):
    photos = {"cat": [*new_photos("cat"), b"no picture"], "dog": new_photos("dog")}
    other = opened(zoo.path, wait=0)
    with zoo.store.writing():
        unkept = other.evaluate(photos, broken="skip")
    assert [remark.partition(":")[0] for remark in other.remarks] == ["skipped", "the figures were not kept"]
    assert "being changed by another" in other.remarks[1]
    assert zoo.store.evaluations() == []
    assert other.evaluate(photos, broken="skip") == unkept
    assert len(other.remarks) == len(zoo.store.evaluations()) == 1


def test_a_folder_whose_name_is_no_text_can_be_evaluated(zoo, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9t\xe9"))
    write_world(odd, ("cat", "dog"), 2, first=NEW)
    assert zoo.evaluate(odd).photos == 4


def test_an_evaluation_changes_nothing_that_is_known(zoo):
    before = everything(zoo)
    zoo.evaluate({"cat": new_photos("cat"), "yak": new_photos("yak")})
    assert everything(zoo) == before


def test_photos_may_be_evaluated_that_were_taught_or_are_there_twice(zoo):
    result = zoo.evaluate({"cat": [picture("cat"), picture("cat")], "dog": [picture("dog"), picture("cat")]})
    assert result.by_class == {"cat": (2, 2), "dog": (1, 2)}
    assert result.taught == 4


def test_an_evaluation_says_how_many_of_its_photos_were_taught(zoo):
    photos = {"cat": [*pictures("cat", 3), *new_photos("cat")], "yak": [picture("cat", 5), *new_photos("yak")]}
    assert zoo.evaluate(photos).taught == 4
    assert zoo.remarks == ["4 of 16 photos were taught: on these it does better than on photos to come"]
    assert zoo.store.evaluations()[-1].result["taught"] == 4
    zoo.remove(zoo.photos("cat")[:1])
    assert zoo.evaluate(photos).taught == 3
    assert zoo.evaluate({"cat": new_photos("cat")}).taught == 0
    assert zoo.remarks == []


def test_figures_of_before_that_do_not_say_what_was_taught_are_read(zoo):
    zoo.evaluate({"cat": new_photos("cat")})
    kept = zoo.store.evaluations()[-1].result
    del kept["taught"]
    assert from_json(Evaluation, kept).taught == 0


def test_an_evaluation_of_strangers_alone_is_refused(zoo):
    with pytest.raises(ConcmError, match="none of these photos is of a known class"):
        zoo.evaluate({"yak": new_photos("yak")})


def test_broken_photos_are_refused_in_an_evaluation_or_skipped(zoo):
    photos = {"cat": [*new_photos("cat"), b"no picture"]}
    with pytest.raises(ConcmError, match="picture 7 cannot be read"):
        zoo.evaluate(photos)
    assert zoo.evaluate(photos, broken="skip").photos == 6
    assert len(zoo.remarks) == 1


@pytest.mark.parametrize(("vary", "rate", "said"), [(70, 0.05, True), (70, 0, False), (30, 0.05, False)])
def test_an_evaluation_that_refuses_far_too_many_points_to_calibrating(zoo, vary, rate, said):
    photos = {name: [picture(name, number, vary=vary) for number in range(NEW, NEW + 12)] for name in BASE}
    result = zoo.evaluate(photos, unknown_rate=rate)
    assert (result.refused > 2 * 5) == said
    words = f"{result.refused:.0f} % of known photos were called unknown, and 5 % asked for: calibrate it on labelled "
    assert zoo.remarks == [f"{words}photos like these"] * said
    few = zoo.evaluate({name: own[:1] for name, own in photos.items()}, unknown_rate=rate)
    assert few.photos * few.refused < 100 * 10
    assert zoo.remarks == []
