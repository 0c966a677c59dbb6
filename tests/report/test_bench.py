"""`concm.bench` in Python: what may be given, and the table as LaTeX."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from concm import bench
from concm.errors import Misuse
from concm.evaluation.statistics import Printed
from concm.features.sessions import draw
from concm.methods.ncm import NCM
from tests.support.data import make_bank, write_lists


@pytest.mark.parametrize("given", ["ncm", NCM, NCM()], ids=["name", "class", "object"])
def test_a_single_method_needs_no_list(given):
    assert len(bench(given, make_bank(), draws=1).rows) == 1


def test_two_objects_of_one_class_are_told_apart_by_their_label():
    one, other = NCM(), NCM()
    with pytest.raises(Misuse, match="method 'ncm' is given twice: give each object a `label` of its own"):
        bench([one, other], make_bank(), draws=1)
    other.label = "again"
    assert [row.method for row in bench([one, other], make_bank(), draws=1).rows] == ["ncm", "again"]


def test_a_gpu_that_is_not_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Misuse, match="torch sees no GPU here"):
        bench("ncm", make_bank(), draws=1, device="cuda")


def test_official_shots_are_a_column_and_a_line_of_their_own(tmp_path):
    bank = make_bank()
    found = bench("ncm", bank, draws=2, splits=write_lists(tmp_path / "lists", bank, draw(bank, 1)))
    (row,) = found.rows
    second = [line.split(",") for line in found.to_csv().splitlines()][2:]
    assert [line[1] for line in second] == ["1", "official"]
    assert second[0][3:] == second[1][3:]
    assert (row.runs, found.table.draws) == (2, 2)
    cell = f"{row.official.ahm:.2f} / {row.official.fa:.2f}"
    assert float(second[0][-1]) == row.official.fa
    for text, end in ((found.to_markdown(), " |"), (found.to_latex(), r" \\")):
        assert any(line.endswith(cell + end) for line in text.splitlines())
        assert "official AHM / FA" in text


def test_latex_is_a_table_as_the_papers_print_it():
    found = bench(["ncm", "ncm_metric"], make_bank(), draws=2)
    text = found.to_latex()
    lines = text.splitlines()
    assert lines[:2] == [r"\begin{tabular}{lcccccc}", r"\toprule"]
    assert lines[2:4] == [r" & Base & \multicolumn{3}{c}{HM in each session} & & \\", r"\cmidrule(lr){3-5}"]
    assert lines[4] == r"Method & Acc & 1 & 2 & 3 & AHM & FA \\"
    assert [line.partition(" & ")[0] for line in lines[6:8]] == ["ncm", r"ncm\_metric"]
    best = max(found.rows, key=lambda row: row.fa)
    bold = [line for line in lines if rf"\textbf{{{best.fa:.2f} $\pm$ {best.fa_std:.2f}}} \\" in line]
    assert len(bold) == 1
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_published_rows_stand_above_the_measured_ones():
    found = bench("ncm", make_bank(), draws=1)
    printed = Printed("OrCo", None, 80.0, 57.12, None, [72.1, 63.9, 56.9])
    lines = replace(found, table=replace(found.table, published=[printed])).to_latex().splitlines()
    assert lines[6:8] == [r"OrCo (published) & 80.00 & 72.10 & 63.90 & 56.90 & 57.12 & -- \\", r"\midrule"]
