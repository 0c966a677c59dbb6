"""Large pictures take little more memory than their pixels, one by one and all threads together."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from concm.data import pixels
from concm.data.images import decode
from concm.data.pixels import Room

SIDE = 9400
MEASURE = """
import resource, sys
from pathlib import Path
from concm.data.images import decode
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decode(Path(sys.argv[1]), 256)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def write(path: Path, mode: str) -> None:
    if mode == "I;16":
        Image.fromarray(np.full((SIDE, SIDE), 300, np.uint16)).save(path, compress_level=1)
    else:
        Image.new(mode, (SIDE, SIDE)).save(path, compress_level=1, **({"transparency": 0} if mode == "P" else {}))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "megabytes"), [("I;16", 300), ("P", 250), ("RGBA", 500)])
def test_a_picture_of_88_million_pixels_takes_its_own_size_and_little_more(tmp_path, mode, megabytes):
    write(tmp_path / "large.png", mode)
    words = [sys.executable, "-c", MEASURE, str(tmp_path / "large.png")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stdout) < megabytes


def photo(mode: str) -> Image.Image:
    """A smooth picture that can be shrunk in any way without becoming another."""
    down, across = np.mgrid[0:1, 0:1:200j][0], np.linspace(0, 255, 200)
    table = (across[:, None] * 0.5 + across[None] * 0.5 + down[0, 0]).astype(np.uint8)
    return Image.fromarray(table).convert("RGBA" if mode == "RGBA" else "RGB").convert(mode)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "CMYK", "LA"])
@pytest.mark.parametrize("size", [(200, 200), (200, 131), (97, 200)])
def test_shrinking_part_by_part_gives_nearly_the_same_picture(monkeypatch, mode, size):
    image = photo(mode).resize(size)
    whole = decode(image, 16).astype(int)
    monkeypatch.setattr(pixels, "LARGE", 1000)
    assert np.abs(decode(image, 16).astype(int) - whole).mean() < 4


def test_all_threads_together_never_take_more_than_there_is_room():
    room, most, held, lock = Room(100), [0], [0], threading.Lock()

    def work(size: int) -> None:
        for _ in range(50):
            with room.taken(size):
                with lock:
                    held[0] += min(size, 100)
                    most[0] = max(most[0], held[0])
                with lock:
                    held[0] -= min(size, 100)

    threads = [threading.Thread(target=work, args=(size,)) for size in (30, 40, 60, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < most[0] <= 100
    assert room.left == 100


def test_room_is_given_back_when_a_picture_is_broken():
    room = Room(10)
    with pytest.raises(KeyError), room.taken(10):
        raise KeyError
    assert room.left == 10
