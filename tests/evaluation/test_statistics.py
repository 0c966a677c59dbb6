"""From runs to rows and tables, against calculations by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from concm.errors import ConcmError
from concm.evaluation.results import Curve
from concm.evaluation.statistics import Row, Table, rows
from tests.support.data import make_bank
from tests.support.runs import CURVE, RUN, figures, made

OTHER = Curve([0.0, 0.1, 0.2], [84.0, 74.0, 60.0], [20.0, 40.0, 60.0])


@pytest.mark.promise
def test_two_results_are_averaged_and_their_spread_is_told():
    one = made("some", *RUN[:2], replace(RUN[2], trade_off=CURVE))
    worse = figures(2, 62.0, 65.0, 30.0, 20.0, seconds=6.0, trade_off=OTHER)
    row = Row.of([one, made("some", RUN[0], figures(1, 72.0, 77.0, 50.0, 60.0), worse)])
    assert (row.method, row.runs) == ("some", 2)
    assert (row.ahm, row.ahm_std) == (40.0, 0.0)
    assert (row.fa, row.fa_std) == (64.0, 2.0)
    assert (row.base_acc, row.pd, row.nacc, row.seconds) == (80.0, 16.0, 35.0, 9.0)
    assert row.hm == [55.0, 25.0]
    assert (row.last_base, row.last_novel) == (68.0, 25.0)
    assert row.trade_off == Curve([0.0, 0.1, 0.2], [82.0, 72.0, 60.0], [15.0, 40.0, 55.0])
    assert row.smr is None
    assert (row.memory_bytes, row.parameters) == (100.0, 10.0)


def test_matching_rates_are_averaged_by_session():
    runs = [
        [replace(one, smr=rate + step) for one, step in zip(RUN, (0.0, 0.1, 0.2), strict=True)] for rate in (0.2, 0.4)
    ]
    assert Row.of([made("some", *sessions) for sessions in runs]).smr == pytest.approx([0.4, 0.5])


@pytest.mark.parametrize(
    ("base", "novel", "points"),
    [(70.0, 40.0, 0.0), (75.0, 30.0, 5.0), (65.0, 40.0, -5.0), (90.0, 15.0, None), (50.0, 50.0, None)],
)
def test_points_above_the_curve_are_counted_at_the_rows_own_base_accuracy(base, novel, points):
    row = replace(Row.of([made("some", *RUN)]), last_base=base, last_novel=novel)
    assert row.above(replace(row, trade_off=CURVE)) == (None if points is None else pytest.approx(points))
    assert row.above(replace(row, trade_off=None)) is None


def test_rows_keep_the_order_of_the_methods_and_stand_against_the_control():
    last = replace(RUN[2], trade_off=CURVE)
    better = figures(2, 66.0, 70.0, 43.0, 30.0, trade_off=CURVE)
    found = rows([made("ours", *RUN[:2], better), made("ncm", *RUN[:2], last), made("ours", *RUN[:2], better)])
    assert [(row.method, row.runs) for row in found] == [("ours", 2), ("ncm", 1)]
    assert found[0].above_curve == pytest.approx(3.0)
    assert found[1].above_curve == pytest.approx(20.0 - 37.0)
    assert rows([made("ours", *RUN[:2], better)])[0].above_curve is None


def test_a_table_comes_back_as_it_was_written_and_knows_what_may_stand_beside_it(tmp_path):
    bank = make_bank()
    table = Table.of(bank, [made("ncm", *RUN)], draws=1, at_once=2)
    table.save(tmp_path / "table.json")
    assert Table.load(tmp_path / "table.json") == table
    assert table.comparable(bank, 1)
    assert not table.comparable(bank, 2)
    assert not table.comparable(bank.vary(shot=1), 1)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"scenario": "x"}', "\x00"])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(ConcmError, match=r"table\.json is no table of `concm bench --json`"):
        Table.load(tmp_path / "table.json")
