"""The paper's page: from result files alone, beside the printed figures, and it says where the order differs."""

from __future__ import annotations

import re
from dataclasses import replace

from concm.evaluation import paper
from concm.evaluation.paper import Experiment, Line, experiments
from concm.evaluation.probe import load, probe, save
from concm.evaluation.statistics import Table
from concm.report.paper import PROBES, write
from concm.report.paper_tables import order
from tests.report.test_leaderboard import row, table
from tests.support.data import make_bank
from tests.support.tiny import call, sentence

STRUCTURES = experiments()["structures"]


def drawn(label: str, *ahm: float):
    return row(label, sum(ahm) / len(ahm), by_draw={"draw": [0.0, 1.0, 2.0], "ahm": list(ahm)})


def test_an_order_that_differs_from_the_paper_s_is_said():
    measured = table(drawn("concm", 50.0, 51.0, 52.0), drawn("concm:structure=random", 55.0, 56.1, 57.0))
    assert "has nearest (DSM)" in order(STRUCTURES, measured)
    assert "above RM; here, in our form, it is −5.03" in order(STRUCTURES, measured)


def test_a_difference_that_the_draws_explain_is_no_other_order():
    measured = table(drawn("concm", 50.0, 57.0, 52.0), drawn("concm:structure=random", 55.0, 50.0, 57.0))
    assert order(STRUCTURES, measured) == "The order is the paper's, as far as these draws can tell."


def test_where_nothing_can_be_compared_nothing_is_said():
    assert order(STRUCTURES, table(drawn("concm", 50.0, 51.0, 52.0))) == ""


def test_the_page_has_printed_and_measured_figures_and_loads_nothing(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    replace(table(row("concm", 61.23), row("concm:published,mini_imagenet", 51.5)), scenario="mini_imagenet").save(
        results / "mini_imagenet.json"
    )
    table(row("concm:published,mini_imagenet", 50.0), row("concm:published,mini_imagenet,alpha=0.2", 48.0)).save(
        results / "hyper_alpha.json"
    )
    save([probe(make_bank(), "concm:base_steps=1,steps=1")], results / PROBES.format("mini_imagenet"))
    html, markdown, *pictures = write(results, tmp_path)
    page, text = html.read_text(), markdown.read_text()
    for shown in ("61.23 ± 0.50", "59.78", "13.22", "70.34"):
        assert shown in page
        assert shown in text
    assert "not run" in text
    assert all(picture.name in text for picture in pictures)
    assert len(pictures) == 6
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_the_commands_list_run_and_report(tmp_path, capsys):
    assert call("paper", "--results", tmp_path) == 0
    assert "concm paper run NAME" in capsys.readouterr().out
    assert call("paper", "report", "--results", tmp_path, "--out", tmp_path / "page") == 1
    assert "no results in" in sentence(capsys.readouterr().err)
    assert call("paper", "run", "cross_domain", "--results", tmp_path, "--draws", 1) == 1
    assert "cross_domain needs a bank of mini_to_cifar: mini_to_cifar.safetensors in --banks" in sentence(
        capsys.readouterr().err
    )
    assert call("paper", "run", "cub", "--results", tmp_path) == 2
    assert "no experiment called 'cub'" in sentence(capsys.readouterr().err)


def test_a_run_writes_its_table_and_looks_inside_and_is_not_repeated(tmp_path, capsys, monkeypatch):
    quick = "concm:base_steps=1,steps=1"
    tiny = Experiment("folder", "A small one", "folder", (Line("ConCM", ours=quick), Line("mean", form="ncm")))
    monkeypatch.setattr(paper, "experiments", lambda: {"folder": tiny})
    monkeypatch.setattr(paper, "looked_at", lambda: [quick])
    banks = tmp_path / "banks"
    banks.mkdir()
    make_bank().save(banks / "folder.safetensors", "float32")
    words = ("paper", "run", "folder", "--banks", banks, "--results", tmp_path, "--out", tmp_path / "out")
    assert call(*words, "--draws", 1, "--jobs", 1, "--device", "cpu") == 0, capsys.readouterr().err
    table = Table.load(tmp_path / "folder.json")
    assert {quick, "ncm", "ncm_metric"} <= {row.method for row in table.rows}
    assert load(tmp_path / PROBES.format("folder"))[0].method == quick
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}
    assert call(*words, "--draws", 1, "--jobs", 1, "--device", "cpu") == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()} == before
