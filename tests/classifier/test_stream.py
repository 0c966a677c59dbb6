"""Photos to features: in order, whatever is broken in between, the same in any batch, and remembered by content."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from concm.backbones.encoder import Encoder
from concm.classifier import stream
from concm.classifier.photos import Photo
from concm.classifier.stream import Encoded, encoded
from concm.data.images import BrokenPicture
from concm.data.transform import Transform
from tests.support.data import noise, write_picture

torch.set_num_threads(1)
SIDE = 20
TRANSFORM = Transform(size=16, resize=SIDE, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


class Network(nn.Module):
    """A random linear map of all pixels, so that every view has features of its own; counts what it is shown."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(3 * TRANSFORM.size**2, 4)
        self.shown: list[int] = []

    def forward(self, images):
        self.shown.append(len(images))
        return self.linear(images.flatten(1))


def make_encoder(seed: int = 0) -> Encoder:
    return Encoder("tiny", Network(seed), TRANSFORM, {"dimension": 4}).to(torch.device("cpu"))


@pytest.fixture
def encoder() -> Encoder:
    return make_encoder()


def shown(encoder: Encoder) -> int:
    """How many pictures the network has seen since this was asked last."""
    count = sum(encoder.network.shown)
    encoder.network.shown.clear()
    return count


def direct(encoder: Encoder, *seeds: int) -> torch.Tensor:
    """The features of `picture(seed)`s, and nothing counted."""
    features = encoder(torch.from_numpy(np.stack([picture(seed) for seed in seeds])))
    encoder.network.shown.clear()
    return features


def picture(seed: int):
    return noise(seed, SIDE, SIDE)


def write(folder: Path, *seeds: int) -> list[Path]:
    for seed in seeds:
        write_picture(folder / f"{seed}.png", seed, SIDE)
    return [folder / f"{seed}.png" for seed in seeds]


def features_of(results) -> torch.Tensor:
    return torch.stack([result.features for result in results])


def assert_features(results, encoder: Encoder, *seeds: int) -> None:
    torch.testing.assert_close(features_of(results), direct(encoder, *seeds))


# in order


@pytest.mark.parametrize("batch", [1, 2, 3, 9, 10, 100])
@pytest.mark.parametrize("broken", [set(), {0}, {8}, {3, 4, 5}, {0, 2, 4, 6, 8}, set(range(9))])
def test_results_keep_the_order_with_broken_ones_in_between(encoder, monkeypatch, batch, broken):
    monkeypatch.setattr(stream, "BATCH", batch)
    results = list(encoded(encoder, [b"broken" if at in broken else picture(at) for at in range(9)]))
    assert [isinstance(result, BrokenPicture) for result in results] == [at in broken for at in range(9)]
    assert shown(encoder) == 9 - len(broken)
    for at, result in enumerate(results):
        if at in broken:
            assert str(result).startswith(f"picture {at + 1} cannot be read")
        else:
            assert result.name == f"picture {at + 1}"
            torch.testing.assert_close(result.features[None], direct(encoder, at))


