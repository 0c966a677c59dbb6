"""Scenarios: the bundled class orders, their variants, and requests that make no sense."""

from __future__ import annotations

import json

import pytest

from concm.data import scenarios
from concm.data.scenarios import Scenario, of_folder
from concm.errors import Misuse
from concm.records import from_json, to_json

SIZES = {
    "cifar100": (60, 8, 5),
    "mini_imagenet": (60, 8, 5),
    "cub200": (100, 10, 10),
    "imagenet1k": (600, 8, 50),
    "mini_to_cifar": (60, 8, 5),
    "tiny_imagenet": (120, 8, 10),
}
PLACES = [
    ("cifar100", 0, "apple", "apple"),
    ("cifar100", 1, "aquarium_fish", "aquarium fish"),
    ("cifar100", 60, "plain", "plain"),
    ("cifar100", 99, "worm", "worm"),
    ("mini_imagenet", 0, "n01532829", "house finch"),
    ("mini_imagenet", 60, "n03544143", "hourglass"),
    ("cub200", 0, "001.Black_footed_Albatross", "Black footed Albatross"),
    ("cub200", 100, "101.White_Pelican", "White Pelican"),
    ("cub200", 199, "200.Common_Yellowthroat", "Common Yellowthroat"),
    ("imagenet1k", 0, "n01440764", "tench"),
    ("imagenet1k", 600, "n03532672", "hook"),
    ("imagenet1k", 999, "n15075141", "toilet tissue"),
    ("mini_to_cifar", 0, "n01532829", "house finch"),
    ("mini_to_cifar", 60, "plain", "plain"),
    ("tiny_imagenet", 0, "n02124075", "Egyptian cat"),
    ("tiny_imagenet", 1, "n04067472", "reel"),
]


def folder_of(classes: int, *, base: int, way: int = 5, shot: int = 5) -> Scenario:
    return of_folder([f"class {at:03}" for at in range(classes)], base=base, way=way, shot=shot)


def test_six_scenarios_are_bundled():
    assert scenarios.names() == sorted(SIZES)


@pytest.mark.promise
@pytest.mark.parametrize("name", SIZES)
def test_a_bundled_scenario_has_the_published_sizes(name):
    base, sessions, way = SIZES[name]
    scenario = scenarios.load_scenario(name)
    assert (scenario.base, scenario.sessions, scenario.way, scenario.shot) == (base, sessions, way, 5)
    assert len(scenario.keys) == len(scenario.names) == base + sessions * way
    assert [len(scenario.classes_of(session)) for session in range(sessions + 1)] == [base] + [way] * sessions


@pytest.mark.parametrize("name", SIZES)
def test_the_sessions_of_a_bundled_scenario_bring_every_class_once(name):
    scenario = scenarios.load_scenario(name)
    brought = [label for session in range(scenario.sessions + 1) for label in scenario.classes_of(session)]
    assert brought == list(range(len(scenario.keys)))


@pytest.mark.parametrize(("name", "at", "key", "label"), PLACES)
def test_known_classes_are_at_their_published_places(name, at, key, label):
    scenario = scenarios.load_scenario(name)
    assert (scenario.keys[at], scenario.names[at]) == (key, label)


def test_mini_to_cifar_joins_mini_imagenets_base_classes_and_cifars_novel_ones():
    joined, mini, cifar = (scenarios.load_scenario(name) for name in ("mini_to_cifar", "mini_imagenet", "cifar100"))
    assert joined.keys == mini.keys[:60] + cifar.keys[60:]
    assert joined.names == mini.names[:60] + cifar.names[60:]
    assert joined.parts == (("mini_imagenet", 0, 60), ("cifar100", 60, 100))
    assert joined.transform == mini.transform


def test_tiny_imagenets_classes_are_among_imagenets_by_the_same_names():
    tiny, whole = (scenarios.load_scenario(name) for name in ("tiny_imagenet", "imagenet1k"))
    assert set(zip(tiny.keys, tiny.names, strict=True)) < set(zip(whole.keys, whole.names, strict=True))


