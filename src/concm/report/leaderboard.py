"""The leaderboard: every measured method beside its published figures, as a page of Markdown and a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from concm.evaluation.published import elsewhere
from concm.evaluation.statistics import Row, Table, difference, ranks
from concm.files import write_whole
from concm.methods.registry import known
from concm.report import figures
from concm.report.cells import COSTS, MEASURED, by_session, cells, costs, line, link, mark, ruled, signed
from concm.report.provenance import backbone, ran, schedule, varied
from concm.report.remarks import reading, remarks
from concm.report.reproduction import NEAR, Verdict, printed

OURS, PLAIN = "concm", "ncm"
AGAINST = "This library's engine against every other method that begins with this backbone"
COMPARED = (("ahm", "AHM"), ("fa", "FA"), ("above_curve", "height above the curve"))


def write(path: Path, found: Table, others: list[Table]) -> list[Path]:
    """The page, and its picture beside it; `others` are tables of other banks."""
    picture = path.with_suffix(".png")
    figures.trade_offs([_points(table) for table in (found, *others) if table is found or _own(table)], picture)
    write_whole(path, page(found, others, picture.name).encode())
    return [path, picture]


def page(found: Table, others: list[Table], picture: str) -> str:
    """All of it, from what the bench measured."""
    tuned = [other for other in others if not other.base_session and _own(other)]
    owned = [other for other in others if other.base_session and _own(other)]
    plain = [other for other in others if not _own(other)]
    same = [other for other in tuned if other.backbone["weights"] == found.backbone["weights"]]
    lines = [*_beginning(found, picture), *_shared(found), *_against(found, same)]
    if tuned:
        lines += _tuning(tuned)
    if owned or plain:
        lines += _with_own_base_session(owned, plain)
    rows = [*found.rows, *(row for other in [*tuned, *owned] for row in _own(other))]
    parts = (_by_session(found, rows), _costs(rows), _beside_papers(found, rows), _elsewhere(found), _explained(rows))
    return "\n".join([*lines, *(sentence for part in parts for sentence in part), ""])


def _beginning(found: Table, picture: str) -> list[str]:
    cut = found.cut
    known_reading = reading(found.scenario)
    caveats = ["## How to read this page", "", *(f"- {words}" for words in known_reading), ""] if known_reading else []
    return [
        f"# Leaderboard: {found.scenario}",
        "",
        f"{cut.base} base classes, then {cut.sessions} sessions of {cut.way}-way {cut.shot}-shot. Figures are means ± "
        f"standard deviations (of a sample) of {found.draws} draws of the shots, which are the same for every method. "
        "Differences are paired by draw, with their 95 % interval; where it contains zero, methods tie and share a "
        "rank. Settings are those of the papers or, where the file of a method says so, chosen without test images. "
        "Published figures are those of the table in the ConCM paper: one draw, and each method with a backbone of its "
        "own.",
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
        f"Features of one {backbone(found)}; {ran(found)}.",
        "",
        *_table(found, found.rows),
        "",
        f'Ranks are by AHM. "Above the curve" are points of novel accuracy over `{found.control}` with any constant, '
        "at the method's own base accuracy, with the 95 % interval over the draws; – stands where the curve does not "
        "reach so far. [What each costs](#what-each-costs) is below, as is every [session](#by-session).",
        "",
    ]


def _table(found: Table, rows: list[Row]) -> list[str]:
    ranked = [row for row in rows if _group(row.method) != "reference" and _meant(row.method, found.scenario)]
    places = ranks(ranked, "ahm")
    lines = ruled("rank", "method", *MEASURED, "published AHM / FA")
    for row in sorted(rows, key=lambda row: -row.ahm):
        entry = printed(found, row)
        there = "–" if entry is None else f"{entry.ahm} / {entry.fa}"
        lines.append(line(str(places.get(row.method, "–")), mark(row.method), *cells(row), there))
    return lines


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
        for row in sorted(others, key=lambda row: -float(getattr(row, name) or 0)):
            if getattr(row, name) is None:
                continue
            lead = getattr(row, name) - getattr(ours, name)
            paired = difference(row, ours, name)
            tie = paired is not None and paired.tie
            ends = "" if paired is None or paired.interval is None else _ends(paired.interval)
            (ties if tie else above if lead > 0 else below).append(f"`{row.method}` {signed(lead, 2)}{ends}")
        said = [
            f"{words}: {', '.join(names)}" if names else f"no method {words}"
            for words, names in (("above it", above), ("ties with it", ties), ("below it", below))
        ]
        lines.append(f"- **{title} {getattr(ours, name):.2f}**; {'; '.join(said)}.")
    return [*lines, "", "References see what no few-shot learner may see, and are left out here.", ""]


def _ends(interval: tuple[float, float]) -> str:
    return f" ({' to '.join(signed(end, 2) for end in interval)})"


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
            there = [_ahm(other, name) for name in (PLAIN, OURS)]
            ranked = lines if _meant(row.method, other.scenario) else apart
            ranked.append(line(mark(row.method), schedule(other), *cells(row), *there))
    for other in plain:
        row = next(row for row in other.rows if row.method == PLAIN)
        there = [_ahm(other, name) for name in (PLAIN, OURS)]
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


def _costs(rows: list[Row]) -> list[str]:
    """What each method costs, and what it forgets."""
    about = (
        "PD is how far accuracy falls from the base session to the last; seconds are those of one draw, all sessions "
        "with their evaluation; MB is what is kept between sessions beside trained weights."
    )
    body = [line(mark(row.method), *costs(row)) for row in sorted(rows, key=lambda row: row.method)]
    return ["## What each costs", "", about, "", *ruled("method", *COSTS), *body, ""]


def _beside_papers(found: Table, rows: list[Row]) -> list[str]:
    """How far each row lies from its paper's, the verdict, and what there is to say about it."""
    lines = [
        "## Beside their papers",
        "",
        f"On the shared features nearest class mean alone has an AHM of {_ahm(found, PLAIN)}. A method that is far "
        "above its paper there owes that to the backbone first. RMS is the root mean square of the differences in "
        f"harmonic mean session by session; a row is called reproduced if that is at most {NEAR:g} points. The other "
        "columns are differences, here minus there; the paper's last base and novel accuracy are solved from its last "
        "harmonic mean and accuracy.",
        "",
        *ruled("method", "RMS", "AHM", "FA", "last base", "last novel", "verdict"),
    ]
    said = []
    for row in sorted(rows, key=lambda row: row.method):
        entry = printed(found, row)
        if entry is None:
            continue
        verdict = Verdict.of(row, entry, found.cut)
        values = (verdict.ahm, verdict.fa, verdict.last_base, verdict.last_novel)
        rms = "–" if verdict.rms is None else f"{verdict.rms:.2f}"
        away = ("–" if value is None else signed(value, 1) for value in values)
        said_of_it = "not the published form" if row.method == OURS else verdict.words
        lines.append(line(mark(row.method), rms, *away, said_of_it))
        if words := remarks(found.scenario).get(row.method):
            said.append(f"- `{row.method}`: {words}.")
    return [*lines, "", *([*said, ""] if said else [])]


