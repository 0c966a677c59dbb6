"""Lists of pictures: one CSV file or many that are read as one, for banks as for stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from concm.classifier.folders import beside
from concm.classifier.photos import by_class
from concm.data.lists import is_list
from concm.data.sources import find_source
from concm.errors import ConcmError
from tests.support.data import write_class_folders

DIVIDED = ["pictures/ant/0.png,ant,train", "pictures/ant/1.png,ant,test", "pictures/bee/0.png,bee,train"]


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A folder of two lists, of pictures that lie elsewhere."""
    write_class_folders(tmp_path / "pictures", {"ant": 10, "bee": 5})
    for name, key, count in (("part-0", "ant", 10), ("part-1", "bee", 5)):
        write_list(tmp_path / "lists" / f"{name}.csv", [f"../pictures/{key}/{at}.png,{key}" for at in range(count)])
    return tmp_path / "lists"


def write_list(path: Path, rows: list[str], head: str = "path,label") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_many_lists_are_read_as_one_and_a_test_share_is_drawn_as_of_folders(listed):
    found, folders = find_source(listed), find_source(listed.parent / "pictures")
    for part, wanted in ((found.train, folders.train), (found.test, folders.test)):
        assert [path.resolve() for path in part.paths] == wanted.paths
        assert part.keys == wanted.keys
    assert len(found.test.paths) == 3


def test_a_list_may_say_what_is_to_be_tested_on(tmp_path):
    found = find_source(write_list(tmp_path / "list.csv", DIVIDED, "path,label,part"))
    assert (found.train.ids, found.test.keys) == (["pictures/ant/0.png", "pictures/bee/0.png"], ["ant"])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("c.png,cat,tset", "has c.png in the part tset; it should be train or test"),
        ("c.png,cat,", "gives the part of some pictures only, and not that of c.png"),
        ("c.png,,train", "line 5 of .* lacks a path or a label"),
    ],
)
def test_a_list_that_is_divided_in_no_way_is_refused(tmp_path, row, why):
    with pytest.raises(ConcmError, match=why):
        find_source(write_list(tmp_path / "list.csv", [*DIVIDED, row], "path,label,part"))


def test_a_store_takes_many_lists_too_whatever_else_they_say(listed):
    write_list(listed / "part-2.csv", ["../pictures/bee/0.png,ant,wing"], "path,label,part")
    groups = by_class(listed)
    assert {name: len(photos) for name, photos in groups.items()} == {"ant": 11, "bee": 5}
    assert beside(listed) == []


def test_a_folder_with_folders_or_with_lists_of_something_else_is_no_list(listed):
    assert is_list(listed)
    (listed / "ant").mkdir()
    assert not is_list(listed)
    assert not is_list(write_list(listed.parent / "other" / "train.csv", ["a.jpg,n01"], "filename,label").parent)
    assert not is_list(listed.parent / "nowhere")
