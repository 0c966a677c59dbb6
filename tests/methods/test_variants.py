"""Methods and their settings as users write them: what is understood, and what is refused with which hint."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concm import methods
from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.errors import Misuse
from concm.methods import Choice, choice_of, choose, entries
from concm.methods import registry as registry_module
from concm.methods.choice import known
from concm.methods.concm_released import ReleasedSettings
from concm.methods.ncm import NCM
from concm.methods.variants import vary, written


@dataclass(frozen=True)
class Inner:
    steps: int = 3
    rate: float | None = 0.5


@dataclass(frozen=True)
class Outer:
    PRESETS: ClassVar = ("small", "large")

    count: int = 1
    share: float = 0.5
    on: bool = True
    kind: Literal["round", "flat"] = "round"
    limit: int | None = None
    lengths: tuple[int, ...] = (1, 2)
    inner: Inner = field(default_factory=Inner)

    @classmethod
    def small(cls) -> Outer:
        return cls(count=0, inner=Inner(steps=1))

    @classmethod
    def large(cls) -> Outer:
        return cls(count=100, limit=9)


def typed(settings: object) -> list[str]:
    """All settings as a user would write them."""
    return [f"{name}={value}" for name, (value, _) in written(settings).items()]


outers = st.builds(
    Outer,
    count=st.integers(-1000, 1000),
    share=st.floats(allow_nan=False, allow_infinity=False),
    on=st.booleans(),
    kind=st.sampled_from(["round", "flat"]),
    limit=st.none() | st.integers(),
    lengths=st.lists(st.integers(), min_size=1).map(tuple),
    inner=st.builds(Inner, steps=st.integers(), rate=st.none() | st.floats(allow_nan=False, allow_infinity=False)),
)


def test_a_name_alone_is_the_method_with_its_defaults():
    choice = choose("concm")
    assert choice.label == choice.entry.name == "concm"
    assert choice.settings == Settings()
    assert isinstance(choice.build(seed=3, device="cpu"), Engine)


def test_what_is_chosen_is_what_is_built_with_the_seed_given():
    choice = choose("concm:full,alpha=0.25,calibration.steps=7")
    method = choice.build(seed=3, device="cpu")
    assert method.settings == choice.settings
    assert method.seed == 3
    assert choice.build(seed=3, device="cpu") is not method


def test_a_preset_is_where_changes_start_from_wherever_it_stands():
    expected = replace(Settings.full(), alpha=0.5, steps=9)
    assert choose("concm:full").settings == Settings.full() != Settings()
    assert choose("concm:full,alpha=0.5,steps=9").settings == expected
    assert choose("concm:alpha=0.5,full,steps=9").settings == expected


@pytest.mark.parametrize("words", ["concm:released,epochs=3", "concm:epochs=3,released", "concm: released , epochs=3"])
def test_a_form_that_is_registered_by_itself_is_written_as_a_preset_is(words):
    choice = choose(words)
    assert (choice.entry.name, choice.label) == ("concm:released", words)
    assert choice.settings == replace(ReleasedSettings(), epochs=3)
    assert choose("concm:released,short").settings == ReleasedSettings().short()
    assert known(words).settings == choice.settings


def test_any_method_may_stand_on_equal_footing_and_then_needs_views_and_shots():
    choice = choose("equal:teen:alpha=0.5")
    assert (choice.label, choice.entry.name, choice.equal) == ("equal:teen:alpha=0.5", "teen", True)
    assert choice.settings == choose("teen:alpha=0.5").settings
    assert choice.needs == (
        "views of the shots",
        "exemplars: all shots and base images held out, for the operating point",
    )
    assert known("equal:teen:alpha=0.5") == choice
    assert known("equal:nobody") is None
    assert choose("equal:concm:published").needs[0] == "class names"


def test_inner_settings_are_reached_by_a_dot_and_leave_their_neighbours_alone():
    found = choose("concm:calibration.steps=5,calibration.own_logit=1").settings
    assert found == replace(Settings(), calibration=replace(Settings().calibration, steps=5, own_logit=1.0))


def test_inner_settings_of_a_preset_are_kept_but_for_what_is_changed():
    assert vary(Outer(), ["small", "inner.rate=none"]) == Outer(count=0, inner=Inner(steps=1, rate=None))


def test_an_optional_setting_takes_none_and_a_value():
    assert choose("concm:whitening=none").settings.whitening is None
    assert choose("concm:whitening=2.5").settings.whitening == 2.5
    assert vary(Outer(), ["large", "limit=none"]).limit is None
    found = vary(Outer(), ["limit=7"]).limit
    assert found == 7
    assert isinstance(found, int)


@pytest.mark.parametrize(("word", "value"), [("true", True), ("false", False)])
def test_a_switch_is_true_or_false(word, value):
    assert choose(f"concm:views={word}").settings.views is value


def test_spaces_around_names_and_values_do_not_matter():
    plain = choose("concm:structure=random,calibration.steps=5").settings
    assert choose("concm:structure = random , calibration.steps =5").settings == plain


def test_the_last_of_two_values_counts():
    assert choose("concm:alpha=0.1,alpha=0.2").settings.alpha == 0.2


@given(outers, st.randoms(use_true_random=False))
def test_settings_written_out_in_any_order_are_read_back_as_they_were(settings, random):
    words = typed(settings)
    random.shuffle(words)
    assert vary(Outer(), words) == settings
    assert vary(Outer(), ["large", *words]) == settings


def test_every_setting_of_every_registered_method_can_be_written():
    for entry in entries().values():
        if entry.settings is None:
            continue
        made = [entry.settings, *(getattr(entry.settings, name)() for name in getattr(entry.settings, "PRESETS", ()))]
        for settings in made:
            assert vary(entry.settings, typed(settings)) == settings


REFUSED = {
    "concm:alpa=0.5": ["'alpa'", "did you mean alpha?"],
    "concm:calibration.stps=5": ["'stps'", "did you mean steps?"],
    "concm:calibrations.steps=5": ["'calibrations'", "did you mean calibration?"],
    "concm:publised": ["'publised'", "did you mean published?"],
    "concm:alpha": ["'alpha'", "did you mean alpha=…?"],
    "concm:xyzzy=1": ["'xyzzy'", "alpha", "whitening"],
    "concm:PRESETS=1": ["'PRESETS'"],
    "concm:=1": ["''"],
    "concm:alpha=much": ["'alpha=much'", "a number"],
    "concm:alpha=": ["'alpha='", "a number"],
    "concm:alpha=0.5=0.6": ["'alpha=0.5=0.6'", "a number"],
    "concm:alpha=none": ["'alpha=none'", "a number"],
    "concm:steps=2.5": ["'steps=2.5'", "a whole number"],
    "concm:calibration.steps=few": ["'calibration.steps=few'", "a whole number"],
    "nc_fscil:steps=3/few": ["'steps=3/few'", "a whole number"],
    "nc_fscil:steps=3//4": ["'steps=3//4'", "a whole number"],
    "nc_fscil:steps=3/-1": ["steps must be at least 0, not -1"],
    "concm:views=yes": ["'views=yes'", "true or false"],
    "concm:views=True": ["'views=True'", "true or false"],
    "concm:calibrate=true": ["'calibrate=true'", "names, network, none"],
    "concm:structure=round": ["'structure=round'", "matched, greedy, random, fixed, learned"],
    "concm:structure=none": ["'structure=none'", "matched, greedy, random, fixed, learned"],
    "concm:calibration=5": ["'calibration=5'", "calibration.shots="],
    "concm:alpha.steps=5": ["'alpha.steps=5'", "alpha has no settings of its own"],
    "concm:calibration.steps.more=5": ["'calibration.steps.more=5'", "steps has no settings of its own"],
    "concm:structure=fixed": ["structure=fixed", "total=N"],
    "concm:structure=fixed,total=none": ["structure=fixed", "total=N"],
    "ncm:alpha=0.5": ["ncm", "no settings", "'alpha=0.5'"],
    "ncm:published": ["ncm", "no settings", "'published'"],
    "concn": ["'concn'", "did you mean concm?"],
    "ConCM": ["'ConCM'"],
    "qqqq": ["'qqqq'", "concm", "ncm"],
    "": ["''", "concm", "ncm"],
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: words or "nothing")
def test_what_is_not_understood_is_refused_and_the_way_out_named(words):
    with pytest.raises(Misuse) as refusal:
        choose(words)
    for part in REFUSED[words]:
        assert part in str(refusal.value)


@pytest.mark.parametrize("words", ["structure=fixed,total=60", "total=60,structure=fixed"])
def test_settings_that_need_each_other_may_come_in_any_order(words):
    found = choose(f"concm:{words}").settings
    assert (found.structure, found.total) == ("fixed", 60)


def test_a_method_without_settings_is_built_from_seed_and_device_alone():
    choice = choose("ncm")
    assert choice.settings is None
    assert isinstance(choice.build(seed=0, device="cpu"), NCM)


def test_every_registered_method_says_what_it_is_and_is_in_alphabetical_order():
    assert list(entries()) == sorted(entries())
    assert {"concm", "ncm", "ncm_bias"} <= set(entries())
    for name, entry in entries().items():
        assert entry.name == name
        assert entry.title
        assert entry.paper
        method = choose(name).build(seed=0, device="cpu")
        assert all(callable(getattr(method, verb)) for verb in ("fit_base", "learn", "scores"))


class Mine:
    """A user's method: keeps what it was made with."""

    def __init__(self, **given: object) -> None:
        self.given = given


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
    """A copy of the registry for this test alone, before anybody has asked what is in it."""
    monkeypatch.setattr(registry_module, "_registered", dict(entries()))
    entries.cache_clear()
    yield
    monkeypatch.undo()
    entries.cache_clear()


