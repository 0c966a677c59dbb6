"""The classifier: what fitting makes of photos, what a prediction says, and when it is unknown."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from concm.classifier.answers import Prediction
from concm.classifier.structure import Structure
from concm.data.images import BrokenPicture
from concm.engine.settings import Settings
from concm.errors import ConcmError, Misuse
from concm.records import from_json
from tests.support.photographs import BACKBONE, picture, pictures, write_class, write_world
from tests.support.zoo import (
    BASE,
    COUNT,
    FEW,
    FORMS,
    NEW,
    QUICK,
    base_photos,
    everything,
    labels,
    made,
    names,
    new_photos,
    opened,
    probabilities,
    right,
)

# fitting


@pytest.mark.promise
def test_photos_of_an_easy_world_are_recognised(zoo):
    for name in BASE:
        assert right(zoo, name) == 1
    assert names(zoo) == list(BASE)
    assert [(row.base, row.photos, row.added) for row in zoo.classes] == [(True, COUNT, 1)] * 5
    assert zoo.remarks == []


"""The same photos as people may give them."""


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_same_classifier_however_the_photos_are_given(few, tmp_path, form):
    write_world(tmp_path / "photos", FEW, 2)
    zoo = made(tmp_path / "zoo", FORMS[form](tmp_path / "photos"))
    found, expected = everything(zoo), everything(opened(few))
    assert found.tensors == expected.tensors
    assert [row for row, _ in found.classes] == [row for row, _ in expected.classes]
    assert found.state == expected.state


def test_photos_are_remembered_by_their_file_names(tmp_path):
    files = write_world(tmp_path / "photos", ("cat", "dog"), 2)
    mixed = {"cat": files["cat"], "dog": [files["dog"][1], picture("dog", 7)]}
    zoo = made(tmp_path / "zoo", mixed)
    assert [photo.label for photo in zoo.store.photos("cat")] == ["0.png", "1.png"]
    assert [photo.label for photo in zoo.store.photos("dog")] == ["1.png", "picture 4"]


def test_a_file_name_that_is_no_text_is_no_obstacle(zoo, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))  # as old archives name files
    odd.write_bytes(write_class(tmp_path / "yak", 1)[0].read_bytes())
    zoo.learn({"yak": [odd]})
    assert right(zoo, "yak") > 0.9


def test_a_folder_makes_classes_in_alphabetical_order_and_a_mapping_in_its_own(tmp_path):
    write_world(tmp_path / "photos", ("owl", "ant", "cat"), 2)
    assert names(made(tmp_path / "one", tmp_path / "photos")) == ["ant", "cat", "owl"]
    mapping = {name: pictures(name, 2) for name in ("owl", "ant", "cat")}
    assert names(made(tmp_path / "other", mapping)) == ["owl", "ant", "cat"]


def test_the_same_seed_fits_the_same_and_another_does_not(fitted, tmp_path):
    other = opened(tmp_path / "zoo", backbone=BACKBONE, seed=1).fit(base_photos(), settings=QUICK)
    assert other.store.meta["seed"] == 1
    assert everything(other).tensors != everything(opened(fitted)).tensors


def test_settings_that_are_not_given_are_chosen(tmp_path):
    zoo = made(tmp_path / "zoo", base_photos(4), settings=None)
    chosen = Settings(heads=1, prototypes=1.0, whitening=2.0, trust=0.5)
    assert from_json(Settings, zoo.store.state()[1]["settings"]) == chosen
    assert right(zoo, "cat") == 1


@pytest.mark.parametrize("count", [1, 2, 6])
def test_two_base_classes_are_enough(tmp_path, count):
    zoo = made(tmp_path / "zoo", {name: pictures(name, count) for name in ("cat", "dog")})
    assert [right(zoo, name) for name in ("cat", "dog")] == [1, 1]


def test_one_photo_of_each_base_class_is_enough_but_nothing_will_be_unknown(tmp_path):
    zoo = made(tmp_path / "zoo", base_photos(1))
    (remark,) = zoo.remarks
    assert "nothing will be called unknown" in remark
    assert all(right(zoo, name) > 0.9 for name in BASE)
    zoo.learn({"okapi": picture("okapi")})
    assert right(zoo, "okapi") > 0.9
    strangers = zoo.predict(new_photos("yak", "elk"), unknown_rate=0.5)
    assert not any(found.unknown for found in strangers)
    assert {found.familiarity for found in strangers} == {None}
    zoo.evaluate({"cat": new_photos("cat")})
    assert zoo.remarks == [remark]
    zoo.calibrate({name: pictures(name, 4, first=NEW) for name in BASE})
    assert all(0 <= found.familiarity <= 1 for found in zoo.predict(new_photos("yak", "elk"), unknown_rate=0.5))


def test_an_exported_classifier_of_too_few_photos_knows_no_familiarity_either(few, tmp_path):
    (file,) = opened(few).export(structure=tmp_path / "few.safetensors")
    found = Structure.read(file).prediction("x.jpg", np.array([0.9, 0.1], np.float32), 0.3, 0.5, 2)
    assert (found.label, found.unknown, found.familiarity) == ("cat", False, None)


def test_features_and_labels_are_told_where_they_go(tmp_path, zoo):
    features, own = np.zeros((4, 8), np.float32), np.array([0, 0, 1, 1])
    new = opened(tmp_path / "new", backbone=BACKBONE)
    for given in (
        lambda: new.fit(features, own),
        lambda: new.fit(features),
        lambda: new.fit(tmp_path, own),
        lambda: zoo.learn(features),
        lambda: zoo.evaluate([picture("cat")]),
    ):
        with pytest.raises(Misuse, match=r"features and labels are what `concm\.ConCM` takes"):
            given()


def test_base_classes_need_not_have_equally_many_photos(tmp_path):
    counts = {"cat": 1, "dog": 60, "fox": 10, "hen": 30, "owl": 1}
    zoo = made(tmp_path / "zoo", {name: pictures(name, count) for name, count in counts.items()})
    assert all(right(zoo, name) > 0.9 for name in BASE)
    assert [row.photos for row in zoo.classes] == list(counts.values())
    assert "unknown" in labels(zoo, "yak")


def test_a_store_may_be_made_in_an_empty_folder_and_where_there_is_none(tmp_path):
    (tmp_path / "empty").mkdir()
    few = {name: pictures(name, 2) for name in ("cat", "dog")}
    assert made(tmp_path / "empty", few).version == 1
    assert made(tmp_path / "new" / "place", few).version == 1


# what a prediction says


@pytest.mark.promise
def test_a_prediction_says_what_how_sure_what_else_and_by_which_version(zoo):
    zoo.learn({"okapi": pictures("okapi", 4)})
    cat, okapi = zoo.predict([picture("cat", NEW), picture("okapi", NEW)], top=3)
    assert isinstance(cat, Prediction)
    assert (cat.label, cat.unknown, cat.novel, cat.version, cat.photo) == ("cat", False, False, 2, "picture 1")
    assert (okapi.label, okapi.unknown, okapi.novel, okapi.photo) == ("okapi", False, True, "picture 2")
    for found in (cat, okapi):
        assert len(found.top) == 3
        assert found.top[0] == (found.label, found.score)
        scores = [score for _, score in found.top]
        assert scores == sorted(scores, reverse=True)
        assert {name for name, _ in found.top} <= {*BASE, "okapi"}
        assert all(type(name) is str and type(score) is float for name, score in found.top)


def test_guesses_are_those_of_predict_proba_and_as_many_as_asked_for(zoo):
    photos = new_photos("cat", "yak", count=3)
    table = zoo.predict_proba(photos)
    for top, given in ((1, 1), (2, 2), (5, 5), (99, 5)):
        for row, found in zip(table, zoo.predict(photos, top=top), strict=True):
            assert len(found.top) == given
            order = np.argsort(-row, kind="stable")[:given]
            assert [name for name, _ in found.top] == list(zoo.classes_[order])
            np.testing.assert_allclose([score for _, score in found.top], row[order], atol=1e-6)


def test_an_unknown_photo_keeps_its_best_guesses(zoo):
    (found,) = zoo.predict(picture("yak", NEW))
    assert (found.label, found.unknown) == ("unknown", True)
    assert found.top[0][0] in BASE
    assert found.score == found.top[0][1]


def test_probabilities_are_a_row_a_photo_and_a_column_a_class(zoo):
    zoo.learn({"okapi": pictures("okapi", 3)})
    table = probabilities(zoo)
    assert table.shape == (7 * 2, 6)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table.sum(1), 1, rtol=1e-5)
    assert zoo.classes_.tolist() == [*BASE, "okapi"] == names(zoo)
    assert zoo.classes_.dtype.kind == "U"
    assert zoo.classes_[table.argmax(1)][:12].tolist() == [name for name in zoo.classes_ for _ in range(2)]


def test_no_photos_have_no_predictions(zoo):
    assert zoo.predict([]) == []
    assert zoo.predict_proba([]).shape == (0, 5)


def test_photos_to_predict_come_in_any_form(zoo, tmp_path):
    files = write_class(tmp_path / "photos" / "cat", 3, first=NEW)
    arrays = pictures("cat", 3, first=NEW)
    table = zoo.predict_proba(arrays)
    several = [
        tmp_path / "photos",
        str(tmp_path / "photos" / "cat"),
        f"{tmp_path}/photos/*/*.png",
        files,
        tuple(map(str, files)),
        np.stack(arrays),
        np.stack(arrays) / 255,
        [path.read_bytes() for path in files],
        [Image.open(path) for path in files],
        iter(arrays),
    ]
    for form in several:
        np.testing.assert_allclose(zoo.predict_proba(form), table, atol=1e-5)
    single = [files[0], str(files[0]), files[0].read_bytes(), Image.open(files[0]), arrays[0], arrays[:1]]
    for form in single:
        (found,) = zoo.predict(form)
        assert (found.label, found.photo) == (
            "cat",
            str(files[0]) if isinstance(form, str | os.PathLike) else "picture 1",
        )


def test_predictions_name_the_files_in_the_order_in_which_they_were_given(zoo, tmp_path):
    files = write_class(tmp_path / "dog", 3, first=NEW) + write_class(tmp_path / "cat", 40, first=NEW)
    found = zoo.predict(files, unknown_rate=0)
    assert [item.photo for item in found] == [str(path) for path in files]
    assert [item.label for item in found] == ["dog"] * 3 + ["cat"] * 40


def test_what_cannot_be_read_is_an_error_or_passes_through_the_stream(zoo, tmp_path):
    (tmp_path / "text.jpg").write_text("no picture")
    photos = [picture("cat", NEW), tmp_path / "text.jpg", picture("dog", NEW)]
    for method in (zoo.predict, zoo.predict_proba):
        with pytest.raises(BrokenPicture, match=r"text.jpg cannot be read as a picture"):
            method(photos)
    first, broken, last = zoo.stream(photos, unknown_rate=0)
    assert (first.label, last.label) == ("cat", "dog")
    assert isinstance(broken, BrokenPicture)
    with pytest.raises(ConcmError, match=r"no picture at .*gone.jpg"):
        zoo.predict(tmp_path / "gone.jpg")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConcmError, match=r"no pictures in .*empty"):
        zoo.predict(tmp_path / "empty")


# unknown


def test_photos_of_a_class_never_taught_are_unknown_until_it_is_taught(zoo):
    strangers = ("yak", "elk", "gnu")
    assert labels(zoo, *strangers) == ["unknown"] * 18
    zoo.learn({"yak": pictures("yak", 4)})
    assert labels(zoo, "elk", "gnu") == ["unknown"] * 12
    assert labels(zoo, "yak").count("yak") >= 4
    zoo.undo()
    assert labels(zoo, "yak") == ["unknown"] * 6


def test_at_rate_0_nothing_is_unknown_and_the_larger_the_rate_the_more(zoo):
    photos = new_photos(*BASE, "yak", "elk", count=12)
    shares = []
    for rate in (0, 0.01, 0.05, 0.2, 0.6, 0.99):
        found = zoo.predict(photos, unknown_rate=rate)
        assert all(item.unknown == (item.label == "unknown") for item in found)
        shares.append(sum(item.unknown for item in found))
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] > 60


def test_the_rate_changes_no_guess(zoo):
    photos = new_photos("cat", "yak")
    strict, lenient = (zoo.predict(photos, unknown_rate=rate) for rate in (0.9, 0))
    assert [item.top for item in strict] == [item.top for item in lenient]


@pytest.mark.parametrize("rate", [-0.01, 1, 1.5, 5, float("nan")])
def test_a_rate_that_is_no_share_is_refused(zoo, rate):
    with pytest.raises(Misuse, match="unknown rate"):
        zoo.predict(picture("cat"), unknown_rate=rate)


@pytest.mark.parametrize("rate", [-0.01, 1, 1.5, 5, float("nan")])
def test_an_evaluation_at_a_rate_that_is_no_share_is_refused(zoo, rate):
    with pytest.raises(Misuse, match="unknown rate"):
        zoo.evaluate({"cat": new_photos("cat")}, unknown_rate=rate)
    assert zoo.store.evaluations() == []


@pytest.mark.parametrize("top", [0, -1])
def test_no_guess_at_all_is_refused(zoo, top):
    with pytest.raises(Misuse, match="at least one guess"):
        zoo.predict(picture("cat"), top=top)


def test_a_classifier_travels_to_another_process_by_its_folder(zoo):
    zoo.known()
    with pickle.loads(pickle.dumps(zoo)) as other:
        assert other.path == zoo.path.absolute()
        np.testing.assert_array_equal(probabilities(other), probabilities(zoo))
        assert names(other.learn({"okapi": pictures("okapi", 2)})) == names(zoo)


def test_the_features_of_photos_are_those_that_the_store_keeps(zoo):
    photos = pictures("okapi", 3)
    zoo.learn({"okapi": photos})
    kept = np.stack([row.features[0].numpy() for row in zoo.photos("okapi")])
    np.testing.assert_allclose(zoo.features(photos), kept, atol=1e-5)
    assert zoo.features(photos[0]).shape == (1, kept.shape[1])
