"""WaRP: bases of layers, what is frozen in them, and sessions that change nothing of it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F

from concm.evaluation.worlds import BASE, World
from concm.methods import choose
from concm.methods.warp import _patches, freed

torch.set_num_threads(1)


@cache
def world():
    return World.of(choice=choose("warp"))


def learned(words="warp", sessions=None):
    method = choose(words).build(seed=0, device="cpu")
    first, *later = world().sessions[:sessions]
    method.fit_base(first)
    for session in later:
        method.learn(session)
    return method


def coefficients(method):
    return [(weight.detach().flatten(1) @ basis.T, frozen.clone()) for weight, basis, frozen in method._parts()]


def test_a_kernel_is_a_matrix_on_what_it_sees():
    layer = torch.nn.Conv2d(3, 5, 3, 2, 1, bias=False)
    maps = torch.rand(2, 3, 8, 8)
    slow = (_patches(layer, maps) @ layer.weight.flatten(1).T).view(2, 4, 4, 5).permute(0, 3, 1, 2)
    torch.testing.assert_close(layer(maps), slow)


def test_bases_are_orthonormal_and_begin_with_the_strongest_direction():
    method = learned(sessions=1)
    assert method.layers == ["last.0"]
    ((_, basis, _),) = method._parts()
    torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis)), atol=1e-5, rtol=0)
    network, base = method.network, world().base
    seen = _patches(network.last[0], network.front(method.how.centre(base.pictures))) @ basis.T
    strength = seen.square().mean(0)
    assert (strength.diff() <= 1e-4 * strength[0]).all()


def test_a_share_is_frozen_and_grows_with_every_session():
    shares = [float(learned("warp:share=0.2,steps=2", count).frozen.float().mean()) for count in (1, 2, 3)]
    assert shares[0] == pytest.approx(0.2, abs=1e-3)
    assert shares[0] < shares[1] < shares[2]


def test_a_session_changes_free_coefficients_and_no_frozen_one():
    before, after = (coefficients(learned("warp:lr=0.1", count)) for count in (1, 2))
    for (old, frozen), (new, _) in zip(before, after, strict=True):
        torch.testing.assert_close(new[frozen], old[frozen], atol=1e-5, rtol=0)
        assert float((new - old)[~frozen].abs().max()) > 1e-4


def test_where_all_is_frozen_it_is_nearest_class_mean():
    method = learned("warp:share=1")
    start = world().base.backbone.backbone
    assert all(torch.equal(one, two) for one, two in zip(method.network.parameters(), start.parameters(), strict=True))
    means = [method.features(session.pictures) for session in world().sessions[1:]]
    torch.testing.assert_close(method.rows[BASE], means[0][:5].mean(0))
    units = F.normalize(method.features(world().test))
    torch.testing.assert_close(method.scores(world().test), units @ F.normalize(method.rows).T)


def test_a_gradient_that_is_freed_twice_is_as_it_was():
    random = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(18, 18, generator=random))[0]
    gradient, frozen = torch.randn(4, 2, 3, 3, generator=random), torch.rand(4, 18, generator=random) < 0.5
    once = freed(gradient, basis, frozen)
    torch.testing.assert_close(freed(once, basis, frozen), once)
    torch.testing.assert_close((once.flatten(1) @ basis.T)[frozen], torch.zeros(int(frozen.sum())), atol=1e-5, rtol=0)
    torch.testing.assert_close(freed(gradient, basis, torch.zeros_like(frozen)), gradient)