@pytest.mark.usefixtures("registry")
def test_a_users_own_method_is_chosen_by_its_name():
    made = methods.method("mine", title="my own", paper="none yet", needs=("images",))(Mine)
    assert made is Mine
    assert entries()["mine"].needs == ("images",)
    choice = choose("mine")
    assert isinstance(choice, Choice)
    assert choice.build(seed=4, device="cpu").given == {"seed": 4, "device": "cpu"}
    with pytest.raises(Misuse, match="no settings"):
        choose("mine:count=3")
    with pytest.raises(Misuse, match="did you mean mine"):
        choose("mime")


@pytest.mark.usefixtures("registry")
def test_a_users_own_settings_are_varied_like_any_others():
    class Varied(Mine):
        settings = Outer()

    methods.method("mine", title="my own", paper="none yet")(Varied)
    built = choose("mine:large,inner.steps=8,kind=flat").build(seed=4, device="cpu")
    settings = replace(Outer.large(), inner=Inner(steps=8), kind="flat")
    assert built.given == {"settings": settings, "seed": 4, "device": "cpu"}
    assert choose("mine").settings == Outer()


@pytest.mark.usefixtures("registry")
def test_a_method_may_be_registered_after_others_were_used():
    choose("ncm")
    methods.method("mine", title="my own", paper="none yet")(Mine)
    assert choose("mine").entry.make is Mine


