"""From runs to rows and tables, against calculations by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from concm.errors import ConcmError
from concm.evaluation.given import Given
from concm.evaluation.paired import deviation, interval
from concm.evaluation.results import Curve, Result
from concm.evaluation.statistics import (
    CONTROL,
    Official,
    Row,
    Table,
    difference,
    mean_over,
    ranks,
    rows,
    shared_draws,
)
from tests.support.data import make_bank
from tests.support.runs import CURVE, RUN, figures, made

OTHER = Curve([0.0, 0.1, 0.2], [84.0, 74.0, 60.0], [20.0, 40.0, 60.0])


@pytest.mark.promise
def test_two_results_are_averaged_and_their_spread_is_told():
    one = made("some", *RUN[:2], replace(RUN[2], trade_off=CURVE))
    worse = figures(2, 62.0, 65.0, 30.0, 20.0, seconds=6.0, trade_off=OTHER)
    row = Row.of([one, made("some", RUN[0], figures(1, 72.0, 77.0, 50.0, 60.0), worse, draw=1)])
    assert (row.method, row.runs) == ("some", 2)
    assert (row.ahm, row.ahm_std) == (40.0, 0.0)
    assert (row.fa, row.fa_std) == (64.0, pytest.approx(8**0.5))
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


def ended(label: str, base: float, novel: float, draw: int = 0) -> Result:
    """A run that ends with these accuracies; the control's would describe the curve."""
    last = figures(2, 66.0, base, novel, 30.0, trade_off=CURVE)
    return made(label, *RUN[:2], last, draw=draw)


@pytest.mark.parametrize(
    ("base", "novel", "points"),
    [(70.0, 40.0, 0.0), (75.0, 30.0, 5.0), (65.0, 40.0, -5.0), (90.0, 15.0, None), (50.0, 50.0, None)],
)
def test_points_above_the_curve_are_counted_at_the_rows_own_base_accuracy(base, novel, points):
    row, _ = rows([ended("some", base, novel), ended(CONTROL, 70.0, 40.0)])
    assert row.above_curve == (None if points is None else pytest.approx(points))


def listed(result: Result, **summary: float) -> Result:
    """The same with shots of published lists, and other figures of the whole run."""
    heading = replace(result.heading, shots={"4": [0]})
    return replace(result, heading=heading, summary=replace(result.summary, **summary))


def test_official_shots_stand_beside_the_draws_and_are_no_part_of_their_means():
    runs = [ended(name, 70.0, 40.0, draw) for name in ("some", CONTROL) for draw in (0, 1)]
    more = [listed(ended("some", 60.0, 10.0), ahm=11.0, fa=12.0), listed(ended(CONTROL, 10.0, 90.0), ahm=13.0)]
    alone, beside = rows(runs), rows([*runs, *more])
    assert beside[0].official == Official(11.0, 12.0)
    assert [replace(row, official=None) for row in beside] == alone


def test_rows_of_one_bank_join_also_with_fewer_draws_and_are_paired_by_the_draws_that_both_have():
    quick = replace(rows([ended("quick", 70.0, 40.0 + draw, draw) for draw in range(4)])[0], method="quick")
    slow = rows([ended("slow", 70.0, 39.0, draw) for draw in range(2)])[0]
    bank = make_bank()
    one, two = (replace(Table.of(bank, [], count), rows=[row]) for count, row in ((4, quick), (2, slow)))
    other = replace(two, bank="another")
    joined, rest = one.joined([two, other])
    assert [row.method for row in joined.rows] == ["quick", "slow"]
    assert rest == [other]
    assert one.joined([replace(two, rows=[replace(slow, method="quick")])])[0].rows == [quick]
    assert replace(one, bank="").joined([replace(two, bank="")])[1] != []