@pytest.mark.parametrize(
    ("asked", "sessions", "way", "shot"),
    [
        ({"shot": 1}, 8, 5, 1),
        ({"shot": 3}, 8, 5, 3),
        ({"way": 2}, 20, 2, 5),
        ({"way": 2, "sessions": 20}, 20, 2, 5),
        ({"sessions": 3}, 3, 5, 5),
        ({"sessions": 0}, 0, 5, 5),
        ({}, 8, 5, 5),
    ],
)
def test_variants_change_sessions_ways_and_shots(asked, sessions, way, shot):
    varied = scenarios.load_scenario("cifar100").vary(**asked)
    assert (varied.sessions, varied.way, varied.shot) == (sessions, way, shot)
    assert varied.seen(sessions) == len(varied.keys) == 60 + sessions * way


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("asked", [{"way": 2}, {"way": 7}, {"shot": 1}, {"way": 3, "sessions": 2}, {"sessions": 1}])
def test_no_variant_changes_the_class_order(name, asked):
    scenario = scenarios.load_scenario(name)
    varied = scenario.vary(**asked)
    assert varied.keys == scenario.keys[: len(varied.keys)]
    assert varied.names == scenario.names[: len(varied.keys)]
    assert varied.base == scenario.base


def test_a_variant_leaves_the_original_alone():
    scenario = scenarios.load_scenario("cifar100")
    scenario.vary(way=2, shot=1, sessions=3)
    assert scenario == scenarios.load_scenario("cifar100")


@pytest.mark.parametrize("name", SIZES)
def test_a_scenario_survives_json(name):
    scenario = scenarios.load_scenario(name).vary(way=2, shot=3)
    assert from_json(Scenario, json.loads(json.dumps(to_json(scenario)))) == scenario


def test_a_folder_scenario_takes_classes_alphabetically_whatever_their_order():
    scenario = of_folder(["red_fox", "ant", "bee"], base=2, way=1, shot=1)
    assert scenario.keys == ("ant", "bee", "red_fox")
    assert scenario.names == ("ant", "bee", "red fox")


def test_a_folder_scenarios_last_session_may_be_smaller():
    scenario = folder_of(15, base=4, way=5)
    assert [list(scenario.classes_of(session)) for session in range(4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7, 8],
        [9, 10, 11, 12, 13],
        [14],
    ]
    assert (scenario.sessions, scenario.seen(2), scenario.seen(3)) == (3, 14, 15)


def test_leaving_out_an_uneven_last_session_leaves_even_ones():
    scenario = folder_of(15, base=4, way=5).vary(sessions=2)
    assert (len(scenario.keys), scenario.sessions) == (14, 2)


def test_all_classes_may_be_base_classes():
    assert folder_of(3, base=3).sessions == 0


def test_small_pictures_are_not_scaled_before_the_crop_and_large_ones_are():
    small, large = (of_folder("ab", base=2, way=1, shot=1, size=size).transform for size in (32, 224))
    assert (small.size, small.resize) == (32, 32)
    assert (large.size, large.resize) == (224, 256)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"shot": 0}, "`shot` must be at least 1, not 0"),
        ({"way": 0}, "`way` must be at least 1, not 0"),
        ({"way": -5}, "`way` must be at least 1, not -5"),
        ({"sessions": 9}, "40 novel classes make 8 sessions of 5-way, not 9"),
        ({"sessions": -1}, "not -1"),
        ({"way": 2, "sessions": 21}, "20 sessions of 2-way, not 21"),
    ],
)
def test_an_impossible_variant_is_refused(asked, words):
    with pytest.raises(Misuse, match=words):
        scenarios.load_scenario("cifar100").vary(**asked)


@pytest.mark.parametrize(
    ("base", "words"), [(4, "`base` is 4, but there are only 3 classes"), (1, "at least 2, not 1")]
)
def test_an_impossible_number_of_base_classes_is_refused(base, words):
    with pytest.raises(Misuse, match=words):
        folder_of(3, base=base)


def test_a_class_given_twice_is_refused_by_name():
    with pytest.raises(Misuse, match="class given twice: bee"):
        of_folder(["ant", "bee", "bee"], base=2, way=1, shot=1)


def test_two_classes_of_the_same_name_are_refused_by_name():
    with pytest.raises(Misuse, match="class name given twice: red fox"):
        of_folder(["red fox", "red_fox", "ant"], base=2, way=1, shot=1)


@pytest.mark.parametrize(
    ("typed", "meant"), [("cifar10", "cifar100"), ("mini-imagenet", "mini_imagenet"), ("cub", "cub200")]
)
def test_a_mistyped_scenario_gets_the_nearest_name(typed, meant):
    with pytest.raises(Misuse, match=f"no scenario called '{typed}'; did you mean {meant}"):
        scenarios.load_scenario(typed)


def test_a_scenario_that_resembles_none_gets_the_whole_list():
    with pytest.raises(Misuse, match=f"there are: {', '.join(sorted(SIZES))}"):
        scenarios.load_scenario("xyzzy")


@pytest.mark.parametrize("name", ["", "../scenarios/cifar100", "cifar100.toml"])
def test_a_scenario_is_a_name_and_not_a_path(name):
    with pytest.raises(Misuse):
        scenarios.load_scenario(name)
