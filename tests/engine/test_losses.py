"""Contrastive losses against slow loops, and how the base session's objective puts its losses together."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from concm.data.augment import RANDOMS
from concm.data.scenarios import of_folder
from concm.engine.losses import anchored_contrast, matching, supervised_contrast
from concm.training.objective import Stage, TwoViews
from concm.training.recipe import Recipe


def vectors(count: int, dimension: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dimension, generator=random, dtype=torch.float64))


def slow_contrast(anchors, labels, others, other_labels, own, temperature) -> float:
    """Equation 2 of Khosla et al., as loops."""
    total = 0.0
    for i, anchor in enumerate(anchors):
        rest = [a for a in range(len(others)) if a != int(own[i])]
        denominator = sum(math.exp(float(anchor @ others[a]) / temperature) for a in rest)
        positives = [p for p in rest if int(other_labels[p]) == int(labels[i])]
        for p in positives:
            share = math.exp(float(anchor @ others[p]) / temperature) / denominator
            total -= math.log(share) / len(positives)
    return total / len(anchors)


LABELS = {
    "two classes": [0, 1, 0, 1, 0, 1],
    "one class": [3, 3, 3, 3, 3, 3],
    "uneven": [0, 0, 0, 0, 1, 2],
    "all different": [0, 1, 2, 3, 4, 5],
}


@pytest.mark.promise
@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
@pytest.mark.parametrize("dimension", [2, 9])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_it_is_the_published_loss(labels, dimension, temperature):
    x, y, own = vectors(6, dimension), torch.tensor(labels), torch.arange(6)
    found = supervised_contrast(x, y, x, y, own, temperature)
    assert float(found) == pytest.approx(slow_contrast(x, y, x, y, own, temperature), rel=1e-9)


@pytest.mark.parametrize(("first", "count"), [(0, 3), (2, 4), (5, 1)])
def test_a_share_of_the_anchors_is_contrasted_with_everybody(first, count):
    x, y = vectors(6, 4), torch.tensor([0, 1, 0, 2, 1, 0])
    own = torch.arange(first, first + count)
    found = supervised_contrast(x[own], y[own], x, y, own, 0.3)
    assert float(found) == pytest.approx(slow_contrast(x[own], y[own], x, y, own, 0.3), rel=1e-9)


def test_the_mean_over_shares_is_the_whole_loss():
    x, y = vectors(6, 4), torch.tensor([0, 1, 0, 2, 1, 0])
    halves = [supervised_contrast(x[at], y[at], x, y, at, 0.3) for at in torch.arange(6).chunk(2)]
    torch.testing.assert_close(sum(halves) / 2, supervised_contrast(x, y, x, y, torch.arange(6), 0.3))


def test_anchors_without_positives_contribute_nothing():
    x, y, own = vectors(5, 4), torch.tensor([0, 0, 1, 2, 3]), torch.arange(5)
    pair = supervised_contrast(x[:2], y[:2], x, y, own[:2], 0.3)
    torch.testing.assert_close(supervised_contrast(x, y, x, y, own, 0.3), pair * 2 / 5)


def test_gradients_are_right_and_finite_without_positives():
    x = vectors(5, 3).requires_grad_()
    own = torch.arange(5)
    for labels in ([0, 1, 0, 1, 1], [0, 1, 2, 3, 4]):
        y = torch.tensor(labels)
        assert torch.autograd.gradcheck(lambda x, y=y: supervised_contrast(x, y, x, y, own, 0.5), (x,))


def test_very_small_temperatures_stay_finite():
    x, y = vectors(6, 4).float().requires_grad_(), torch.tensor([0, 1, 0, 1, 0, 1])
    loss = supervised_contrast(x, y, x, y, torch.arange(6), 1e-3)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def slow_nt_xent(x, pictures: int, temperature: float) -> float:
    """SimCLR's equation 1: views k and k + pictures belong together."""
    total = 0.0
    for i in range(2 * pictures):
        j = (i + pictures) % (2 * pictures)
        denominator = sum(math.exp(float(x[i] @ x[k]) / temperature) for k in range(2 * pictures) if k != i)
        total -= math.log(math.exp(float(x[i] @ x[j]) / temperature) / denominator)
    return total / (2 * pictures)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("pictures", [1, 2, 5])
