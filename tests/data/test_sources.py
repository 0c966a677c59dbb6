"""Data folders: every native layout gives the right pictures in the right part, and a wrong one is named."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from concm.data.sources import Pictures, find_source
from concm.errors import ConcmError
from tests.support.data import python2_pickle, write_cifar, write_class_folders, write_picture

CIFAR_CLASSES = ["apple", "aquarium_fish", "baby"]
BIRDS = {  # image → is it a training image
    "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg": 0,
    "001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg": 1,
    "002.Laysan_Albatross/Laysan_Albatross_0002_1027.jpg": 1,
    "002.Laysan_Albatross/Laysan_Albatross_0003_1033.jpg": 0,
}
LISTED = {  # mini-ImageNet's names and classes
    "train.csv": {
        "n0153282900000005.jpg": "n01532829",
        "n0153282900000006.jpg": "n01532829",
        "n0155899300000018.jpg": "n01558993",
    },
    "test.csv": {"n0153282900000040.jpg": "n01532829", "n0155899300000022.jpg": "n01558993"},
}

TINY = ["n02124075", "n04067472"]


def files_of(part: Pictures, root: Path) -> dict[str, str]:
    """Which file has which class."""
    assert part.paths is not None
    assert len(part.ids) == len(part.keys) == len(part.paths)
    return {path.relative_to(root).as_posix(): key for path, key in zip(part.paths, part.keys, strict=True)}


def write_cub(folder: Path, birds: dict[str, int] = BIRDS) -> None:
    for seed, name in enumerate(birds):
        write_picture(folder / "images" / name, seed)
    (folder / "images.txt").write_text("".join(f"{at} {name}\n" for at, name in enumerate(birds, 1)))
    (folder / "train_test_split.txt").write_text("".join(f"{at} {flag}\n" for at, flag in enumerate(birds.values(), 1)))


def write_lists(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in LISTED.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([("filename", "label"), *rows.items()])


def write_files(folder: Path, names: Iterable[str]) -> None:
    for seed, name in enumerate(names):
        write_picture(folder / name, seed)


# cifar-100-python


@pytest.mark.parametrize("at", [".", "cifar-100-python"], ids=["the folder itself", "the folder above"])
def test_cifar_gives_pictures_classes_and_positions(tmp_path, at):
    pictures = write_cifar(tmp_path / at, CIFAR_CLASSES, [2, 0, 1, 0], [1, 1, 2])
    source = find_source(tmp_path)
    assert source.train.keys == ["baby", "apple", "aquarium_fish", "apple"]
    assert source.test.keys == ["aquarium_fish", "aquarium_fish", "baby"]
    assert source.train.ids == ["0", "1", "2", "3"]
    np.testing.assert_array_equal(source.train.pixels, pictures["train"])
    np.testing.assert_array_equal(source.test.pixels, pictures["test"])


@pytest.mark.parametrize("names", [str, str.encode], ids=["text", "bytes"])
def test_cifar_written_again_by_python_3_gives_the_same(tmp_path, names):
    pictures = write_cifar(tmp_path, CIFAR_CLASSES, [2, 0], [1], dump=lambda value: pickle.dumps(value, 4), names=names)
    source = find_source(tmp_path)
    assert (source.train.keys, source.test.keys) == (["baby", "apple"], ["aquarium_fish"])
    np.testing.assert_array_equal(source.train.pixels, pictures["train"])


def test_cifar_without_its_class_names_is_refused_by_path(tmp_path):
    write_cifar(tmp_path, CIFAR_CLASSES, [0], [1])
    (tmp_path / "meta").unlink()
    with pytest.raises(ConcmError, match=str(tmp_path / "meta")):
        find_source(tmp_path)


@pytest.mark.parametrize("lost", ["data", "fine_labels"])
def test_a_cifar_file_without_what_it_should_hold_is_refused_by_path(tmp_path, lost):
    write_cifar(tmp_path, CIFAR_CLASSES, [0], [1])
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [0]}
    del batch[lost.encode()]
    (tmp_path / "test").write_bytes(python2_pickle(batch))
    with pytest.raises(ConcmError, match=str(tmp_path / "test")):
        find_source(tmp_path)


# CUB_200_2011


@pytest.mark.parametrize("at", [".", "CUB_200_2011"], ids=["the folder itself", "the folder above"])
def test_cub_takes_its_parts_from_its_lists(tmp_path, at):
    write_cub(tmp_path / at)
    images = tmp_path / at / "images"
    source = find_source(tmp_path)
    assert files_of(source.train, images) == {name: name.split("/")[0] for name, flag in BIRDS.items() if flag}
    assert files_of(source.test, images) == {name: name.split("/")[0] for name, flag in BIRDS.items() if not flag}
    assert source.train.ids == [name for name, flag in BIRDS.items() if flag]


def test_cub_with_a_list_that_is_too_short_is_refused_by_path(tmp_path):
    write_cub(tmp_path)
    (tmp_path / "train_test_split.txt").write_text("1 0\n2 1\n")
    with pytest.raises(ConcmError, match=str(tmp_path)):
        find_source(tmp_path)


# mini-ImageNet


def test_mini_imagenet_with_flat_pictures_and_lists_beside_them(tmp_path):
    write_files(tmp_path / "images", [name for rows in LISTED.values() for name in rows])
    write_lists(tmp_path)
    source = find_source(tmp_path)
    assert files_of(source.train, tmp_path / "images") == LISTED["train.csv"]
    assert files_of(source.test, tmp_path / "images") == LISTED["test.csv"]
    assert source.train.ids == list(LISTED["train.csv"])


def test_mini_imagenet_with_lists_in_its_split_folder(tmp_path):
    write_files(tmp_path / "images", [name for rows in LISTED.values() for name in rows])
    write_lists(tmp_path / "split")
    source = find_source(tmp_path)
    assert (source.train.ids, source.test.ids) == (list(LISTED["train.csv"]), list(LISTED["test.csv"]))


def test_mini_imagenet_with_class_folders_and_lists_from_elsewhere(tmp_path):
    data, splits = tmp_path / "data", tmp_path / "lists"
    for part, rows in (("train", LISTED["train.csv"]), ("val", LISTED["test.csv"])):
        write_files(data / part, [f"{key}/{name}" for name, key in rows.items()])
    write_lists(splits)
    source = find_source(data, splits=splits)
    assert files_of(source.train, data) == {f"train/{key}/{name}": key for name, key in LISTED["train.csv"].items()}
    assert files_of(source.test, data) == {f"val/{key}/{name}": key for name, key in LISTED["test.csv"].items()}


def test_lists_and_not_folders_say_which_part_a_picture_belongs_to(tmp_path):
    data, splits = tmp_path / "data", tmp_path / "lists"
    everything = LISTED["train.csv"] | LISTED["test.csv"]
    write_files(data / "train", [f"{key}/{name}" for name, key in everything.items()])
    write_files(data / "val", ["n01532829/n0153282900009999.jpg"])
    write_lists(splits)
    source = find_source(data, splits=splits)
    assert (source.train.ids, source.test.ids) == (list(LISTED["train.csv"]), list(LISTED["test.csv"]))


def test_a_list_that_names_a_missing_picture_is_refused_by_path_and_picture(tmp_path):
    write_files(tmp_path / "images", LISTED["train.csv"])
    write_lists(tmp_path)
    with pytest.raises(ConcmError, match=rf"{tmp_path / 'test.csv'} lists n0153282900000040\.jpg.*{tmp_path}"):
        find_source(tmp_path)


def test_a_list_without_the_right_columns_is_refused_by_path(tmp_path):
    write_files(tmp_path / "images", [name for rows in LISTED.values() for name in rows])
    write_lists(tmp_path)
    (tmp_path / "test.csv").write_text("".join(f"{name},{key}\n" for name, key in LISTED["test.csv"].items()))
    with pytest.raises(ConcmError, match=str(tmp_path / "test.csv")):
        find_source(tmp_path)


# Tiny-ImageNet


def write_tiny(folder: Path, val: str = "val/images") -> None:
    """Two classes in its own layout, with the boxes and the unlabelled pictures that it has too."""
    for at, key in enumerate(TINY):
        write_picture(folder / "train" / key / "images" / f"{key}_0.JPEG", at)
        (folder / "train" / key / f"{key}_boxes.txt").write_text(f"{key}_0.JPEG\t0\t10\t63\t58\n")
        write_picture(folder / val.format(key) / f"val_{at}.JPEG", 10 + at)
    write_picture(folder / "test" / "images" / "test_0.JPEG", 20)
    (folder / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{at}.JPEG\t{key}\t0\t32\t44\t62\n" for at, key in reversed(list(enumerate(TINY))))
    )


@pytest.mark.parametrize("val", ["val/images", "val/{}/images"], ids=["as it comes", "sorted into class folders"])
@pytest.mark.parametrize("at", [".", "tiny-imagenet-200"], ids=["the folder itself", "the folder above"])
def test_tiny_imagenet_is_tested_on_its_labelled_pictures(tmp_path, at, val):
    write_tiny(tmp_path / at, val)
    source = find_source(tmp_path)
    assert files_of(source.train, tmp_path / at / "train") == {f"{key}/images/{key}_0.JPEG": key for key in TINY}
    assert dict(zip(source.test.ids, source.test.keys, strict=True)) == {"val_0.JPEG": TINY[0], "val_1.JPEG": TINY[1]}
    assert [path.name for path in source.test.paths] == source.test.ids


def test_tiny_imagenet_without_a_picture_that_it_lists_is_refused_by_its_name(tmp_path):
    write_tiny(tmp_path)
    (tmp_path / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(ConcmError, match=rf"val_annotations\.txt lists val_1\.JPEG.*{tmp_path / 'val'}"):
        find_source(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"val_0.JPEG\n"], ids=["binary", "no class"])
def test_a_list_of_tiny_imagenet_that_is_none_is_refused_by_path(tmp_path, content):
    write_tiny(tmp_path)
    (tmp_path / "val" / "val_annotations.txt").write_bytes(content)
    with pytest.raises(ConcmError, match=str(tmp_path / "val" / "val_annotations.txt")):
        find_source(tmp_path)


# class folders


@pytest.mark.parametrize("held", ["test", "val"])
def test_class_folders_under_train_and_another_part(tmp_path, held):
    write_class_folders(tmp_path / "train", {"bee": 2, "ant": 1})
    write_class_folders(tmp_path / held, {"ant": 1, "bee": 1})
    source = find_source(tmp_path)
    assert files_of(source.train, tmp_path / "train") == {"ant/0.png": "ant", "bee/0.png": "bee", "bee/1.png": "bee"}
    assert files_of(source.test, tmp_path / held) == {"ant/0.png": "ant", "bee/0.png": "bee"}
    assert source.train.ids == ["ant/0.png", "bee/0.png", "bee/1.png"]


def test_a_test_folder_comes_before_a_validation_folder(tmp_path):
    for part, count in (("train", 1), ("val", 2), ("test", 3)):
        write_class_folders(tmp_path / part, {"ant": count})
    assert len(find_source(tmp_path).test.ids) == 3


@pytest.mark.parametrize("at", [".", "train"], ids=["nothing between", "train alone"])
def test_class_folders_without_parts_give_up_a_fifth_of_every_class(tmp_path, at):
    write_class_folders(tmp_path / at, {"ant": 10, "bee": 20})
    source = find_source(tmp_path)
    train, test = files_of(source.train, tmp_path / at), files_of(source.test, tmp_path / at)
    assert sorted(test.values()) == ["ant"] * 2 + ["bee"] * 4
    assert not train.keys() & test.keys()
    assert len(train | test) == 30
    assert all(name.startswith(key) for name, key in (train | test).items())


def test_the_fifth_depends_on_the_seed_and_on_nothing_else(tmp_path):
    write_class_folders(tmp_path, {"ant": 10, "bee": 20})
    held = [find_source(tmp_path, seed=seed).test.ids for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


def test_a_class_may_be_called_train(tmp_path):
    write_class_folders(tmp_path, {"bicycle": 5, "bus": 5, "train": 5})
    assert set(find_source(tmp_path).train.keys) == {"bicycle", "bus", "train"}


def test_files_that_are_no_pictures_and_hidden_ones_are_left_out(tmp_path):
    write_class_folders(tmp_path / "train", {"ant": 1})
    write_class_folders(tmp_path / "test", {"ant": 1})
    for name in ("notes.txt", "Thumbs.db", "._0.png", "0.png.part"):
        (tmp_path / "train" / "ant" / name).write_text("")
    write_class_folders(tmp_path / "train", {".cache": 1})
    assert find_source(tmp_path).train.ids == ["ant/0.png"]


def test_suffixes_count_in_either_case_and_pictures_in_folders_below(tmp_path):
    write_files(tmp_path / "train" / "ant", ["a.JPG", "deeper/b.Png", "c.webp"])
    write_class_folders(tmp_path / "test", {"ant": 1})
    source = find_source(tmp_path)
    assert sorted(source.train.ids) == ["ant/a.JPG", "ant/c.webp", "ant/deeper/b.Png"]
    assert set(source.train.keys) == {"ant"}


# nothing there


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ConcmError, match=f"no data folder at {tmp_path / 'nowhere'}"):
        find_source(tmp_path / "nowhere")


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    file = tmp_path / "data.zip"
    file.write_bytes(b"PK")
    with pytest.raises(ConcmError, match=str(file)):
        find_source(file)


@pytest.mark.parametrize("inside", [[], ["ant"], ["train/ant", "test/ant"]], ids=["nothing", "a class", "parts"])
def test_a_folder_without_pictures_is_named(tmp_path, inside):
    for name in inside:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(ConcmError, match=str(tmp_path)):
        find_source(tmp_path)


def test_pictures_outside_class_folders_are_no_data(tmp_path):
    write_picture(tmp_path / "a.png")
    with pytest.raises(ConcmError, match=f"no pictures in {tmp_path}: it should hold one folder per class"):
        find_source(tmp_path)


# damaged lists


def cifar_with(folder, **changed) -> None:
    write_cifar(folder, ["ant", "bee"], [0, 1], [1])
    batch = {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 1], **changed}
    (folder / "train").write_bytes(python2_pickle({name: value for name, value in batch.items() if value is not None}))


@pytest.mark.parametrize(
    "changed",
    [
        {"data": np.zeros((3, 3072), np.uint8)},
        {"data": np.zeros((2, 100), np.uint8)},
        {"data": np.zeros((2, 3072), np.int64)},
        {"data": "pixels"},
        {"data": None},
        {"fine_labels": [0, 7]},
        {"fine_labels": [0, -1]},
        {"fine_labels": ["a", "b"]},
        {"fine_labels": 3},
    ],
    ids=str,
)
def test_a_cifar_file_whose_parts_do_not_fit_is_refused_by_path(tmp_path, changed):
    cifar_with(tmp_path, **changed)
    with pytest.raises(ConcmError, match=rf"{tmp_path / 'train'} is "):
        find_source(tmp_path)


@pytest.mark.parametrize("names", [None, 3, [[]]], ids=str)
def test_cifar_with_odd_class_names_is_refused_by_path(tmp_path, names):
    cifar_with(tmp_path)
    (tmp_path / "meta").write_bytes(python2_pickle({} if names is None else {"fine_label_names": names}))
    with pytest.raises(ConcmError, match=str(tmp_path)):
        find_source(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"1\n2\n", b"1 /etc/x.jpg\n", b"1 ../../x.jpg\n"])
def test_a_list_of_cub_that_is_none_is_refused_by_path(tmp_path, content):
    (tmp_path / "images.txt").write_bytes(content)
    (tmp_path / "train_test_split.txt").write_text("1 1\n" * content.count(b"\n"))
    with pytest.raises(ConcmError, match=str(tmp_path / "images.txt")):
        find_source(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"filename,label\n0.png\n", b'filename,label\n"0.png', b"filename,label\n" + b"x" * 200_000],
    ids=["binary", "no label", "open quote", "a field without end"],
)
def test_a_list_of_pictures_that_is_none_is_refused_by_path(tmp_path, content):
    write_picture(tmp_path / "0.png")
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConcmError, match=str(tmp_path / "train.csv")) as caught:
        find_source(tmp_path)
    assert len(str(caught.value)) < 500
