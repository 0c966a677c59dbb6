"""CIFAR's pickles: read whoever wrote them, and never run."""

from __future__ import annotations

import builtins
import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from concm.data.pickles import read_batch
from concm.errors import ConcmError
from tests.support.data import python2_pickle

PICTURES = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)


def batch(text=str.encode, pictures=PICTURES):
    return {
        text("data"): pictures,
        text("fine_labels"): [3, 1, 4, 1],
        text("filenames"): [text(f"picture_{at}.png") for at in range(4)],
        text("batch_label"): text("training batch 1 of 1"),
    }


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


class Bomb:
    """Pickles to a call."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def bombs(marker: Path) -> dict[str, Bomb]:
    """Pickles that create the file `marker` when they are loaded the usual way."""
    return {
        "os.system": Bomb(os.system, f"touch {marker}"),
        "builtins.eval": Bomb(builtins.eval, f"open({str(marker)!r}, 'w').close()"),
        "functools.partial": Bomb(functools.partial(os.system, f"touch {marker}")),
    }


def test_reads_a_batch_as_python_2_wrote_it(tmp_path):
    found = read_batch(write(tmp_path / "train", python2_pickle(batch())))
    assert list(found) == ["data", "fine_labels", "filenames", "batch_label"]
    assert found["data"].dtype == np.uint8
    np.testing.assert_array_equal(found["data"], PICTURES)
    assert found["fine_labels"] == [3, 1, 4, 1]
    assert found["filenames"][2] == b"picture_2.png"


@pytest.mark.parametrize("text", [str, str.encode], ids=["text", "bytes"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_reads_a_batch_as_python_3_wrote_it(tmp_path, protocol, text):
    found = read_batch(write(tmp_path / "train", pickle.dumps(batch(text), protocol)))
    assert list(found) == ["data", "fine_labels", "filenames", "batch_label"]
    assert found["data"].dtype == np.uint8
    np.testing.assert_array_equal(found["data"], PICTURES)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_reads_an_array_in_fortran_order(tmp_path, protocol):
    found = read_batch(write(tmp_path / "train", pickle.dumps(batch(pictures=np.asfortranarray(PICTURES)), protocol)))
    np.testing.assert_array_equal(found["data"], PICTURES)


@pytest.mark.promise
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("kind", ["os.system", "builtins.eval", "functools.partial"])
def test_a_file_that_would_run_code_is_refused_and_nothing_runs(tmp_path, kind, protocol):
    marker = tmp_path / "marker"
    file = write(tmp_path / "train", pickle.dumps({**batch(), b"extra": bombs(marker)[kind]}, protocol))
    pickle.loads(file.read_bytes())
    assert marker.exists(), "the bomb is a dud, so the test would prove nothing"
    marker.unlink()
    with pytest.raises(ConcmError, match=str(file)):
        read_batch(file)
    assert not marker.exists()


def test_a_refusal_says_what_the_file_asked_for(tmp_path):
    file = write(tmp_path / "train", pickle.dumps(bombs(tmp_path / "marker")["builtins.eval"], 4))
    with pytest.raises(ConcmError, match=r"builtins\.eval"):
        read_batch(file)


def test_an_admitted_name_is_no_way_to_its_attributes(tmp_path):
    # What STACK_GLOBAL resolves dot by dot: numpy.ndarray.__class__
    file = write(tmp_path / "train", b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.")
    with pytest.raises(ConcmError, match=str(file)):
        read_batch(file)


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("dump", [python2_pickle, pickle.dumps], ids=["python 2", "python 3"])
def test_a_truncated_file_is_refused_by_name(tmp_path, dump, share):
    whole = dump({b"fine_labels": [1, 2], b"filenames": [b"x" * 12_000]})
    file = write(tmp_path / "train", whole[: int(len(whole) * share)])
    with pytest.raises(ConcmError, match=str(file)):
        read_batch(file)


@pytest.mark.parametrize(
    "text", ["hello\n", "<!DOCTYPE html><title>404</title>", "Moved to another place", "{}", "1,2", "I\n."]
)
def test_a_text_file_is_refused_by_name(tmp_path, text):
    file = write(tmp_path / "train", text.encode())
    with pytest.raises(ConcmError, match=str(file)):
        read_batch(file)


@pytest.mark.parametrize("value", [[1, 2], "text", 7, None])
def test_a_pickle_of_something_else_is_refused_by_name(tmp_path, value):
    file = write(tmp_path / "train", pickle.dumps(value))
    with pytest.raises(ConcmError, match=str(file)):
        read_batch(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConcmError, match=str(tmp_path / "meta")):
        read_batch(tmp_path / "meta")


DAMAGE = """
import sys
from pathlib import Path
from concm.data.pickles import read_batch
from concm.errors import ConcmError

whole = Path(sys.argv[1]).read_bytes()
file = Path(sys.argv[2])
for at in range(len(whole)):
    for value in b"\\x00\\xff0JMN(t":
        file.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
        try:
            read_batch(file)
        except ConcmError:
            pass
        except BaseException as error:
            sys.exit(f"byte {at} as {value}: {error!r}")
print("survived")
"""


def test_no_damaged_byte_gets_past_the_reader_or_crashes_it(tmp_path):
    # In a process of its own: a crash inside numpy would take the tests with it.
    small = write(tmp_path / "small", python2_pickle({b"data": PICTURES[:1, :48], b"fine_labels": [3]}))
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE, str(small), str(tmp_path / "damaged")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "survived"), done.stderr[-500:]


FEW_BYTES = """
import resource, sys
from pathlib import Path
from concm.data.pickles import read_batch

resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9))
print(read_batch(Path(sys.argv[1])))
"""


def test_a_number_in_a_file_takes_no_memory_for_what_does_not_come(tmp_path):
    place = write(tmp_path / "batch", b"\x80\x02}r\xff\xff\xff\x7f.")  # the first thing is remembered in place 2^31 - 1
    words = [sys.executable, "-c", FEW_BYTES, str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("{}", "")
