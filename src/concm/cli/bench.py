"""Compare methods on a feature bank."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from concm.cli.options import Machine
from concm.errors import ConcmError, Misuse, at_least, at_most


def bench(
    scenario: str | None = None,
    /,
    *,
    method: list[str] | None = None,
    draws: int = 5,
    seeds: int = 1,
    seed: int = 0,
    splits: Path | None = None,
    attributes: Path | None = None,
    word_vectors: Path | None = None,
    bank: Path | None = None,
    way: int | None = None,
    shot: int | None = None,
    sessions: int | None = None,
    out: Path = Path("runs/bench"),
    json: Path | None = None,
    csv: Path | None = None,
    latex: Path | None = None,
    figure: Path | None = None,
    on: str = "here",
    jobs: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Run methods on a feature bank, session by session, beside the controls and the published figures.

    Parameters
    ----------
    scenario
        A scenario whose bank ships with concm (cifar100 by default); with `--bank`, the one it must be of.
    method
        A method (see `concm methods`), with settings if you like: `concm:alpha=0.5,structure=fixed,total=100`, or a
        preset: `orco:short`; or a class of your own: `my_method.py:MyMethod`, `package.module:MyMethod`. May be given
        several times. `all` means all methods that can run on this bank: some need a bank of their own base session,
        or one with pictures. `equal:` before a method, or before `all`, gives it this library's metric, views and
        operating point: `equal:teen`. The controls run in any case.
    draws
        Draws of the shots; figures are means over them.
    seeds
        Runs of each draw, with other random weights and samples.
    seed
        Seed of the first draw, and of the methods.
    splits
        A folder of published index lists (session_2.txt and on): their shots are one more run, in a column of its own.
    attributes
        CUB-200-2011's folder, whose attributes are taken instead of WordNet's.
    word_vectors
        A GloVe text file, instead of the bundled vectors.
    bank
        A feature bank of `concm features`, instead of the one that ships with concm.
    way
        Classes per session, instead of the scenario's.
    shot
        Shots per class, instead of the scenario's.
    sessions
        A smaller number of sessions.
    out
        The folder for the result files, one for each run; runs that are finished there are not repeated.
    json
        Also write the table, as JSON.
    csv
        Also write every run on a line of its own, as CSV.
    latex
        Also write the table by session as LaTeX (booktabs), with the published rows above it.
    figure
        The picture; by default bench.png beside the results.
    on
        Where runs go: `here`; `ray`, a Ray cluster that is started on this machine for as long as the command takes, or
        the one that the variable RAY_ADDRESS names; or `ray://HOST:PORT`. Results are written here in any case.
    jobs
        Runs at a time; by default one per core, and one at a time on a GPU. On Ray, as many as there is room for.
    device
        Where to compute; `auto` uses a GPU if there is one.
    """
    from concm.evaluation.bench import BankSource, finish, tasks_of, unfit
    from concm.evaluation.controls import METHODS
    from concm.evaluation.statistics import Table
    from concm.evaluation.workers import place
    from concm.files import refuse_stream, write_whole
    from concm.methods import EQUAL, choose, entries
    from concm.report import bench as report
    from concm.report import figures
    from concm.report.tables import say
    from concm.semantics.knowledge import Knowledge

    at_least(1, draws=draws, seeds=seeds, jobs=1 if jobs is None else jobs)
    at_least(0, seed=seed)
    at_most(10_000, draws=draws, seeds=seeds)
    refuse_stream(figure)
    asked_for = Machine(device=device).accelerator() if on == "here" else device
    source = BankSource(scenario, bank, way, shot, sessions)
    loaded = source.bank()
    meant = [name for name, entry in entries().items() if entry.meant_for(loaded.scenario.name)]
    every = {
        f"{footing}all": [f"{footing}{name}" for name in meant if unfit(choose(f"{footing}{name}"), loaded) is None]
        for footing in ("", EQUAL)
    }
    asked = [name for word in method or ["concm"] for name in every.get(word, [word])]
    for name in asked:
        if why := unfit(choose(name), loaded):
            raise Misuse(why)
    labels = list(dict.fromkeys([*asked, *METHODS]))
    knowledge = Knowledge(attributes, word_vectors) if attributes or word_vectors else None
    with place(on, asked_for, jobs) as where:
        tasks = tasks_of(
            labels, draws=draws, seeds=seeds, seed=seed, splits=splits, device=where.device, knowledge=knowledge
        )
        results = finish(tasks, source, loaded, out, where)
    at_once = where.at_once and min(len(tasks), where.at_once)
    table = Table.of(loaded, results, draws, at_once)
    report.show(table)
    report.show_remarks(results)
    picture = figure or out / "bench.png"
    figures.bench(table, picture)
    written = [picture]
    if json is not None:
        table.save(json)
        written.append(json)
    shown = report.BenchTable(table, results)
    for file, text in ((csv, shown.to_csv), (latex, shown.to_latex)):
        if file is not None:
            write_whole(file, text().encode())
            written.append(file)
    say(f"wrote {' and '.join(map(str, written))}; one result file for each run in {out}")


