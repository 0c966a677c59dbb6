"""Photos in zip files: taught, asked about and measured as those in folders, and what attackers pack."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from concm.classifier import archive as archives
from concm.classifier.archive import Archive
from concm.classifier.folders import left_out
from concm.classifier.photos import by_class, find_photos
from concm.errors import ConcmError
from tests.support.photographs import picture
from tests.support.zoo import BASE, NEW, everything, made, names


def png(name: str, number: int = 0) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(name, number)).save(file, "PNG")
    return file.getvalue()


def packed(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def classes(*words: str, count: int = 2, around: str = "", first: int = 0) -> dict[str, bytes]:
    return {
        f"{around}{name}/{number}.png": png(name, number) for name in words for number in range(first, first + count)
    }


# as folders


@pytest.mark.parametrize("around", ["", "photos/", "my/photos/"])
def test_a_zip_of_class_folders_is_fitted_and_taught_and_measured(tmp_path, around):
    base = packed(tmp_path / "base.zip", classes(*BASE, count=6, around=around))
    with made(tmp_path / "zoo", base) as zoo:
        assert names(zoo) == sorted(BASE)
        zoo.learn(packed(tmp_path / "more.ZIP", classes("yak", "elk", around=around)))
        assert zoo.history[-1].detail == "elk (2), yak (2)"
        assert [row.label for row in zoo.photos("yak")] == ["0.png", "1.png"]
        asked = packed(tmp_path / "test.zip", classes("cat", "dog", around=around, first=NEW))
        assert zoo.evaluate(asked).by_class.keys() == {"cat", "dog"}


def test_photos_of_a_zip_are_answered_and_those_that_cannot_be_read_are_named(zoo, tmp_path):
    file = packed(tmp_path / "a.zip", {**classes("cat", first=NEW), "broken.jpg": b"no photo", "notes.txt": b""})
    found = zoo.predict(file)
    assert [one.top[0][0] for one in found] == ["cat", "cat"]
    assert found[0].photo == f"{file}/cat/{NEW}.png"
    assert [str(failure) for failure in found.failures] == [
        f"{file}/broken.jpg cannot be read as a picture (not an image format)"
    ]
    assert len(find_photos([file, file])) == 3
    zoo.learn({"gnu": packed(tmp_path / "gnu.zip", classes("gnu"))})
    assert zoo.classes[-1].photos == 2


def test_what_a_zip_holds_beside_photos_is_counted_and_named(zoo, tmp_path):
    files = {**classes("yak"), "loose.png": png("elk"), "a.mov": b"", "yak/b.mov": b"", "__MACOSX/yak/._0.png": b""}
    file = packed(tmp_path / "a.zip", {**files, ".hidden/x.png": b"", "yak/.DS_Store": b""})
    zoo.learn(file)
    assert zoo.remarks[:2] == [
        f"left out, for they lie in no class folder of {file}: 1 photos, such as loose.png",
        f"left out in {file}, for they are no photos by their names: 2 .mov",
    ]
    assert left_out([file]) == zoo.remarks[1:2]
    assert names(zoo)[-1] == "yak"


def test_folders_within_class_folders_are_asked_about_or_flattened(tmp_path):
    file = packed(tmp_path / "a.zip", {**classes("apple", "pear", around="Fruit/"), **classes("yak")})
    with pytest.raises(ConcmError, match=r"a\.zip/Fruit holds folders of photos itself \(apple, pear\): .* pack that"):
        by_class(file)
    assert {name: len(own) for name, own in by_class(file, nested="flatten").items()} == {"Fruit": 4, "yak": 2}
    with pytest.raises(ConcmError, match="no class folders in"):
        by_class(packed(tmp_path / "flat.zip", {"a.png": png("cat")}))
    with pytest.raises(ConcmError, match="no pictures in"):
        by_class(packed(tmp_path / "empty.zip", {"a.txt": b""}))


# what attackers pack


@pytest.mark.parametrize("name", ["../../cat/evil.png", "/etc/cat/evil.png", "..\\..\\cat\\evil.png", "C:/cat/a.png"])
def test_nothing_is_written_wherever_a_name_points(zoo, tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    file = packed(inside / "a.zip", {name: png("yak"), **classes("yak", first=5)})
    before = {path for path in tmp_path.rglob("*") if zoo.path not in path.parents}
    zoo.learn(file, nested="flatten")
    assert {path for path in tmp_path.rglob("*") if zoo.path not in path.parents} == before
    assert not any(part in (".", "..", "/") for photo in Archive.of(file).photos for part in photo.place.parts)
    assert all(".." not in row.name and "/" not in row.name for row in zoo.classes)


def test_a_link_is_no_photo(zoo, tmp_path):
    info = zipfile.ZipInfo("cat/link.png")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(info, "/etc/passwd")
    found = zoo.predict(tmp_path / "a.zip")
    assert (len(found), len(found.failures)) == (0, 1)


def test_a_bomb_is_refused_before_or_while_it_is_unpacked(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES", 10_000)
    file = packed(tmp_path / "a.zip", {"cat/bomb.png": bytes(1_000_000)})
    [failure] = zoo.predict(file).failures
    assert "has 1,000,000 bytes; at most" in str(failure)
    content = bytearray(file.read_bytes())  # now it says that it is small, in both places
    for at in (content.index(b"PK\x01\x02") + 24, content.index(b"PK\x03\x04") + 22):
        content[at : at + 4] = struct.pack("<L", 5_000)
    file.write_bytes(content)
    [photo] = Archive.of(file).photos
    with pytest.raises(ConcmError, match="cannot be unpacked"):
        assert len(photo.read()) > 10_000
    monkeypatch.setattr(archives, "MOST_TOTAL", 10_000)
    with pytest.raises(ConcmError, match="would unpack to more than"):
        zoo.predict(packed(tmp_path / "b.zip", {f"cat/{at}.png": bytes(9_000) for at in range(3)}))
    monkeypatch.setattr(archives, "MOST_FILES", 2)
    with pytest.raises(ConcmError, match="holds 3 photos; at most 2"):
        Archive.of(tmp_path / "b.zip")


@pytest.mark.parametrize("way", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_usual_packing_is_read(zoo, tmp_path, way):
    [failure] = zoo.predict(packed(tmp_path / "a.zip", classes("cat", count=1), way)).failures
    assert "packed in a way that is not read" in str(failure)


def test_damaged_encrypted_and_false_zips_are_told_in_a_sentence(zoo, tmp_path):
    before = everything(zoo)
    file = packed(tmp_path / "a.zip", classes("yak", count=1), zipfile.ZIP_STORED)
    content = bytearray(file.read_bytes())
    content[60] ^= 255
    file.write_bytes(content)
    with pytest.raises(ConcmError, match=r"a\.zip/yak/0\.png cannot be unpacked \(Bad CRC-32"):
        zoo.learn(file)
    file = packed(tmp_path / "b.zip", classes("yak", count=1))
    content = bytearray(file.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(content)
    with pytest.raises(ConcmError, match="is encrypted"):
        zoo.learn(file)
    (tmp_path / "c.zip").write_bytes(b"PK no zip at all")
    with pytest.raises(ConcmError, match=r"c\.zip is damaged or no zip file"):
        zoo.learn(tmp_path / "c.zip")
    assert everything(zoo) == before
