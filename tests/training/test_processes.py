"""Base sessions of two processes: in double precision, only rounding may tell them from those of one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from concm.data.dataset import ImageSet
from concm.methods import entries
from concm.training import feed
from concm.training.distributed import GlobalBatchNorm2d
from concm.training.feed import Feed
from concm.training.loop import BaseRun
from concm.training.recipe import Recipe
from tests.support.pair import NETWORK, Run, ran
from tests.support.tiny import CUT, difference, environment, same, weights, write_tiny

WITH_OWN = [name for name, entry in entries().items() if entry.objective is not None]
LONG = {"epochs": 3, "lr": 0.02}  # twelve steps, of which two processes end one in ten


def training(data: Path, out: Path, *more: object, **options: object) -> list[str]:
    settings = {"backbone": NETWORK, "epochs": 1, "batch": 8, "warmup": 0, "held-out": 0} | options
    spelled = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [str(word) for word in ("train", "folder", "--data", data, "--out", out, *CUT, *spelled, *more)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, str]]]:
    """All runs, under their names in one folder, with their exit codes and what they said."""
    root = tmp_path_factory.mktemp("pair")
    data, two = write_tiny(root / "data"), ("--devices", 2)
    runs: dict[str, Run] = {}
    for method in ("ours", *WITH_OWN):
        own = entries()[method].settings if method != "ours" else None
        word = f"{method}:short" if "short" in getattr(own, "PRESETS", ()) else method
        whose = () if own is None else ("--method", word)
        runs[f"{method} 1"] = Run(training(data, root / f"{method} 1", *whose))
        runs[f"{method} 2"] = Run(training(data, root / f"{method} 2", *two, *whose), 2)
    runs["plain"] = Run(training(data, root / "plain", *two, lr=0.01), 2, double=False)
    runs["compiled"] = Run(training(data, root / "compiled", *two, "--compile", lr=0.01), 2, double=False)
    runs["streamed"] = Run(training(data, root / "streamed", *two, "--stream"), 2)
    runs["odd"] = Run(training(data, root / "odd", *two, batch=7), 2)
    runs["undisturbed"] = Run(training(data, root / "undisturbed", **LONG))
    runs["stopped alone"] = Run(training(data, root / "one then two", **LONG), ctrl_c=6)
    runs["one then two"] = Run(training(data, root / "one then two", *two, "--resume", **LONG), 2)
    runs["stopped together"] = Run(training(data, root / "two then one", *two, **LONG), 2, ctrl_c=3)
    runs["two then one"] = Run(training(data, root / "two then one", "--resume", **LONG), last=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCM_CACHE", str(root / "cache"))
        found = ran(list(runs.values()), root, environment())
    return root, dict(zip(runs, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ours", *WITH_OWN])
def test_two_processes_give_the_weights_of_one(method, done):
    """Several steps with batch statistics, contrasts and momentum."""
    root, _ = done
    one, two = weights(root / f"{method} 1"), weights(root / f"{method} 2")
    assert {value.dtype for name, value in one.items() if "running" in name} == {torch.float64}
    assert difference(one, two) < 1e-10


@pytest.mark.slow
def test_the_step_of_two_processes_is_compiled_into_one_graph_and_gives_the_same_weights(done):
    root, found = done
    assert found["compiled"][0] == 0
    assert difference(weights(root / "compiled"), weights(root / "plain")) < 1e-3


@pytest.mark.slow
def test_streamed_pictures_of_two_processes_give_the_same_weights(done):
    root, _ = done
    assert same(weights(root / "streamed"), weights(root / "ours 2"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one then two", "two then one"])
def test_a_checkpoint_goes_on_with_another_number_of_processes(how, done):
    root, found = done
    assert "interrupted at step 6 of 12" in found["stopped alone"][1]
    assert "interrupted at step 10 of 12" in found["stopped together"][1]
    assert found[how][0] == 0
    assert difference(weights(root / how), weights(root / "undisturbed")) < 1e-10


@pytest.mark.slow
def test_a_batch_that_two_processes_cannot_share_is_refused(done):
    code, said = done[1]["odd"]
    assert code == 2
    assert "--batch is 7, the batch over all processes and must divide by 2" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("batch", [4, 6])
def test_two_processes_read_each_picture_once_an_epoch_and_only_their_own(batch, monkeypatch):
    monkeypatch.setattr(feed, "HOST", 1000)  # bytes, which the pictures exceed
    read = []
    for rank in (0, 1):
        images = ImageSet(Recorded(PIXELS), np.arange(12), np.arange(12) % 3, [str(at) for at in range(12)])
        session = run_of(images, batch, world_size=2, global_rank=rank)
        own = Feed(images, torch.device("cpu"))
        assert not own.resident
        batches = list(own.batches(session._orders(0, 12 // batch, 12 // batch)))
        assert {len(pixels) for pixels, _ in batches} == {batch // 2}
        read.append(sorted(images.pixels.read))
    assert sorted(read[0] + read[1]) == list(range(12))


def test_pictures_that_do_not_fit_are_streamed_and_are_the_same(monkeypatch):
    images = ImageSet(PIXELS, np.arange(11, -1, -1), np.arange(12) % 3, [str(at) for at in range(12)])
    orders = [np.array([3, 0, 7]), np.array([11, 2]), *(np.array([at]) for at in range(12))]
    resident = Feed(images, torch.device("cpu"))
    monkeypatch.setattr(feed, "HOST", 2 * PIXELS.nbytes)
    streamed = Feed(images, torch.device("cpu"))
    assert (resident.resident, streamed.resident) == (True, False)
    for one, other in zip(resident.batches(orders), streamed.batches(orders), strict=True):
        assert all(map(torch.equal, one, other))


PIXELS = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)


class Recorded(np.ndarray):
    """Pixels that know which of their rows were read."""

    def __new__(cls, pixels: np.ndarray) -> Recorded:
        own = pixels.view(cls)
        own.read = []
        return own

    def __getitem__(self, rows):
        self.read += np.atleast_1d(rows).tolist()
        return np.asarray(self)[rows]


def run_of(images: ImageSet, batch: int, **who: int) -> BaseRun:
    """A run of one among several processes, as far as it is about which pictures it reads."""
    data = SimpleNamespace(base=images)
    return BaseRun(data, "resnet20", Recipe(batch=batch), Path(), SimpleNamespace(**who))


def test_global_batch_norm_with_one_process_is_batch_norm():
    random = torch.Generator().manual_seed(0)
    plain, ours = nn.Sequential(nn.BatchNorm2d(5)), nn.Sequential(nn.BatchNorm2d(5))
    GlobalBatchNorm2d.convert(ours)
    assert type(ours[0]) is GlobalBatchNorm2d
    for training_mode in (True, True, False):
        x = torch.randn(4, 5, 3, 3, generator=random)
        assert torch.equal(ours.train(training_mode)(x), plain.train(training_mode)(x))
    assert same(ours.state_dict(), plain.state_dict())


def test_converting_leaves_other_kinds_of_batch_norm_alone():
    network = nn.Sequential(nn.BatchNorm1d(3), nn.SyncBatchNorm(3))
    GlobalBatchNorm2d.convert(network)
    assert [type(module) for module in network] == [nn.BatchNorm1d, nn.SyncBatchNorm]
