"""A scenario joined with its pictures, and the validation scenario cut out of its base classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from concm.data import images
from concm.data.dataset import Dataset, ImageSet, load_dataset
from concm.data.scenarios import Scenario, of_folder
from concm.errors import ConcmError, Misuse
from tests.support.data import noise, write_cifar, write_class_folders, write_picture

pytestmark = pytest.mark.usefixtures("cache")


def scenario_of(*keys: str, base: int = 2, way: int = 1, shot: int = 1, side: int = 8, parts=()) -> Scenario:
    """Classes in the given order."""
    scenario = of_folder(keys, base=base, way=way, shot=shot, size=side)
    return replace(scenario, keys=keys, names=keys, parts=parts)


def write_data(root: Path, train: dict[str, int], test: dict[str, int] | None = None) -> Path:
    write_class_folders(root / "train", train)
    write_class_folders(root / "test", dict.fromkeys(train, 1) if test is None else test)
    return root


def classes_of(part: ImageSet) -> list[str]:
    """Class folders, from the pictures' names."""
    return [name.split("/")[0] for name in part.ids]


# loading


def test_labels_follow_the_scenarios_order_and_not_the_folders(tmp_path):
    scenario = scenario_of("cat", "ant", "dog", "bee")
    dataset, complaints = load_dataset(scenario, write_data(tmp_path, {"ant": 3, "bee": 1, "cat": 2, "dog": 1}))
    assert complaints == []
    for part in (dataset.train, dataset.test):
        assert [scenario.keys[label] for label in part.labels] == classes_of(part)
    assert sorted(dataset.train.labels) == [0, 0, 1, 1, 1, 2, 3]


def test_every_row_shows_the_picture_of_its_name(tmp_path):
    write_data(tmp_path, {"ant": 3, "bee": 4, "cat": 2})
    dataset, _ = load_dataset(scenario_of("cat", "ant", "bee"), tmp_path)
    for part, folder in ((dataset.train, "train"), (dataset.test, "test")):
        for row, name in zip(part.rows, part.ids, strict=True):
            np.testing.assert_array_equal(part.pixels[row], images.decode(tmp_path / folder / name, 8))


def test_pictures_are_scaled_for_the_transform_that_is_asked_for(tmp_path):
    scenario = scenario_of("ant", "bee", "cat")
    write_data(tmp_path, {"ant": 1, "bee": 1, "cat": 1})
    larger = replace(scenario.transform, size=10, resize=12)
    assert load_dataset(scenario, tmp_path)[0].train.pixels.shape == (3, 8, 8, 3)
    dataset, _ = load_dataset(scenario, tmp_path, transform=larger)
    assert dataset.train.pixels.shape == (3, 12, 12, 3)
    assert dataset.transform == larger


def test_base_and_novel_images_are_told_apart(tmp_path):
    write_data(tmp_path, {"ant": 2, "bee": 2, "cat": 2, "dog": 2})
    dataset, _ = load_dataset(scenario_of("cat", "ant", "dog", "bee"), tmp_path)
    assert classes_of(dataset.base) == ["ant", "ant", "cat", "cat"]
    assert classes_of(dataset.novel) == ["bee", "bee", "dog", "dog"]


def test_classes_that_the_scenario_does_not_have_are_left_out(tmp_path):
    write_data(tmp_path, {"ant": 1, "bee": 1, "cat": 1, "zebra": 5})
    (tmp_path / "train" / "zebra" / "0.png").write_text("not even read")
    dataset, _ = load_dataset(scenario_of("ant", "bee", "cat"), tmp_path)
    assert classes_of(dataset.train) == ["ant", "bee", "cat"]


def test_grey_pictures_among_coloured_ones_show_the_same_grey_in_three_channels(tmp_path):
    write_data(tmp_path, {"ant": 1, "bee": 1, "cat": 1})
    grey = Image.fromarray(noise(5)[:, :, 0])
    grey.save(tmp_path / "train" / "bee" / "0.png")
    grey.save(tmp_path / "test" / "cat" / "0.png")
    dataset, _ = load_dataset(scenario_of("ant", "bee", "cat"), tmp_path)
    for part, label in ((dataset.train, 1), (dataset.test, 2)):
        shown = part.pixels[part.rows[part.labels == label]][0]
        np.testing.assert_array_equal(shown, np.repeat(np.asarray(grey)[:, :, None], 3, axis=2))


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_class_without_pictures_is_named(tmp_path, part):
    every, some = {"ant": 2, "bee": 2, "cat": 2}, {"ant": 2, "bee": 2}
    write_data(tmp_path, *((some, every) if part == "training" else (every, some)))
    with pytest.raises(ConcmError, match=f"{tmp_path}: no {part} pictures of 1 of the 3 classes .*first is 'cat'"):
        load_dataset(scenario_of("ant", "bee", "cat"), tmp_path)


