"""Photos that a cluster encodes: the same as those encoded here, in order, and never twice."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from concm.classifier import elsewhere, opened
from concm.classifier.elsewhere import Elsewhere
from concm.classifier.stream import encoded
from concm.errors import ConcmError, Misuse
from tests.support.cluster import Inline
from tests.support.photographs import pictures, write_world
from tests.support.zoo import BASE, made, probabilities


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_world(tmp_path / "photos", BASE, 4)
    return tmp_path / "photos"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Inline:
    """What `on="ray"` is; three photos go to a worker at a time."""
    own = Inline()

    @contextmanager
    def joined(on):
        yield own if on == "ray" else None

    monkeypatch.setattr(opened, "joined", joined)
    monkeypatch.setattr(elsewhere, "SHARD", 3)
    return own


def paths(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


def test_a_store_of_a_cluster_is_the_store_of_this_machine(folder, cluster, tmp_path, monkeypatch):
    there = made(tmp_path / "there", folder, on="ray")
    assert cluster.done == 7
    there_found = there.evaluate(folder, on="ray")
    assert cluster.done == 7  # photos that were encoded before are not sent
    monkeypatch.setenv("CONCM_CACHE", str(tmp_path / "another cache"))
    here = made(tmp_path / "here", folder)
    torch.testing.assert_close(torch.tensor(probabilities(there)), torch.tensor(probabilities(here)))
    assert there_found.by_class == here.evaluate(folder).by_class
    for name in BASE:
        one, other = ([(row.label, row.digest) for row in zoo.photos(name)] for zoo in (here, there))
        assert one == other


def test_files_come_back_in_order_with_broken_ones_in_between(zoo, folder, cluster):
    files = paths(folder)
    files[3].write_bytes(b"broken")
    files[5].unlink()
    found = list(Elsewhere(cluster, "cpu").encoded(zoo.encoder, files, "photos"))
    wanted = list(encoded(zoo.encoder, files))
    assert [str(own) if at in (3, 5) else own.name for at, own in enumerate(found)] == [
        str(own) if at in (3, 5) else own.name for at, own in enumerate(wanted)
    ]
    for at in set(range(len(files))) - {3, 5}:
        assert (found[at].digest, found[at].thumbnail) == (wanted[at].digest, wanted[at].thumbnail)
        torch.testing.assert_close(found[at].features, wanted[at].features)


def test_what_was_encoded_before_ctrl_c_is_not_encoded_again(zoo, folder, cluster):
    cluster.most = 2
    with pytest.raises(KeyboardInterrupt):
        zoo.evaluate(folder, on="ray")
    cluster.most, cluster.done = None, 0
    zoo.evaluate(folder, on="ray")
    assert cluster.done == 5


def test_a_broken_photo_is_refused_by_name(zoo, folder, cluster):
    paths(folder)[0].write_bytes(b"broken")
    with pytest.raises(ConcmError, match=r"cat.0\.png cannot be read as a picture .*remove it"):
        zoo.evaluate(folder, on="ray")


def test_pictures_that_no_worker_can_open_are_refused(zoo, cluster):
    with pytest.raises(Misuse, match="read photos by their paths: `on` goes with a folder"):
        zoo.evaluate({"cat": pictures("cat", 2)}, on="ray")


def test_a_place_that_there_is_not_is_refused(zoo, folder):
    with pytest.raises(Misuse, match=r"`on` is here, ray or ray://HOST:PORT, not 'slurm'"):
        zoo.evaluate(folder, on="slurm")
