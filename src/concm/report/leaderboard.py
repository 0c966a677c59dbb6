"""The leaderboard: every measured method beside its published figures, as a page of Markdown and a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from concm.evaluation.paired import Difference
from concm.evaluation.statistics import Row, Table, difference
from concm.files import write_whole
from concm.methods.registry import EQUAL
from concm.report import figures
from concm.report import leaderboard_papers as papers
from concm.report.cells import COSTS, MEASURED, apart, by_session, cells, costs, line, mark, ruled
from concm.report.leaderboard_papers import OURS
from concm.report.leaderboard_tables import group, meant, own, placed, table, tuning, with_own_base_session
from concm.report.provenance import backbone, draws, given, ran
from concm.report.remarks import reading

AGAINST = "This library's engine against every other method on these features"
COMPARED = (("ahm", "AHM"), ("fa", "FA"), ("above_curve", "height above the curve"))


def write(path: Path, found: Table, others: list[Table]) -> list[Path]:
    """The page, and its picture beside it; `others` are tables of other banks, or more rows of the same."""
    found, others = found.joined(others)
    picture = path.with_suffix(".png")
    shown = [one for one in (found, *others) if one is found or own(one)]
    figures.trade_offs([_points(one, found.control) for one in shown], picture)
    write_whole(path, page(found, others, picture.name).encode())
    return [path, picture]


def page(found: Table, others: list[Table], picture: str) -> str:
    """All of it, from what the bench measured; heights over another control than the first table's are left out."""
    others = [other if other.control == found.control else _without_heights(other) for other in others]
    tuned = [other for other in others if not other.base_session and own(other)]
    owned = [other for other in others if other.base_session and own(other)]
    fuller = [other for other in others if not own(other) and _same(other, found)]
    plain = [other for other in others if not own(other) and not _same(other, found)]
    lines = [*_beginning(found, picture), *_shared(found), *_fuller(found, fuller), *_equal([found, *fuller])]
    lines += _against(found)
    if tuned:
        lines += tuning(tuned)
    if owned or plain:
        lines += with_own_base_session(found.control, owned, plain)
    sources = [(row, found) for row in found.rows]
    sources += [(row, other) for other in fuller for row in other.rows if found.row(row.method) is None]
    sources += [(row, other) for other in [*tuned, *owned] for row in own(other)]
    rows = [row for row, _ in sources]
    parts = (
        _by_session(found, rows),
        _costs(sources),
        papers.beside(found, rows),
        papers.elsewhere(found),
        papers.explained(rows),
    )
    return "\n".join([*lines, *(sentence for part in parts for sentence in part), ""])


def _beginning(found: Table, picture: str) -> list[str]:
    cut = found.cut
    known_reading = reading(found.scenario)
    caveats = ["## How to read this page", "", *(f"- {words}" for words in known_reading), ""] if known_reading else []
    return [
        f"# Leaderboard: {found.scenario}",
        "",
        f"{cut.base} base classes, then {cut.sessions} sessions of {cut.way}-way {cut.shot}-shot. Figures are means ± "
        f"sample standard deviations over {draws(found)} of the shots, which are the same for every method of a table. "
        "Differences are paired by draw, with 95 % intervals over the draws that both methods have; where the interval "
        "contains zero, methods tie, and one that ties with the first of a rank shares it. Rows are ranked by their "
        "mean AHM over the draws that all ranked rows of a table have; the printed mean is over all draws of a row. "
        "Settings are the papers' or, where the file of a method says so, chosen here. Published figures are from the "
        "ConCM paper: one draw, and each method on a backbone of its own.",
        "",
        f"![Base and novel accuracy after the last session]({picture})",
        "",
        f"*Where each method stands after the last session. Each line is `{found.control}` with any constant on its "
        "novel scores: the thick one on the shared backbone, thin ones on the features of methods with a base session "
        "of their own. A method's HM is mostly a place on such a curve, so what counts is to lie above one's own. A "
        "hollow point has no curve here.*",
        "",
        *caveats,
    ]


def _shared(found: Table) -> list[str]:
    return [
        "## On one shared, frozen backbone",
        "",
        f"Features of one {backbone(found)}; {ran(found)}.{given(found)}",
        "",
        *table(found, [row for row in found.rows if not _level(row)]),
        "",
        f'Ranks are by AHM. "Above the curve" are points of novel accuracy over `{found.control}` with any constant, '
        "at the method's own base accuracy, with the 95 % interval over the draws; – stands where the curve does not "
        f"reach so far.{_references(found)} [What each costs](#what-each-costs) is below, as is every "
        "[session](#by-session).",
        "",
    ]


def _references(found: Table) -> str:
    """What references see of novel classes, as a sentence."""
    if found.given is None or not any(group(row.method) == "reference" for row in found.rows):
        return ""
    return (
        f" References see all {found.given.candidates} candidates of each novel class, where a base class has "
        f"{found.given.on} images, so they are no upper bounds."
    )


def _fuller(found: Table, others: list[Table]) -> list[str]:
    """Rows of the same backbone on banks that hold more, or fewer, of the images."""
    lines = ["## On other banks of the same backbone", ""] if others else []
    for other in others:
        known = found.given is not None and other.given is not None
        alike = known and found.given.candidates == other.given.candidates  # type: ignore[union-attr]
        shots = "The same candidates and so the same shots" if alike else "Other draws"
        rows = [row for row in other.rows if not _level(row)]
        lines += [f"{shots}, {ran(other)}.{given(other)}", "", *table(other, rows), ""]
    return lines


