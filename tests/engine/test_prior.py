"""What names say of prototypes: against slow references, and in cases in which the answer is plain."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from concm.engine.prior import NOISE, NamePrior, cosine, left_out, trust

seeds = st.integers(0, 10**6)
positive = st.floats(1e-3, 10)


def world(seed: int, classes: int = 9, dimension: int = 6) -> tuple[Tensor, Tensor]:
    """A kinship (n, n) with ones on its diagonal, and prototypes (n, d)."""
    random = torch.Generator().manual_seed(seed)
    sides = torch.nn.functional.normalize(torch.randn(classes, 4, generator=random, dtype=torch.float64))
    return sides @ sides.T, torch.randn(classes, dimension, generator=random, dtype=torch.float64)


def slow_prediction(kin: Tensor, prototypes: Tensor, asked: Tensor, centre: Tensor) -> Tensor:
    """The mean of the Gaussian process, by solving for one dimension at a time."""
    noisy = kin + NOISE * torch.eye(len(kin), dtype=torch.float64)
    columns = [torch.linalg.solve(noisy, column - middle) for column, middle in zip(prototypes.T, centre, strict=True)]
    return centre + asked @ torch.stack(columns, 1)


@given(seed=seeds)
def test_a_prediction_is_the_mean_of_a_gaussian_process(seed):
    kin, prototypes = world(seed)
    centre = prototypes[:-2].mean(0)
    found, _ = NamePrior.of(kin[:-2, :-2], prototypes[:-2]).predict(kin[-2:, :-2])
    assert torch.allclose(found, slow_prediction(kin[:-2, :-2], prototypes[:-2], kin[-2:, :-2], centre), atol=1e-8)


@pytest.mark.promise
@given(seed=seeds)
def test_its_miss_is_that_of_fitting_again_without_each_class(seed):
    kin, prototypes = world(seed)
    centre, errors = prototypes.mean(0), []
    for left in range(len(kin)):
        rest = [at for at in range(len(kin)) if at != left]
        predicted = slow_prediction(kin[rest][:, rest], prototypes[rest], kin[left, rest][None], centre)
        alone = slow_prediction(kin[rest][:, rest], prototypes[rest], kin[left, rest][None], prototypes[rest].mean(0))
        torch.testing.assert_close(left_out(kin, prototypes)[left], alone[0])
        errors.append(float((predicted[0] - prototypes[left]).square().sum()))
    prior = NamePrior.of(kin, prototypes)
    assert float(prior.miss) == pytest.approx(sum(errors) / len(errors))


@given(seed=seeds)
def test_apart_is_the_miss_of_the_mean_of_the_others(seed):
    kin, prototypes = world(seed)
    errors = []
    for left in range(len(kin)):
        others = prototypes[[at for at in range(len(kin)) if at != left]].mean(0)
        errors.append(float((others - prototypes[left]).square().sum()))
    assert float(NamePrior.of(kin, prototypes).apart) == pytest.approx(sum(errors) / len(errors))


@given(seed=seeds)
def test_where_no_name_is_akin_to_another_the_mean_is_predicted(seed):
    _, prototypes = world(seed)
    prior = NamePrior.of(torch.eye(len(prototypes), dtype=torch.float64), prototypes)
    found, miss = prior.predict(torch.zeros(2, len(prototypes)))
    assert torch.allclose(found, prototypes.mean(0).expand(2, -1))
    assert torch.equal(miss, prior.apart.expand(2))


@given(seed=seeds)
def test_a_name_without_kin_has_the_mean_of_the_base_prototypes_and_misses_as_that_does(seed):
    kin, prototypes = world(seed)
    prior = NamePrior.of(kin, prototypes)
    found, miss = prior.predict(torch.stack([torch.zeros(len(kin)), kin[0]]))
    assert torch.allclose(found[0], prototypes.mean(0))
    assert miss.tolist() == [float(prior.apart), float(prior.miss)]


def test_a_name_that_means_nothing_among_the_base_classes_does_no_harm():
    kin, prototypes = world(3)
    kin[4] = kin[:, 4] = 0  # as `kinship` has it: not even with itself
    found, _ = NamePrior.of(kin, prototypes).predict(kin[:4])
    rest = [at for at in range(len(kin)) if at != 4]
    expected = slow_prediction(kin[rest][:, rest], prototypes[rest], kin[:4, rest], prototypes.mean(0))
    assert torch.allclose(found, expected)


def test_where_looks_follow_names_predictions_miss_by_less_than_the_mean_does():
    random = torch.Generator().manual_seed(0)
    sides = torch.nn.functional.normalize(torch.randn(40, 5, generator=random, dtype=torch.float64))
    prototypes = sides @ torch.randn(5, 12, generator=random, dtype=torch.float64)
    prior = NamePrior.of(sides @ sides.T, prototypes)
    assert prior.miss < 0.2 * prior.apart
    unrelated = NamePrior.of(sides @ sides.T, prototypes[torch.randperm(40, generator=random)])
    assert unrelated.miss > unrelated.apart


@given(miss=positive, likeness=st.floats(0, 0.99), shots=st.integers(1, 50))
def test_trust_is_a_share_that_falls_with_the_shots(miss, likeness, shots):
    few, more = trust(torch.tensor(miss), torch.tensor(likeness), torch.tensor([shots, shots + 1]))
    assert 1 > few > more > 0


@given(miss=positive, further=positive, likeness=st.floats(0, 0.99), shots=st.integers(1, 50))
def test_trust_falls_with_how_far_names_miss(miss, further, likeness, shots):
    """The further predictions miss, the less they count; and the more, the less alike the shots are."""
    near, far = trust(torch.tensor([miss, miss + further]), torch.tensor(likeness), torch.tensor(shots))
    assert near > far
    assert trust(torch.tensor(miss), torch.tensor(likeness - 0.1), torch.tensor(shots)) > near


@given(seed=seeds, shots=st.integers(1, 5))
def test_no_other_share_of_a_prediction_comes_nearer_to_the_truth_on_average(seed, shots):
    miss, noise = 0.5, 0.8 / shots
    best = trust(torch.tensor(miss), torch.tensor(0.2), torch.tensor(shots))

    def error(share: Tensor) -> Tensor:
        return share**2 * miss + (1 - share) ** 2 * noise

    others = torch.rand(20, generator=torch.Generator().manual_seed(seed))
    assert (error(others) >= error(best) - 1e-6).all()


def test_it_is_of_the_type_of_the_prototypes_and_survives_a_state():
    kin, prototypes = world(1)
    prior = NamePrior.of(kin, prototypes.float())
    again = NamePrior.empty()
    for name, value in prior.state_dict().items():
        setattr(again, name, value)
    for found, expected in zip(again.predict(kin[:3]), prior.predict(kin[:3]), strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


def test_a_single_base_class_is_all_that_can_be_said():
    prior = NamePrior.of(torch.ones(1, 1), torch.tensor([[1.0, 2.0]]))
    assert prior.predict(torch.tensor([[0.7]]))[0].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(("shots", "share"), [(1, 0.0), (1, 0.4), (5, 0.2), (3, 1.0)])
def test_the_cosine_that_is_expected_is_the_one_that_images_have(shots, share):
    """Over many classes, with images around their means, and names that say something of these."""
    random = torch.Generator().manual_seed(0)
    means = torch.nn.functional.normalize(torch.randn(400, 60, generator=random, dtype=torch.float64))
    spread = 0.8 / 60**0.5
    images = torch.nn.functional.normalize(
        means[:, None] + spread * torch.randn(400, shots + 10, 60, generator=random, dtype=torch.float64), dim=-1
    )
    said = 0.8 * means + 0.4 / 60**0.5 * torch.randn(400, 60, generator=random, dtype=torch.float64)
    mean = (1 - share) * images[:, :shots].mean(1) + share * said
    found = (images[:, shots:] * torch.nn.functional.normalize(mean)[:, None]).sum(-1).mean()
    alike = (images[:, 0] * images[:, -1]).sum(-1).mean()
    agreed = (images * said[:, None]).sum(-1).mean()
    numbers = (torch.tensor(value, dtype=torch.float64) for value in (share, shots))
    expected = cosine(alike, agreed, said.square().sum(1).mean(), *numbers)
    assert float(expected) == pytest.approx(float(found), abs=0.01)