def _elsewhere(found: Table) -> list[str]:
    """Figures of papers whose methods are not measured here; apart those whose backbone knows other data."""
    lines = list[str]()
    for pretrained, title in ((False, "Published elsewhere"), (True, "Published with a pre-trained backbone")):
        rows = [row for row in elsewhere(found.scenario) if row.pretrained == pretrained]
        if not rows:
            continue
        about = "Accuracy over all classes, one draw, as the papers print it; most give no harmonic mean."
        apart = " These backbones were trained on far more data, so the figures stand apart." if pretrained else ""
        lines += [f"## {title}", "", about + apart, ""]
        lines += ruled("method", "paper", "backbone", "first", "last", "where it was read")
        for row in sorted(rows, key=lambda row: -row.last):
            first = "–" if row.first is None else f"{row.first:.2f}"
            read = row.checked + (f"; {row.note}" if row.note else "")
            lines.append(
                line(
                    row.method, link(row.paper, row.source), row.backbone or "not said", first, f"{row.last:.2f}", read
                )
            )
        lines.append("")
    return lines


def _explained(rows: list[Row]) -> list[str]:
    lines = ["## What each method is, needs and leaves out", ""]
    lines += ruled("method", "paper", "code", "group", "needs")
    said = dict[str, str]()
    for row in sorted(rows, key=lambda row: row.method):
        choice = known(row.method)
        if choice is None:
            lines.append(line(mark(row.method), "–", "–", "not registered here", "–"))
            continue
        entry, needs = choice.entry, ", ".join(choice.needs) or "nothing more"
        code = link("code", entry.code) if entry.code else "–"
        lines.append(line(mark(row.method), link(entry.paper, entry.link), code, entry.group, needs))
        if entry.departures:
            said[entry.name] = entry.departures
    departures = [f"- `{name}`: {words}" for name, words in said.items()]
    return [*lines, "", "Where each departs from its paper:", "", *departures] if departures else lines


def _own(found: Table) -> list[Row]:
    """The rows for whose sake a bank was made: of the method whose base session it is, or that train its backbone."""
    groups = ("own base session", "updates the backbone")
    return [row for row in found.rows if _group(row.method) in groups]


def _points(found: Table) -> figures.Points:
    """What the picture shows of a table: its rows with their groups, and the control's curve."""
    rows = found.rows if not _own(found) else _own(found)
    shown = [(row, _group(row.method)) for row in rows if found.base_session is None or ":" not in row.method]
    control = next((row.trade_off for row in found.rows if row.method == found.control), None)
    return figures.Points(shown, control, found.control, shared=found.base_session is None and not _own(found))


def _group(method: str) -> str:
    """What a method is compared with; one that is not registered shares the backbone."""
    choice = known(method)
    return "shared backbone" if choice is None else choice.entry.group


def _meant(method: str, scenario: str) -> bool:
    choice = known(method)
    return choice is None or choice.entry.meant_for(scenario)


def _ahm(found: Table, method: str) -> str:
    row = found.row(method)
    return "not run" if row is None else f"{row.ahm:.2f}"
