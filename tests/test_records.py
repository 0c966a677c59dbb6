"""Records: what settings refuse, and what goes through JSON and comes back or is refused with the name of its field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concm.errors import ConcmError, Misuse
from concm.methods import entries
from concm.records import Checked, WrongRecord, from_json, setting, shortened, to_json


@dataclass(frozen=True)
class Bounded(Checked):
    """One setting of each kind of bound."""

    share: float = setting(0.5, "From 0 to 1.", least=0, most=1)
    rate: float = setting(0.1, "Anything positive.", above=0)
    chance: float = setting(0.5, "Never certain.", above=0, below=1)
    steps: int | None = setting(None, "As many as there are, or so many.", least=2)
    name: str = setting("free", "Anything.")


@dataclass(frozen=True)
class Place:
    """A point, with what was seen there."""

    point: tuple[int, float]
    seen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Journey:
    """A record of records, with a field of each kind that files have."""

    title: str
    start: Place
    others: list[Place]
    kind: Literal["short", "long", 3] = "short"
    days: int | None = None
    alone: bool = False
    length: float = 1.0
    by_name: Mapping[str, Place] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)
    anything: Any = None
    bounded: Bounded = Bounded()


# bounds


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"share": -0.1}, "setting share must be at least 0 and at most 1, not -0.1"),
        ({"share": 1.5}, "setting share must be at least 0 and at most 1, not 1.5"),
        ({"rate": 0}, "setting rate must be more than 0, not 0"),
        ({"rate": -1}, "setting rate must be more than 0, not -1"),
        ({"chance": 0}, "setting chance must be more than 0 and less than 1, not 0"),
        ({"chance": 1}, "setting chance must be more than 0 and less than 1, not 1"),
        ({"steps": 1}, "setting steps must be at least 2, not 1"),
        ({"share": float("nan")}, "setting share must be at least 0 and at most 1, not nan"),
    ],
    ids=str,
)
def test_a_value_out_of_bounds_is_refused_with_the_bounds(given, sentence):
    with pytest.raises(Misuse) as refusal:
        Bounded(**given)
    assert str(refusal.value) == sentence


def test_a_refusal_is_a_value_error_and_one_of_ours():
    with pytest.raises(ValueError):
        Bounded(share=2)
    with pytest.raises(ConcmError):
        Bounded(share=2)


@pytest.mark.parametrize(
    "given", [{}, {"share": 0}, {"share": 1}, {"rate": 1e-9}, {"chance": 0.999}, {"steps": 2}, {"steps": None}], ids=str
)
def test_bounds_belong_to_what_is_allowed_unless_they_are_said_not_to(given):
    assert all(getattr(Bounded(**given), name) == value for name, value in given.items())


@given(st.floats(allow_nan=False))
def test_a_share_is_taken_exactly_where_it_lies_between_its_bounds(value):
    if 0 <= value <= 1:
        assert Bounded(share=value).share == value
    else:
        with pytest.raises(Misuse, match="setting share"):
            Bounded(share=value)


def test_every_setting_carries_its_help():
    assert {item.name: item.metadata["help"] for item in fields(Bounded)}["rate"] == "Anything positive."
    for entry in entries().values():
        for item in fields(entry.settings) if entry.settings is not None else ():
            assert item.metadata["help"].endswith("."), f"{entry.name}: {item.name}"


# through JSON


def through_json(kind: type[Any], record: Any) -> Any:
    return from_json(kind, json.loads(json.dumps(to_json(record))))


numbers = st.floats(allow_nan=False, allow_infinity=False)
places = st.builds(Place, st.tuples(st.integers(), numbers), st.lists(st.text(), max_size=3).map(tuple))
journeys = st.builds(
    Journey,
    title=st.text(),
    start=places,
    others=st.lists(places, max_size=3),
    kind=st.sampled_from(["short", "long", 3]),
    days=st.none() | st.integers(),
    alone=st.booleans(),
    length=numbers,
    by_name=st.dictionaries(st.text(), places, max_size=3),
    counts=st.dictionaries(st.text(), st.lists(st.integers(), max_size=3), max_size=3),
    anything=st.recursive(st.none() | st.booleans() | st.text() | st.integers(), st.lists, max_leaves=5),
    bounded=st.builds(Bounded, share=st.floats(0, 1), steps=st.none() | st.integers(min_value=2)),
)


@given(journeys)
def test_a_record_of_records_goes_through_json_and_comes_back(journey):
    assert through_json(Journey, journey) == journey


def test_all_settings_and_presets_of_all_methods_go_through_json():
    for entry in entries().values():
        if entry.settings is not None:
            presets = [getattr(entry.settings, name)() for name in getattr(entry.settings, "PRESETS", ())]
            for settings in (entry.settings, *presets):
                assert through_json(type(entry.settings), settings) == settings


PLAIN = {"title": "north", "start": {"point": [1, 2.5]}, "others": []}


def test_what_is_absent_has_its_default():
    assert from_json(Journey, PLAIN) == Journey("north", Place((1, 2.5)), [])
    assert from_json(Bounded, {}) == Bounded()


def test_a_whole_number_is_a_number_too_and_lists_become_what_is_annotated():
    found = from_json(Journey, {**PLAIN, "length": 3, "others": [{"point": (1, 2), "seen": ["owl"]}]})
    assert (found.length, type(found.length)) == (3.0, float)
    assert found.others == [Place((1, 2.0), ("owl",))]


WRONG = {
    "a number for a word": ({"title": 3}, "Journey.title should be str, not 3"),
    "a word for a number": ({"length": "3"}, "Journey.length should be float, not '3'"),
    "a fraction for a whole number": ({"days": 2.5}, "Journey.days should be int, not 2.5"),
    "true for a number": ({"days": True}, "Journey.days should be int, not True"),
    "a number for true": ({"alone": 1}, "Journey.alone should be bool, not 1"),
    "nothing for a word": ({"title": None}, "Journey.title should be str, not None"),
    "another word than those there are": ({"kind": "longer"}, "Journey.kind is 'longer', not one of short, long, 3"),
    "a number that only equals one there is": ({"kind": 3.0}, "Journey.kind is 3.0, not one of short, long, 3"),
    "a word for a list": ({"others": "owl"}, "Journey.others should be a list, not str"),
    "a list for a record": ({"start": [1, 2]}, "Place should be a table of names and values, not list"),
    "a list for a table": ({"counts": [1]}, "Journey.counts should be a table, not list"),
    "a wrong value in a table": ({"counts": {"owl": ["2"]}}, "Journey.counts.owl[0] should be int, not '2'"),
    "too many values": ({"start": {"point": [1, 2, 3]}}, "Place.point should have 2 values, not 3"),
    "a wrong value in a record": ({"start": {"point": ["1", 2]}}, "Place.point[0] should be int, not '1'"),
    "a record that lacks a field": ({"others": [{}]}, "Place lacks point"),
    "a field that there is not": ({"ttile": "south"}, "Journey has no field 'ttile'"),
    "a number that is too large": ({"length": 10**400}, "Journey.length is too large a number"),
}


@pytest.mark.parametrize("what", WRONG)
def test_data_that_do_not_fit_are_refused_with_the_name_of_the_field(what):
    change, sentence = WRONG[what]
    with pytest.raises(WrongRecord) as refusal:
        from_json(Journey, {**PLAIN, **change})
    assert str(refusal.value) == sentence


@pytest.mark.parametrize("name", PLAIN)
def test_a_field_that_is_missing_is_named(name):
    with pytest.raises(WrongRecord, match=f"Journey lacks {name}"):
        from_json(Journey, {key: value for key, value in PLAIN.items() if key != name})


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_what_is_no_table_is_no_record(data):
    with pytest.raises(WrongRecord, match="Journey should be a table"):
        from_json(Journey, data)


def test_bounds_hold_for_what_is_read_too():
    with pytest.raises(ValueError, match="setting share must be at least 0 and at most 1, not 2"):
        from_json(Journey, {**PLAIN, "bounded": {"share": 2}})


@given(
    st.recursive(
        st.none() | st.booleans() | numbers | st.text(), lambda own: st.lists(own) | st.dictionaries(st.text(), own)
    )
)
def test_whatever_a_file_holds_it_is_a_record_or_refused(data):
    for given_as in (data, {**PLAIN, "start": data}, {**PLAIN, "bounded": data}):
        with suppress(ValueError):
            assert isinstance(from_json(Journey, given_as), Journey)


def test_figures_are_shortened_and_whole_numbers_are_not():
    assert shortened({"a": [64.137241, 123456789.0, 0.000123456], "b": 7, "c": "x"}, 4) == {
        "a": [64.14, 123456789.0, 0.0001235],
        "b": 7,
        "c": "x",
    }