def test_with_a_label_per_picture_it_is_simclr(pictures, temperature):
    x, labels, own = vectors(2 * pictures, 4), torch.arange(pictures).repeat(2), torch.arange(2 * pictures)
    found = supervised_contrast(x, labels, x, labels, own, temperature)
    assert float(found) == pytest.approx(slow_nt_xent(x, pictures, temperature), rel=1e-9, abs=1e-12)


# the objective


def objective(**recipe) -> TwoViews:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    transform = of_folder("abc", base=3, way=1, shot=1, size=16).transform
    return TwoViews(Stage(backbone, 12, 3, 3, transform), Recipe(**recipe))


def batch(count: int = 6):
    random = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (count, 16, 16, 3), generator=random, dtype=torch.uint8)
    return pixels, torch.arange(count) % 3, torch.rand(count, 2, RANDOMS, generator=random)


def test_without_contrast_cross_entropy_is_left_alone():
    losses = objective(contrast=0)(*batch(), 0)
    assert losses.keys() == {"cross_entropy", "loss"}
    assert torch.equal(losses["loss"], losses["cross_entropy"])


def test_cross_entropy_is_over_both_views():
    model, (pixels, labels, random) = objective(contrast=0, smoothing=0.2), batch()
    images, turned = model.views(pixels, labels, random)
    expected = F.cross_entropy(model.head(model.backbone(images)), torch.cat([turned, turned]), label_smoothing=0.2)
    torch.testing.assert_close(model(pixels, labels, random, 0)["loss"], expected)


@pytest.mark.parametrize(("contrast", "share"), [(0.5, 0.2), (2.0, 0.0), (1.0, 1.0)])
def test_the_losses_are_weighed_as_documented(contrast, share):
    losses = objective(contrast=contrast, self_share=share)(*batch(), 0)
    both = (1 - share) * losses["supervised"] + share * losses["simclr"]
    torch.testing.assert_close(losses["loss"], losses["cross_entropy"] + contrast * both)


def test_its_contrasts_are_the_slow_ones():
    model, (pixels, labels, random) = objective(), batch()
    images, turned = model.views(pixels, labels, random)
    x = F.normalize(model.projection(model.backbone(images))).detach().double()
    own, labels_of_views = torch.arange(12), turned.repeat(2)
    losses = {name: loss.detach() for name, loss in model(pixels, labels, random, 0).items()}
    expected = slow_contrast(x, labels_of_views, x, labels_of_views, own, 0.1)
    assert float(losses["supervised"]) == pytest.approx(expected, rel=1e-4)
    assert float(losses["simclr"]) == pytest.approx(slow_nt_xent(x, 6, 0.1), rel=1e-4)


def test_turns_make_four_times_the_classes():
    assert objective(turned=0.5).head.linear.out_features == 12
    assert objective(turned=0).head.linear.out_features == 3


def test_a_cosine_head_ignores_lengths():
    head = objective(head="cosine").head
    features = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head(features), head(7 * features))
    assert head(features).abs().max() <= 16


@pytest.mark.promise
@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_matching_is_the_share_of_the_own_structure_vector(scale):
    x, structure, labels = vectors(6, 4), vectors(3, 4, seed=1), [0, 1, 2, 0, 0, 1]
    total = 0.0
    for i, label in enumerate(labels):
        shares = [math.exp(scale * float(x[i] @ vector)) for vector in structure]
        total -= math.log(shares[label] / sum(shares))
    found = matching(x, torch.tensor(labels), structure, scale=scale)
    assert float(found) == pytest.approx(total / len(labels))


@pytest.mark.parametrize("anchors", [[], [2], [0, 1, 2]])
def test_structure_vectors_are_positives_of_their_class_and_negatives_of_the_others(anchors):
    x, structure, y = vectors(6, 4), vectors(3, 4, seed=1), torch.tensor([0, 1, 2, 0, 0, 1])
    chosen = torch.tensor(anchors, dtype=torch.long)
    others, other_labels = torch.cat([x, structure[chosen]]), torch.cat([y, chosen])
    expected = slow_contrast(x, y, others, other_labels, torch.arange(6), 0.2)
    assert float(anchored_contrast(x, y, structure, chosen, 0.2)) == pytest.approx(expected)


def test_an_anchor_pulls_even_a_class_of_one_sample():
    x = vectors(3, 4).requires_grad_()
    y, structure = torch.tensor([0, 1, 2]), vectors(3, 4, seed=1)
    anchored_contrast(x, y, structure, torch.tensor([2]), 0.2).backward()
    assert x.grad[2] @ structure[2] < 0