@pytest.mark.parametrize("layout", ["class folders", "cifar"])
def test_a_folder_of_quite_other_classes_is_refused(tmp_path, layout):
    if layout == "cifar":
        write_cifar(tmp_path, ["apple", "baby"], [0, 1], [0, 1])
    else:
        write_data(tmp_path, {"apple": 2, "baby": 2})
    with pytest.raises(ConcmError, match=r"no training pictures of 3 of the 3 classes .*first is 'ant'"):
        load_dataset(scenario_of("ant", "bee", "cat"), tmp_path)


def test_a_class_with_too_few_shots_is_named_with_the_number_it_has(tmp_path):
    write_data(tmp_path, {"ant": 5, "bee": 5, "cat": 5, "dog": 2})
    with pytest.raises(ConcmError, match=r"class 'dog' has 2 training pictures, .* takes 5 shots: .*`shot`"):
        load_dataset(scenario_of("ant", "bee", "cat", "dog", shot=5), tmp_path)


def test_a_base_class_may_have_fewer_pictures_than_there_are_shots(tmp_path):
    write_data(tmp_path, {"ant": 2, "bee": 5, "cat": 5})
    assert len(load_dataset(scenario_of("ant", "bee", "cat", shot=5), tmp_path)[0].train) == 12


def test_skipped_pictures_are_reported_and_the_others_keep_their_labels(tmp_path):
    write_data(tmp_path, {"ant": 2, "bee": 2, "cat": 2})
    broken = tmp_path / "train" / "ant" / "1.png"
    broken.write_text("not a picture")
    dataset, complaints = load_dataset(scenario_of("cat", "bee", "ant"), tmp_path, broken="skip")
    assert [complaint.split()[0] for complaint in complaints] == [str(broken)]
    assert dataset.train.ids == ["ant/0.png", "bee/0.png", "bee/1.png", "cat/0.png", "cat/1.png"]
    assert dataset.train.labels.tolist() == [2, 1, 1, 0, 0]
    for row, name in zip(dataset.train.rows, dataset.train.ids, strict=True):
        np.testing.assert_array_equal(dataset.train.pixels[row], images.decode(tmp_path / "train" / name, 8))


def test_a_broken_picture_is_refused_unless_asked_otherwise(tmp_path):
    write_data(tmp_path, {"ant": 2, "bee": 2, "cat": 2})
    broken = tmp_path / "test" / "bee" / "0.png"
    broken.write_text("not a picture")
    with pytest.raises(ConcmError, match=str(broken)):
        load_dataset(scenario_of("ant", "bee", "cat"), tmp_path)


def test_a_picture_that_cub_lists_but_lacks_is_named(tmp_path):
    names = [f"{key}/{at}.jpg" for key in ("1.ant", "2.bee", "3.cat") for at in range(2)]
    for name in names:
        write_picture(tmp_path / "images" / name)
    (tmp_path / "images.txt").write_text("".join(f"{at} {name}\n" for at, name in enumerate(names)))
    (tmp_path / "train_test_split.txt").write_text("".join(f"{at} {at % 2}\n" for at in range(6)))
    (tmp_path / "images" / names[3]).unlink()
    with pytest.raises(ConcmError, match=names[3]):
        load_dataset(scenario_of("1.ant", "2.bee", "3.cat"), tmp_path)


# two datasets in one scenario


def composite(root: Path, side: int = 8) -> Scenario:
    """Base classes from folders of photos, novel classes from CIFAR's files; both have an `ant` and a `bee`."""
    write_data(root / "photos", {"cat": 2, "ant": 3, "bee": 4})
    write_cifar(root / "cifar", ["ant", "bee", "dog"], [1, 2, 0, 1], [2, 1, 0])
    return scenario_of("cat", "ant", "dog", "bee", side=side, parts=(("photos", 0, 2), ("cifar", 2, 4)))


def test_a_composite_takes_each_class_from_its_own_folder(tmp_path):
    dataset, _ = load_dataset(composite(tmp_path), tmp_path)
    assert classes_of(dataset.base) == ["ant", "ant", "ant", "cat", "cat"]
    assert dataset.base.labels.tolist() == [1, 1, 1, 0, 0]
    assert dataset.novel.ids == ["0", "1", "3"]
    assert dataset.novel.labels.tolist() == [3, 2, 3]
    assert dataset.test.labels.tolist() == [1, 0, 2, 3]


def test_a_composite_scales_both_kinds_of_pictures_alike(tmp_path):
    scenario = composite(tmp_path)
    pictures = write_cifar(tmp_path / "cifar", ["ant", "bee", "dog"], [1, 2, 0, 1], [2, 1, 0])
    dataset, _ = load_dataset(scenario, tmp_path)
    assert dataset.train.pixels.shape == (8, 8, 8, 3)
    last = dataset.novel.rows[-1]
    np.testing.assert_array_equal(dataset.train.pixels[last], images.resized(pictures["train"][3:], 8)[0])
    np.testing.assert_array_equal(dataset.train.pixels[0], images.decode(tmp_path / "photos/train/ant/0.png", 8))


