"""The leaderboard: every measured method beside its published figures, as a page of Markdown and a picture."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path

from concm.evaluation.statistics import Printed, Row, Table
from concm.files import write_whole
from concm.methods import Choice
from concm.methods.registry import known
from concm.records import to_json
from concm.report import figures
from concm.report.cells import MEASURED, cells, line, signed
from concm.report.remarks import reading, remarks
from concm.training.recipe import Recipe

PUBLISHED = "published AHM / FA (base; backbone)"
ALIASES = {"imprint": "iw"}
OURS, PLAIN = "concm", "ncm"
AGAINST = "This library's engine against every other method that begins with this backbone"
FAR = 3.0
"""Points of AHM from which on a difference from the paper needs words."""


def write(path: Path, found: Table, others: list[Table]) -> list[Path]:
    """The page, and its picture beside it; `others` are tables of other banks."""
    picture = path.with_suffix(".png")
    elsewhere = [row for other in others for row in _own(other) if ":" not in row.method]
    figures.trade_offs(found.rows, elsewhere, found.control, picture)
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
    return "\n".join([*lines, *_beside_papers(found, rows), *_explained(rows), ""])


def _beginning(found: Table, picture: str) -> list[str]:
    cut = found.cut
    return [
        f"# Leaderboard: {found.scenario}",
        "",
        f"{cut.base} base classes, then {cut.sessions} sessions of {cut.way}-way {cut.shot}-shot. Figures are means ± "
        f"standard deviations (population form) of {found.draws} draws of the shots, which are the same for every "
        "method. Settings are those of the papers or, where the file of a method says so, chosen without test images. "
        "Published figures are those of the table in the ConCM paper: one draw, and each method with a backbone of its "
        "own.",
        "",
        f"![Base and novel accuracy after the last session]({picture})",
        "",
        f"*Where each method stands after the last session, and the curve that `{found.control}` describes with any "
        "constant on its novel scores. HM is mostly a place on that curve, so what counts is to lie above it. Hollow "
        "points are methods on features of their own, for which this is not the right curve.*",
        "",
        *_caveats(found.scenario),
    ]


def _caveats(scenario: str) -> list[str]:
    """What a reader must know before believing a row."""
    known = reading(scenario)
    return ["## How to read this page", "", *(f"- {sentence}" for sentence in known), ""] if known else []


def _shared(found: Table) -> list[str]:
    return [
        "## On one shared, frozen backbone",
        "",
        f"Features of one {_backbone(found)}; {_ran(found)}.",
        "",
        *_table(found, found.rows),
        "",
        'The column "s" has the seconds of one draw, all sessions with their evaluation, and "MB" what is kept of the '
        f'data. "Above the curve" are points of novel accuracy over `{found.control}` with any constant, at the '
        "method's own base accuracy, with the 95 % interval over the draws; – stands where the curve does not reach so "
        "far.",
        "",
    ]


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
    for name, title in (("ahm", "AHM"), ("fa", "FA"), ("above_curve", "height above the curve")):
        value = getattr(ours, name)
        if value is None:
            continue
        leads = {row.method: getattr(row, name) - value for row in others if getattr(row, name) is not None}
        ranked = sorted(leads.items(), key=lambda pair: -pair[1])
        better, worse = (
            [f"`{method}` {signed(lead, 2)}" for method, lead in ranked if (lead > 0) == above]
            for above in (True, False)
        )
        beaten = f"above it: {', '.join(better)}" if better else "no method above it"
        lines.append(f"- **{title} {value:.2f}**; {beaten}; not above it: {', '.join(worse) or 'none'}.")
    return [*lines, "", "References see what no few-shot learner may see, and are left out here.", ""]


def _tuning(tuned: list[Table]) -> list[str]:
    lines = ["## Methods that go on training the backbone", ""]
    for other in tuned:
        lines += [
            f"They begin with a copy of {_backbone(other)} and see pictures; {_ran(other)}.",
            "",
            *_table(other, other.rows),
            "",
        ]
    return lines


def _with_own_base_session(owned: list[Table], plain: list[Table]) -> list[str]:
    """Each on the backbone that its own base session trained, beside others on the same features."""
    heads = ("method", "base session", *MEASURED, *(f"`{name}` there" for name in (PLAIN, OURS)), PUBLISHED)
    lines = [
        "## Methods with a base session of their own",
        "",
        f"Each method runs on the {[*owned, *plain][0].backbone['name']} that its own base session trained, so rows "
        "differ by more than the method. `ncm` and `concm` on the same features stand beside it (AHM), and its curve "
        f"is that of `{[*owned, *plain][0].control}` on all that the backbone reads, turned pictures included. "
        f"Brackets say where the schedule is not that of the method's file. {_ahead(owned)}",
        "",
        line(*heads),
        "|---" * len(heads) + "|",
    ]
    for other in sorted(owned, key=lambda other: -max(row.ahm for row in _own(other))):
        for row in sorted(_own(other), key=lambda row: -row.ahm):
            figures_there = [*cells(row), *(_ahm(other, name) for name in (PLAIN, OURS)), _published(other, row)]
            lines.append(line(f"`{row.method}`", _schedule(other), *figures_there))
    for other in plain:
        row = next(row for row in other.rows if row.method == PLAIN)
        figures_there = [*cells(row), *(_ahm(other, name) for name in (PLAIN, OURS)), "control"]
        lines.append(line(f"`{PLAIN}`", f"ours: {_varied(other)}", *figures_there))
    return [*lines, ""]


def _ahead(owned: list[Table]) -> str:
    """Whether ConCM is above the methods on their own features."""
    pairs = [(row, ours) for other in owned for row in _own(other) for ours in other.rows if ours.method == OURS]
    ahead = [row.method for row, ours in pairs if ours.ahm > row.ahm]
    behind = [f"`{row.method}`" for row, ours in pairs if ours.ahm <= row.ahm]
    said = f"On their own features this library's engine has the higher AHM in {len(ahead)} of {len(pairs)} cases"
    return f"{said}; not against {', '.join(behind)}." if behind else f"{said}."


def _beside_papers(found: Table, rows: list[Row]) -> list[str]:
    """Where a measured figure is far from its paper's, and why."""
    heads = ("method", "AHM here − there", "FA here − there", "why")
    control = _ahm(found, PLAIN)
    lines = [
        "## Beside their papers",
        "",
        f"On the shared features nearest class mean alone has an AHM of {control}. A method that is far above its "
        "paper there owes that to the backbone first.",
        "",
        line(*heads),
        "|---" * len(heads) + "|",
    ]
    for row in sorted(rows, key=lambda row: row.method):
        printed = _printed(found, row)
        if printed is None:
            continue
        off = row.ahm - (printed.ahm or 0)
        words = remarks(found.scenario).get(row.method)
        if abs(off) < FAR:
            words = words or f"within {FAR:g} points of AHM"
        there = (signed(off, 1), signed(row.fa - (printed.fa or 0), 1), words or "not reproduced")
        lines.append(line(f"`{row.method}`", *there))
    return [*lines, ""]


