"""Whatever learns has one kind of state: tensors that grow, plain values, networks, and its random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from concm.engine.state import EXTRA, Growing, Stateful, count_bytes
from concm.errors import ConcmError
from concm.evaluation.worlds import World
from concm.methods import choose, teach


class Notes(Growing):
    """A growing module inside another, with a plain value of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.pages, self.first = torch.empty(0, 2), 0

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.first)

    def set_extra_state(self, state: Tensor) -> None:
        self.first = int(state)


class Toy(Stateful):
    """Remembers rows and words, and has a network and notes."""

    values = ("words", "count")

    def __init__(self, width: int = 3, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.words: list[str] = []
        self.count, self.width = 0, width
        self.rows = torch.empty(0, 4)

    def learn(self, *words: str) -> None:
        if not self.count:
            self.rebuild({})
        self.words = [*self.words, *words]
        self.count += len(words)
        self.rows = torch.cat([self.rows, torch.randn(len(words), 4, generator=self.generator)])
        self.late = self.rows.mean(0)  # a tensor that a fresh one lacks
        self.notes.pages, self.notes.first = self.rows[:, :2] + 1, self.count
        with torch.no_grad():
            self.network[0].weight += self.late
        self.network(self.rows)  # which moves the norm's statistics

    def rebuild(self, state: Mapping[str, Tensor]) -> None:
        self.network = nn.Sequential(nn.Linear(4, self.width), nn.BatchNorm1d(self.width))
        with torch.no_grad():
            self.network[0].bias.uniform_(generator=self.generator)
        self.notes = Notes()


def learned(*words: str) -> Toy:
    toy = Toy()
    toy.learn(*words, "and", "others")
    return toy


def loaded(state: Mapping[str, Tensor], into: Toy | None = None) -> Toy:
    toy = into or Toy(seed=5)
    toy.load_state_dict(state)
    return toy


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


words = st.lists(st.text(max_size=5), max_size=4)


def test_a_tensor_that_is_assigned_is_a_buffer_whatever_its_shape_was():
    module = Growing()
    for rows in (1, 3, 0):
        module.rows = torch.ones(rows, 2)
        assert dict(module.named_buffers()).keys() == {"rows"}
        assert module.state_dict()["rows"].shape == (rows, 2)
    module.weight = nn.Parameter(torch.ones(2))
    assert dict(module.named_parameters()).keys() == {"weight"}


def test_what_was_no_tensor_may_become_one():
    module = Growing()
    module.rows = None
    module.rows = torch.ones(2)
    assert module.state_dict().keys() == {"rows"}
    assert torch.equal(module.rows, torch.ones(2))


@given(words)
def test_a_state_has_everything_in_it(known):
    toy = learned(*known)
    again = loaded(toy.state_dict())
    assert (again.words, again.count) == (toy.words, toy.count)
    assert torch.equal(again.rows, toy.rows)
    assert torch.equal(again.late, toy.late)
    assert torch.equal(again.notes.pages, toy.notes.pages)
    assert again.notes.first == toy.notes.first == len(known) + 2
    assert_same(again.state_dict(), toy.state_dict())


@given(words)
def test_what_was_loaded_goes_on_with_the_same_random_numbers(known):
    toy = learned(*known)
    again = loaded(toy.state_dict())
    for one in (toy, again):
        one.learn("later")
    assert_same(again.state_dict(), toy.state_dict())


def test_state_keys_name_the_way_to_a_tensor_by_dots():
    keys = learned().state_dict().keys()
    assert {"rows", "late", "notes.pages", "network.0.weight", "network.1.running_mean"} <= keys
    assert {"generator", EXTRA, f"notes.{EXTRA}"} <= keys


def test_a_state_is_a_copy_and_what_loads_it_takes_a_copy():
    toy = learned()
    state = toy.state_dict()
    before = deepcopy(state)
    toy.learn("more")
    assert_same(state, before)
    loaded(state).learn("more")
    assert_same(state, before)


def test_the_generator_of_the_process_is_neither_used_nor_moved_by_loading():
    state = learned().state_dict()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    loaded(state)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", sorted(learned().state_dict()))
def test_a_state_that_lacks_something_is_refused(name):
    state = learned().state_dict()
    del state[name]
    with pytest.raises(ConcmError, match=f"this state does not fit Toy.*{name.rpartition('.')[2]}"):
        loaded(state)


@pytest.mark.parametrize(
    "name", ["nonsense", "network.0.nonsense", "notes.nonsense", "nonsense.weight", "network.7.bias"]
)
def test_a_state_with_something_strange_is_refused(name):
    with pytest.raises(ConcmError, match=r"this state does not fit Toy.*(nonsense|7)"):
        loaded({**learned().state_dict(), name: torch.ones(2)})


@pytest.mark.parametrize("values", [torch.ones(3, 4, 5), torch.ones(1), torch.ones(4, 3)], ids=lambda v: str(v.shape))
def test_weights_of_another_shape_are_refused(values):
    with pytest.raises(ConcmError, match="this state does not fit Toy"):
        loaded({**learned().state_dict(), "network.0.weight": values})


def test_a_state_of_other_settings_is_refused():
    with pytest.raises(ConcmError, match="this state does not fit Toy"):
        loaded(learned().state_dict(), Toy(width=7))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"values": {}, "buffers": []}', b"\xff"], ids=repr)
def test_plain_values_that_are_damaged_are_refused(text):
    damaged = torch.tensor(list(text), dtype=torch.uint8)
    with pytest.raises(ConcmError, match="this state does not fit Toy"):
        loaded({**learned().state_dict(), EXTRA: damaged})


def test_bytes_are_counted_by_size_and_type():
    assert count_bytes([torch.zeros(3, 2), torch.zeros(5, dtype=torch.uint8), torch.zeros(0)]) == 29


# methods


def taught(words: str) -> tuple[Stateful, World]:
    world, method = World.of(), choose(words).build(seed=0, device="cpu")
    for session in world.sessions:
        teach(method, session)
    return method, world


@pytest.mark.parametrize("words", ["ncm", "teen", "orco:width=16,hidden=8,least_steps=2,base_epochs=2,epochs=2"])
def test_a_state_of_a_method_that_lacks_a_tensor_is_refused(words):
    method, _ = taught(words)
    state = method.state_dict()
    for name in state:
        with pytest.raises(ConcmError, match="this state does not fit"):
            choose(words).build(seed=0, device="cpu").load_state_dict({key: state[key] for key in state if key != name})


def test_the_state_of_another_method_is_refused():
    state = taught("ncm")[0].state_dict()
    with pytest.raises(ConcmError, match="this state does not fit OrCo"):
        choose("orco").build(seed=0, device="cpu").load_state_dict(state)


def test_orco_counts_its_projector_and_the_one_from_which_sessions_begin():
    method, world = taught("orco:width=16,hidden=8,least_steps=2,base_epochs=2,epochs=2")
    dimension = world.test.shape[1]
    assert method.parameter_count == 2 * (dimension * 8 + 8 + 8 * 16 + 16)
