"""The leaderboard: every measured method beside its published figures, as a page of Markdown and a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from concm.evaluation.paired import Difference
from concm.evaluation.statistics import Row, Table, difference, ranks
from concm.files import write_whole
from concm.methods.registry import EQUAL, known
from concm.report import figures
from concm.report import leaderboard_papers as papers
from concm.report.cells import (
    COSTS,
    MEASURED,
    apart,
    by_session,
    cells,
    costs,
    heads_of_official,
    line,
    mark,
    official,
    ruled,
)
from concm.report.leaderboard_papers import OURS, PLAIN, ahm
from concm.report.provenance import backbone, draws, given, ran, schedule, varied
from concm.report.remarks import reading
from concm.report.reproduction import printed

AGAINST = "This library's engine against every other method that begins with this backbone"
COMPARED = (("ahm", "AHM"), ("fa", "FA"), ("above_curve", "height above the curve"))


def write(path: Path, found: Table, others: list[Table]) -> list[Path]:
    """The page, and its picture beside it; `others` are tables of other banks, or more rows of the same."""
    found, others = found.joined(others)
    picture = path.with_suffix(".png")
    figures.trade_offs([_points(table) for table in (found, *others) if table is found or _own(table)], picture)
    write_whole(path, page(found, others, picture.name).encode())
    return [path, picture]


def page(found: Table, others: list[Table], picture: str) -> str:
    """All of it, from what the bench measured."""
    tuned = [other for other in others if not other.base_session and _own(other)]
    owned = [other for other in others if other.base_session and _own(other)]
    fuller = [other for other in others if not _own(other) and _same(other, found)]
    plain = [other for other in others if not _own(other) and not _same(other, found)]
    same = [other for other in tuned if _same(other, found)]
    lines = [*_beginning(found, picture), *_shared(found), *_fuller(fuller), *_equal(found), *_against(found, same)]
    if tuned:
        lines += _tuning(tuned)
    if owned or plain:
        lines += _with_own_base_session(owned, plain)
    sources = [(row, found) for row in found.rows]
    sources += [(row, other) for other in fuller for row in other.rows if found.row(row.method) is None]
    sources += [(row, other) for other in [*tuned, *owned] for row in _own(other)]
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
        f"standard deviations (of a sample) of {draws(found)} of the shots, which are the same for every method. "
        "Differences are paired by draw, with their 95 % interval over the draws that both have; where it contains "
        "zero, methods tie and share a rank. Settings are those of the papers or, where the file of a method says so, "
        "chosen without test images. Published figures are those of the table in the ConCM paper: one draw, and each "
        "method with a backbone of its own.",
        "",
        f"![Base and novel accuracy after the last session]({picture})",
        "",
        f"*Where each method stands after the last session. A line is the curve that `{found.control}` describes with "
        "any constant on its novel scores: the thick one on the shared backbone, thin ones on the features of methods "
        "with a base session of their own, each in front of its own curve. HM is mostly a place on such a curve, so "
        "what counts is to lie above it.*",
        "",
        *caveats,
    ]


def _shared(found: Table) -> list[str]:
    return [
        "## On one shared, frozen backbone",
        "",
        f"Features of one {backbone(found)}; {ran(found)}.{given(found)}",
        "",
        *_table(found, [row for row in found.rows if not _level(row)]),
        "",
        f'Ranks are by AHM. "Above the curve" are points of novel accuracy over `{found.control}` with any constant, '
        "at the method's own base accuracy, with the 95 % interval over the draws; – stands where the curve does not "
        "reach so far. [What each costs](#what-each-costs) is below, as is every [session](#by-session).",
        "",
    ]


def _fuller(others: list[Table]) -> list[str]:
    """Rows of the same backbone on banks that hold more, or fewer, of the images."""
    lines = ["## With another part of the same images", ""] if others else []
    for other in others:
        lines += [f"Other draws, {ran(other)}.{given(other)}", "", *_table(other, other.rows), ""]
    return lines


def _same(one: Table, other: Table) -> bool:
    """Whether two banks are of one backbone."""
    return bool(one.backbone["weights"] == other.backbone["weights"])


def _equal(found: Table) -> list[str]:
    """Methods with what this library adds to its engine, beside the engine, and what that is worth to each."""
    rows = [row for row in found.rows if _level(row)]
    if not rows:
        return []
    lines = [
        "## On equal footing",
        "",
        "The same methods with the metric, the views of the shots and the operating point of this library's engine "
        f"(`concm bench --method {EQUAL}NAME`), beside the engine, which has them by itself. The last column is what "
        "that adds to a method's AHM, paired by draw.",
        "",
        *ruled("rank", "method", *MEASURED, "AHM added"),
    ]
    compared = [*rows, *(row for row in found.rows if row.method == OURS)]
    places = ranks(compared, "ahm")
    for row in sorted(compared, key=lambda row: -row.ahm):
        own = found.row(row.method.removeprefix(EQUAL)) if _level(row) else None
        gain = None if own is None else _lead(row, own, "ahm")[0]
        lines.append(line(str(places[row.method]), mark(row.method), *cells(row), "–" if gain is None else apart(gain)))
    return [*lines, ""]


def _level(row: Row) -> bool:
    """Whether a row is of a method on equal footing."""
    return row.method.startswith(EQUAL)


def _table(found: Table, rows: list[Row]) -> list[str]:
    ranked = [row for row in rows if _group(row.method) != "reference" and _meant(row.method, found.scenario)]
    places = ranks(ranked, "ahm")
    more = heads_of_official(rows)
    lines = ruled("rank", "method", *MEASURED, *more, "published AHM / FA")
    for row in sorted(rows, key=lambda row: -row.ahm):
        entry = printed(found, row)
        there = "–" if entry is None else f"{entry.ahm} / {entry.fa}"
        measured = (*cells(row), *(official(row) for _ in more))
        lines.append(line(str(places.get(row.method, "–")), mark(row.method), *measured, there))
    return (
        [*lines, "", "Official figures have the shots of the published lists, as papers report them."]
        if more
        else lines
    )


def _against(found: Table, same: list[Table]) -> list[str]:
    """ConCM against every other method that begins with the same backbone, said plainly."""
    rows = {row.method: row for row in found.rows}
    for other in same:
        alike = other.control == found.control
        rows |= {row.method: row if alike else replace(row, above_curve=None) for row in _own(other)}
    if OURS not in rows:
        return []
    ours = rows.pop(OURS)
    others = [row for row in rows.values() if _group(row.method) != "reference"]
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
    return [*lines, "", "References see what no few-shot learner may see, and are left out here.", ""]


def _lead(row: Row, other: Row, name: str) -> tuple[Difference, bool]:
    """How far a row lies above another on the draws that both have, and whether they tie; older files know no draws."""
    paired = difference(row, other, name)
    if paired is None:
        return Difference(getattr(row, name) - getattr(other, name), None), False
    return paired, paired.tie


def _tuning(tuned: list[Table]) -> list[str]:
    lines = ["## Methods that go on training the backbone", ""]
    for other in tuned:
        about = f"They begin with a copy of {backbone(other)} and see pictures; {ran(other)}."
        lines += [about, "", *_table(other, other.rows), ""]
    return lines


def _with_own_base_session(owned: list[Table], plain: list[Table]) -> list[str]:
    """Each on the backbone that its own base session trained, beside others on the same features."""
    first = [*owned, *plain][0]
    lines = [
        "## Methods with a base session of their own",
        "",
        f"Each method runs on the {first.backbone['name']} that its own base session trained, so rows differ by more "
        f"than the method, and there is no rank. `{PLAIN}` and `{OURS}` on the same features stand beside it (AHM), "
        f"and its curve is that of `{first.control}` on all that the backbone reads, turned pictures included. "
        f"Brackets say where the schedule is not that of the method's file. {_ahead(owned)}",
        "",
        *ruled("method", "base session", *MEASURED, *(f"`{name}` there" for name in (PLAIN, OURS))),
    ]
    apart = list[str]()
    for other in sorted(owned, key=lambda other: -max(row.ahm for row in _own(other))):
        for row in sorted(_own(other), key=lambda row: -row.ahm):
            there = [ahm(other, name) for name in (PLAIN, OURS)]
            ranked = lines if _meant(row.method, other.scenario) else apart
            ranked.append(line(mark(row.method), schedule(other), *cells(row), *there))
    for other in plain:
        row = next(row for row in other.rows if row.method == PLAIN)
        there = [ahm(other, name) for name in (PLAIN, OURS)]
        lines.append(line(f"`{PLAIN}`", f"ours: {varied(other)}", *cells(row), *there))
    if apart:
        heads = ruled("method", "base session", *MEASURED, *(f"`{name}` there" for name in (PLAIN, OURS)))
        about = (
            "Apart from that, since these were published for other data, and here almost all of their numbers are ours:"
        )
        lines += ["", about, "", *heads, *apart]
    return [*lines, ""]


def _ahead(owned: list[Table]) -> str:
    """Whether ConCM is above the methods on their own features."""
    pairs = [(row, ours) for other in owned for row in _own(other) for ours in other.rows if ours.method == OURS]
    ahead = [row.method for row, ours in pairs if ours.ahm > row.ahm]
    behind = [f"`{row.method}`" for row, ours in pairs if ours.ahm <= row.ahm]
    said = f"On their own features this library's engine has the higher AHM in {len(ahead)} of {len(pairs)} cases"
    return f"{said}; not against {', '.join(behind)}." if behind else f"{said}."


def _by_session(found: Table, rows: list[Row]) -> list[str]:
    """Harmonic means session by session, as the papers print them."""
    heads = ruled("method", "base", *(str(at + 1) for at in range(found.cut.sessions)), "AHM")
    about = "Accuracy after the base session, then the harmonic mean of base and novel accuracy after each session."
    body = [line(mark(row.method), *by_session(row)) for row in sorted(rows, key=lambda row: -row.ahm)]
    return ["## By session", "", about, "", *heads, *body, ""]


def _costs(sources: list[tuple[Row, Table]]) -> list[str]:
    """What each method costs, saw and forgets."""
    about = (
        "PD is how far accuracy falls from the base session to the last; seconds are those of one draw, all sessions "
        "with their evaluation; MB is what is kept between sessions beside trained weights. Exemplars are images, or "
        "their features, that are kept; base images are those of each base class whose features the bank gives, of all "
        "that were trained on; passes are looks of the backbone at each picture; older tables do not say either."
    )
    body = [line(mark(row.method), *costs(row, own)) for row, own in sorted(sources, key=lambda pair: pair[0].method)]
    return ["## What each costs", "", about, "", *ruled("method", *COSTS), *body, ""]


def _own(found: Table) -> list[Row]:
    """The rows for whose sake a bank was made: of the method whose base session it is, or that train its backbone."""
    groups = ("own base session", "updates the backbone")
    return [row for row in found.rows if _group(row.method) in groups]


def _points(found: Table) -> figures.Points:
    """What the picture shows of a table: its rows with their groups, and the control's curve."""
    rows = found.rows if not _own(found) else _own(found)
    shown = [
        (row, _group(row.method))
        for row in rows
        if not _level(row) and (found.base_session is None or ":" not in row.method)
    ]
    control = next((row.trade_off for row in found.rows if row.method == found.control), None)
    return figures.Points(shown, control, found.control, shared=found.base_session is None and not _own(found))


def _group(method: str) -> str:
    """What a method is compared with; one that is not registered shares the backbone."""
    choice = known(method)
    return "shared backbone" if choice is None else choice.entry.group


def _meant(method: str, scenario: str) -> bool:
    choice = known(method)
    return choice is None or choice.entry.meant_for(scenario)
