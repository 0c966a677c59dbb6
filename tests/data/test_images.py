"""Pictures: any mode, upright, exact where nothing need change; refused by name; decoded once."""

from __future__ import annotations

import errno
import io
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from concm.data import images
from concm.data.images import BrokenPicture, cached, decode, resized
from concm.errors import ConcmError
from tests.support.data import encoded, huge_png, noise, write_picture

ORIENTATION = 0x0112
RED, WHITE, BLUE = (255, 0, 0), (255, 255, 255), (0, 0, 255)
# How a camera stores an upright picture under each EXIF orientation.
STORED = {
    1: lambda upright: upright,
    2: np.fliplr,
    3: lambda upright: np.rot90(upright, 2),
    4: np.flipud,
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: np.rot90(upright.swapaxes(0, 1), 2),
    8: lambda upright: np.rot90(upright, -1),
}


def exif(*entries: tuple[int, int, int, bytes]) -> bytes:
    """Entries (tag, type, count, four bytes of value) as a little-endian EXIF block."""
    body = b"".join(struct.pack("<HHI", *entry[:3]) + entry[3] for entry in sorted(entries))
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + bytes(4)


def assert_all(pixels, colour, tolerance: int = 0) -> None:
    np.testing.assert_allclose(pixels.astype(int), np.broadcast_to(colour, pixels.shape), atol=tolerance)


# decoding


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM"])
def test_pixels_of_the_right_size_are_exact(form):
    pixels = noise(0)
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(pixels), form), 8), pixels)


def test_a_jpeg_of_the_right_size_is_exactly_what_it_decodes_to():
    data = encoded(Image.fromarray(noise(0, 32, 32)), "JPEG")
    np.testing.assert_array_equal(decode(data, 32), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize("tall", [False, True])
def test_the_central_square_is_kept(tall):
    pixels = np.concatenate([noise(0), noise(1), noise(2)], axis=0 if tall else 1)
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(pixels)), 8), noise(1))


@pytest.mark.parametrize("size", [(3, 3), (1, 1), (100, 7), (8, 300)])
def test_every_size_comes_out_square(size):
    assert_all(decode(encoded(Image.new("RGB", size, RED)), 8), RED)
    assert decode(encoded(Image.new("RGB", size, RED)), 8).shape == (8, 8, 3)


def test_a_large_jpeg_comes_out_the_same_as_from_its_full_decoding():
    gradient = np.linspace(0, 255, 400).astype(np.uint8)
    data = encoded(Image.fromarray(np.dstack([np.tile(gradient, (400, 1))] * 3)), "JPEG", quality=95)
    expected = Image.open(io.BytesIO(data)).convert("RGB").resize((16, 16), Image.Resampling.BICUBIC)
    np.testing.assert_allclose(decode(data, 16).astype(int), np.asarray(expected).astype(int), atol=3)


@pytest.mark.promise
@pytest.mark.parametrize("orientation", STORED)
def test_every_exif_orientation_comes_out_upright(orientation):
    upright = noise(0)
    tag = Image.Exif()
    tag[ORIENTATION] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    np.testing.assert_array_equal(decode(encoded(stored, exif=tag), 8), upright)


@pytest.mark.parametrize("size", [(64, 32), (640, 320)], ids=["small", "large"])
def test_a_landscape_jpeg_with_orientation_6_comes_out_as_the_portrait_it_is(size):
    stored = Image.new("RGB", size, BLUE)
    stored.paste(RED, (0, 0, size[0] // 2, size[1]))  # the left half as stored is the upper half of the portrait
    tag = Image.Exif()
    tag[ORIENTATION] = 6
    pixels = decode(encoded(stored, "JPEG", exif=tag, quality=95, subsampling=0), 16)
    assert_all(pixels[:6], RED, 8)
    assert_all(pixels[10:], BLUE, 8)


@pytest.mark.parametrize(
    "careless",
    [(0x011A, 2, 1, b"72\0\0"), (0x0128, 2, 1, b"2\0\0\0"), (0x0131, 11, 1, bytes(4))],
    ids=["resolution as text", "unit as text", "software as a number"],
)
def test_careless_exif_data_does_not_keep_a_picture_from_being_read_upright(careless):
    stored = Image.new("RGB", (32, 32), BLUE)
    stored.paste(RED, (0, 0, 16, 32))
    pixels = decode(encoded(stored, "JPEG", exif=exif((ORIENTATION, 3, 1, b"\6\0\0\0"), careless), subsampling=0), 32)
    assert_all(pixels[:14], RED, 8)
    assert_all(pixels[18:], BLUE, 8)


@pytest.mark.parametrize("mode", ["L", "1", "LA", "P", "RGBA"])
def test_every_mode_comes_out_as_rgb(mode):
    assert_all(decode(encoded(Image.new("RGB", (8, 8), WHITE).convert(mode)), 8), WHITE)


def test_grey_levels_are_kept():
    grey = noise(0)[..., 0]
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(grey)), 8), np.dstack([grey] * 3))