def test_every_draw_is_measured_against_the_control_on_the_same_shots():
    higher = replace(CURVE, novel=[value + 2 for value in CURVE.novel])
    control = [ended(CONTROL, 70.0, 40.0, draw) for draw in (0, 1)]
    control[1] = replace(control[1], sessions=[*RUN[:2], replace(control[1].sessions[-1], trade_off=higher)])
    row = rows([ended("ours", 70.0, 43.0, 0), ended("ours", 70.0, 44.0, 1), *control])[0]
    assert row.by_draw["above_curve"] == pytest.approx([3.0, 2.0])
    assert row.above_curve == pytest.approx(2.5)
    low, high = row.above_interval
    assert (high - low) / 2 == pytest.approx(12.706 * 0.5)
    assert row.by_draw["fa"] == [66.0, 66.0]


def test_seeds_repeat_a_draw_and_are_no_further_ones():
    control = [ended(CONTROL, 70.0, 40.0, draw) for draw in (0, 1)]
    once = [ended("ours", 70.0, 43.0, 0), ended("ours", 70.0, 44.0, 1)]
    row, again = (rows([*runs, *control])[0] for runs in (once, once * 4))
    assert again.runs == 8
    assert (again.above_interval, again.fa_std) == (row.above_interval, row.fa_std)


def test_the_control_is_never_above_its_own_curve():
    steep = replace(CURVE, base=[80.0, 80.0, 70.0], novel=[0.0, 30.0, 40.0])
    last = figures(2, 66.0, 80.0, 30.0, 30.0, trade_off=steep)
    [row] = rows([made(CONTROL, *RUN[:2], last)])
    assert row.above_curve == 0


def test_heights_are_above_the_curve_as_it_is_and_only_rows_keep_it_rounded():
    """Accuracies are no round numbers: rounding the curve moved its ends, and the control beside it."""
    thirds = Curve([0.0, 0.1, 0.2], [80.0, 70.0, 200 / 3], [10.0, 100 / 3, 140 / 3])
    control = made(CONTROL, *RUN[:2], figures(2, 66.0, 200 / 3, 140 / 3, 30.0, trade_off=thirds))
    inside = made("some", *RUN[:2], figures(2, 66.0, 70.0, 100 / 3, 30.0))
    row, some = rows([control, inside])
    assert row.above_curve == 0
    assert some.above_curve == pytest.approx(0, abs=1e-12)
    assert row.trade_off == Curve([0.0, 0.1, 0.2], [80.0, 70.0, 66.6667], [10.0, 33.3333, 46.6667])
    assert rows([control] * 3)[0].above_curve == pytest.approx(0, abs=1e-9)


def test_an_interval_is_students_and_narrows_with_the_draws():
    values = [1.0, 2.0, 3.0]
    assert interval(values) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert interval([1.0]) is None
    widths = [high - low for low, high in (interval(values * times) for times in (1, 2, 4, 8))]
    assert widths == sorted(widths, reverse=True)


def test_a_deviation_is_that_of_a_sample_and_a_single_value_has_none():
    assert deviation([1.0, 2.0, 3.0, 6.0]) == pytest.approx((14 / 3) ** 0.5)
    assert deviation([5.0]) == 0


def drawn(label: str, *values: float, first: int = 0) -> Row:
    """A row whose AHM of each draw is given."""
    runs = [
        made(label, RUN[0], figures(1, 70.0, 75.0, 40.0, value), draw=first + at) for at, value in enumerate(values)
    ]
    return Row.of(runs)


@pytest.mark.promise
def test_differences_are_paired_by_draw():
    one, other = drawn("one", 50.0, 60.0, 70.0), drawn("other", 49.0, 58.0, 67.0)
    found = difference(one, other, "ahm")
    assert found.mean == pytest.approx(2.0)
    assert found.interval == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert found.tie
    assert not difference(drawn("one", 51.0, 60.0, 69.0), other, "ahm").tie, (
        "paired, though the draws differ by far more"
    )


def test_only_draws_that_both_have_are_compared():
    assert difference(drawn("one", 50.0, 60.0), drawn("other", 55.0, 70.0, first=1), "ahm").mean == pytest.approx(5.0)
    assert difference(drawn("one", 50.0), drawn("other", 50.0, first=5), "ahm") is None
    assert difference(drawn("one", 50.0), drawn("other", 40.0), "ahm").tie, "one draw says nothing"