OWN = """
from concm.methods.ncm import NCM
from concm.methods.choice import known

class Own(NCM):
    pass

class Bare:
    needs = ("class names",)

    def __init__(self, seed):
        self.given = seed

    def fit_base(self, base): ...
    def learn(self, session): ...
    def scores(self, features): ...

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a user's own in the current folder; returns its name."""
    name = "of_my_own_for_one_test"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("ending", ["", ".py"], ids=["module", "file"])
def test_anybody_s_class_is_chosen_by_where_it_is(own, ending):
    choice = choose(f"{own}{ending}:Own")
    assert choice.label == choice.entry.name == f"{own}{ending}:Own"
    assert isinstance(choice.build(seed=0, device="cpu"), NCM)
    assert f"{own}{ending}:Own" not in entries()


def test_a_class_of_one_s_own_need_not_take_the_device_and_may_declare_what_it_needs(own):
    choice = choose(f"{own}:Bare")
    assert choice.build(seed=4, device="cpu").given == 4
    assert choice.needs == ("class names",)


@pytest.mark.usefixtures("registry")
def test_a_registered_class_may_be_named_by_where_it_is_with_its_settings():
    assert choose("concm.methods.teen:TEEN:alpha=0.25").settings == choose("teen:alpha=0.25").settings


@pytest.mark.parametrize("words", ["{}:Other", "{}.py:Other", "nowhere_at_all:Own", "nowhere.py:Own"])
def test_a_class_that_is_not_there_is_refused(own, words):
    with pytest.raises(Misuse, match="cannot import the method"):
        choose(words.format(own))


