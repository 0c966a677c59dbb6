"""The engine as a whole: on small worlds of Gaussian clusters, where what is right is known, and on a real bank."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.backbones.encoder import Identity
from concm.data.scenarios import of_folder
from concm.engine.calibration import CalibrationSettings
from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.errors import Misuse
from concm.evaluation.protocol import run
from concm.evaluation.results import Figures
from concm.features import bank as banks
from concm.features.bank import Bank, Card, Part
from concm.features.sessions import Shots, draw, sessions
from concm.files import load_tensors, save_tensors
from concm.methods import choose, teach
from concm.metrics import novel_at

torch.set_num_threads(1)  # bit for bit only holds for one number of threads

DIMENSION = 24
ANIMALS = ("bear", "cat", "dog", "eagle", "horse", "lizard", "okapi", "spider", "tiger", "trout", "whale")
UNKNOWN = "xyblorvquux"  # no noun of WordNet, and last in alphabetical order
BASE, ALL = 6, len(ANIMALS) + 1
TINY = CalibrationSettings(steps=10, hidden=16, attention=8)
QUICK = {"heads": 2, "hidden": 32, "width": 32, "base_steps": 20, "steps": 10, "calibration": TINY}
STRANGE = tuple(f"blorv{letter}quux" for letter in "abcdefghijkl")
STRUCTURES = ("matched", "greedy", "random", "fixed", "learned")


def clusters(
    *,
    base: int = BASE,
    way: int = 2,
    shot: int = 5,
    views: int | None = 2,
    spread: float = 0.08,
    keys: tuple[str, ...] = (*ANIMALS, UNKNOWN),
) -> Bank:
    """A bank in which each class is a ball around a centre of its own, far from all others."""
    random = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(len(keys), DIMENSION, generator=random))

    def part(first: int, last: int, images: int, views: int | None = None) -> Part:
        labels = torch.arange(first, last).repeat(images)
        features = centres[labels] + spread * torch.randn(len(labels), DIMENSION, generator=random)
        some = None
        if views is not None:
            some = features[:, None] + 0.02 * torch.randn(len(labels), views, DIMENSION, generator=random)
        return Part(features, labels, some)

    known = part(0, base, 20, views)
    own = [known.features[known.labels == label] for label in range(base)]
    return Bank(
        scenario=of_folder(keys, base=base, way=way, shot=shot),
        encoder=Identity("clusters", ""),
        base=known,
        novel=part(base, len(keys), 8, views),
        test=part(0, len(keys), 10),
        mean=torch.stack([features.mean(0) for features in own]),
        std=torch.stack([features.std(0, correction=0) for features in own]),
        counts=torch.full((base,), 20),
        card=Card(),
    )


def quick(**changes: object) -> Settings:
    return Settings(**{**QUICK, **changes})


def taught(
    bank: Bank, settings: Settings | None = None, *, shots: Shots | None = None, until: int | None = None, seed: int = 0
) -> Engine:
    """Taught all sessions of the bank, or those up to `until`."""
    method = Engine(settings or quick(), seed=seed)
    for session in sessions(bank, shots or draw(bank, 0)):
        if until is None or session.index <= until:
            teach(method, session)
    return method


def scores(bank: Bank, settings: Settings | None = None, **how) -> Tensor:
    """Of all test features."""
    return taught(bank, settings, **how).scores(bank.test.features)


@cache
def usual_scores() -> Tensor:
    return scores(clusters())


def class_accuracies(method: Engine, bank: Bank, seen: int) -> list[float]:
    test = bank.test.where(bank.test.labels < seen)
    right = method.scores(test.features).argmax(1) == test.labels
    return [float(right[test.labels == label].double().mean()) for label in range(seen)]


def assert_simplex(structures: Tensor) -> None:
    """Eq. 6, for every projector's structure."""
    count = structures.shape[1]
    expected = (count * torch.eye(count) - 1) / (count - 1)
    for structure in structures:
        assert torch.allclose(structure @ structure.T, expected, atol=1e-5)