def test_a_cmyk_jpeg_has_its_colours():
    assert_all(decode(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), 8), RED, 3)


@pytest.mark.parametrize(("alpha", "seen"), [(0, WHITE), (255, RED), (51, (255, 204, 204))])
def test_alpha_lies_over_white(alpha, seen):
    assert_all(decode(encoded(Image.new("RGBA", (8, 8), (*RED, alpha))), 8), seen, 1)


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_a_transparent_palette_colour_is_white(form):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 255, 0, *RED])
    image.paste(0, (0, 0, 4, 8))
    pixels = decode(encoded(image, form, transparency=0), 8)
    assert_all(pixels[:, :4], WHITE)
    assert_all(pixels[:, 4:], RED)


def test_a_transparent_grey_level_is_white():
    pixels = decode(encoded(Image.new("L", (8, 8), 90), transparency=90), 8)
    assert_all(pixels, WHITE)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_16_bit_greys_are_scaled_and_not_clipped(form):
    levels = np.arange(256).reshape(16, 16)
    data = encoded(Image.fromarray((levels * 257).astype(np.uint16)), form)
    np.testing.assert_array_equal(decode(data, 16), np.dstack([levels] * 3))


def test_a_dark_16_bit_picture_stays_dark():
    data = encoded(Image.fromarray(np.full((8, 8), 200, np.uint16)))
    assert decode(data, 8).max() <= 1


@pytest.mark.parametrize("form", ["MPO", "JPEG"])
def test_a_camera_s_photo_with_a_preview_behind_it_is_the_photo(form):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    options = {"save_all": True, "append_images": frames[1:]} if form == "MPO" else {}
    assert_all(decode(encoded(frames[0], form, **options), 8), RED, 3)


def test_an_open_image_is_decoded_like_its_file():
    image = Image.fromarray(noise(0, 12, 9))
    np.testing.assert_array_equal(decode(image, 8), decode(encoded(image), 8))


def test_pictures_in_memory_are_scaled_like_files():
    pixels = np.stack([noise(0), noise(1)])
    np.testing.assert_array_equal(resized(pixels, 8), pixels)
    np.testing.assert_array_equal(resized(pixels, 5)[1], decode(encoded(Image.fromarray(noise(1))), 5))


def test_no_pictures_in_memory_are_no_pictures_of_any_size():
    assert resized(np.zeros((0, 32, 32, 3), np.uint8), 8).shape == (0, 8, 8, 3)


# refusing


@pytest.mark.promise
@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.95])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_a_truncated_picture_is_refused_by_name(tmp_path, form, share):
    file = tmp_path / "holiday.jpg"
    whole = encoded(Image.fromarray(noise(0, 64, 64)), form)
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BrokenPicture, match=str(file)):
        decode(file, 8)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_is_refused_by_name(tmp_path, form):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE, WHITE)]
    file = tmp_path / "dance.gif"
    file.write_bytes(encoded(frames[0], form, save_all=True, append_images=frames[1:]))
    with pytest.raises(BrokenPicture, match=f"{file} has 3 frames"):
        decode(file, 8)


@pytest.mark.parametrize("content", ["", "hello", "<html>404</html>", "GIF89a"])
def test_a_text_file_is_refused_by_name(tmp_path, content):
    file = tmp_path / "holiday.jpg"
    file.write_text(content)
    with pytest.raises(BrokenPicture, match=f"{file} cannot be read as a picture"):
        decode(file, 8)


@pytest.mark.parametrize("side", [30_000, 12_000])
def test_a_huge_picture_is_refused_by_name_before_it_is_decoded(tmp_path, side):
    file = tmp_path / "poster.png"
    file.write_bytes(huge_png(side))
    with pytest.raises(BrokenPicture, match=rf"{file}.*pixels"):
        decode(file, 8)


def test_a_missing_picture_is_refused_by_name(tmp_path):
    with pytest.raises(BrokenPicture, match=rf"{tmp_path / 'gone.jpg'} .*no such file"):
        decode(tmp_path / "gone.jpg", 8)


# the cache