def test_ties_share_a_rank_and_the_next_one_is_counted_on():
    found = [drawn("c", 40.0, 41.0), drawn("a", 50.0, 52.0), drawn("b", 50.1, 51.5)]
    assert ranks(found, "ahm") == {"a": 1, "b": 1, "c": 3}
    assert ranks([replace(row, by_draw={}) for row in found], "ahm") == {"a": 1, "b": 2, "c": 3}


def test_ranks_are_by_the_draws_that_all_rows_have():
    """The row with fewer draws has the higher mean only because its draws are the easy ones."""
    many, few = drawn("many", 64.0, 66.0, 58.0, 59.0), drawn("few", 62.0, 64.0)
    assert many.ahm < few.ahm
    assert shared_draws([many, few], "ahm") == [0.0, 1.0]
    assert [mean_over(row, "ahm", [0.0, 1.0]) for row in (many, few)] == [65.0, 63.0]
    assert ranks([few, many], "ahm") == {"many": 1, "few": 2}
    assert ranks([replace(few, by_draw={}), many], "ahm") == {"few": 1, "many": 2}, "older files know no draws"


def test_a_row_of_a_single_draw_does_not_narrow_the_draws_of_the_others():
    better, worse, one = drawn("better", 50.0, 55.0, 57.0), drawn("worse", 51.0, 52.0, 53.0), drawn("one", 60.0)
    assert shared_draws([one, better, worse], "ahm") == [0.0, 1.0, 2.0]
    assert [mean_over(row, "ahm", [0.0, 1.0, 2.0]) for row in (better, worse, one)] == [54.0, 52.0, 60.0]
    assert shared_draws([one, drawn("another", 61.0)], "ahm") == [0.0]


def test_rows_without_a_common_draw_rank_by_their_own_means():
    one, two = drawn("one", 50.0, 51.0), drawn("two", 60.0, 61.0, first=5)
    assert shared_draws([one, two], "ahm") == []
    assert ranks([one, two], "ahm") == {"two": 1, "one": 2}


def test_one_that_is_above_the_first_over_more_draws_shares_its_rank():
    """The first two draws, which all three have, put the worse of the other two ahead by chance."""
    better = drawn("better", 50.0, 50.0, 59.0, 58.0, 60.0, 59.0, 58.5, 59.5)
    worse = drawn("worse", 50.5, 50.5, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0)
    assert not difference(better, worse, "ahm").tie
    assert ranks([better, worse, drawn("few", 30.0, 30.1)], "ahm") == {"worse": 1, "better": 1, "few": 3}


def test_rows_keep_the_order_of_the_methods_and_without_the_control_have_no_height():
    found = rows([ended("ours", 70.0, 43.0), ended("ncm", 75.0, 30.0), ended("ours", 70.0, 43.0, 1)])
    assert [(row.method, row.runs, row.above_curve) for row in found] == [("ours", 2, None), ("ncm", 1, None)]


def test_a_table_comes_back_as_it_was_written(tmp_path):
    table = Table.of(make_bank(), [made("ncm", *RUN)], draws=1, at_once=2)
    table.save(tmp_path / "table.json")
    assert Table.load(tmp_path / "table.json") == table


def test_a_table_says_what_its_bank_gave():
    bank = make_bank(images=8, views=2)
    assert Table.of(bank, [made("ncm", *RUN)], draws=1).given == Given(8, 8, 0, 8, 2, 2, test=8)
    some = replace(bank.base, views=None, held=torch.arange(len(bank.base.labels)) >= 28)
    part = replace(bank, base=some, counts=bank.counts + 92)
    assert Given.of(part) == Given(base=7, on=100, held=1, candidates=8, views=2, base_views=0, test=8)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"scenario": "x"}', "\x00"])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(ConcmError, match=r"table\.json is damaged or not a table of `concm bench --json`"):
        Table.load(tmp_path / "table.json")
