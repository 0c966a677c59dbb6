"""The leaderboard says what was measured, also where it is not flattering."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from concm.evaluation.given import Given
from concm.evaluation.results import ClassMeans, Curve, Cut
from concm.evaluation.statistics import Official, Printed, Row, Table
from concm.methods.choice import known
from concm.methods.closer import SpreadAndCloseness
from concm.records import to_json
from concm.report import leaderboard
from concm.report import leaderboard_papers as papers
from concm.training.recipe import Recipe
from tests.support.tiny import call, sentence


def row(method: str, ahm: float, fa: float = 50.0, above: float | None = 0.0, by_draw: dict | None = None) -> Row:
    return Row(
        method=method,
        ahm=ahm,
        ahm_std=0.5,
        fa=fa,
        fa_std=0.4,
        base_acc=80.0,
        pd=20.0,
        nacc=40.0,
        ber=20.0,
        seconds=1.5,
        memory_bytes=2e6,
        parameters=1000.0,
        last_base=70.0,
        last_novel=40.0,
        hm=[50.0] * 8,
        smr=None,
        class_means=ClassMeans(ahm, fa),
        trade_off=Curve([0.0, 1.0], [80.0, 60.0], [30.0, 50.0]),
        runs=5,
        device="cpu",
        above_curve=above,
        by_draw=by_draw or {},
    )


def table(*rows: Row, recipe: dict | None = None, weights: str = "abc") -> Table:
    printed = {"OrCo": 57.1, "TEEN": 37.7, "ConCM": 59.0, "CLOSER": 42.5}
    return Table(
        scenario="somewhere",
        cut=Cut(base=60, way=5, shot=5, sessions=8),
        draws=5,
        backbone={"name": "resnet12", "weights": weights},
        training={"recipe": recipe or {"epochs": 400}, "seconds": 12.0},
        rows=list(rows),
        published=[Printed(name, None, 80.0, ahm, 50.0, [50.0] * 8) for name, ahm in printed.items()],
    )


SHARED = table(
    row("concm", 61.0, 60.0, 2.0), row("teen", 51.0, 60.5, 0.5), row("orco", 58.0, 52.0, None), row("ncm", 49.0)
)
END = {"last_base": 50.0, "last_novel": 50.0}
"""The last base and novel accuracy of the printed rows, by their last harmonic mean and accuracy."""
CLOSER = {"method": "closer", **to_json(SpreadAndCloseness.schedule), "epochs": 100}
OWN = table(row("closer", 47.0), row("ncm", 47.0), row("concm", 55.0), recipe=CLOSER)


@pytest.fixture
def page() -> list[str]:
    return leaderboard.page(SHARED, [OWN], "picture.png").splitlines()


def line(page: list[str], beginning: str) -> str:
    (found,) = [line for line in page if line.startswith(beginning)]
    return found


def under(page: list[str], title: str) -> list[str]:
    start = page.index(f"## {title}")
    later = [at for at, line in enumerate(page) if at > start and line.startswith("## ")]
    return page[start : later[0] if later else None]


def test_rows_are_ordered_by_harmonic_mean(page):
    lines = [line for line in under(page, "On one shared, frozen backbone") if line.startswith("| ") and "`" in line]
    assert [line.split("`")[1] for line in lines] == ["concm", "orco", "teen", "ncm"]


def test_every_session_is_in_a_table_of_its_own(page):
    cells = line(under(page, "By session"), "| `teen`").split(" | ")
    assert cells[1:] == ["80.00", *["50.00"] * 8, "51.00 |"]


def test_papers_and_code_are_linked(page):
    cells = line(under(page, "What each method is, needs and leaves out"), "| `orco`").split(" | ")
    assert cells[1:3] == [
        "[CVPR 2024](https://arxiv.org/abs/2403.18550)",
        "[code](https://github.com/noorahmedds/OrCo)",
    ]


def test_departures_stand_below_the_table_and_no_cell_is_long(page):
    said = under(page, "What each method is, needs and leaves out")
    assert line(said, "- `teen`: ") == f"- `teen`: {known('teen').entry.departures}"
    rows = [words for words in page if words.startswith("| ")]
    assert max(len(cell) for words in rows for cell in words.split(" | ")) < 140


def test_figures_of_other_papers_say_where_they_were_read_and_pretrained_ones_stand_apart():
    found = leaderboard.page(replace(SHARED, scenario="cifar100"), [], "x.png").splitlines()
    assert "| [TCSVT 2025](https://arxiv.org/abs/2503.21258) |" in line(under(found, "Published elsewhere"), "| BiAG")
    apart = under(found, "Published with a pre-trained backbone")
    assert line(apart, "| PriViLege").split(" | ")[3:5] == ["90.88", "86.06"]
    assert not [words for words in under(found, "Published elsewhere") if "PriViLege" in words]


def test_official_shots_have_a_column_where_any_row_has_them():
    ours, other = (replace(row("concm", 61.0), official=Official(60.5, 59.25)), row("teen", 55.0))
    found = leaderboard.page(replace(SHARED, rows=[ours, other]), [], "x.png").splitlines()
    rows = under(found, "On one shared, frozen backbone")
    assert "| official AHM / FA |" in line(rows, "| rank")
    assert "| 60.50 / 59.25 |" in line(rows, "| 1 | `concm`")
    assert "| – |" in line(rows, "| 2 | `teen`")
    assert line(rows, "Official figures")


def test_rows_of_the_same_bank_stand_in_one_table_with_their_own_numbers_of_draws(tmp_path):
    few = row("teen", 55.0, by_draw={"draw": [0.0, 1.0], "ahm": [54.0, 55.0]})
    many = row("concm", 61.0, by_draw={"draw": [0.0, 1.0, 2.0], "ahm": [60.0, 61.0, 62.0]})
    one, two = (replace(SHARED, rows=[own], bank="same") for own in (many, few))
    leaderboard.write(tmp_path / "page.md", one, [two])
    found = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    rows = under(found, "On one shared, frozen backbone")
    assert line(rows, "| 1 | `concm`")
    assert line(rows, "| 2 | `teen`")
    assert any("over 2 to 3 draws of the shots" in words for words in found)
    against = line(under(found, leaderboard.AGAINST), "- **AHM")
    assert "`teen` −6.00 (−6.00 to −6.00)" in against  # of the two draws that both have, and not of the rows' means


def drawn(method: str, *values: float, first: int = 0) -> Row:
    draws = [float(first + at) for at in range(len(values))]
    return row(method, sum(values) / len(values), by_draw={"draw": draws, "ahm": list(values)})


def order(found: list[str], title: str) -> list[tuple[str, str]]:
    """The ranks and methods of a table, from above."""
    rows = [words.split(" | ") for words in under(found, title) if words.startswith("| ") and "`" in words]
    return [(cells[0].strip("| "), cells[1].strip("`")) for cells in rows]


def test_rows_stand_and_rank_by_the_draws_that_all_of_them_have_and_print_the_mean_of_all_their_own():
    """The first draws are easy: over those that both have, the row with more of them is the better one."""
    engine, few = drawn("concm", 64.0, 66.0, 58.0, 59.0), drawn("teen", 62.0, 64.0)
    shown = leaderboard.page(table(engine, few, drawn("ncm", 50.0, 51.0)), [], "x.png").splitlines()
    assert order(shown, "On one shared, frozen backbone") == [("1", "concm"), ("2", "teen"), ("3", "ncm")]
    assert "61.75 ± " in line(under(shown, "On one shared, frozen backbone"), "| 1 | `concm`")
    equal = leaderboard.page(table(engine, replace(few, method="equal:teen")), [], "x.png").splitlines()
    assert order(equal, "On equal footing") == [("1", "concm"), ("2", "equal:teen")]
    assert "over the draws that all ranked rows of a table have" in shown[2]
    assert "no known draw in common" not in "".join([*shown, *equal])


def test_rows_without_a_common_draw_stand_by_their_own_means_which_is_said():
    rows = (drawn("concm", 60.0, 61.0), drawn("teen", 62.0, 64.0, first=5))
    shown = under(leaderboard.page(table(*rows), [], "x.png").splitlines(), "On one shared, frozen backbone")
    assert order(shown, "On one shared, frozen backbone") == [("1", "teen"), ("2", "concm")]
    assert line(shown, "These rows have no known draw in common")


def test_a_reference_with_fewer_draws_does_not_change_the_order_of_ranked_rows():
    rows = (drawn("concm", 60.0, 61.0, 62.0), drawn("teen", 60.5, 61.4, 60.0), drawn("joint", 70.0, 71.0))
    shown = leaderboard.page(table(*rows), [], "x.png").splitlines()
    assert order(shown, "On one shared, frozen backbone") == [("–", "joint"), ("1", "concm"), ("1", "teen")]


def test_a_method_for_other_data_stands_apart_from_the_ranking():
    own = table(row("pa", 20.0), row("ncm", 23.0), recipe={**CLOSER, "method": "pa"})
    found = under(leaderboard.page(SHARED, [own], "x.png").splitlines(), "Methods with a base session of their own")
    place = next(at for at, words in enumerate(found) if words.startswith("Apart from that"))
    assert [at > place for at, words in enumerate(found) if words.startswith("| `pa`")] == [True]


@pytest.mark.promise
def test_who_is_better_than_concm_is_said_as_plainly_as_who_is_not(page):
    said = under(page, leaderboard.AGAINST)
    assert line(said, "- **AHM") == (
        "- **AHM 61.00**; no method above it; no method ties with it; "
        "below it: `orco` −3.00, `teen` −10.00, `ncm` −12.00."
    )
    assert line(said, "- **FA") == (
        "- **FA 60.00**; above it: `teen` +0.50; no method ties with it; below it: `orco` −8.00, `ncm` −10.00."
    )


@pytest.mark.promise
def test_a_tie_is_called_a_tie_and_shares_the_rank():
    ours = row("concm", 61.0, by_draw={"draw": [0.0, 1.0, 2.0], "ahm": [60.0, 61.0, 62.0]})
    near = row("teen", 60.8, by_draw={"draw": [0.0, 1.0, 2.0], "ahm": [60.1, 60.5, 61.8]})
    far = row("ncm", 50.0, by_draw={"draw": [0.0, 1.0, 2.0], "ahm": [49.0, 50.0, 51.0]})
    found = leaderboard.page(table(ours, near, far), [], "x.png").splitlines()
    said = line(under(found, leaderboard.AGAINST), "- **AHM")
    assert (
        "no method above it; ties with it: `teen` −0.20 (−0.95 to +0.55); below it: `ncm` −11.00 (−11.00 to −11.00)"
        in said
    )
    ranked = [words.split(" | ") for words in under(found, "On one shared, frozen backbone") if "`" in words]
    assert [(cells[0].strip("| "), cells[1]) for cells in ranked if cells[0].startswith("|")] == [
        ("1", "`concm`"),
        ("1", "`teen`"),
        ("3", "`ncm`"),
    ]


def test_methods_on_equal_footing_have_a_table_of_their_own_beside_the_engine():
    draws = {"draw": [0.0, 1.0]}
    plain = row("teen", 51.0, by_draw={**draws, "ahm": [50.0, 52.0]})
    level = row("equal:teen", 60.0, by_draw={**draws, "ahm": [59.0, 61.0]})
    ours = row("concm", 63.0, by_draw={**draws, "ahm": [62.0, 64.0]})
    page = leaderboard.page(table(ours, plain, level, row("ncm", 49.0)), [], "x.png").splitlines()
    assert "equal:" not in "".join(under(page, "On one shared, frozen backbone"))
    found = [words.split(" | ") for words in under(page, "On equal footing") if "`" in words and words.startswith("|")]
    assert [(cells[0], cells[1], cells[-1]) for cells in found] == [
        ("| 1", "`concm`", "– |"),
        ("| 2", "`equal:teen`", "+9.00 (+9.00 to +9.00) |"),
    ]
    assert "`equal:teen` −3.00" in line(under(page, leaderboard.AGAINST), "- **AHM")
    assert line(under(page, "What each method is, needs and leaves out"), "| `equal:teen`")


def test_without_such_rows_there_is_no_such_table(page):
    assert "## On equal footing" not in page


def test_what_each_row_saw_and_keeps_stands_with_what_it_costs(page):
    assert line(under(page, "What each costs"), "| `teen`").split(" | ")[6:9] == ["none", "–", "–"]
    given = Given(base=24, on=490, held=10, candidates=36, views=3, base_views=0, test=100)
    found = leaderboard.page(replace(SHARED, given=given, passes=4), [], "x.png").splitlines()
    assert line(under(found, "What each costs"), "| `orco`").split(" | ")[7:9] == ["24 of 490", "4"]
    assert (
        line(under(found, "What each costs"), "| `concm`").split(" | ")[6] == "5 per novel class, base images held out"
    )
    assert (
        "Methods see 24 of the 490 images of each base class that were trained on and 10 that were not, and 36 "
        "candidates of each novel class, 3 views each; the backbone saw each picture 4 times. They are tested on 100 "
        "images of a class. So what is trained on base features sees 5 % of them, and references are no upper bounds."
        in "".join(found)
    )


def test_all_exemplars_that_a_method_declares_are_shown():
    found = leaderboard.page(table(row("concm", 61.0), row("equal:gkeal", 50.0), row("ncm", 49.0)), [], "x.png")
    kept = line(under(found.splitlines(), "What each costs"), "| `equal:gkeal`").split(" | ")[6]
    assert kept == "512 features of base images; all shots and base images held out, for the operating point"


def test_a_fuller_bank_of_the_same_backbone_has_a_table_of_its_own():
    full = replace(table(row("joint", 75.0), row("orco", 60.0)), given=Given(490, 490, 10, 500, 3, 0))
    found = leaderboard.page(SHARED, [full], "x.png").splitlines()
    said = under(found, "On other banks of the same backbone")
    assert [words.split("`")[1] for words in said if words.startswith("| ") and "`" in words] == ["joint", "orco"]
    assert "Methods see 490 of the 490 images" in "".join(said)
    assert "## Methods with a base session of their own" not in found


def test_references_do_not_count_as_better():
    shared = table(row("concm", 61.0), row("joint", 70.0), row("ncm", 49.0))
    said = under(leaderboard.page(shared, [], "x.png").splitlines(), leaderboard.AGAINST)
    assert "`joint`" not in "".join(said)


@pytest.mark.promise
def test_the_verdict_is_computed_session_by_session_and_no_words_take_its_place(monkeypatch):
    monkeypatch.setattr(papers, "remarks", lambda scenario: {"teen": "another backbone"})
    away = replace(row("teen", 51.0, 60.5), hm=[53.0] * 4 + [46.0] * 4)
    found = under(
        leaderboard.page(table(away, replace(row("orco", 58.0, 52.0), **END)), [], "x.png").splitlines(),
        "Beside their papers",
    )
    assert line(found, "| `teen`") == "| `teen` | 3.54 | +13.3 | +10.5 | +20.0 | −10.0 | not reproduced |"
    assert line(found, "| `orco`").endswith("| reproduced within 3 points |")
    assert line(found, "- `teen`") == "- `teen`: another backbone."


def test_this_library_s_engine_is_never_called_a_reproduction(page):
    assert line(under(page, "Beside their papers"), "| `concm`").endswith("| not the published form |")


def test_the_published_form_is_judged_too_and_other_variants_are_not():
    rows = (replace(row("concm:published", 59.0), **END), row("concm:alpha=0.5", 59.0), row("ncm", 49.0))
    found = under(leaderboard.page(table(*rows), [], "x.png").splitlines(), "Beside their papers")
    assert line(found, "| `concm:published`").endswith("| reproduced within 3 points |")
    assert not [words for words in found if "alpha" in words]


def test_a_method_with_its_own_base_session_stands_beside_others_on_its_features(page):
    cells = line(under(page, "Methods with a base session of their own"), "| `closer`").split(" | ")
    assert cells[1] == "resnet12, 100 epochs (epochs 100 for 200)"
    assert cells[6:8] == ["47.00", "55.00 |"]


def test_what_was_not_run_there_is_said(page):
    own = table(row("closer", 47.0), row("ncm", 47.0), recipe=CLOSER)
    found = leaderboard.page(SHARED, [own], "x.png").splitlines()
    assert line(under(found, "Methods with a base session of their own"), "| `closer`").split(" | ")[7] == "not run |"


def test_methods_that_train_the_backbone_have_a_table_with_their_control():
    tuned = table(row("icarl", 30.0), row("ncm", 49.0))
    found = under(leaderboard.page(SHARED, [tuned], "x.png").splitlines(), "Methods that go on training the backbone")
    assert [line.split("`")[1] for line in found if line.startswith("| ") and "`" in line] == ["ncm", "icarl"]


def test_one_on_a_bank_of_its_own_has_other_shots_and_is_not_compared_draw_by_draw():
    tuned = table(row("lcwof", 63.0), row("ncm", 49.0))
    found = leaderboard.page(SHARED, [tuned], "x.png").splitlines()
    assert "lcwof" not in "".join(under(found, leaderboard.AGAINST))


def test_heights_over_another_control_than_the_shared_one_are_left_out():
    shared = replace(SHARED, control="ncm_metric")
    own = table(row("closer", 56.0, above=1.5), row("concm", 57.0), row("ncm", 47.0), recipe=CLOSER)
    for control, height in (("ncm_metric", "+1.5"), ("ncm", "–")):
        found = leaderboard.page(shared, [replace(own, control=control)], "x.png").splitlines()
        cells = line(under(found, "Methods with a base session of their own"), "| `closer`").split(" | ")
        assert cells[5] == height


@pytest.mark.parametrize(
    ("base", "novel", "off"), [(90.0, 20.0, "base and novel"), (60.0, 48.0, "base"), (52.0, 44.0, "novel")]
)
def test_a_row_that_is_near_by_session_but_ends_elsewhere_is_not_called_reproduced(base, novel, off):
    ends = replace(row("orco", 57.12, 52.19), last_base=base, last_novel=novel)
    found = under(leaderboard.page(table(ends), [], "x.png").splitlines(), "Beside their papers")
    assert line(found, "| `orco`").endswith(f"| near session by session, but not in its last {off} accuracy |")


def test_a_method_without_a_printed_row_is_named_and_has_its_remark(monkeypatch):
    monkeypatch.setattr(papers, "remarks", lambda scenario: {"gkeal": "another backbone"})
    found = under(leaderboard.page(table(row("gkeal", 57.0)), [], "x.png").splitlines(), "Beside their papers")
    assert "That table prints no row of `gkeal`, so there is no verdict on these." in found
    assert "- `gkeal`: another backbone." in found


def test_where_concm_is_not_ahead_on_a_method_s_own_features_is_said():
    own = table(row("closer", 56.0), row("concm", 55.0), row("ncm", 47.0), recipe=CLOSER)
    found = "".join(leaderboard.page(SHARED, [own], "x.png").splitlines())
    assert "engine has the higher AHM in 0 of 1 cases; not against `closer`." in found


def test_no_cell_is_empty(page):
    rows = [line for line in page if line.startswith("| ")]
    assert all(cell.strip() for line in rows for cell in line.strip("|").split(" | "))


def test_every_method_in_it_is_explained(page):
    names = {
        line.split("`")[1]
        for line in under(page, "What each method is, needs and leaves out")
        if line.startswith("| `")
    }
    assert names == {"concm", "orco", "teen", "ncm", "closer"}


def test_the_picture_has_all_of_them(tmp_path):
    written = leaderboard.write(tmp_path / "board.md", SHARED, [OWN])
    assert written == [tmp_path / "board.md", tmp_path / "board.png"]
    with Image.open(written[1]) as picture:
        assert picture.format == "PNG"


def test_a_table_of_a_plain_backbone_is_a_control():
    recipe = {**to_json(Recipe()), "epochs": 60, "turned": 0.0}
    plain = table(row("ncm", 30.0), row("concm", 40.0), recipe=recipe, weights="other")
    found = under(leaderboard.page(SHARED, [plain], "x.png").splitlines(), "Methods with a base session of their own")
    cells = line(found, "| `ncm`").split(" | ")
    assert cells[1] == "resnet12, ours: epochs 60, turned 0.0"
    assert cells[6:8] == ["30.00", "40.00 |"]


def test_without_a_height_above_the_curve_nothing_is_said_of_it():
    shared = table(row("concm", 61.0, above=None), row("ncm", 49.0))
    assert "height" not in "".join(leaderboard.page(shared, [], "x.png").splitlines())


@pytest.mark.parametrize("change", [{"scenario": "elsewhere"}, {"cut": Cut(60, 5, 1, 8)}])
def test_a_table_of_something_else_does_not_stand_beside(change, tmp_path, capsys):
    SHARED.save(tmp_path / "first.json")
    replace(OWN, **change).save(tmp_path / "x.json")
    assert call("leaderboard", tmp_path / "first.json", tmp_path / "x.json", "--out", tmp_path / "x.md") == 1
    assert "x.json cannot stand beside" in sentence(capsys.readouterr().err)
    assert not (tmp_path / "x.md").exists()


def test_something_else_than_a_table_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[]")
    assert call("leaderboard", tmp_path / "x.json", "--out", tmp_path / "x.md") == 1
    said = sentence(capsys.readouterr().err)
    assert said.startswith(f"{tmp_path / 'x.json'} is damaged or not a table of `concm bench --json`")


def test_one_command_writes_the_page_from_its_files(tmp_path, capsys):
    SHARED.save(tmp_path / "first.json")
    OWN.save(tmp_path / "own.json")
    assert call("leaderboard", tmp_path / "first.json", tmp_path / "own.json", "--out", tmp_path / "board.md") == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'board.md'} and {tmp_path / 'board.png'}\n"
    assert (tmp_path / "board.md").read_text() == leaderboard.page(SHARED, [OWN], "board.png")


@pytest.mark.parametrize("scenario", ["cifar100"])
def test_remarks_are_about_registered_methods(scenario):
    from concm.methods import entries

    assert papers.remarks(scenario).keys() <= entries().keys()


def test_the_page_in_the_documentation_is_the_one_that_its_files_give():
    docs = Path(__file__).parents[2] / "docs"
    shared = Table.load(docs / "results" / "leaderboard.json")
    others = [Table.load(path) for path in sorted((docs / "results" / "leaderboard").glob("*.json"))]
    assert leaderboard.page(*shared.joined(others), "leaderboard.png") == (docs / "leaderboard.md").read_text()


@pytest.mark.promise
def test_a_table_cannot_make_code_run(tmp_path):
    mark, trap = tmp_path / "called", tmp_path / "trap.py"
    trap.write_text(f"open({str(mark)!r}, 'w').close()\n")
    hostile = table(row(f"{trap}:X", 50.0), row("ncm", 40.0), recipe={"method": f"{trap}:X", "epochs": 1})
    text = leaderboard.page(hostile, [hostile], "x.png")
    assert "not registered here" in text
    assert not mark.exists()


def test_the_leaderboard_is_a_file_for_programs_and_one_for_papers_too(tmp_path):
    other = replace(table(row("ncm", 33.0), weights="def"), bank="other")
    for name, one in (("shared", replace(SHARED, bank="shared")), ("other", other)):
        one.save(tmp_path / f"{name}.json")
    files = ("--csv", tmp_path / "rows.csv", "--latex", tmp_path / "table.tex")
    words = (tmp_path / "shared.json", tmp_path / "other.json", "--out", tmp_path / "page.md")
    assert call("leaderboard", *words, *files) == 0
    lines = list(csv.DictReader((tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()))
    wanted = [("shared", row.method, row.ahm) for row in SHARED.rows] + [("other", "ncm", 33.0)]
    assert [(line["bank"], line["method"], float(line["ahm"])) for line in lines] == wanted
    assert [lines[-1][f"hm_{at}"] for at in range(1, 9)] == ["50.0"] * 8
    latex = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert "OrCo (published)" in latex
    assert all(row.method.replace("_", r"\_") in latex for row in SHARED.rows)
