"""SAVC and FACL: the contrast with a queue against loops, what a step does to it, crops, turns, and simpler cases."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from concm.backbones.encoder import Reading
from concm.data.augment import RANDOMS
from concm.errors import Misuse
from concm.evaluation.worlds import BASE, DIMENSION, SIDE, TRANSFORM, Small, World
from concm.methods import choose, facl
from concm.methods.facl import Proxies, partners
from concm.methods.savc import KEYS, Fantasies, SAVCSettings, contrast
from concm.training.objective import Stage

torch.set_num_threads(1)  # bit for bit only holds for one number of threads


def objective(kind: type[Fantasies] = Fantasies, **settings) -> Fantasies:
    torch.manual_seed(0)
    given = {"queue": 40, "width": 8, "crops": 2} | settings
    return kind(Stage(Small(), DIMENSION, BASE, BASE + 4, TRANSFORM), SAVCSettings(**given)).train()


def batch(count: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, SIDE, SIDE, 3), generator=random, dtype=torch.uint8)
    return pixels, torch.arange(count) % BASE, torch.rand(count, Fantasies.draws, RANDOMS, generator=random)


def units(*shape: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=random, dtype=torch.float64), dim=-1)


# The contrast


@pytest.mark.parametrize("temperature", [0.07, 1.0])
@pytest.mark.parametrize(("count", "length"), [(1, 1), (5, 9), (7, 30)])
def test_the_contrast_is_the_published_one_over_filled_places(count, length, temperature):
    queries, own, queue = units(count, 6), units(count, 6, seed=1), units(length, 6, seed=2)
    labels, owners = torch.arange(count) % 3, torch.arange(length) % 5 - 1
    total = 0.0
    for query, key, label in zip(queries, own, labels, strict=True):
        filled = [(vector, owner) for vector, owner in zip(queue, owners, strict=True) if owner >= 0]
        negative = sum(math.exp(float(query @ vector) / temperature) for vector, owner in filled if owner != label)
        positive = [float(query @ vector) / temperature for vector, owner in filled if owner == label]
        positive.append(float(query @ key) / temperature)
        total += sum(math.log(1 + negative * math.exp(-score)) for score in positive) / len(positive)
    assert float(contrast(queries, own, labels, queue, owners, temperature)) == pytest.approx(total / count)


def test_the_contrast_of_several_crops_is_the_mean_of_each_crop_s():
    queries, own, queue = units(4, 3, 2, 6), units(4, 2, 6, seed=1), units(20, 6, seed=2)
    labels, owners = torch.arange(8).view(4, 2) % 3, torch.arange(20) % 4
    together = contrast(queries, own[:, None], labels[:, None], queue, owners, 0.1)
    apart = [contrast(crop, own, labels, queue, owners, 0.1) for crop in queries.unbind(1)]
    torch.testing.assert_close(together, torch.stack(apart).mean())


def test_a_cold_contrast_does_not_overflow():
    found = contrast(
        units(4, 6).float(), -units(4, 6).float(), torch.arange(4), units(9, 6).float(), torch.ones(9), 1e-3
    )
    assert 900 < float(found) < 3000


def test_an_empty_queue_asks_for_nothing():
    queries = units(3, 6).requires_grad_()
    loss = contrast(
        queries, units(3, 6, seed=1), torch.arange(3), torch.zeros(5, 6).double(), torch.full((5,), -1), 0.1
    )
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.equal(queries.grad, torch.zeros_like(queries))


# A step


def test_the_loss_is_recognition_and_both_contrasts_by_their_weights():
    model = objective(global_weight=0.3, local_weight=0.6)
    model(*batch(), 0)
    found = model(*batch(seed=1), 0)
    assert all(bool(found[name] > 0) for name in ("cross_entropy", "global", "local"))
    expected = found["cross_entropy"] + 0.3 * found["global"] + 0.6 * found["local"]
    torch.testing.assert_close(found["loss"], expected)


def test_each_class_in_each_turn_is_a_class_to_recognise():
    model, (pixels, labels, random) = objective(fantasies=4), batch()
    shown, twin = model.views(pixels, random)[0][:, 0], deepcopy(model)
    images = [torch.rot90(picture, turn, (1, 2)) for picture in shown for turn in (0, 1, 2, 3)]
    features = twin.backbone(model.ready(torch.stack(images)))
    classes = [int(label) + BASE * turn for label in labels for turn in range(4)]
    scores = torch.stack([16 * F.cosine_similarity(feature[None], model.head.weight) for feature in features])
    assert model.head.out_features == 4 * BASE
    expected = F.cross_entropy(scores, torch.tensor(classes))
    torch.testing.assert_close(model(pixels, labels, random, 0)["cross_entropy"], expected)


def test_keys_are_contrasted_with_from_the_next_step_on():
    model = objective()
    first, again = (model(*batch(), 0) for _ in range(2))
    assert not bool(first["global"] + first["local"])
    assert bool(again["global"] > 0)
    assert bool(again["local"] > 0)


def test_the_queue_holds_the_newest_keys_with_their_classes_and_fantasies():
    model, keys, owners = objective(), [], []
    for step in range(3):
        pixels, labels, random = batch(seed=step)
        model(pixels, labels, random, 0)
        with torch.no_grad():
            keys.append(deepcopy(model)._keys(model.views(pixels, random)[2]).flatten(0, 1))
        owners += [int(label) + BASE * turned for label in labels for turned in (0, 1)]
    newest = sorted(zip(torch.cat(keys)[-40:].tolist(), owners[-40:], strict=True))
    found = sorted(zip(model.queue.tolist(), model.owners.tolist(), strict=True))
    assert [owner for _, owner in found] == [owner for _, owner in newest]
    torch.testing.assert_close(torch.tensor([key for key, _ in found]), torch.tensor([key for key, _ in newest]))
    assert int(model.place) == 3 * 24 % 40


def test_a_batch_longer_than_the_queue_leaves_its_last_keys():
    model = objective(queue=7)
    model(*batch(), 0)
    owners = [int(label) + BASE * turned for label in batch()[1] for turned in (0, 1)]
    assert sorted(model.owners.tolist()) == sorted(owners[-7:])


def test_a_world_of_few_classes_has_a_shorter_queue():
    assert len(objective(queue=8192).queue) == KEYS * 2 * BASE
    torch.manual_seed(0)
    stage = Stage(Small(), DIMENSION, 60, 100, TRANSFORM)
    assert len(Fantasies(stage, SAVCSettings()).queue) == 8192


def test_the_slow_network_follows_the_trained_one_and_has_no_gradients():
    model = objective(momentum=0.75)
    with torch.no_grad():
        model.projection[2].weight.add_(1.0)
        model.backbone.last[0].weight.mul_(2.0)
    before = [weight.clone() for weight in model.slow.parameters()]
    model(*batch(), 0)["loss"].backward()
    trained = [*model.backbone.parameters(), *model.projection.parameters()]
    for slow, was, weight in zip(model.slow.parameters(), before, trained, strict=True):
        torch.testing.assert_close(slow, 0.75 * was + 0.25 * weight)
        assert slow.grad is None
        assert not slow.requires_grad


@pytest.mark.parametrize("kind", [Fantasies, Proxies])
def test_a_step_is_a_function_of_what_it_is_given(kind):
    model = objective(kind)
    model(*batch(), 0)
    twin = deepcopy(model)
    one = model(*batch(seed=1), 0)
    torch.manual_seed(99)
    other = twin(*batch(seed=1), 0)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore")
def test_the_queue_changes_outside_of_compiled_graphs():
    model, calls = objective(crops=1), []

    def record(graph, _):
        calls.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compile(model, dynamic=False, backend=record)(*batch(6), 0)
    assert "lerp_" in calls
    assert not any(name in call for name in ("index_copy_", "queue", "owners", "place") for call in calls)
    assert int(model.place) == 12


# Crops and turns


def test_small_crops_lie_inside_the_key_s_crop_and_have_their_share_of_the_picture():
    side, count = 64, 40
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    picture = torch.stack([2 * rows, 2 * columns, 0 * rows], 2).to(torch.uint8)
    settings = {"jitter": 0.0, "grey": 0.0, "global_min": 0.3, "local_min": 0.05, "local_max": 0.2, "crops": 4}
    model = objective(**settings)
    model.transform = replace(TRANSFORM, size=side, resize=side)
    _, _, key, small = model.views(picture.expand(count, side, side, 3), batch(count)[2])
    assert small.shape == (count, 4, 3, 36, 36)

    def box(crops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = crops[:, :, :2] * 255 / 2
        return places.amin((-2, -1)), places.amax((-2, -1))

    (least, most), (low, high) = box(key), box(small)
    assert bool((low >= least - 0.51).all())
    assert bool((high <= most + 0.51).all())
    # The outermost samples lie half a step inside the box; aspects that would leave the picture make boxes smaller.
    shares = ((high - low) * 36 / 35 / side).prod(2)
    assert 0.03 < float(shares.min()) < 0.07
    assert 0.15 < float(shares.max()) < 0.22
    assert float((low[:, 0] - low[:, 1]).abs().mean()) > 1


@pytest.mark.parametrize(("fantasies", "turns"), [(1, (0,)), (2, (0, 2)), (4, (0, 1, 2, 3))])
def test_features_are_trained_in_the_turns_in_which_they_are_read_afterwards(fantasies, turns):
    model = objective(fantasies=fantasies).eval()
    images = torch.rand(5, 1, 3, SIDE, SIDE)
    read = Reading(model.backbone, model.turns)(model.transform.normalise(images[:, 0]))
    assert model.turns == turns
    assert model.learned()["turns"].tolist() == list(turns)
    torch.testing.assert_close(model.read(images, torch.rand(5), 0).flatten(1), read)


@pytest.mark.parametrize("test_views", [True, False])
def test_the_base_session_s_classifier_is_the_mean_over_fantasies(test_views):
    model, features = objective(test_views=test_views), torch.randn(4, 2 * DIMENSION)
    found, heads = model.classify(features).detach(), model.head.weight.detach()
    for row, feature in enumerate(features):
        for label in range(BASE):
            cosines = [
                float(F.cosine_similarity(chunk, heads[label + BASE * turned], dim=0))
                for turned, chunk in enumerate(feature.chunk(2))
            ]
            expected = sum(cosines) / 2 if test_views else cosines[0]
            assert float(found[row, label]) == pytest.approx(expected, abs=1e-6)


# The method


def after(words: str, world: World):
    method = choose(words).build(seed=0, device="cpu")
    base, *later = world.sessions
    method.fit_base(base)
    for session in later:
        method.learn(session)
    return method


def read_in(turns: tuple[int, ...]) -> World:
    """A world of balls whose features are said to come from so many turns."""
    base, *later = World.of(((5, 1), (3,))).sessions
    world = World.of(((5, 1), (3,)))
    return replace(world, sessions=(replace(base, learned={"turns": torch.tensor(turns)}), *later))


def chunk_of(world: World, at: int, count: int) -> World:
    width = DIMENSION // count
    part = slice(at * width, (at + 1) * width)
    base, *later = world.sessions
    sessions = [replace(base, features=base.features[:, part], mean=base.mean[:, part])]
    sessions += [replace(session, features=session.features[:, part]) for session in later]
    return replace(world, sessions=tuple(sessions), test=world.test[:, part])


def test_scores_are_the_mean_of_nearest_class_mean_s_in_each_turn():
    world = read_in((0, 1, 2, 3))
    parts = [chunk_of(world, at, 4) for at in range(4)]
    expected = sum(after("ncm", part).scores(part.test) for part in parts) / 4
    torch.testing.assert_close(after("savc", world).scores(world.test), expected)


def test_with_one_turn_it_is_nearest_class_mean():
    world = read_in((0,))
    torch.testing.assert_close(after("savc", world).scores(world.test), after("ncm", world).scores(world.test))


def test_without_test_views_it_is_nearest_class_mean_of_upright_pictures():
    world = read_in((0, 2))
    upright, found = chunk_of(world, 0, 2), after("savc:test_views=false", world)
    ncm = after("ncm", upright)
    torch.testing.assert_close(found.scores(world.test), ncm.scores(upright.test))
    assert found.memory_bytes == ncm.memory_bytes


@pytest.mark.parametrize("name", ["savc", "facl"])
def test_a_backbone_that_does_not_say_its_turns_is_refused(name):
    with pytest.raises(Misuse, match="turns"):
        choose(name).build(seed=0, device="cpu").fit_base(World.of().sessions[0])


@pytest.mark.parametrize(
    "words",
    ["savc:crops=0", "savc:crops=5", "savc:momentum=1", "savc:queue=0", "savc:local_min=0.8", "savc:fantasies=3"],
)
def test_settings_that_make_no_sense_are_refused(words):
    with pytest.raises(Misuse, match=words.partition(":")[2].partition("=")[0]):
        choose(words)


# FACL


@pytest.mark.parametrize("count", [2, 3, 50])
def test_every_picture_has_another_one_for_partner_and_each_is_one_s(count):
    found = partners(torch.rand(count, generator=torch.Generator().manual_seed(0)))
    assert sorted(found.tolist()) == list(range(count))
    assert not bool((found == torch.arange(count)).any())


def test_partners_are_chosen_by_chance():
    random = torch.Generator().manual_seed(0)
    counts = torch.zeros(4, 4)
    for _ in range(600):
        counts[torch.arange(4), partners(torch.rand(4, generator=random))] += 1
    off = counts[~torch.eye(4, dtype=torch.bool)]
    assert bool(((off > 150) & (off < 250)).all())


def test_turned_features_are_mixed_half_and_half_and_upright_ones_and_keys_are_not():
    plain, mixing = objective(fantasies=4).eval(), objective(Proxies, fantasies=4).eval()
    images, chance = torch.rand(6, 2, 3, SIDE, SIDE), torch.rand(6)
    before, found = plain.read(images, chance, 0), mixing.read(images, chance, 0)
    torch.testing.assert_close(found[:, :, 0], before[:, :, 0])
    for picture, other in enumerate(partners(chance).tolist()):
        expected = before[picture, :, 1:] / 2 + before[other, :, 1:] / 2
        torch.testing.assert_close(found[picture, :, 1:], expected)
    torch.testing.assert_close(mixing._keys(images[:, :1]), plain._keys(images[:, :1]))


def test_pictures_are_mixed_across_processes_as_in_one(monkeypatch):
    model, images, chance = objective(Proxies).eval(), torch.rand(6, 1, 3, SIDE, SIDE), torch.rand(6)
    whole = model.read(images, chance, 0)
    turned = Fantasies.read(model, images, chance, 0)[:, :, 1:]
    for first in (0, 3):
        own = slice(first, first + 3)
        monkeypatch.setattr(facl, "gather", lambda rows: chance if rows.ndim == 1 else turned)
        torch.testing.assert_close(model.read(images[own], chance[own], first), whole[own])


def test_a_picture_s_scores_do_not_depend_on_those_it_is_tested_with():
    world = read_in((0, 2))
    method = after("facl", world)
    alone = torch.cat([method.scores(image[None]) for image in world.test])
    torch.testing.assert_close(method.scores(world.test), alone)
    torch.testing.assert_close(alone, after("savc", world).scores(world.test))


def test_the_leak_of_the_authors_code_is_a_switch_that_the_contract_catches():
    from concm.evaluation.conformance import Broken, each_image_is_scored_by_itself
    from concm.evaluation.course import Course

    with pytest.raises(Broken, match="otherwise beside others than alone"):
        each_image_is_scored_by_itself(Course(choose("facl:leak=true")))
    each_image_is_scored_by_itself(Course(choose("facl")))


def test_with_the_leak_turned_pictures_of_one_class_are_averaged():
    world = World.of(choice=choose("facl"))
    honest, leaking = (after(words, world) for words in ("facl", "facl:leak=true"))
    batch = honest._views(world.test[:6])
    leaked = leaking._views(leaking._leaked(world.test[:6], torch.Generator().manual_seed(0)))
    torch.testing.assert_close(leaked[:, 0], batch[:, 0])
    pairs = [(batch[one, 1] + batch[other, 1]) / 2 for one in range(6) for other in range(6) if one != other]
    for found in leaked[:, 1]:
        assert any(torch.allclose(found, pair, atol=1e-5) for pair in pairs)