def leaderboard(
    tables: list[Path],
    /,
    *,
    out: Path = Path("leaderboard.md"),
    csv: Path | None = None,
    latex: Path | None = None,
) -> None:
    """Write a page of all methods that were measured, from tables of `concm bench --json`, and its picture beside it.

    Parameters
    ----------
    tables
        The table of the shared bank first; then more rows of that bank, and tables of other banks of the same scenario.
    out
        The page, in Markdown.
    csv
        Also write a line per row, with its figures by session, as CSV.
    latex
        Also write the rows of the shared bank by session as LaTeX (booktabs), below the published ones.
    """
    from concm.evaluation.statistics import Table
    from concm.files import refuse_stream, write_whole
    from concm.report.leaderboard import write
    from concm.report.leaderboard_files import to_csv, to_latex
    from concm.report.tables import say

    refuse_stream(out)
    first, *others = [Table.load(path) for path in tables]
    for path, other in zip(tables[1:], others, strict=True):
        if (other.scenario, other.cut) != (first.scenario, first.cut):
            raise ConcmError(f"{path} cannot stand beside {tables[0]}: it has another scenario or cut")
    written = write(out, first, others)
    for file, text in ((csv, to_csv), (latex, to_latex)):
        if file is not None:
            write_whole(file, text(first, others).encode())
            written.append(file)
    say(f"wrote {' and '.join(map(str, written))}")


def conformance(method: str, /) -> None:
    """Check a method against the contract on small synthetic data, one line per check.

    Parameters
    ----------
    method
        A method (see `concm methods`), with settings if you like, or anybody's class: `my_package.module:MyMethod`.
    """
    from concm.evaluation.conformance import run
    from concm.evaluation.course import stated
    from concm.methods import choose
    from concm.report import tables as text

    choice = choose(method)
    broken = 0
    for words, wrong in run(choice):
        broken += wrong is not None
        text.say(f"{'ok   ' if wrong is None else 'FAIL '} {words}{'' if wrong is None else f': {wrong}'}")
    if broken:
        raise ConcmError(f"{choice.label} breaks the contract: {broken} checks failed")
    if not stated(choice):
        text.say("left out: what its state holds, for it has no state_dict; concm.methods.Learner would give it one")
    text.say(f"{choice.label} keeps the contract")


def methods(name: str | None = None, /) -> None:
    """List the methods, or say what one of them is and which settings it has.

    Parameters
    ----------
    name
        A method, with settings if you like: what differs from its defaults is shown as it would run.
    """
    from concm.methods import choose, entries
    from concm.report import tables as text

    if name is None:
        text.show_methods(list(entries().values()))
    else:
        text.show_method(choose(name))