def test_more_pictures_than_are_decoded_ahead_keep_their_order(encoder, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert_features(encoded(encoder, [picture(at) for at in range(75)]), encoder, *range(75))


def test_the_network_is_shown_whole_batches_and_no_more_than_was_asked_for(encoder, monkeypatch):
    monkeypatch.setattr(stream, "BATCH", 3)
    results = encoded(encoder, [picture(at) for at in range(8)])
    assert encoder.network.shown == []
    for _ in range(3):
        next(results)
    assert encoder.network.shown == [3]
    assert len(list(results)) == 5
    assert encoder.network.shown == [3, 3, 2]


@pytest.mark.parametrize("broken", [set(), {0}, {3, 4, 5}, set(range(40))])
def test_two_cores_keep_the_order_too(encoder, tmp_path, cache, monkeypatch, broken):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    paths = write(tmp_path / "data", *range(40))
    for at in broken:
        paths[at].write_bytes(b"broken")
    torch.set_num_threads(2)
    try:
        results = list(encoded(encoder, paths, remember=True))
        again = list(encoded(encoder, paths, remember=True))
    finally:
        torch.set_num_threads(1)
    assert shown(encoder) == 40 - len(broken)
    assert [isinstance(result, BrokenPicture) for result in results] == [at in broken for at in range(40)]
    for at, (result, other) in enumerate(zip(results, again, strict=True)):
        if at not in broken:
            assert result.name == str(paths[at])
            torch.testing.assert_close(result.features[None], direct(encoder, at))
            torch.testing.assert_close(other.features, result.features)


def test_no_pictures_are_no_results(encoder, cache):
    assert list(encoded(encoder, [])) == []
    assert list(encoded(encoder, [], remember=True)) == []
    assert shown(encoder) == 0


def test_each_result_says_what_the_photo_was(encoder, tmp_path):
    file, other = write(tmp_path, 0, 1)
    forms = [file, str(other), file.read_bytes(), Image.open(other), picture(0), tmp_path / "gone.png"]
    *results, gone = encoded(encoder, forms)
    names = [str(file), str(other), "picture 3", "picture 4", "picture 5"]
    for result, name, seed in zip(results, names, [0, 1, 0, 1, 0], strict=True):
        photo = Photo.read(picture(seed), SIDE, name)
        assert isinstance(result, Encoded)
        assert (result.name, result.digest, result.thumbnail) == (name, photo.digest, photo.thumbnail())
    assert_features(results, encoder, 0, 1, 0, 1, 0)
    assert str(gone) == f"{tmp_path}/gone.png cannot be read as a picture (no such file)"


def test_pictures_are_brought_to_the_size_of_the_backbone(encoder):
    big = noise(0, 50, 90)
    (result,) = encoded(encoder, [big])
    pixels = np.stack([Photo.read(big, SIDE, "").pixels])
    torch.testing.assert_close(result.features[None], encoder(torch.from_numpy(pixels)))


def test_mirroring_is_the_encoders(encoder):
    both = replace(encoder, looks=2)
    results = list(encoded(both, [picture(0), picture(1)]))
    assert_features(results, both, 0, 1)
    assert not torch.allclose(features_of(results), direct(encoder, 0, 1))


def test_one_can_learn_from_the_features(encoder):
    (result,) = encoded(encoder, [picture(0)])
    weights = torch.ones(4, requires_grad=True)
    (result.features @ weights).sum().backward()
    torch.testing.assert_close(weights.grad, result.features)


# remembering


def remembered(encoder: Encoder, pictures) -> list:
    return list(encoded(encoder, pictures, remember=True))


def assert_same(results, others) -> None:
    for result, other in zip(results, others, strict=True):
        assert (result.name, result.digest, result.thumbnail) == (other.name, other.digest, other.thumbnail)
        assert torch.equal(result.features, other.features)


def test_the_second_time_the_network_is_not_called(encoder, tmp_path, cache):
    paths = write(tmp_path / "data", *range(5))
    first = remembered(encoder, paths)
    assert shown(encoder) == 5
    same = make_encoder()
    again = remembered(same, paths[::-1])
    assert shown(same) == 0
    assert_same(again, first[::-1])
    assert [result.features.shape for result in again] == [(4,)] * 5


def test_only_what_is_new_is_encoded(encoder, tmp_path, cache):
    remembered(encoder, write(tmp_path / "data", 1, 3))
    shown(encoder)
    broken = tmp_path / "data" / "broken.png"
    broken.write_text("not a picture")
    *known, complaint, last = remembered(encoder, [*write(tmp_path / "data", 0, 1, 2, 3), broken, picture(1)])
    assert shown(encoder) == 3
    assert_features([*known, last], encoder, 0, 1, 2, 3, 1)
    assert str(complaint).startswith(f"{broken} cannot be read")


def test_nothing_is_remembered_unasked(encoder, tmp_path, cache):
    paths = write(tmp_path / "data", 0, 1)
    for _ in range(2):
        list(encoded(encoder, paths))
        assert shown(encoder) == 2
    assert not cache.exists()
    remembered(encoder, paths)
    shown(encoder)
    list(encoded(encoder, paths))
    assert shown(encoder) == 2


def other_size(encoder: Encoder) -> Encoder:
    return replace(encoder, transform=replace(TRANSFORM, resize=24))


@pytest.mark.parametrize(
    "change",
    [lambda _: make_encoder(1), other_size, partial(replace, looks=2), partial(replace, name="large")],
    ids=["weights", "transform", "looks", "name"],
)
def test_another_backbone_remembers_for_itself(encoder, tmp_path, cache, change):
    paths = write(tmp_path / "data", 0, 1)
    first = remembered(encoder, paths)
    shown(encoder)
    other = change(encoder)
    found = remembered(other, paths)
    assert shown(other) >= 2
    assert_same(found, encoded(other, paths))
    shown(other)
    assert_same(remembered(other, paths), found)
    assert_same(remembered(encoder, paths), first)
    assert shown(other) == shown(encoder) == 0


def test_a_changed_file_is_encoded_anew(encoder, tmp_path, cache):
    paths = write(tmp_path / "data", 0, 1)
    remembered(encoder, paths)
    shown(encoder)
    before = paths[1].stat()
    write_picture(paths[1], 9, SIDE)
    os.utime(paths[1], ns=(before.st_atime_ns, before.st_mtime_ns))  # the content counts, not the time
    results = remembered(encoder, paths)
    assert shown(encoder) == 1
    assert_features(results, encoder, 0, 9)


def test_a_file_that_changes_while_it_is_encoded_is_not_taken_for_what_it_was(encoder, tmp_path, cache, monkeypatch):
    (path,) = write(tmp_path / "data", 0)
    forward = encoder.network.forward

    def slow(images):
        write_picture(path, 9, SIDE)
        return forward(images)

    with monkeypatch.context() as then:
        then.setattr(encoder.network, "forward", slow)
        assert_features(remembered(encoder, [path]), encoder, 0)
    assert_features(remembered(encoder, [path]), encoder, 9)


def test_a_copy_is_remembered_and_called_by_its_own_name(encoder, tmp_path, cache):
    (path,) = write(tmp_path / "data", 0)
    (first,) = remembered(encoder, [path])
    copy = shutil.copy(path, tmp_path / "copy.jpg")
    shown(encoder)
    assert_same(remembered(encoder, [copy]), [replace(first, name=str(copy))])
    assert shown(encoder) == 0


def test_bytes_are_remembered_like_files(encoder, tmp_path, cache):
    one, other = write(tmp_path / "data", 0, 1)
    remembered(encoder, [one, other.read_bytes()])
    shown(encoder)
    results = remembered(encoder, [one.read_bytes(), other, str(one)])
    assert shown(encoder) == 0
    assert [result.name for result in results] == ["picture 1", str(other), str(one)]
    assert_features(results, encoder, 0, 1, 0)


def test_what_has_no_file_is_encoded_each_time(encoder, cache):
    for _ in range(2):
        results = remembered(encoder, [picture(0), Image.fromarray(picture(1))])
        assert shown(encoder) == 2
        assert_features(results, encoder, 0, 1)


def test_files_that_begin_alike_are_told_apart(encoder, tmp_path, cache):
    one = picture(0)
    other = one.copy()
    other[-1, -1] ^= 1
    for name, pixels in (("one", one), ("other", other)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.ppm")  # without a checksum at its beginning
    (first,) = remembered(encoder, [tmp_path / "one.ppm"])
    (second,) = remembered(encoder, [tmp_path / "other.ppm"])
    assert shown(encoder) == 2
    assert first.digest != second.digest


def test_a_file_that_is_gone_is_broken_even_if_it_was_remembered(encoder, tmp_path, cache):
    (path,) = write(tmp_path / "data", 0)
    remembered(encoder, [path])
    path.unlink()
    (result,) = remembered(encoder, [path])
    assert isinstance(result, BrokenPicture)
    assert "no such file" in str(result)


def test_a_run_that_is_left_has_remembered_what_it_encoded(encoder, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(stream, "BATCH", 2)
    paths = write(tmp_path / "data", *range(7))
    for at, _ in enumerate(encoded(encoder, paths, remember=True)):
        if at == 2:
            break
    assert shown(encoder) == 4
    results = remembered(encoder, paths)
    assert shown(encoder) == 3
    assert_features(results, encoder, *range(7))


@pytest.mark.parametrize("left", [False, True], ids=["over", "left"])
def test_when_a_run_is_over_its_database_is_closed(encoder, tmp_path, cache, left):
    results = encoded(encoder, write(tmp_path / "data", 0, 1), remember=True)
    next(results)
    if left:
        results.close()
    else:
        next(results)
        assert next(results, None) is None
    assert [file.name for file in cache.iterdir()] == ["features.db"]


def test_the_next_run_goes_on_where_one_was_interrupted(encoder, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(stream, "BATCH", 2)
    paths = write(tmp_path / "data", *range(7))
    forward = encoder.network.forward

    def interrupted(images):
        if len(encoder.network.shown) == 2:
            raise KeyboardInterrupt
        return forward(images)

    with monkeypatch.context() as then:
        then.setattr(encoder.network, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remembered(encoder, paths)
    assert shown(encoder) == 4
    results = remembered(encoder, paths)
    assert shown(encoder) == 3
    assert_features(results, encoder, *range(7))


# where nothing can be remembered


def garbage(file: Path) -> None:
    file.write_bytes(b"not a database, " * 500)


def overwritten(file: Path) -> None:
    """Garbage in place: a file that is open, and may be mapped, keeps its size."""
    with file.open("r+b") as opened:
        opened.write(b"?" * file.stat().st_size)


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def foreign(file: Path) -> None:
    file.unlink()
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE photos (address TEXT)")
    db.close()


def damaged_within(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


def rows(change: str):
    def harm(file: Path) -> None:
        db = sqlite3.connect(file, isolation_level=None)
        assert db.execute(f"UPDATE encoded_2 SET {change}").rowcount == 2
        db.close()

    return harm


HARM = {
    "garbage": garbage,
    "a folder": a_folder,
    "foreign": foreign,
    "damaged within": damaged_within,
    "empty": lambda file: file.write_bytes(b""),
    "cut in its head": lambda file: os.truncate(file, 50),
    "cut": lambda file: os.truncate(file, 5000),
    "odd features": rows("features = x'0000803f00'"),
    "no features": rows("features = x''"),
    "lost features": rows("features = NULL"),
    "other features": rows("features = zeroblob(length(features))"),
    "features that are no numbers": rows("features = x'0000c07f'"),
    "a digest that is none": rows("digest = NULL"),
    "another digest": rows("digest = 'abc'"),
    "a thumbnail that is none": rows("thumbnail = NULL"),
    "a thumbnail in words": rows("thumbnail = 'small'"),
    "a pipe": a_pipe,
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_memory_is_no_error(encoder, tmp_path, cache, harm):
    paths = write(tmp_path / "data", 0, 1)
    remembered(encoder, paths)
    gc.collect()  # whatever holds the database open lets go of it
    HARM[harm](cache / "features.db")
    for _ in range(2):
        assert_features(remembered(encoder, paths), encoder, 0, 1)


def test_a_memory_that_is_damaged_while_it_is_used_is_no_error(encoder, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(stream, "BATCH", 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    paths = write(tmp_path / "data", *range(40))
    results = []
    for at, result in enumerate(encoded(encoder, paths, remember=True)):
        results.append(result)
        if at == 5:
            for name in ("features.db", "features.db-wal"):
                overwritten(cache / name)
    assert_features(results, encoder, *range(40))


@pytest.mark.parametrize("place", ["a file", "below a file", "no place for folders"])
def test_a_cache_folder_that_cannot_be_made_is_no_error(encoder, tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("in the way")
    folder = {"a file": "file", "below a file": "file/cache", "no place for folders": "/proc/concm"}[place]
    monkeypatch.setenv("CONCM_CACHE", str(tmp_path / folder))
    paths = write(tmp_path / "data", 0, 1)
    for _ in range(2):
        results = remembered(encoder, paths)
        assert shown(encoder) == 2
        assert_features(results, encoder, 0, 1)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_folder_is_no_error(encoder, tmp_path, cache):
    paths = write(tmp_path / "data", 0, 1)
    remembered(encoder, paths[:1])
    gc.collect()
    cache.chmod(0o555)
    (cache / "features.db").chmod(0o444)
    try:
        assert_features(remembered(encoder, paths), encoder, 0, 1)
    finally:
        cache.chmod(0o755)


def test_a_batch_that_could_not_be_remembered_does_not_keep_later_ones_from_it(encoder, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(stream, "BATCH", 2)
    monkeypatch.setattr(stream.sqlite3, "connect", partial(sqlite3.connect, timeout=0.05))
    first, *paths = write(tmp_path / "data", *range(7))
    remembered(encoder, [first])
    other = sqlite3.connect(cache / "features.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # another process is writing
    results = encoded(encoder, paths, remember=True)
    found = [next(results), next(results)]
    other.execute("ROLLBACK")
    other.close()
    found += results
    assert_features(found, encoder, *range(1, 7))
    remembered(encoder, paths)
    assert shown(encoder) == 2  # the first batch, whose turn never came


def test_two_runs_at_once_share_what_they_remember(encoder, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(stream, "BATCH", 1)
    paths = write(tmp_path / "data", *range(4))
    one, other = (encoded(encoder, order, remember=True) for order in (paths, paths[::-1]))
    together = [result for pair in zip(one, other, strict=True) for result in pair]
    assert_features(together[::2], encoder, *range(4))
    assert_features(together[1::2], encoder, *reversed(range(4)))
    remembered(encoder, paths)
    assert shown(encoder) == 0
