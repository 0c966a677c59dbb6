"""The whole paper beside our own measurements: one page, as HTML and as Markdown, from result files alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from concm.evaluation import probe as inside
from concm.evaluation import published
from concm.evaluation.paper import Experiment, experiments
from concm.evaluation.probe import Probe
from concm.evaluation.statistics import Table
from concm.files import write_whole
from concm.report import paper_figures as figures
from concm.report import paper_tables as shown
from concm.report.cells import line as joined
from concm.report.cells import ruled
from concm.report.page import Chapter, render

TITLE = "ConCM: the paper and what was measured here"
LEAD = (
    "The experiments of the paper (ICLR 2026) that have been run, beside its own figures: the printed ones, our engine "
    "(concm) and the paper's own form on the same features (concm:published), means of several draws with the sample "
    "deviation. The page is made from result files alone; where the order of rows differs from the paper's by more "
    "than the draws explain, it says so."
)
PROBES = "probes_{}.json"
"""The file of looks inside the runs of a scenario."""


@dataclass(frozen=True)
class Section:
    """A part of the page: words, tables (their heads first) and pictures (PNG) under their file names."""

    title: str
    text: str = ""
    tables: tuple[shown.Cells, ...] = ()
    pictures: tuple[tuple[str, bytes], ...] = ()


def write(results: Path, out: Path) -> list[Path]:
    """Make the page from a folder of results: paper.html, paper.md and the pictures of the latter."""
    sections = [section for part in (_experiments, _costs, _insides) for section in part(results)]
    sections.insert(0, _overview(results))
    chapters = [chapter for section in sections for chapter in _chapters(section)]
    html, markdown = out / "paper.html", out / "paper.md"
    write_whole(html, render(TITLE, LEAD, chapters).encode())
    lines = [f"# {TITLE}", "", LEAD]
    written = [html, markdown]
    for section in sections:
        lines += ["", f"## {section.title}", *(["", section.text] if section.text else [])]
        for table in section.tables:
            lines += ["", *ruled(*table[0]), *(joined(*row) for row in table[1:])]
        for name, picture in section.pictures:
            write_whole(out / name, picture)
            written.append(out / name)
            lines += ["", f"![{section.title}]({name})"]
    write_whole(markdown, ("\n".join(lines) + "\n").encode())
    return written


def found(experiment: Experiment, results: Path) -> Table | None:
    """The experiment's table, if it has been run."""
    file = results / f"{experiment.name}.json"
    return Table.load(file) if file.exists() else None


def _overview(results: Path) -> Section:
    """Which experiments there are, what makes them, and which have been run."""
    rows: list[tuple[str, ...]] = [("experiment", "scenario", "draws", "backbone, passes", "what")]
    for experiment in experiments().values():
        table = found(experiment, results)
        network = "" if table is None else f"{table.backbone['name']}, {table.passes}"
        draws = "not run" if table is None else str(table.draws)
        rows.append((experiment.name, experiment.scenario + experiment.cut, draws, network, experiment.title))
    return Section("What was run", "Each is made by `concm paper run` and its name.", tables=(tuple(rows),))


def _experiments(results: Path) -> Iterator[Section]:
    for experiment in experiments().values():
        table = found(experiment, results)
        if table is None:
            continue
        tables = [shown.figures(experiment, table), shown.sessions(experiment, table)]
        if experiment.table == "Tab_miniimagenet":
            tables.append(shown.conflict(experiment, table))
        rates = shown.matching(experiment, table)
        note = published.table(experiment.table).note if experiment.table else ""
        words = [shown.order(experiment, table), f"The paper's table: {note}." if note else ""]
        yield Section(
            experiment.title,
            " ".join(word for word in words if word),
            tuple(tables) + ((rates,) if rates else ()),
            ((f"{experiment.name}.png", figures.lines(experiment, table)),),
        )


def _costs(results: Path) -> Iterator[Section]:
    """Parameters, operations, time and memory beside the paper's table of them."""
    experiment = experiments()["mini_imagenet"]
    table = found(experiment, results)
    if table is None:
        return
    looks = _probes(results, "mini_imagenet")
    operations = next((entry.flops for entry in looks if entry.flops), None)
    rows: list[tuple[str, ...]] = [
        ("", "weights beside the backbone (M)", "parameters (M)", "FLOPs (G)", "time", "memory (MB)", "AHM")
    ]
    for printed in published.table("Table_Efficiency").rows:
        other = printed.other
        rows.append(
            (
                f"{printed.method}, printed",
                "–",
                f"{other['parameters_m']:.2f}",
                f"{other['flops_g']:.2f}",
                f"{other['minutes']:.1f} min",
                f"{other['memory_m']:.2f}",
                shown.number(printed.ahm),
            )
        )
    for row in table.rows:
        rows.append(
            (
                row.method,
                "–" if row.parameters is None else f"{row.parameters / 1e6:.2f}",
                "–",
                "–" if operations is None else f"{operations / 1e9:.2f}",
                f"{row.seconds:.1f} s on {row.device}",
                "–" if row.memory_bytes is None else f"{row.memory_bytes / 1e6:.2f}",
                f"{row.ahm:.2f}",
            )
        )
    text = (
        "Times are of all sessions of one draw on banked features, without the base session. FLOPs are of one "
        "picture's passes through the backbone, a multiplication with its addition counting as two."
    )
    yield Section("Efficiency", text, (tuple(rows),))


def _insides(results: Path) -> Iterator[Section]:
    """Prototypes, similarities, confusion and pictures of single runs."""
    for scenario in ("mini_imagenet", "cifar100", "cub200", "tiny_imagenet"):
        looks = _probes(results, scenario)
        if not looks:
            continue
        rows: list[tuple[str, ...]] = [
            ("run", "within a class", "between classes", "few-shot prototype", "calibrated", "correlation")
        ]
        for look in looks:
            own = look.prototypes
            rows.append(
                (
                    look.method,
                    f"{look.within:.4f}",
                    f"{look.between:.4f}",
                    f"{sum(own.biased) / len(own.biased):.4f}",
                    f"{sum(own.calibrated) / len(own.calibrated):.4f}",
                    f"{own.correlation:+.2f}",
                )
            )
        text = (
            "Mean cosines of two test images of one class and of two, behind the first projector, after the last "
            "session of one draw; mean cosine of novel prototypes to their classes' true centres; and the correlation, "
            "over novel classes, of the calibrated prototype's truth with accuracy."
        )
        pictures = [(f"{scenario}_{name}.png", data) for name, data in figures.insides(looks[0])]
        yield Section(f"Inside a run: {scenario}", text, (tuple(rows),), tuple(pictures))


def _probes(results: Path, scenario: str) -> list[Probe]:
    file = results / PROBES.format(scenario)
    return inside.load(file) if file.exists() else []


def _chapters(section: Section) -> list[Chapter]:
    """A section as chapters of the page, which have a table each."""
    tables = section.tables or ((),)
    chapters = [Chapter(section.title if not at else "", table=table) for at, table in enumerate(tables)]
    chapters[0] = replace(chapters[0], text=section.text)
    chapters[-1] = replace(chapters[-1], figures=tuple(data for _, data in section.pictures))
    return chapters