# the three verbs


PLAIN = {"whitening": None, "views": False, "prototypes": 0.0, "heads": 1, "around": "prototype", "novel_bias": 0.0}


@pytest.mark.promise
@pytest.mark.parametrize("settings", [quick(), quick(**PLAIN, loss="match+contrast")], ids=["default", "plain"])
def test_after_every_session_all_classes_seen_are_told_apart_under_the_index_they_came_with(settings):
    bank = clusters()
    method = Engine(settings)
    for session in sessions(bank, draw(bank, 0)):
        teach(method, session)
        seen = session.classes.stop
        assert method.scores(bank.test.features).shape == (len(bank.test.labels), seen)
        assert min(class_accuracies(method, bank, seen)) >= 0.9, f"session {session.index}"


def test_scores_are_a_row_a_picture_whatever_the_other_pictures_are():
    bank = clusters()
    method, features = taught(bank), bank.test.features[:7]
    together = method.scores(features)
    assert torch.allclose(torch.cat([method.scores(row[None]) for row in features]), together, atol=1e-6)
    assert method.scores(features[:0]).shape == (0, ALL)


def test_what_it_is_given_stays_as_it_was():
    bank, untouched = clusters(), clusters()
    features = bank.test.features.clone()
    taught(bank).scores(bank.test.features)
    assert torch.equal(bank.test.features, features)
    for name in ("base", "novel"):
        ours, theirs = getattr(bank, name), getattr(untouched, name)
        assert torch.equal(ours.features, theirs.features)
        assert torch.equal(ours.views, theirs.views)
    assert torch.equal(bank.mean, untouched.mean)
    assert torch.equal(bank.std, untouched.std)


# seeds


@pytest.mark.promise
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_same_seed_gives_the_same_scores_bit_for_bit_and_another_seed_does_not(structure):
    bank, settings = clusters(), quick(structure=structure, total=ALL)
    first = scores(bank, settings, seed=3)
    assert torch.equal(scores(clusters(), settings, seed=3), first)
    assert not torch.equal(scores(bank, settings, seed=4), first)