def write_folder(folder: Path, count: int = 3) -> list[Path]:
    paths = [folder / f"{at}.png" for at in range(count)]
    for seed, path in enumerate(paths):
        write_picture(path, seed)
    return paths


def leftovers(cache: Path) -> list[str]:
    """What is in the cache beside digests of the files' content."""
    return [path.name for path in cache.iterdir() if not path.name.startswith("digest-")]


@pytest.fixture
def no_decoding(monkeypatch):
    """Call it, and from then on nothing may be decoded."""

    def forbidden(*_):
        raise AssertionError("decoded again")

    return lambda: monkeypatch.setattr(images, "decode", forbidden)


def test_the_cache_holds_every_picture_in_order(tmp_path, cache):
    pixels, kept, complaints = cached(write_folder(tmp_path / "data", 40), 8)
    np.testing.assert_array_equal(pixels, [noise(seed) for seed in range(40)])
    assert kept == list(range(40))
    assert complaints == []
    assert cache.is_dir()


def test_the_second_time_nothing_is_decoded(tmp_path, cache, no_decoding):
    paths = write_folder(tmp_path / "data")
    first, _, _ = cached(paths, 8)
    no_decoding()
    again, kept, complaints = cached(paths, 8)
    np.testing.assert_array_equal(again, first)
    assert (kept, complaints) == ([0, 1, 2], [])


def test_a_copy_of_the_folder_needs_no_decoding(tmp_path, cache, no_decoding):
    cached(write_folder(tmp_path / "data"), 8)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    no_decoding()
    pixels, _, _ = cached([tmp_path / "copy" / f"{at}.png" for at in range(3)], 8)
    np.testing.assert_array_equal(pixels[2], noise(2))


def test_another_size_is_decoded_for_itself(tmp_path, cache):
    paths = write_folder(tmp_path / "data")
    assert cached(paths, 8)[0].shape == (3, 8, 8, 3)
    assert cached(paths, 4)[0].shape == (3, 4, 4, 3)


def test_another_order_of_the_same_files_is_kept_apart(tmp_path, cache):
    paths = write_folder(tmp_path / "data")
    cached(paths, 8)
    np.testing.assert_array_equal(cached(paths[::-1], 8)[0][0], noise(2))


