"""Files are written whole, where they belong, and with the rights that the umask leaves."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from concm import files
from concm.errors import ConcmError
from concm.files import write_whole


def test_a_file_is_replaced_whole_and_no_draft_is_left(tmp_path):
    for content in (b"one", b"two"):
        write_whole(tmp_path / "some" / "file", content)
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["file"]
    assert (tmp_path / "some" / "file").read_bytes() == b"two"


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_rights_follow_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


def test_behind_a_link_the_target_is_replaced_and_keeps_its_rights(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "target").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_only_a_regular_file_is_replaced(tmp_path, kind):
    place = {"device": Path("/dev/null"), "pipe": tmp_path / "pipe", "folder": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(place)
    before = stat.S_IFMT(place.stat().st_mode)
    with pytest.raises(ConcmError, match=f"cannot write {place}: it is a"):
        write_whole(place, b"")
    assert stat.S_IFMT(place.stat().st_mode) == before


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_is_written_to_and_not_replaced(name, capfdbinary):
    write_whole(Path(name), b"to people")
    assert capfdbinary.readouterr().out == b"to people"


def test_a_digest_that_an_older_version_wrote_is_known():
    old = hashlib.blake2b(b"state", digest_size=16).hexdigest()
    for digest in (old, files.content_digest(b"state")):
        assert files.has_digest(b"state", digest)
        assert not files.has_digest(b"stale", digest)