def test_the_generator_of_the_process_is_neither_used_nor_moved():
    bank = clusters()
    torch.manual_seed(1)
    first = scores(bank)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(scores(bank), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


# nothing depends on what is still to come


def test_a_session_is_learned_the_same_whether_or_not_others_follow():
    bank = clusters()
    after = [scores(bank, until=session) for session in range(4)]
    for to_come in (1, 2):
        alone = taught(bank.vary(sessions=to_come))
        assert torch.equal(alone.scores(bank.test.features), after[to_come])
    method = Engine(quick())
    for session in sessions(bank, draw(bank, 0)):
        teach(method, session)
        assert torch.equal(method.scores(bank.test.features), after[session.index])


def test_classes_of_later_sessions_may_be_called_anything():
    bank = clusters()
    names = (*bank.scenario.names[:8], "mountain", "violin", "teapot", "cloud")
    other = replace(bank, scenario=replace(bank.scenario, names=names))
    assert torch.equal(scores(bank, until=1), scores(other, until=1))
    assert not torch.equal(scores(bank, until=2), scores(other, until=2))


# any number of classes


@pytest.mark.parametrize(
    ("width", "structure"), [(3, "matched"), (8, "matched"), (11, "learned"), (8, "greedy"), (8, "random")]
)
def test_classes_that_outgrow_the_projector_widen_it_and_life_goes_on(width, structure):
    bank = clusters()
    method = Engine(quick(width=width, structure=structure))
    widths = []
    for session in sessions(bank, draw(bank, 0)):
        teach(method, session)
        (width_now,) = {network.width for network in method.projectors}
        assert width_now == method.structure.shape[2] > session.classes.stop
        widths.append(width_now)
    assert widths == sorted(widths)
    assert widths[-1] > width
    assert min(class_accuracies(method, bank, ALL)) >= 0.9


# structures


@pytest.mark.parametrize("structure", ["matched", "greedy", "random"])
def test_after_every_session_the_structure_is_a_simplex_of_all_classes(structure):
    bank = clusters()
    method = Engine(quick(structure=structure))
    for session in sessions(bank, draw(bank, 0)):
        teach(method, session)
        assert method.structure.shape == (2, session.classes.stop, 32)
        assert_simplex(method.structure)


@pytest.mark.parametrize("width", [32, 8], ids=["wide", "too narrow for the total"])
def test_a_fixed_structure_has_room_for_all_from_the_start_and_never_moves(width):
    bank = clusters()
    method = Engine(quick(structure="fixed", total=ALL, width=width))
    after = []
    for session in sessions(bank, draw(bank, 0)):
        teach(method, session)
        after.append(method.structure)
    assert_simplex(after[-1])
    for before in after:
        assert torch.equal(after[-1][:, : before.shape[1]], before)


@pytest.mark.parametrize("total", [4, 9])
def test_more_classes_than_a_fixed_structure_reserved_are_refused(total):
    with pytest.raises(Misuse, match=f"total={total}"):
        taught(clusters(), quick(structure="fixed", total=total))


def test_the_nearest_structure_matches_better_than_an_assigned_one_and_that_better_than_any():
    bank = clusters()
    rates: dict[str, list[float]] = {}
    for structure in ("matched", "greedy", "random"):
        method = Engine(quick(structure=structure))
        rates[structure] = []
        for session in sessions(bank, draw(bank, 0)):
            teach(method, session)
            rates[structure].append(method.smr)
    for matched, greedy, random in zip(*rates.values(), strict=True):
        assert 1 >= matched > greedy > random >= -1


def test_free_vectors_have_no_matching_rate_and_are_judged_by_unit_means():
    method = taught(clusters(), quick(structure="learned"))
    assert method.smr is None
    assert torch.allclose(method.structure.norm(dim=2), torch.ones(2, ALL))
    assert not torch.allclose(method.structure, F.normalize(method.free, dim=-1))


# any session


@pytest.mark.parametrize("asked", [{"way": 1}, {"way": 4}, {"way": 6}, {"shot": 1}, {"way": 1, "shot": 1}], ids=str)
@pytest.mark.parametrize("changes", [{}, {"spread": "own", "around": "prototype", "replay": 0}], ids=["", "least"])
def test_any_way_and_shot_will_do(asked, changes):
    bank = clusters(spread=0.05).vary(**asked)
    method = taught(bank, quick(**changes))
    assert method.scores(bank.test.features).isfinite().all()
    assert min(class_accuracies(method, bank, ALL)) >= 0.9


@pytest.mark.parametrize("views", [2, None])
def test_uneven_shots_will_do(views):
    bank = clusters(views=views)
    shots = {label: rows[: 1 + label % 5] for label, rows in draw(bank, 0).items()}
    method = taught(bank, shots=shots)
    assert method.memory.counts[BASE:].tolist() == [len(rows) for rows in shots.values()]
    assert torch.bincount(method.memory.labels)[BASE:].tolist() == [len(rows) for rows in shots.values()]
    assert min(class_accuracies(method, bank, ALL)) >= 0.9


def test_two_base_classes_and_a_single_new_one_will_do():
    bank = clusters(base=2, way=1, keys=ANIMALS[:3])
    assert min(class_accuracies(taught(bank), bank, 3)) >= 0.9


@pytest.mark.parametrize(
    ("of_base", "of_novel"), [(None, None), (2, None), (None, 2), (2, 3), (3, 1)], ids=lambda count: str(count)
)
def test_any_number_of_views_will_do(of_base, of_novel):
    bank = replace(clusters(views=of_base), novel=clusters(views=of_novel).novel)
    assert min(class_accuracies(taught(bank), bank, ALL)) >= 0.9


def test_sessions_need_not_have_the_same_number_of_views():
    bank = clusters()
    method = Engine(quick())
    for session, views in zip(sessions(bank, draw(bank, 0)), (2, None, 2, 1), strict=True):
        given = replace(session, views=None if views is None else session.views[:, :views])
        teach(method, given)
    assert min(class_accuracies(method, bank, ALL)) >= 0.9


def test_one_picture_of_each_base_class_will_do():
    bank = clusters()
    some = replace(bank, base=bank.base.where(torch.arange(BASE)))
    assert scores(some).isfinite().all()


# any class name


def test_a_name_without_attributes_passes_uncalibrated_and_others_do_not():
    method = taught(clusters(), quick(calibrate="network"))
    prototypes = F.normalize(torch.randn(2, DIMENSION, generator=torch.Generator().manual_seed(5)))
    calibrated = method.calibrated(("okapi", UNKNOWN), prototypes)
    assert torch.allclose(calibrated[1], prototypes[1], atol=1e-6)
    assert float(F.cosine_similarity(calibrated[:1], prototypes[:1])) < 0.999


@pytest.mark.parametrize("whitening", [10.0, None])
def test_names_that_all_lack_attributes_are_learned_as_without_calibration(whitening):
    bank = clusters(keys=STRANGE)
    without = scores(bank, quick(calibrate="none", whitening=whitening))
    assert torch.allclose(scores(bank, quick(calibrate="network", whitening=whitening)), without, atol=1e-4)


def test_names_that_all_mean_nothing_are_learned_as_if_there_were_no_names():
    assert torch.equal(scores(clusters(keys=STRANGE), quick(named=True)), scores(clusters(), quick(named=False)))


def test_without_calibration_names_do_not_matter():
    bank, settings = clusters(), quick(calibrate="none")
    names = tuple(reversed(bank.scenario.names))
    other = replace(bank, scenario=replace(bank.scenario, names=names))
    assert torch.equal(scores(bank, settings), scores(other, settings))
    method = taught(bank, settings)
    assert method.calibrator is method.prior is None
    for calibrate in ("names", "network"):
        settings = quick(calibrate=calibrate)
        assert not torch.equal(scores(bank, settings), scores(other, settings))


# variants


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("loss", ["match", "match+scl", "match+contrast"])
def test_every_structure_goes_with_every_loss(structure, loss):
    bank = clusters()
    method = taught(bank, quick(structure=structure, loss=loss, total=ALL))
    assert min(class_accuracies(method, bank, ALL)) >= 0.9


@pytest.mark.parametrize(
    "changes",
    [
        {"spread": "own"},
        {"replay": 0},
        {"replay": 1},
        {"whitening": None},
        {"views": False},
        {"around": "prototype"},
        {"around": "prototype", "replay": 0},
        {"calibrate": "none"},
        {"calibrate": "network"},
        {"calibrate": "network", "calibration": replace(TINY, own_logit=1.0)},
        {"named": False},
        {"trust": 0.0},
        {"heads": 1},
        {"heads": 3},
        {"prototypes": 0.0},
        {"prototypes": 1.0},
        {"novel_bias": 0.0},
    ],
    ids=str,
)
def test_a_variant_learns_all_classes_and_differs_from_the_default(changes):
    bank = clusters()
    method = taught(bank, quick(**changes))
    assert min(class_accuracies(method, bank, ALL)) >= 0.9
    assert not torch.equal(method.scores(bank.test.features), usual_scores())


def test_what_must_know_the_future_is_refused_without():
    with pytest.raises(Misuse, match="total=N"):
        Settings(structure="fixed")


@pytest.mark.parametrize("calibrate", ["names", "network"])
def test_where_views_do_not_count_the_result_is_the_same_whatever_they_are(calibrate):
    bank, settings = clusters(), quick(views=False, calibrate=calibrate)
    plain = replace(bank, base=replace(bank.base, views=None), novel=replace(bank.novel, views=None))
    mad = replace(bank, novel=replace(bank.novel, views=-9 * bank.novel.views))
    expected = scores(plain, settings)
    assert torch.equal(scores(bank, settings), expected)
    assert torch.equal(scores(mad, settings), expected)
    assert taught(bank, settings).memory.views.shape[1] == 0


# what is kept


HELD = 4 * BASE  # a fifth of 20 images a class


@pytest.mark.parametrize("replay", [0, 1, 5])
def test_memory_is_statistics_exemplars_with_views_held_out_images_the_metric_and_what_names_say(replay):
    bank = clusters()
    statistics = (3 * ALL + BASE) * DIMENSION * 4 + ALL * 8
    metric = ((DIMENSION + 1) * DIMENSION + 1) * 4
    held = HELD * (DIMENSION * 4 + 8)
    exemplars = (ALL - BASE) * replay * ((1 + 2) * DIMENSION * 4 + 8)
    prior = ((1 + BASE) * DIMENSION + 2) * 4
    assert taught(bank, quick(replay=replay)).memory_bytes == statistics + metric + held + exemplars + prior
    method = taught(bank, quick(replay=replay, calibrate="network"))
    attributes = len(method.semantics.attributes) * DIMENSION * 4
    assert method.memory_bytes == statistics + metric + held + exemplars + attributes
    least = quick(replay=replay, whitening=None, calibrate="none", novel_bias=0.0)
    assert taught(bank, least).memory_bytes == statistics + exemplars


def test_replay_0_keeps_no_picture_of_any_class():
    memory = taught(clusters(), quick(replay=0)).memory
    assert len(memory.exemplars) == len(memory.views) == len(memory.labels) == 0


def test_no_image_of_a_base_class_is_kept_but_those_held_out_and_none_where_the_bias_is_given():
    memory = taught(clusters()).memory
    assert memory.labels.min() == BASE
    assert torch.bincount(memory.held_labels).tolist() == [HELD // BASE] * BASE
    assert len(taught(clusters(), quick(novel_bias=0.05)).memory.held) == 0


def test_parameters_are_those_of_projectors_and_calibrator():
    bank = clusters()
    half = DIMENSION // 2

    def layer(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    projector = layer(DIMENSION, 32) + layer(32, 32)
    for heads in (1, 3):
        for calibrate in ("names", "none"):
            assert taught(bank, quick(heads=heads, calibrate=calibrate)).parameter_count == heads * projector
    method = taught(bank, quick(calibrate="network"))
    words = method.semantics.vectors.shape[1]
    calibrator = layer(DIMENSION, half) + layer(half, 16) + layer(16, DIMENSION)
    calibrator += 2 * layer(words, 8) + 2 * layer(DIMENSION, 8)
    assert method.parameter_count == 2 * projector + calibrator


# real features


@pytest.fixture(scope="module")
def cifar() -> Bank:
    return banks.Bank.bundled().vary(sessions=3)


def figures(bank: Bank, words: str) -> list[Figures]:
    shots = draw(bank, 3)  # a draw whose margins are larger than another processor's rounding
    found = run(choose(words).build(seed=0, device="cpu"), bank, shots)
    return [replace(session, seconds=0.0) for session in found]


@pytest.mark.slow
def test_on_cifar100_it_beats_nearest_class_mean_and_its_trade_off_and_repeats_itself(cifar):
    control, ours = figures(cifar, "ncm"), figures(cifar, "concm")
    for session in (1, 2, 3):
        assert ours[session].hm > control[session].hm, f"session {session}"
    last, curve = ours[-1], control[-1].trade_off
    assert last.acc_novel > novel_at(last.acc_base, curve.base, curve.novel)
    assert figures(cifar, "concm") == ours


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"calibrate": "network"},
        {"calibrate": "none"},
        {"named": False},
        {"trust": 0.5},
        {"whitening": None},
        {"whitening": None, "calibrate": "none"},
        {"views": False},
        {"spread": "own"},
        {"around": "prototype"},
        {"replay": 0},
        {"structure": "greedy"},
        {"structure": "random"},
        {"structure": "fixed", "total": ALL},
        {"structure": "learned"},
        {"loss": "match+contrast"},
        {"width": 4},
        {"heads": 1},
        {"heads": 5},
        {"prototypes": 0.0},
        {"novel_bias": 0.05},
        {"lean": "base"},
        {"lean": "novel"},
    ],
    ids=str,
)
def test_what_was_saved_and_loaded_goes_on_bit_for_bit(changes, tmp_path):
    bank, settings = clusters(), quick(**changes)
    whole = taught(bank, settings)
    first = taught(bank, settings, until=1)
    save_tensors(tmp_path / "state", "concm-test-1", first.state_dict(), {})
    again = Engine(settings, seed=7)
    again.load_state_dict(load_tensors(tmp_path / "state", "concm-test-1")[0])
    for session in list(sessions(bank, draw(bank, 0)))[2:]:
        again.learn(session)
    assert torch.equal(again.scores(bank.test.features), whole.scores(bank.test.features))
    for name in ("smr", "remarks", "names", "pool", "senses", "point"):
        assert getattr(again, name) == getattr(whole, name)
    one, other = again.state_dict(), whole.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def accuracy(method: Engine, bank: Bank, label: int, column: int) -> float:
    return float((method.scores(bank.test.features[bank.test.labels == label]).argmax(1) == column).float().mean())