def test_a_composite_without_one_of_its_folders_is_refused_by_path(tmp_path):
    scenario = composite(tmp_path)
    (tmp_path / "cifar").rename(tmp_path / "cifar100")
    with pytest.raises(ConcmError, match=f"no data folder at {tmp_path / 'cifar'};"):
        load_dataset(scenario, tmp_path)


def test_a_composites_base_session_can_be_loaded_alone(tmp_path):
    dataset, _ = load_dataset(composite(tmp_path).vary(sessions=0), tmp_path)
    assert sorted(dataset.train.labels.tolist()) == [0, 0, 1, 1, 1]
    assert len(dataset.novel) == 0


# validation


def in_memory(base: int = 9, novel: int = 4, images_a_class: int = 20, test_images: int = 3) -> Dataset:
    """A dataset whose every picture has a pixel value of its own, in shuffled order."""
    scenario = scenario_of(*(f"class{at:02}" for at in range(base + novel)), base=base, way=2, shot=5, side=1)
    random = np.random.default_rng(0)

    def part(count: int, what: str) -> ImageSet:
        labels = random.permutation(np.repeat(np.arange(base + novel), count))
        pixels = np.arange(len(labels) * 3, dtype=np.int64).astype(np.uint8).reshape(-1, 1, 1, 3)
        names = [f"{scenario.keys[label]}/{what}{row}" for row, label in enumerate(labels)]
        return ImageSet(pixels, np.arange(len(labels)), labels, names)

    return Dataset(scenario, scenario.transform, part(images_a_class, "train"), part(test_images, "test"))


def test_validation_uses_base_classes_and_training_images_only():
    whole = in_memory()
    pseudo = whole.validation()
    assert sorted(pseudo.train.ids + pseudo.test.ids) == sorted(whole.base.ids)
    assert sorted(pseudo.scenario.keys) == sorted(whole.scenario.keys[:9])


def test_validation_tests_on_nothing_that_it_trains_on():
    pseudo = in_memory().validation()
    assert not set(pseudo.train.ids) & set(pseudo.test.ids)
    assert not set(pseudo.train.rows.tolist()) & set(pseudo.test.rows.tolist())
    assert not {name for name in pseudo.base.ids if name in pseudo.novel.ids}


def test_validation_labels_still_mean_their_classes():
    pseudo = in_memory().validation()
    for part in (pseudo.train, pseudo.test):
        assert [pseudo.scenario.keys[label] for label in part.labels] == classes_of(part)
    assert pseudo.scenario.names == pseudo.scenario.keys
    assert pseudo.scenario.keys != in_memory().scenario.keys[:9]


def test_validation_shows_the_same_pixels_under_the_same_names():
    whole = in_memory()
    row_of = dict(zip(whole.train.ids, whole.train.rows.tolist(), strict=True))
    pseudo = whole.validation()
    for part in (pseudo.train, pseudo.test):
        assert part.pixels is whole.train.pixels
        assert part.rows.tolist() == [row_of[name] for name in part.ids]


def test_validation_plays_a_third_of_the_base_classes_as_novel_ones():
    pseudo = in_memory().validation()
    assert (pseudo.scenario.base, len(pseudo.scenario.keys)) == (6, 9)
    assert (pseudo.scenario.way, pseudo.scenario.shot, pseudo.scenario.sessions) == (2, 5, 2)
    assert set(pseudo.novel.labels) == {6, 7, 8}


def test_validation_holds_out_the_asked_share_of_every_class():
    pseudo = in_memory().validation(novel=4, share=0.25)
    assert pseudo.scenario.base == 5
    assert np.bincount(pseudo.test.labels).tolist() == [5] * 9
    assert np.bincount(pseudo.train.labels).tolist() == [15] * 9


def test_validation_holds_out_one_image_at_least():
    assert np.bincount(in_memory(images_a_class=3).validation().test.labels).tolist() == [1] * 9


def test_validation_depends_on_the_seed_alone():
    first, again, other = (in_memory().validation(seed=seed) for seed in (0, 0, 1))
    assert first.scenario == again.scenario
    assert (first.train.ids, first.test.ids) == (again.train.ids, again.test.ids)
    assert first.scenario.keys != other.scenario.keys
    assert set(first.test.ids) != set(other.test.ids)


def test_validation_needs_base_classes_to_be_left():
    with pytest.raises(Misuse, match="`base` must be at least 2"):
        in_memory().validation(novel=8)


def test_validation_is_not_taken_for_the_scenario_itself():
    whole = in_memory()
    assert whole.validation().scenario.name != whole.scenario.name
