"""FACT: its losses against loops, its mixing coefficients against closed forms, and limits in which it is simpler."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from concm.data import augment
from concm.errors import Misuse
from concm.evaluation.protocol import BIASES
from concm.evaluation.worlds import BASE, DIMENSION, SIDE, TRANSFORM, Small, World, trained
from concm.methods import TOTAL, choose, fact
from concm.methods.fact import LEARNED, beta_quantiles, interpolated, new_image, second_choice, tied
from concm.metrics import trade_off
from concm.training.objective import Stage

torch.set_num_threads(1)  # bit for bit only holds for one number of threads


def objective(words: str = "fact", *, classes: int = BASE, total: int = 10, dimension: int = DIMENSION):
    """The base session of a method as a user writes it, with a small untrained network."""
    choice = choose(words)
    torch.manual_seed(0)
    return choice.entry.objective(Stage(Small(), dimension, classes, total, TRANSFORM), choice.settings)


def batch(count: int = 12, classes: int = BASE, seed: int = 0):
    random = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, SIDE, SIDE, 3), generator=random, dtype=torch.uint8)
    labels = torch.randint(0, classes, (count,), generator=random)
    return pixels, labels, torch.rand(count, 1, augment.RANDOMS, generator=random)


def after(words: str, world: World):
    method = choose(words).build(seed=0, device="cpu")
    base, *later = world.sessions
    method.fit_base(base)
    for session in later:
        method.learn(session)
    return method


@pytest.fixture(scope="module")
def world() -> World:
    return World.of(choice=choose("fact"))


def entropy(row, target: int, left_out: int | None = None) -> float:
    """−log softmax of a list of scores, without one of them."""
    total = sum(math.exp(value) for at, value in enumerate(row) if at != left_out)
    return math.log(total) - row[target]


def largest(row, among) -> int:
    return max(among, key=lambda at: row[at])


# the losses


@pytest.mark.parametrize(("count", "classes", "virtual"), [(1, 2, 1), (7, 3, 5), (20, 6, 4)])
def test_both_losses_are_what_loops_over_images_give(count, classes, virtual):
    random = torch.Generator().manual_seed(count)
    scores = 4 * torch.randn(count, classes + virtual, generator=random, dtype=torch.float64)
    labels = torch.randint(0, classes, (count,), generator=random)
    allowed = torch.rand(classes, virtual, generator=random) < 0.5
    allowed[:, 0] = True
    seconds, news = [], []
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        free = [classes + at for at in range(virtual) if allowed[label, at]]
        seconds.append(entropy(row, largest(row, free), left_out=label))
        first = largest(row, range(classes, classes + virtual))
        known = largest(row, range(classes))
        news.append(entropy(row, first) + entropy(row, known, left_out=first))
    assert float(second_choice(scores, labels, allowed)) == pytest.approx(sum(seconds) / count)
    assert new_image(scores, classes).tolist() == pytest.approx(news)


def test_a_step_is_what_a_loop_over_pictures_and_their_partners_gives():
    model = objective("fact:gamma=0.3,alpha=2").eval()
    pixels, labels, random = batch()
    found = model(pixels, labels, random, 0)
    settings, numbers = model.settings, random[:, 0]
    views = augment.strong(pixels, numbers, SIDE, settings.scale_min, settings.jitter, settings.grey)
    maps = model.backbone.front(model.transform.normalise(views))
    rows = torch.cat([F.normalize(model.head.weight), model.virtual])
    scores_of = lambda maps: 16 * F.normalize(model.backbone.back(maps[None]).mean((2, 3))) @ rows.T  # noqa: E731
    partner = sorted(range(len(labels)), key=lambda at: float(numbers[at, -1]))
    plain, second, new = [], [], []
    for at, label in enumerate(labels.tolist()):
        scores = scores_of(maps[at])
        plain.append(F.cross_entropy(scores[:, :BASE], labels[at : at + 1]))
        second.append(second_choice(scores, labels[at : at + 1], model.allowed))
        if int(labels[partner[at]]) != label:
            share = interpolated(model.quantiles, numbers[at, -2])
            new.append(new_image(scores_of(share * maps[at] + (1 - share) * maps[partner[at]]), BASE)[0])
    assert 0 < len(new) < len(labels)
    wanted = {
        name: torch.stack(v).mean() for name, v in {"cross_entropy": plain, "reserved": second, "forecast": new}.items()
    }
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4)
    loss = wanted["cross_entropy"] + 0.3 * (wanted["reserved"] + wanted["forecast"])
    torch.testing.assert_close(found["loss"], loss, rtol=1e-4, atol=1e-4)


def test_a_batch_of_one_class_forecasts_nothing_and_has_finite_gradients():
    model = objective("fact:gamma=1")
    pixels, labels, random = batch()
    losses = model(pixels, torch.zeros_like(labels), random, 0)
    assert float(losses["forecast"].detach()) == 0
    losses["loss"].backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters())


def test_without_gamma_it_is_a_cosine_classifier_of_the_base_classes():
    model = objective("fact:gamma=0").eval()
    pixels, labels, random = batch()
    losses = model(pixels, labels, random, 0)
    settings = model.settings
    views = augment.strong(pixels, random[:, 0], SIDE, settings.scale_min, settings.jitter, settings.grey)
    scores = model.classify(model.backbone(model.transform.normalise(views)))
    assert scores.shape == (len(labels), BASE)
    torch.testing.assert_close(losses["loss"], F.cross_entropy(scores, labels))


def test_two_halves_of_a_batch_on_two_processes_have_the_loss_of_the_whole(monkeypatch):
    model = objective("fact:gamma=1").eval()
    pixels, labels, random = batch()
    labels[:5] = 0  # so that the halves differ in how many pairs count
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(fact, "gather", lambda value: seen.append(value) or value)
    whole = model(pixels, labels, random, 0)
    halves, counts = [], []
    for part in (slice(0, 6), slice(6, 12)):
        everything = iter(seen)

        def gathered(value, everything=everything, part=part):
            known = next(everything)
            torch.testing.assert_close(known[part], value)
            return known

        monkeypatch.setattr(fact, "gather", gathered)
        halves.append(model(pixels[part], labels[part], random[part], part.start))
        counts.append(float(seen[-1][part].sum()))
    assert counts[0] != counts[1]
    for name, value in whole.items():
        torch.testing.assert_close((halves[0][name] + halves[1][name]) / 2, value)


def test_a_step_depends_on_its_inputs_alone():
    model = objective().eval()
    torch.manual_seed(1)
    one = model(*batch(), 0)["loss"]
    before = torch.get_rng_state()
    assert torch.equal(one, model(*batch(), 0)["loss"])
    assert torch.equal(before, torch.get_rng_state())
    pixels, labels, random = batch()
    assert not torch.equal(one, model(pixels, labels, random.flip(0), 0)["loss"])


def test_in_half_precision_the_losses_are_whole_and_near():
    model = objective("fact:gamma=1").eval()
    exact = model(*batch(), 0)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(*batch(), 0)
    assert {value.dtype for value in found.values()} == {torch.float32}
    torch.testing.assert_close(found["cross_entropy"], exact["cross_entropy"], rtol=0.05, atol=0.05)


def test_with_much_gamma_virtual_prototypes_are_nearer_to_base_images_than_other_classes_are():
    shares = []
    for gamma in (0, 1):
        model = trained(choose(f"fact:gamma={gamma}"), 10)
        base = World.of(choice=choose(f"fact:gamma={gamma}")).sessions[0]
        scores = model._scores(base.features).scatter(1, base.labels[:, None], -torch.inf)
        shares.append(float((scores.argmax(1) >= BASE).double().mean()))
    assert shares[0] < 0.5
    assert shares[1] > 0.9


# virtual prototypes


def test_virtual_prototypes_are_as_many_as_classes_to_come_or_as_set():
    assert len(objective(total=10).virtual) == 10 - BASE
    assert len(objective("fact:virtual=9", total=BASE).virtual) == 9
    with pytest.raises(Misuse, match="set virtual=N"):
        objective(total=BASE)


def test_virtual_prototypes_are_orthogonal_and_where_there_is_no_room_as_wide_as_can_be():
    fitting, crowded = (objective(f"fact:virtual={count}").virtual for count in (DIMENSION, 3 * DIMENSION))
    torch.testing.assert_close(fitting @ fitting.T, torch.eye(DIMENSION), atol=1e-5, rtol=0)
    torch.testing.assert_close(crowded.norm(dim=1), torch.ones(3 * DIMENSION))
    cosines = crowded @ crowded.T - torch.eye(3 * DIMENSION)
    # A tight frame has the least mean square; independent directions have 1 ∕ dimension between any two.
    assert float(cosines.square().sum()) < 0.8 * len(crowded) * (len(crowded) - 1) / DIMENSION


def test_virtual_prototypes_stay_where_they_are_and_all_else_is_trained():
    model = objective("fact:gamma=1")
    before = model.virtual.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(*batch(), 0)["loss"].backward()
    optimizer.step()
    assert torch.equal(model.learned()[LEARNED], before)
    assert all(float(weight.grad.abs().sum()) > 0 for name, weight in model.named_parameters() if "bias" not in name)


@pytest.mark.parametrize(("virtual", "classes", "ties"), [(40, 60, 3), (4, 6, 3), (2, 2, 3)])
def test_a_virtual_prototype_is_tied_to_a_few_classes_and_no_class_is_without(virtual, classes, ties):
    torch.manual_seed(0)
    allowed = tied(virtual, classes, ties)
    assert allowed.shape == (classes, virtual)
    assert bool(allowed.any(1).all())
    bound = allowed[~allowed.all(1)] if classes > ties else allowed
    assert int(bound.sum()) == virtual * min(ties, classes)


def test_a_network_that_shows_nothing_of_its_inside_is_refused():
    choice = choose("fact")
    stage = Stage(nn.Flatten(), 3 * SIDE * SIDE, BASE, 10, TRANSFORM)
    with pytest.raises(Misuse, match="does not show its maps"):
        choice.entry.objective(stage, choice.settings)


# mixing coefficients

PLACES = torch.linspace(0, 1, 4001, dtype=torch.float64)


@pytest.mark.parametrize(
    ("alpha", "inverse"),
    [
        (0.5, lambda u: torch.sin(math.pi / 2 * u) ** 2),
        (1.0, lambda u: u),
        (2.0, lambda u: 0.5 - torch.sin(torch.asin(1 - 2 * u) / 3)),
    ],
)
def test_mixing_coefficients_follow_the_inverse_distribution_where_it_is_known(alpha, inverse):
    inner = (PLACES > 0.002) & (PLACES < 0.998)
    found = interpolated(beta_quantiles(alpha).double(), PLACES)
    torch.testing.assert_close(found[inner], inverse(PLACES)[inner], atol=1e-3 if alpha > 1 else 1e-5, rtol=0)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.5, 1.0, 2.0, 20.0])
def test_mixing_coefficients_have_the_variance_of_a_beta_distribution_and_its_symmetry(alpha):
    table = beta_quantiles(alpha).double()
    assert 0 <= float(table[0]) < 0.1
    assert bool((table.diff() >= 0).all())
    torch.testing.assert_close(table + table.flip(0), torch.ones_like(table), atol=1e-6, rtol=0)
    coefficients = interpolated(table, torch.rand(200_000, generator=torch.Generator().manual_seed(0)).double())
    assert float(coefficients.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)


# at test time


def test_scores_are_the_logarithm_of_the_mixture_that_loops_give(world):
    method = after("fact:nearest=3,eta=0.3", world)
    virtual, prototypes = method.virtual.double(), F.normalize(method.prototypes.double())
    images = world.test[::7]
    for row, feature in zip(method.scores(images).double(), F.normalize(images.double()), strict=True):
        cosines = [float(feature @ prototype) for prototype in virtual]
        three = sorted(range(len(virtual)), key=lambda at: -cosines[at])[:3]
        through = [sum(cosines[at] * float(virtual[at] @ prototype) for at in three) for prototype in prototypes]
        directly = [16 * float(feature @ prototype) for prototype in prototypes]
        classes = range(len(prototypes))
        wanted = [0.7 * math.exp(-entropy(directly, at)) + 0.3 * math.exp(-entropy(through, at)) for at in classes]
        torch.testing.assert_close((16 * row).exp(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-4, atol=1e-6)
        assert sum(wanted) == pytest.approx(1)


def test_without_eta_scores_and_trade_off_are_those_of_nearest_class_mean(world):
    found, ncm = after("fact:eta=0", world).scores(world.test), after("ncm", world).scores(world.test)
    torch.testing.assert_close((found - ncm) - (found - ncm)[:, :1], torch.zeros_like(ncm), atol=1e-5, rtol=0)
    for one, other in zip(*(trade_off(scores, world.labels, BASE, BIASES) for scores in (found, ncm)), strict=True):
        assert np.abs(one - other).max() <= 100 / (10 * BASE)  # a margin may lie on a bias
    assert not torch.allclose(after("fact", world).scores(world.test), found, atol=1e-3)


@pytest.mark.parametrize("eta", [0, 0.1, 1])
def test_scores_are_finite_however_sure_it_is(world, eta):
    method = after(f"fact:eta={eta},scale=1000", world)
    prototypes = method.prototypes
    images = torch.cat([prototypes, -prototypes, 1e4 * prototypes, torch.zeros_like(prototypes)])
    assert bool(method.scores(images).isfinite().all())


def test_more_nearest_than_virtual_prototypes_are_all_of_them(world):
    count = len(after("fact", world).virtual)
    one, other = (after(f"fact:nearest={nearest}", world).scores(world.test) for nearest in (count, 1000))
    assert torch.equal(one, other)


def test_a_backbone_of_another_base_session_is_refused(world):
    base = replace(world.sessions[0], learned={})
    with pytest.raises(Misuse, match="this backbone has none: train it with `concm train --method fact`"):
        choose("fact").build(seed=0, device="cpu").fit_base(base)
    with pytest.raises(Misuse, match="virtual=7, and the backbone was trained with 4"):
        choose("fact:virtual=7").build(seed=0, device="cpu").fit_base(world.sessions[0])


# settings


def test_the_number_of_classes_to_come_is_needed_unless_virtual_prototypes_are_counted_otherwise():
    assert choose("fact").needs == (TOTAL,)
    assert choose("fact:virtual=40").needs == ()


@pytest.mark.parametrize(
    "words", ["virtual=0", "ties=0", "nearest=0", "scale=0", "alpha=0", "gamma=-1", "eta=1.1", "scale_min=0"]
)
def test_a_setting_that_makes_no_sense_is_refused(words):
    with pytest.raises(Misuse, match=words.partition("=")[0]):
        choose(f"fact:{words}")


def test_presets_are_those_published():
    assert (choose("fact:mini_imagenet").settings.gamma, choose("fact:cub200").settings.alpha) == (0.01, 2.0)
