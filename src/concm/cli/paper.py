"""The paper, whole: what its experiments are, running them, and the page beside the printed figures."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from concm.cli.options import Machine
from concm.errors import ConcmError, at_least, at_most

app = App(name="paper", help="All experiments of the ConCM paper: list them, run them, and make their page.")
RESULTS = Path("docs/results/paper")


@app.default
def listed(*, banks: Path | None = None, results: Path = RESULTS) -> None:
    """List the experiments: the command that makes each, what it needs, and whether it has been run.

    Parameters
    ----------
    banks
        A folder of feature banks named by their scenario, such as mini_imagenet.safetensors.
    results
        The folder of the experiments' tables.
    """
    from concm.evaluation.paper import experiments
    from concm.report import tables as text

    rows = []
    for experiment in experiments().values():
        needs = "bank at hand" if experiment.source(banks) else f"needs banks/{experiment.scenario}.safetensors"
        state = "run" if (results / f"{experiment.name}.json").exists() else needs
        rows.append((experiment.name, experiment.title, experiment.scenario + experiment.cut, state))
    text.show_columns(("experiment", "what", "scenario", "state"), rows)
    text.say("run one with `concm paper run NAME`, all whose banks are at hand with `concm paper run`")


@app.command
def run(
    *names: str,
    banks: Path | None = None,
    results: Path = RESULTS,
    out: Path = Path("runs/paper"),
    draws: int = 5,
    seed: int = 0,
    ours_only: bool = False,
    jobs: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    on: str = "here",
) -> None:
    """Run experiments, and look inside single runs; what is finished is not repeated.

    Parameters
    ----------
    names
        Experiments (see `concm paper`); without any, all whose banks are at hand.
    banks
        A folder of feature banks named by their scenario, such as mini_imagenet.safetensors.
    results
        Where each experiment's table is written, in the form of `concm bench --json`.
    out
        The folder for the result files, one for each run.
    draws
        Draws of the shots; figures are means over them.
    seed
        Seed of the first draw, and of the methods.
    ours_only
        Leave out the runs in the paper's own form, which take minutes each without a GPU.
    jobs
        Runs at a time; by default one per core, and one at a time on a GPU.
    device
        Where to compute; `auto` uses a GPU if there is one.
    on
        Where runs go: `here`, or to a Ray cluster: `ray` or `ray://HOST:PORT`.
    """
    at_least(1, draws=draws, jobs=1 if jobs is None else jobs)
    at_least(0, seed=seed)
    at_most(10_000, draws=draws)
    asked_for = Machine(device=device).accelerator() if on == "here" else device
    from concm.evaluation import paper, probe
    from concm.evaluation.workers import place
    from concm.progress import track
    from concm.report import tables as text
    from concm.report.paper import PROBES

    for experiment in paper.chosen(list(names)):
        source = experiment.source(banks)
        if source is None:
            missing = f"{experiment.name} needs a bank of {experiment.scenario}: {experiment.scenario}.safetensors"
            if names:
                raise ConcmError(f"{missing} in `banks`; docs/how-to/the-paper.md says how it is made")
            text.say(f"left out: {missing}")
            continue
        text.say(f"{experiment.name}: {experiment.title}")
        with place(on, asked_for, jobs) as where:
            table = experiment.run(source, out, where, draws=draws, seed=seed, ours_only=ours_only)
        table.save(results / f"{experiment.name}.json")
        text.say(f"wrote {results / experiment.name}.json")
        looks = results / PROBES.format(experiment.scenario)
        if experiment.name == experiment.scenario and not looks.exists():
            bank, labels = source.bank(), paper.looked_at()
            near = asked_for if on == "here" else "cpu"
            shown = track(labels, "looking inside single runs")
            seen = [probe.probe(bank, label, at=seed, device=near, pictures=label == labels[0]) for label in shown]
            probe.save(seen, looks)
            text.say(f"wrote {looks}")


@app.command
def report(*, results: Path = RESULTS, out: Path = Path("docs/paper")) -> None:
    """Make the page of all experiments that have been run: paper.html, alone in one file, and paper.md.

    Parameters
    ----------
    results
        The folder of the experiments' tables.
    out
        The folder for the page.
    """
    from concm.report import tables as text
    from concm.report.paper import write

    if not any(results.glob("*.json")):
        raise ConcmError(f"no results in {results}: run `concm paper run` first")
    out.mkdir(parents=True, exist_ok=True)
    written = write(results, out)
    text.say(f"wrote {written[0]} and {written[1]}")