@pytest.mark.parametrize("label", [0, BASE - 1, BASE, ALL - 1], ids=["first", "last base", "first novel", "last"])
@pytest.mark.parametrize("structure", ["matched", "learned"])
def test_a_forgotten_class_is_gone_and_the_others_move_up(label, structure):
    bank = clusters()
    method = taught(bank, quick(structure=structure))
    names = list(method.names)
    method.forget(label)
    assert method.names == [name for at, name in enumerate(names) if at != label]
    assert method.memory.base == (BASE - 1 if label < BASE else BASE)
    assert method.scores(bank.test.features).shape[1] == ALL - 1
    for other in range(ALL):
        if other != label:
            assert accuracy(method, bank, other, other - (other > label)) > 0.8
    assert sorted(set(method.memory.labels.tolist())) == list(range(method.memory.base, ALL - 1))


def test_what_is_forgotten_can_be_saved_and_loaded():
    bank = clusters()
    method = taught(bank)
    method.forget(1)
    again = Engine(quick(), seed=3)
    again.load_state_dict(method.state_dict())
    assert torch.equal(again.scores(bank.test.features), method.scores(bank.test.features))
    for one in (method, again):
        one.revise({BASE: (bank.novel.features[bank.novel.labels == BASE], None)})
    assert torch.equal(again.scores(bank.test.features), method.scores(bank.test.features))