def test_a_class_without_settings_takes_none(own):
    with pytest.raises(Misuse, match="no settings"):
        choose(f"{own}:Own:alpha=1")


def test_naming_a_class_leaves_the_import_path_as_it_was(own):
    before = list(sys.path)
    choose(f"{own}:Own")
    assert sys.path == before


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_that_is_none_is_refused(value):
    with pytest.raises(Misuse):
        choose(f"concm:alpha={value}")


@pytest.mark.parametrize("change", ["steps=-1", "per_base=-1", "replay=-1", "whitening=-5", "structure=fixed,total=0"])
def test_a_number_out_of_range_is_refused_before_anything_is_run(change):
    with pytest.raises(Misuse):
        choose(f"concm:{change}")


def test_a_class_s_own_defaults_are_what_runs():
    class Bold(NCM):
        settings = Outer(count=9)

    assert choice_of(Bold).settings == Outer(count=9)
    assert choice_of(Bold).build(seed=1, device="cpu").settings == Outer(count=9)


def test_an_object_s_row_is_called_by_its_label():
    first = NCM()
    first.label = "first"
    assert choice_of(first).label == "first"
    assert choice_of(NCM()).label == "ncm"


def test_a_changed_file_is_another_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    before = choose("mine.py:Own").source
    Path("mine.py").write_text(f"{OWN}\n# changed")
    assert before != choose("mine.py:Own").source
    assert choose("ncm").source is None


@pytest.mark.parametrize("name", ["ncm2", "cec", "teens"])
def test_a_file_may_be_called_almost_like_a_method(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.py").write_text(OWN)
    assert choose(f"{name}.py:Own").entry.name == f"{name}.py:Own"


def test_a_mistyped_method_with_settings_has_a_hint():
    with pytest.raises(Misuse, match="did you mean concm"):
        choose("conmc:published")


def test_departures_are_the_paragraph_that_begins_with_here(tmp_path, monkeypatch):
    text = (
        '"""A method. It is not Here: that they begin.\\n\\nHere: it is\\nsomewhat shorter.\\n\\nAnd more."""\n'
        "from concm.methods.ncm import NCM\n\n\nclass Own(NCM):\n    pass\n"
    )
    (tmp_path / "own.py").write_text(text)
    assert choose(f"{tmp_path / 'own.py'}:Own").entry.departures == "it is somewhat shorter."
    assert choose("teen").entry.departures.startswith("only the calibration;")
    assert choose("ncm").entry.departures == ""


def test_a_method_may_be_meant_for_some_scenarios_only():
    entry = choose("pa").entry
    assert entry.meant_for("cub200")
    assert entry.meant_for("cub200-validation")
    assert not entry.meant_for("cifar100")
    assert choose("teen").entry.meant_for("cifar100")
