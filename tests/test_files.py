"""Files are written whole, where they belong, and with the rights that the umask leaves."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from concm import files
from concm.errors import ConcmError
from concm.files import write_whole


def test_a_file_is_replaced_whole_and_no_draft_is_left(tmp_path):
    for content in (b"one", b"two"):
        write_whole(tmp_path / "some" / "file", content)
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["file"]
    assert (tmp_path / "some" / "file").read_bytes() == b"two"


def test_a_file_that_was_written_by_whatever_means_lasts_and_so_does_its_name(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink()))
    with files.replacing(tmp_path / "file") as where:
        where.write_bytes(b"one")  # as a library does that is given a path
    draft, folder = synced
    assert draft.parent == folder == tmp_path
    assert not draft.exists()


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


def test_a_digest_that_an_older_version_wrote_is_known(tmp_path):
    old = hashlib.blake2b(b"state", digest_size=16).hexdigest()
    for digest in (old, files.content_digest(b"state")):
        for content in (b"state", b"stale", b""):
            (tmp_path / "file").write_bytes(content)
            assert files.has_digest(tmp_path / "file", digest) == (content == b"state")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_anywhere_in_a_file_of_tensors_is_noticed_or_harmless(data):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b/c": torch.tensor([1, 2], dtype=torch.int8), "e": torch.empty(0)}
    with TemporaryDirectory() as folder:
        path = Path(folder, "file")
        files.save_tensors(path, "concm-test-1", tensors, {"x": [1, "y"]})
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        try:
            found, meta = files.load_tensors(path, "concm-test-1")
        except ConcmError:
            return
    assert meta == {"x": [1, "y"]}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_a_file_of_before_seals_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(save({"a": torch.ones(2)}, metadata={"kind": "concm-test-1", "meta": "{}"}))
    assert files.load_tensors(path, "concm-test-1")[0]["a"].tolist() == [1, 1]
