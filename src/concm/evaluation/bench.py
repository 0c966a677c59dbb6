"""Many runs: methods × draws × seeds, side by side where cores allow; what is finished is not done again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from concm.errors import ConcmError, Misuse
from concm.evaluation.protocol import run
from concm.evaluation.results import Figures, Heading, Result, Summary
from concm.evaluation.workers import in_processes
from concm.features.bank import Bank
from concm.features.sessions import Shots, draw, published
from concm.methods import PICTURES, POOL, Choice, choice_of, choose
from concm.progress import bar

Listener = Callable[[str, int, float, float], None]
"""Told the run, its session just done, and that session's accuracy and harmonic mean."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BankSource:
    """Where a bank comes from and how it is cut, so that every process can get it for itself."""

    scenario: str | None = None
    file: Path | None = None
    way: int | None = None
    shot: int | None = None
    sessions: int | None = None

    def bank(self) -> Bank:
        """The bank, read anew."""
        whole = Bank.load(self.file, self.scenario) if self.file else Bank.bundled(self.scenario or "cifar100")
        return whole.vary(way=self.way, shot=self.shot, sessions=self.sessions)


@dataclass(frozen=True)
class Task:
    """One run: a method on one draw of the shots (or on published ones), with a seed of its own."""

    method: str
    draw: int
    seed: int
    splits: Path | None
    device: str

    def heading(self, bank: Bank) -> Heading:
        """All that decides it."""
        shots = published(bank, self.splits) if self.splits else None
        choice = choose(self.method)
        return Heading.of(choice, bank, draw=self.draw, seed=self.seed, device=self.device, shots=shots)


def perform(choice: Choice, bank: Bank, shots: Shots, heading: Heading, device: str, listen: Listener) -> Result:
    """One run, on one thread: the result must not depend on what else the machine is doing."""
    method = choice.build(seed=heading.seed, device=device)
    found: list[Figures] = []
    with _one_thread():
        for figures in run(method, bank, shots, needs=choice.needs):
            found.append(figures)
            listen(f"{heading.label} draw {heading.draw}", figures.index, figures.acc, figures.hm)
    return Result(heading, found, Summary.of(found, method), list(getattr(method, "remarks", [])))


def unfit(choice: Choice, bank: Bank) -> str | None:
    """Why a method cannot run on a bank, if it cannot."""
    name = choice.entry.name
    objective = choice.entry.objective
    if choice.equal and (why := _on_its_own(choice)):
        return f"{name} cannot stand on equal footing: {why}"
    if objective is not None and bank.base_session != name:
        return f"{name} has a base session of its own: run it on a bank of `concm train --method {name}`"
    if objective is not None:
        trained = bank.card.recipe["settings"]
        for setting, value in json.loads(json.dumps(choice.recorded)).items():
            had = trained.get(setting, value)
            if setting not in objective.later and value != had:
                return f"this bank's base session had {setting}={had}, not {value}: write {name}:{setting}={had}"
    if PICTURES in choice.needs and not bank.weights:
        return f"{name} trains the backbone on pictures: run it on a bank of `concm features --keep-pictures`"
    return None


def _on_its_own(choice: Choice) -> str | None:
    """Why the library's metric, views and operating point cannot be given to a method, if they cannot."""
    if choice.entry.objective is not None:
        return "what its base session learned belongs to its own features"
    if PICTURES in choice.needs or POOL in choice.needs:
        return "it works on more than the features of the shots"
    if getattr(choice.settings, "whitening", None) is not None:
        return "it has that metric itself"
    return None


def tasks_of(
    methods: Sequence[str], *, draws: int, seeds: int, seed: int, splits: Path | None, device: str
) -> list[Task]:
    """A task for each method, draw and seed; published shots are one draw."""
    return [
        Task(label, seed + at, seed + at + 1000 * repeat, splits, device)
        for label in methods
        for at in range(1 if splits else draws)
        for repeat in range(seeds)
    ]


def finish(tasks: Sequence[Task], source: BankSource, bank: Bank, out: Path, *, jobs: int) -> list[Result]:
    """The results of all tasks: those that are found in `out`, and the others after they have been run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConcmError(f"cannot write results to {out}: {error.strerror or error}") from error
    headings = [task.heading(bank) for task in tasks]
    places = [heading.place(out) for heading in headings]
    todo = [job for job in zip(tasks, headings, places, strict=True) if not job[2].exists()]
    if len(todo) < len(tasks):
        _log.info("%d of %d runs are finished in %s", len(tasks) - len(todo), len(tasks), out)
    with _listening(len(todo) * (bank.scenario.sessions + 1)) as listen:
        try:
            if jobs == 1 or len(todo) <= 1:
                for task, heading, place in todo:
                    _work_on(bank, task, heading, place, listen)
            else:
                in_processes(_work, [(source, *job) for job in todo], listen, at_once=jobs)
        except KeyboardInterrupt as error:
            raise ConcmError(f"interrupted; finished runs are in {out}, the same command does the rest") from error
    results = [Result.load(place) for place in places]
    for result, place in zip(results, places, strict=True):
        if result.heading.place(out) != place:
            raise ConcmError(f"{place} is the result of another run; delete it, and the run is done again")
    return results


def run_in_memory(
    methods: Sequence[Any], bank: Bank, *, draws: int, seeds: int, seed: int, device: str, splits: Path | None
) -> list[Result]:
    """Results of methods (names, classes or objects) on a bank, one run after the other, with nothing written."""
    choices = [choice_of(given) for given in methods]
    labels = [choice.label for choice in choices]
    if twice := [label for at, label in enumerate(labels) if label in labels[:at]]:
        way_out = "" if isinstance(methods[labels.index(twice[0])], str) else ": give each object a `label` of its own"
        raise Misuse(f"method {twice[0]!r} is given twice{way_out}")
    for choice in choices:
        if why := unfit(choice, bank):
            raise Misuse(why)
    every = [published(bank, splits)] if splits else [draw(bank, seed + at) for at in range(draws)]
    results = []
    with _listening(len(choices) * len(every) * seeds * (bank.scenario.sessions + 1)) as listen:
        for choice in choices:
            for at, shots in enumerate(every):
                for repeat in range(seeds):
                    own = seed + at + 1000 * repeat
                    heading = Heading.of(choice, bank, draw=seed + at, seed=own, device=device)
                    results.append(perform(choice, bank, shots, heading, device, listen))
    return results


@contextmanager
def _listening(total: int) -> Iterator[Listener]:
    """A bar that shows which run is at which session."""
    with bar() as progress:
        shown = progress.add_task("bench", total=total, note="")

        def listen(name: str, index: int, acc: float, hm: float) -> None:
            note = f"{name}, session {index}: " + (f"HM {hm:.1f}" if index else f"accuracy {acc:.1f}")
            progress.update(shown, advance=1, note=note)

        yield listen


def _work_on(bank: Bank, task: Task, heading: Heading, place: Path, listen: Listener) -> None:
    shots = published(bank, task.splits) if task.splits else draw(bank, task.draw)
    perform(choose(task.method), bank, shots, heading, task.device, listen).save(place)


def _work(source: BankSource, task: Task, heading: Heading, place: Path, listen: Listener) -> None:
    _work_on(_bank(source), task, heading, place, listen)


@cache
def _bank(source: BankSource) -> Bank:
    """In a worker: read once, however many runs it makes."""
    return source.bank()


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