@pytest.mark.parametrize("label", [0, BASE], ids=["base", "novel"])
def test_a_class_that_was_taught_wrongly_is_mended_by_its_own_pictures(label):
    bank = clusters()
    method = taught(bank)
    own = bank.base if label < BASE else bank.novel
    method.revise({label: (own.features[own.labels == label + 1], None)})  # mistaken for another
    assert accuracy(method, bank, label, label) < 0.6
    before = method.memory.counts.clone()
    method.revise({label: (own.features[own.labels == label], None)})
    assert accuracy(method, bank, label, label) > 0.9
    assert method.memory.counts[label] == (own.labels == label).sum()
    assert torch.equal(method.memory.counts[label + 1 :], before[label + 1 :])
    assert len(method.names) == ALL


def test_what_was_learned_on_another_kind_of_device_goes_on_here():
    bank = clusters()
    base, *later = sessions(bank, draw(bank, 0))
    method = Engine(Settings(**QUICK), seed=0)
    method.fit_base(base)
    state = method.state_dict() | {"generator": torch.zeros(16, dtype=torch.uint8)}  # as a GPU's is
    found = []
    for _ in range(2):
        here = Engine(Settings(**QUICK), seed=0)
        here.load_state_dict(state)
        here.learn(later[0])
        found.append(here.scores(bank.test.features))
    assert torch.equal(*found)