def _explained(rows: list[Row]) -> list[str]:
    heads = ("method", "paper", "group", "needs", "here")
    lines = ["## What each method is, needs and leaves out", "", line(*heads), "|---" * len(heads) + "|"]
    for row in sorted(rows, key=lambda row: row.method):
        choice = known(row.method)
        if choice is None:
            lines.append(line(f"`{row.method}`", "–", "not registered here", "–", "–"))
            continue
        entry, needs = choice.entry, ", ".join(choice.needs) or "nothing more"
        lines.append(line(f"`{row.method}`", entry.paper, entry.group, needs, _here(choice)))
    return lines


def _own(found: Table) -> list[Row]:
    """The rows for whose sake a bank was made: of the method whose base session it is, or that train its backbone."""
    groups = ("own base session", "updates the backbone")
    return [row for row in found.rows if _group(row.method) in groups]


def _group(method: str) -> str:
    """What a method is compared with; one that is not registered shares the backbone."""
    choice = known(method)
    return "shared backbone" if choice is None else choice.entry.group


def _backbone(found: Table) -> str:
    return f"{found.backbone['name']} (weights `{found.backbone['weights']}`, base session: {_schedule(found)})"


def _schedule(found: Table) -> str:
    recipe = found.recipe
    if not recipe:
        return "ready-made"
    name, changed = found.base_session, ""
    choice = known(name) if name else None
    objective = choice.entry.objective if choice else None
    if objective is not None:
        full = to_json(objective.schedule)
        other = [f"{key} {recipe[key]} for {full[key]}" for key in full if key != "seed" and recipe[key] != full[key]]
        changed = f" ({', '.join(other)})" if other else ""
    return f"{recipe['epochs']} epochs{changed}"


def _varied(found: Table) -> str:
    """What a base session of ours had otherwise than by default."""
    recipe = found.recipe
    default = to_json(Recipe())
    return ", ".join(f"{key} {recipe[key]}" for key in default if key in recipe and recipe[key] != default[key])


def _ran(found: Table) -> str:
    """Where, and how many at a time: what seconds mean."""
    at_once = found.at_once
    return f"measured on {found.rows[0].device}" + (f", {at_once} runs at a time" if at_once else "")


def _table(found: Table, rows: list[Row]) -> list[str]:
    lines = [line("method", *MEASURED, PUBLISHED), "|---" * (len(MEASURED) + 2) + "|"]
    for row in sorted(rows, key=lambda row: -row.ahm):
        lines.append(line(f"`{row.method}`", *cells(row), _published(found, row)))
    return lines


def _ahm(found: Table, method: str) -> str:
    row = found.row(method)
    return "not run" if row is None else f"{row.ahm:.2f}"


def _key(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.partition(":")[0].lower())
    return ALIASES.get(plain, plain)


def _printed(found: Table, row: Row) -> Printed | None:
    """The published row of a method in its published form."""
    rows = {_key(entry.method): entry for entry in found.published}
    return None if ":" in row.method else rows.get(_key(row.method))


def _published(found: Table, row: Row) -> str:
    entry = _printed(found, row)
    if entry is None:
        return "no row"
    return f"{entry.ahm} / {entry.fa} ({entry.base_acc}; {entry.backbone or 'not said'})"


def _here(choice: Choice) -> str:
    """What the method's file says of how it differs from its paper."""
    text = inspect.getdoc(sys.modules[choice.entry.make.__module__]) or ""
    found = re.search(r"\bHere: (.*)", text, flags=re.S)
    return " ".join(found.group(1).split()) if found else "nothing is left out"
