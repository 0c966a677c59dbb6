"""The leaderboard's tables: rows of one bank by rank, and methods whose bank is their own."""

from __future__ import annotations

from concm.evaluation.statistics import Row, Table, mean_over, ranks, shared_draws
from concm.methods.choice import known
from concm.report.cells import MEASURED, cells, heads_of_official, line, mark, official, ruled
from concm.report.leaderboard_papers import OURS, PLAIN, ahm
from concm.report.provenance import backbone, ran, schedule, varied
from concm.report.reproduction import printed


def table(found: Table, rows: list[Row]) -> list[str]:
    """Rows of one bank by AHM, with their ranks, beside what is published."""
    ranked = [row for row in rows if group(row.method) != "reference" and meant(row.method, found.scenario)]
    places, note = placed(rows, ranked)
    more = heads_of_official(rows)
    lines = ruled("rank", "method", *MEASURED, *more, "published AHM / FA")
    for rank, row in places:
        entry = printed(found, row)
        there = "–" if entry is None else f"{entry.ahm} / {entry.fa}"
        measured = (*cells(row), *(official(row) for _ in more))
        lines.append(line(rank, mark(row.method), *measured, there))
    about = ["", "Official figures have the shots of the published lists, as papers report them."] if more else []
    return [*lines, *note, *about]


def placed(rows: list[Row], ranked: list[Row]) -> tuple[list[tuple[str, Row]], list[str]]:
    """Rows by AHM over the draws that all of those with a rank share, each with its rank; and where they share none."""
    draws, places = shared_draws(ranked, "ahm"), ranks(ranked, "ahm")
    order = sorted(rows, key=lambda row: -mean_over(row, "ahm", draws))
    alone = "These rows have no known draw in common, so each stands where the mean over its own draws puts it."
    note = [] if draws or len(ranked) < 2 else ["", alone]
    return [(str(places.get(row.method, "–")), row) for row in order], note


def tuning(tuned: list[Table]) -> list[str]:
    """Methods that go on training the backbone, each table with the controls on its own bank."""
    lines = ["## Methods that go on training the backbone", ""]
    for other in tuned:
        about = f"They begin with a copy of {backbone(other)} and see pictures; {ran(other)}."
        lines += [about, "", *table(other, other.rows), ""]
    return lines


def with_own_base_session(control: str, owned: list[Table], plain: list[Table]) -> list[str]:
    """Each on the backbone that its own base session trained, beside others on the same features."""
    lines = [
        "## Methods with a base session of their own",
        "",
        "Each method runs on the backbone that its own base session trained, so rows differ by more "
        f"than the method, and there is no rank. `{PLAIN}` and `{OURS}` on the same features stand beside it (AHM), "
        f"and its curve is that of `{control}` on all that the backbone reads, turned pictures included; – stands "
        f"where it was not run. Brackets say where the schedule is not that of the method's file. {_ahead(owned)}",
        "",
        *ruled("method", "base session", *MEASURED, *(f"`{name}` there" for name in (PLAIN, OURS))),
    ]
    apart = list[str]()
    for other in sorted(owned, key=lambda other: -max(row.ahm for row in own(other))):
        for row in sorted(own(other), key=lambda row: -row.ahm):
            there = [ahm(other, name) for name in (PLAIN, OURS)]
            ranked = lines if meant(row.method, other.scenario) else apart
            ranked.append(line(mark(row.method), _session(other, schedule(other)), *cells(row), *there))
    for other in plain:
        row = next(row for row in other.rows if row.method == PLAIN)
        there = [ahm(other, name) for name in (PLAIN, OURS)]
        lines.append(line(f"`{PLAIN}`", _session(other, f"ours: {varied(other)}"), *cells(row), *there))
    if apart:
        heads = ruled("method", "base session", *MEASURED, *(f"`{name}` there" for name in (PLAIN, OURS)))
        about = (
            "Apart from that, since these were published for other data, and here almost all of their numbers are ours:"
        )
        lines += ["", about, "", *heads, *apart]
    return [*lines, ""]


def _session(found: Table, how: str) -> str:
    """What trained the features, and which network."""
    return f"{found.backbone['name']}, {how}"


def _ahead(owned: list[Table]) -> str:
    """Whether ConCM is above the methods on their own features; variants of a method do not count again."""
    pairs = [
        (row, ours)
        for other in owned
        for row in own(other)
        for ours in other.rows
        if ours.method == OURS and ":" not in row.method and meant(row.method, other.scenario)
    ]
    ahead = [row.method for row, ours in pairs if ours.ahm > row.ahm]
    behind = [f"`{row.method}`" for row, ours in pairs if ours.ahm <= row.ahm]
    said = f"On their own features this library's engine has the higher AHM in {len(ahead)} of {len(pairs)} cases"
    return f"{said}; not against {', '.join(behind)}." if behind else f"{said}."


def own(found: Table) -> list[Row]:
    """The rows for whose sake a bank was made: of the method whose base session it is, or that train its backbone."""
    groups = ("own base session", "updates the backbone")
    return [row for row in found.rows if group(row.method) in groups]


def group(method: str) -> str:
    """What a method is compared with; one that is not registered shares the backbone."""
    choice = known(method)
    return "shared backbone" if choice is None else choice.entry.group


def meant(method: str, scenario: str) -> bool:
    """Whether a method stands in the ranking of a scenario."""
    choice = known(method)
    return choice is None or choice.entry.meant_for(scenario)
