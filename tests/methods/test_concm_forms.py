"""ConCM as published and as released: samples, losses and what a bank must have, against slow references."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.engine import losses
from concm.evaluation.worlds import BASE, World
from concm.features.sessions import Session
from concm.methods import choose, concm_published, teach
from concm.methods.concm_published import ConCMPublished, moments, moments_by_pass
from concm.methods.concm_released import ConCMReleased, mutual_contrast

QUICK = "episodes=5,align_epochs=1,epochs=1,hidden=16,per_base=6,per_novel=4"


def taught(words: str, world: World, until: int = 1) -> ConCMPublished:
    form, _, more = words.partition(",")
    method = choose(f"{form},{QUICK},{more}").build(seed=0, device="cpu")
    for session in world.sessions[: until + 1]:
        teach(method, session)
    assert isinstance(method, ConCMPublished)
    return method


def with_views(world: World, views: int) -> World:
    """The same world with so many views of every image, none for 0."""

    def changed(session: Session) -> Session:
        random = torch.Generator().manual_seed(session.index)
        noise = 0.01 * torch.rand(len(session.labels), views, session.features.shape[1], generator=random)
        return replace(session, views=session.features[:, None] + noise if views else None)

    return replace(world, sessions=tuple(map(changed, world.sessions)))


def slow_contrast(vectors: Tensor, labels: list[int], temperature: float) -> float:
    """Every vector asks; its partners are all others of its label; those without one do not count."""
    found = []
    for i, label in enumerate(labels):
        others = [j for j in range(len(labels)) if j != i]
        partners = [j for j in others if labels[j] == label]
        if partners:
            total = sum(math.exp(float(vectors[i] @ vectors[j]) / temperature) for j in others)
            shares = [float(vectors[i] @ vectors[j]) / temperature - math.log(total) for j in partners]
            found.append(-sum(shares) / len(shares))
    return sum(found) / len(found)


def units(count: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(count, 5, generator=torch.Generator().manual_seed(seed)).double())


# losses


@pytest.mark.promise
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2], [0, 1, 2, 2, 2, 3], [4, 4]])
def test_in_the_released_contrast_all_ask_and_whoever_has_no_partner_does_not_count(labels):
    vectors = units(len(labels))
    found = mutual_contrast(vectors, torch.tensor(labels), 0.2)
    assert float(found) == pytest.approx(slow_contrast(vectors, labels, 0.2))


def test_where_nobody_has_a_partner_there_is_no_contrast():
    assert float(mutual_contrast(units(3), torch.tensor([0, 1, 2]), 0.2)) == 0


def entropies(vectors: Tensor, labels: Tensor, structure: Tensor) -> Tensor:
    return -(vectors @ structure.T).log_softmax(1).gather(1, labels[:, None]).flatten()


@pytest.mark.promise
@pytest.mark.parametrize(("sessions", "base_weight"), [(1, 0.05), (2, 0.5)], ids=["first half", "second half"])
def test_the_released_loss_is_two_means_with_weights_and_the_contrast_with_novel_anchors(sessions, base_weight):
    method = taught("concm:released", World.of(((5,), (5,))), until=sessions)
    vectors = F.normalize(torch.randn(8, method.width, generator=torch.Generator().manual_seed(1)))
    labels = torch.tensor([0, 0, 1, 2, 3, BASE, BASE, 5])
    anchors = torch.arange(BASE, BASE + sessions)
    entropy, novel = entropies(vectors, labels, method.structure), labels >= BASE
    queries = torch.cat([vectors, method.structure[anchors]])
    contrast = slow_contrast(queries, [*labels.tolist(), *anchors.tolist()], 0.07)
    expected = 2 * entropy[novel].mean() + base_weight * entropy[~novel].mean() + contrast
    assert float(method.loss(vectors, labels, anchors)) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.promise
def test_the_published_loss_is_one_mean_and_the_contrast_in_which_anchors_do_not_ask():
    method = taught("concm:published", World.of(((5,),)))
    vectors = F.normalize(torch.randn(8, method.width, generator=torch.Generator().manual_seed(1)))
    labels, anchors = torch.tensor([0, 0, 1, 2, 3, BASE, BASE, 5]), torch.tensor([BASE])
    entropy = entropies(vectors, labels, method.structure).mean()
    contrast = losses.anchored_contrast(vectors, labels, method.structure, anchors, 0.07)
    assert float(method.loss(vectors, labels, anchors)) == pytest.approx(float(entropy + contrast), rel=1e-5)


def test_in_the_base_session_the_released_loss_is_plain_cross_entropy_with_all_anchors():
    method = taught("concm:released", World.of(((5,),)), until=0)
    vectors = F.normalize(torch.randn(4, method.width, generator=torch.Generator().manual_seed(1)))
    labels, anchors = torch.tensor([0, 1, 2, 2]), torch.arange(BASE)
    contrast = slow_contrast(torch.cat([vectors, method.structure]), [0, 1, 2, 2, *range(BASE)], 0.07)
    expected = float(entropies(vectors, labels, method.structure).mean()) + contrast
    assert float(method.loss(vectors, labels, anchors)) == pytest.approx(expected, rel=1e-4)


# epochs


def test_a_bank_that_holds_a_part_of_the_base_images_makes_epochs_no_shorter(monkeypatch):
    steps = []
    monkeypatch.setattr(
        concm_published, "descend", lambda parameters, loss, rates, *how, **more: steps.append(len(rates))
    )
    world = World.of(((5,),))
    base = world.sessions[0]
    taught("concm:published", world, until=0)
    taught("concm:published", replace(world, sessions=(replace(base, counts=3 * base.counts),)), until=0)
    (episodes, once), (again, thrice) = steps[:2], steps[2:]
    assert (episodes, thrice) == (again, 3 * once)


# samples


def test_statistics_are_those_of_each_pass_averaged():
    random = torch.Generator().manual_seed(0)
    views, labels = torch.randn(7, 3, 4, generator=random), torch.tensor([0, 1, 0, 1, 1, 0, 2])
    mean, std = moments_by_pass(views, labels, 3)
    for label in range(3):
        own = views[labels == label]
        by_pass = [own[:, at] for at in range(3)]
        torch.testing.assert_close(mean[label], torch.stack([each.mean(0) for each in by_pass]).mean(0))
        expected = torch.stack([each.std(0, correction=0) for each in by_pass]).mean(0)
        torch.testing.assert_close(std[label], expected)


def test_base_statistics_are_those_of_all_views_where_the_bank_has_them():
    world = with_views(World.of(((5,),)), 3)
    method = taught("concm:released", world, until=0)
    mean, std = moments(world.base.views, world.base.labels, BASE)
    torch.testing.assert_close(method.mean, mean)
    torch.testing.assert_close(method.std, std)
    plain = taught("concm:released", with_views(world, 0), until=0)
    assert torch.equal(plain.mean, world.base.mean)


@pytest.mark.parametrize(("words", "first"), [("concm:published", 4), ("concm:released", 6)])
def test_an_epoch_has_ten_views_of_every_shot_and_gaussian_samples_of_every_class(words, first):
    method = taught(words, with_views(World.of(((5, 5),)), 12))
    features, labels = method._samples()
    counts = torch.bincount(labels).tolist()
    assert counts == [6] * BASE + [10 * 5 + first, 10 * 5 + 4]
    assert len(features) == len(labels)
    again, _ = method._samples()
    views = torch.arange(len(labels)) < 10 * 10
    assert not torch.equal(features[views], again[views])  # other views, since the bank has more than ten


def test_with_ten_views_or_fewer_all_of_them_are_in_every_epoch():
    method = taught("concm:released", with_views(World.of(((5,),)), 3))
    one, other = (method._samples()[0][: 3 * 5] for _ in range(2))
    torch.testing.assert_close(one.sort(0).values, other.sort(0).values)


def test_what_the_bank_lacks_is_said():
    world = World.of(((5,),))
    assert taught("concm:released", with_views(world, 10)).remarks == []
    assert taught("concm:released", with_views(world, 3)).remarks == [
        "this bank has 3 views of a shot where 10 are asked for"
    ]
    assert taught("concm:released", with_views(world, 0)).remarks == [
        "this bank has no views of base images, so they are seen as they are",
        "this bank has no views of a shot where 10 are asked for",
    ]


def test_spreads_are_borrowed_only_with_calibration():
    world = with_views(World.of(((5,),)), 10)
    settings = {words: choose(f"concm:published,{words}") for words in ("calibrate=true", "calibrate=false")}
    assert ["class names" in choice.needs for choice in settings.values()] == [True, False]
    method = taught("concm:published,calibrate=false,per_novel=4000", world)
    features, labels = method._samples()
    gaussian = features[-4000:]
    mean, std = moments_by_pass(method.images, method.labels - BASE, 1)
    assert set(labels[-4000:].tolist()) == {BASE}
    torch.testing.assert_close(gaussian.std(0), std[0], rtol=0.1, atol=1e-4)
    torch.testing.assert_close(gaussian.mean(0), mean[0], rtol=0.1, atol=1e-2)


# settings and structure


def test_the_settings_are_those_of_paper_and_code():
    paper, code = choose("concm:published").settings, choose("concm:released").settings
    assert (paper.alpha, paper.beta, paper.gamma, paper.temperature) == (0.6, 0.6, 16.0, 0.07)
    assert (paper.passes, paper.per_base, paper.per_novel, paper.batch) == (10, 100, 50, 32)
    assert (paper.epochs, paper.lr, paper.align_epochs, paper.align_lr) == (20, 2e-2, 100, 1e-2)
    assert (paper.episodes, paper.episode_lr, paper.shots) == (10_000, 1.0, 5)
    assert (code.novel_weight, code.base_weight, code.late_base_weight) == (2.0, 0.05, 0.5)
    assert (ConCMPublished.aggregation.own_logit, ConCMReleased.aggregation.own_logit) == (None, 1.0)
    assert not ConCMReleased.aggregation.biased
    assert choose("concm:released,cub200").settings.lr == 1e-3
    assert choose("concm:published,cub200").settings.lr == 5e-3


def test_more_classes_than_the_structure_has_room_for_widen_it():
    method = taught("concm:released,width=8", World.of(((5, 5), (5, 5))), until=2)
    count = BASE + 4
    expected = (count * torch.eye(count) - 1) / (count - 1)
    torch.testing.assert_close(method.structure @ method.structure.T, expected, rtol=0, atol=1e-5)
    assert method.width > 8