def _without_heights(found: Table) -> Table:
    """A table whose control is not the first one's: heights over it would not be comparable."""
    return replace(found, rows=[replace(row, above_curve=None, above_interval=None) for row in found.rows])


def _same(one: Table, other: Table) -> bool:
    """Whether two banks are of one backbone."""
    return bool(one.backbone["weights"] == other.backbone["weights"])


def _equal(tables: list[Table]) -> list[str]:
    """Methods with what this library adds to its engine, beside the engine, and what that is worth to each."""
    some = [found for found in tables if any(map(_level, found.rows))]
    if not some:
        return []
    lines = [
        "## On equal footing",
        "",
        "The same methods with the metric, the views of the shots and the operating point of this library's engine "
        f"(`concm bench --method {EQUAL}NAME`), beside the engine, which has them by itself. The last column is what "
        "that adds to a method's AHM, paired by draw.",
        "",
    ]
    for found in some:
        if found is not tables[0]:
            lines += [f"On another bank of the same backbone, {ran(found)}.{given(found)}", ""]
        lines += [*_level_rows(found), ""]
    return lines


def _level_rows(found: Table) -> list[str]:
    """The rows on equal footing of one bank, and the engine's."""
    lines = ruled("rank", "method", *MEASURED, "AHM added")
    compared = [row for row in found.rows if _level(row) or row.method == OURS]
    places, note = placed(compared, compared)
    for rank, row in places:
        plain = found.row(row.method.removeprefix(EQUAL)) if _level(row) else None
        gain = None if plain is None else _lead(row, plain, "ahm")[0]
        lines.append(line(rank, mark(row.method), *cells(row), "–" if gain is None else apart(gain)))
    return [*lines, *note]


def _level(row: Row) -> bool:
    """Whether a row is of a method on equal footing."""
    return row.method.startswith(EQUAL)


def _against(found: Table) -> list[str]:
    """ConCM against every other method on the same features and shots, said plainly."""
    ours = found.row(OURS)
    if ours is None:
        return []
    others = [row for row in found.rows if row is not ours and group(row.method) != "reference"]
    lines = [f"## {AGAINST}", ""]
    for name, title in COMPARED:
        if getattr(ours, name) is None:
            continue
        above, ties, below = list[str](), list[str](), list[str]()
        leads = {row.method: _lead(row, ours, name) for row in others if getattr(row, name) is not None}
        for method, (lead, tie) in sorted(leads.items(), key=lambda item: -item[1][0].mean):
            (ties if tie else above if lead.mean > 0 else below).append(f"`{method}` {apart(lead)}")
        said = [
            f"{words}: {', '.join(names)}" if names else f"no method {words}"
            for words, names in (("above it", above), ("ties with it", ties), ("below it", below))
        ]
        lines.append(f"- **{title} {getattr(ours, name):.2f}**; {'; '.join(said)}.")
    about = (
        "References see what no few-shot learner may see, and are left out here, as are methods on other banks, whose "
        "shots are others: each stands beside the controls of its own table."
    )
    return [*lines, "", about, ""]


def _lead(row: Row, other: Row, name: str) -> tuple[Difference, bool]:
    """How far a row lies above another on the draws that both have, and whether they tie; older files know no draws."""
    paired = difference(row, other, name)
    if paired is None:
        return Difference(getattr(row, name) - getattr(other, name), None), False
    return paired, paired.tie


def _by_session(found: Table, rows: list[Row]) -> list[str]:
    """Harmonic means session by session, as the papers print them."""
    heads = ruled("method", "base", *(str(at + 1) for at in range(found.cut.sessions)), "AHM")
    about = (
        "Accuracy after the base session, then the harmonic mean of base and novel accuracy after each session. Rows "
        "stand in the order of the AHM that is printed."
    )
    body = [line(mark(row.method), *by_session(row)) for row in sorted(rows, key=lambda row: -row.ahm)]
    return ["## By session", "", about, "", *heads, *body, ""]


def _costs(sources: list[tuple[Row, Table]]) -> list[str]:
    """What each method costs, saw and forgets."""
    about = (
        "PD is how far accuracy falls from the base session to the last; seconds are those of one draw, all sessions "
        "with their evaluation, on a machine that did other runs beside it; MB is what is kept between sessions beside "
        "trained weights. Exemplars are images, or their features, that are kept; base images are those of each base "
        "class whose features the bank gives, of all that were trained on; passes are looks of the backbone at each "
        "picture; older tables do not say either."
    )
    body = [line(mark(row.method), *costs(row, own)) for row, own in sorted(sources, key=lambda pair: pair[0].method)]
    return ["## What each costs", "", about, "", *ruled("method", *COSTS), *body, ""]


def _points(found: Table, control: str) -> figures.Points:
    """What the picture shows of a table: its rows with their groups, and the curve of the control."""
    rows = found.rows if not own(found) else own(found)
    shown = [
        (row, group(row.method))
        for row in rows
        if not _level(row)
        and meant(row.method, found.scenario)
        and (found.base_session is None or ":" not in row.method)
    ]
    row_of_control = found.row(control)
    curve = None if row_of_control is None else row_of_control.trade_off
    return figures.Points(shown, curve, control, shared=found.base_session is None and not own(found))