def test_changed_content_is_noticed(tmp_path, cache):
    paths = write_folder(tmp_path / "data")
    cached(paths, 8)
    before = paths[1].stat()
    write_picture(paths[1], seed=99)
    os.utime(paths[1], ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    pixels, _, _ = cached(paths, 8)
    np.testing.assert_array_equal(pixels, [noise(0), noise(99), noise(2)])


def test_a_touched_file_of_the_same_content_needs_no_decoding(tmp_path, cache, no_decoding):
    paths = write_folder(tmp_path / "data")
    cached(paths, 8)
    os.utime(paths[1], ns=(0, 0))
    no_decoding()
    np.testing.assert_array_equal(cached(paths, 8)[0][1], noise(1))


def test_skipping_reports_by_name_and_keeps_the_right_rows(tmp_path, cache, no_decoding):
    paths = write_folder(tmp_path / "data", 4)
    paths[1].write_text("not a picture")
    for _ in range(2):  # the second time from the cache
        pixels, kept, complaints = cached(paths, 8, "skip")
        np.testing.assert_array_equal(pixels, [noise(0), noise(2), noise(3)])
        assert kept == [0, 2, 3]
        assert complaints == [f"{paths[1]} cannot be read as a picture (not an image format)"]
        no_decoding()


def test_a_report_from_the_cache_names_the_file_that_was_asked_for(tmp_path, cache):
    paths = write_folder(tmp_path / "data")
    paths[0].write_text("not a picture")
    cached(paths, 8, "skip")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    _, _, complaints = cached([tmp_path / "copy" / path.name for path in paths], 8, "skip")
    assert [complaint.split()[0] for complaint in complaints] == [str(tmp_path / "copy" / "0.png")]


def test_refusing_names_the_file_and_leaves_nothing_half_written(tmp_path, cache):
    paths = write_folder(tmp_path / "data", 4)
    paths[2].write_text("not a picture")
    with pytest.raises(ConcmError, match=rf'{paths[2]} .*`broken="skip"`'):
        cached(paths, 8, "refuse")
    assert leftovers(cache) == []


def test_a_skipped_picture_is_still_refused_when_asked_to(tmp_path, cache):
    paths = write_folder(tmp_path / "data")
    paths[2].write_text("not a picture")
    cached(paths, 8, "skip")
    with pytest.raises(ConcmError, match=str(paths[2])):
        cached(paths, 8, "refuse")


def test_a_missing_picture_is_named_by_the_cache(tmp_path, cache):
    with pytest.raises(ConcmError, match=str(tmp_path / "gone.jpg")):
        cached([tmp_path / "gone.jpg"], 8)


def test_a_full_disk_is_an_error_with_a_name_and_leaves_nothing_half_written(tmp_path, cache, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConcmError, match=rf"cannot write {cache}.*No space left on device"):
        cached(write_folder(tmp_path / "data"), 8)
    assert leftovers(cache) == []


def test_an_interruption_leaves_nothing_half_written(tmp_path, cache, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(images, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached(write_folder(tmp_path / "data"), 8)
    assert leftovers(cache) == []


def test_a_cache_whose_pixels_were_cleaned_away_is_filled_again(tmp_path, cache):
    paths = write_folder(tmp_path / "data")
    cached(paths, 8)
    for file in cache.glob("*.npy"):
        file.unlink()
    np.testing.assert_array_equal(cached(paths, 8)[0][2], noise(2))


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path, cache):
    cache.write_text("a file is in the way")
    with pytest.raises(ConcmError, match=str(cache)):
        cached(write_folder(tmp_path / "data"), 8)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"CONCM_CACHE": "/a/b"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/concm"),
        ({"CONCM_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"HOME": "/home/me"}, "/home/me/.cache/concm"),
    ],
)
def test_the_cache_is_where_the_environment_says(monkeypatch, variables, folder):
    for name in ("CONCM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert images.cache_folder() == Path(folder)


def test_a_cut_off_cache_file_is_made_again(tmp_path, cache):
    paths = write_folder(tmp_path / "data")
    cached(paths, 8)
    for file in cache.iterdir():
        file.write_bytes(file.read_bytes()[:-20])
    np.testing.assert_array_equal(cached(paths, 8)[0][2], noise(2))


def test_refusing_and_skipping_share_one_entry(tmp_path, cache):
    paths = write_folder(tmp_path / "data")
    cached(paths, 8, "skip")
    cached(paths, 8, "refuse")
    assert len(list(cache.glob("*.npy"))) == 1


def test_pictures_in_memory_are_scaled_once(tmp_path, cache, monkeypatch):
    pixels = np.stack([noise(seed) for seed in range(3)])
    first = images.resized(pixels, 16).copy()
    monkeypatch.setattr(images, "square", None)
    np.testing.assert_array_equal(images.resized(pixels, 16), first)


def test_float_pictures_from_nought_to_one_are_not_black(tmp_path):
    path = tmp_path / "float.tiff"
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(path)
    assert decode(path, 8).max() == 255


@pytest.mark.parametrize("form", ["EPS", "PDF", "ICO", "TGA", "PCX"])
def test_a_format_that_is_not_listed_is_no_picture_whatever_the_file_is_called(tmp_path, form):
    file = tmp_path / "holiday.jpg"
    Image.fromarray(noise(0, 16, 16)).save(file, form)
    with pytest.raises(BrokenPicture, match="not an image format"):
        decode(file, 8)


def test_a_pipe_and_a_device_are_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "zero.jpg"):
        with pytest.raises(BrokenPicture, match="no regular file"):
            decode(tmp_path / name, 8)
        with pytest.raises(BrokenPicture, match="no regular file"):
            cached([tmp_path / name], 8)


def test_a_file_larger_than_any_picture_is_refused_by_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_BYTES", 10)
    (tmp_path / "large.png").write_bytes(encoded(Image.fromarray(noise(0))))
    with pytest.raises(BrokenPicture, match="bytes; at most"):
        decode(tmp_path / "large.png", 8)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.5, -0.5, 1e9])
def test_a_float_picture_whose_range_is_not_clear_is_refused_and_not_black(value):
    pixels = np.full((8, 8), 0.5, np.float32)
    pixels[0, 0] = value
    with pytest.raises(BrokenPicture, match="values"):
        decode(encoded(Image.fromarray(pixels), "TIFF"), 8)


@pytest.mark.parametrize(("top", "mode"), [(1.0, np.float32), (255.0, np.float32), (65535, np.uint16)])
def test_a_deep_grey_has_its_level_however_large_it_is(top, mode):
    for side in (8, 64):
        pixels = np.full((side, side), top / 2, np.float64).astype(mode)
        pixels[0, 0] = top
        found = decode(encoded(Image.fromarray(pixels), "TIFF"), 8)
        assert abs(int(found[4, 4, 0]) - 127) <= 1
