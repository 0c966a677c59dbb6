"""The paper's experiments: each can be run as it is written down, and stands beside the row that it names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from concm.errors import Misuse
from concm.evaluation import published, tsne
from concm.evaluation.paper import chosen, experiments, looked_at
from concm.evaluation.probe import likeness, load, probe, save
from concm.methods import choose
from tests.support.data import make_bank

EVERY = list(experiments().values())


@pytest.mark.parametrize("experiment", EVERY, ids=lambda experiment: experiment.name)
def test_every_run_of_an_experiment_is_a_method_that_there_is(experiment):
    for label in experiment.methods():
        choose(label)


@pytest.mark.parametrize("experiment", EVERY, ids=lambda experiment: experiment.name)
def test_the_runs_in_the_papers_own_form_can_be_left_out(experiment):
    ours = {line.ours for line in experiment.lines if line.ours}
    forms = {line.form for line in experiment.lines if line.form}
    assert ours <= set(experiment.methods(ours_only=True))
    assert {label for label in experiment.methods() if label not in experiment.methods(ours_only=True)} <= forms


@pytest.mark.parametrize("experiment", EVERY, ids=lambda experiment: experiment.name)
def test_a_line_that_names_a_printed_row_finds_exactly_that_row(experiment):
    for line in experiment.lines:
        if line.printed:
            row = experiment.printed(line)
            assert row is not None, line.shown
            told = {**row.other, "method": row.method}
            assert all(told.get(name, "") == value for name, value in line.printed.items())
    named = [experiment.printed(line) for line in experiment.lines if line.printed]
    assert len({id(row) for row in named}) == len(named)


def test_every_table_of_measured_figures_in_the_paper_has_an_experiment():
    elsewhere = {"backbone_comparison", "Tab_conflict", "Table_ablation", "Table_Efficiency", "Tab_Image1k"}
    shown = {experiment.table for experiment in EVERY}
    assert {table.label for table in published.tables()} - elsewhere == shown - {None}


def test_a_misspelt_experiment_is_refused_with_the_right_name():
    with pytest.raises(Misuse, match="did you mean structures"):
        chosen(["structure"])


def test_without_a_bank_an_experiment_says_so(tmp_path):
    assert experiments()["cross_domain"].source(tmp_path) is None
    (tmp_path / "mini_to_cifar.safetensors").touch()
    assert experiments()["cross_domain"].source(tmp_path).file == tmp_path / "mini_to_cifar.safetensors"
    assert experiments()["cifar100"].source(None).file is None


def test_points_that_are_neighbours_stay_neighbours():
    generator = np.random.default_rng(0)
    centres = generator.normal(0, 10, (3, 20))
    points = np.concatenate([centre + generator.normal(0, 0.5, (30, 20)) for centre in centres])
    flat = tsne.embed(points, steps=250)
    labels = np.repeat(np.arange(3), 30)
    apart = ((flat[:, None] - flat[None]) ** 2).sum(2)
    np.fill_diagonal(apart, np.inf)
    assert (labels[apart.argmin(1)] == labels).mean() > 0.98
    assert np.array_equal(flat, tsne.embed(points, steps=250))


def test_a_few_points_have_a_picture_too():
    assert tsne.embed(np.zeros((2, 3))).shape == (2, 2)
    assert np.isfinite(tsne.embed(np.eye(4))).all()


def test_a_look_inside_survives_its_file_and_fits_the_bank(tmp_path):
    bank = make_bank()
    look = probe(bank, "concm:base_steps=2,steps=2")
    save([look], tmp_path / "probes.json")
    (again,) = load(tmp_path / "probes.json")
    assert (again.method, again.confusion, again.space.kind) == (look.method, look.confusion, look.space.kind)
    assert again.within == pytest.approx(look.within, rel=1e-3)
    assert again.space.x == pytest.approx(look.space.x, rel=1e-3)
    plain = probe(bank, "concm:base_steps=2,steps=2", pictures=False)
    assert (plain.within, plain.prototypes) == (look.within, look.prototypes)
    assert plain.confusion == plain.embeddings == plain.space.x == []
    novel = list(bank.scenario.names[bank.scenario.base :])
    assert look.prototypes.names == novel
    assert len(look.prototypes.calibrated) == len(look.prototypes.accuracy) == len(novel)
    assert all(-1 <= value <= 1.0001 for value in (*look.prototypes.biased, *look.prototypes.calibrated))
    assert sum(map(sum, look.confusion)) == len(bank.test.labels)
    assert len(look.space.x) == len(look.space.kind)


def test_likeness_within_and_between_classes_is_that_of_all_pairs():
    random = torch.Generator().manual_seed(0)
    vectors, labels = F.normalize(torch.randn(30, 4, generator=random)), torch.arange(3).repeat(10)
    cosines, same = vectors @ vectors.T, labels[:, None] == labels
    others = ~torch.eye(30, dtype=torch.bool)
    assert likeness(vectors, labels, 3) == pytest.approx(
        (float(cosines[same & others].mean()), float(cosines[~same].mean())), abs=1e-5
    )


def test_only_forms_of_concm_can_be_looked_into():
    with pytest.raises(Misuse, match="no form of concm"):
        probe(make_bank(), "ncm")
    for label in looked_at():
        assert choose(label).entry.name == "concm"
