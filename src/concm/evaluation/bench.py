"""Many runs: methods × draws × seeds, side by side where cores allow; what is finished is not done again."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from concm.errors import ConcmError, Misuse
from concm.evaluation.protocol import run
from concm.evaluation.results import Figures, Heading, Machine, Result, Summary, environment, machine
from concm.evaluation.workers import Here, Place, Shared
from concm.features.bank import Bank
from concm.features.sessions import Shots, draw, published
from concm.methods import PICTURES, POOL, Choice, choice_of, choose
from concm.progress import bar
from concm.semantics.knowledge import Knowledge

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
    """One run: a method on one draw of the shots (or on published ones), with a seed of its own.

    `own` is the text of the user's file that the method is in, for a machine that has not got that file. `knowledge`
    is what the user says of class names.
    """

    method: str
    draw: int
    seed: int
    splits: Path | None
    device: str
    own: str | None = None
    knowledge: Knowledge | None = None

    def heading(self, bank: Bank, machine: Machine) -> Heading:
        """Everything that determines this run."""
        shots = published(bank, self.splits) if self.splits else None
        heading = Heading.of(self.choice(), bank, draw=self.draw, seed=self.seed, machine=machine, shots=shots)
        return heading if self.knowledge is None else replace(heading, knowledge=self.knowledge.recorded)

    def choice(self) -> Choice:
        """The method of this run, with its settings."""
        file, _, rest = self.method.partition(":")
        if self.own is None or (Path(file).is_file() and Path(file).read_text(encoding="utf-8") == self.own):
            return choose(self.method)
        return choose(f"{_brought(Path(file).name, self.own)}:{rest}")


def perform(
    choice: Choice,
    bank: Bank,
    shots: Shots,
    heading: Heading,
    device: str,
    listen: Listener,
    knowledge: Knowledge | None = None,
) -> Result:
    """One run, on one thread: the result must not depend on what else the machine is doing."""
    names = bank.scenario.names[: bank.scenario.base]
    said = None if knowledge is None else knowledge.semantics(bank.scenario.name, names)
    method = choice.build(seed=heading.seed, device=device, semantics=said)
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
    methods: Sequence[str],
    *,
    draws: int,
    seeds: int,
    seed: int,
    splits: Path | None,
    device: str,
    knowledge: Knowledge | None = None,
) -> list[Task]:
    """A task for each method, draw and seed; the shots of published lists are one draw more."""
    every: list[tuple[int, Path | None]] = [*((at, None) for at in range(draws)), *([(0, splits)] if splits else [])]
    return [
        Task(label, seed + at, seed + at + 1000 * repeat, lists, device, own, knowledge)
        for label, own in ((label, _own(label)) for label in methods)
        for at, lists in every
        for repeat in range(seeds)
    ]


def finish(
    tasks: Sequence[Task],
    source: BankSource,
    bank: Bank,
    out: Path,
    place: Place = Here(),  # noqa: B008
) -> list[Result]:
    """The results of all tasks: those that are found in `out`, and the others after they have been run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConcmError(f"cannot write results to {out}: {error.strerror or error}") from error
    try:
        there = place.ask(machine, place.device) if tasks else {}
        headings = [task.heading(bank, there) for task in tasks]
        files = [heading.place(out) for heading in headings]
        todo = [at for at, file in enumerate(files) if not file.exists()]
        if len(todo) < len(tasks):
            _log.info("%d of %d runs are finished in %s", len(tasks) - len(todo), len(tasks), out)
        jobs = [(tasks[at], headings[at]) for at in todo]
        with (
            _listening(len(todo) * (bank.scenario.sessions + 1)) as listen,
            closing(place.results(_work, Shared(bank, source.bank), jobs, listen)) as done,
        ):
            for at, result in done:
                result.save(files[todo[at]])
    except KeyboardInterrupt as error:
        raise ConcmError(f"interrupted; finished runs are in {out}, the same command does the rest") from error
    results = [Result.load(file) for file in files]
    for result, file in zip(results, files, strict=True):
        if result.heading.place(out) != file:
            raise ConcmError(f"{file} is the result of another run; delete it, and the run is done again")
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
    every: list[tuple[int, Shots, Shots | None]] = [(at, draw(bank, seed + at), None) for at in range(draws)]
    if splits:
        listed = published(bank, splits)
        every.append((0, listed, listed))
    results, here = [], machine(device)
    with _listening(len(choices) * len(every) * seeds * (bank.scenario.sessions + 1)) as listen:
        for choice in choices:
            for at, shots, official in every:
                for repeat in range(seeds):
                    own = seed + at + 1000 * repeat
                    heading = Heading.of(choice, bank, draw=seed + at, seed=own, machine=here, shots=official)
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


def _work(bank: Bank, task: Task, heading: Heading, listen: Listener) -> Result:
    """One run, wherever it goes; a machine on which it would be another run is refused."""
    choice, told = task.choice(), heading.environment
    own = environment(choice, machine(task.device))
    if differs := [f"{name} {own[name]} and not {told[name]}" for name in own if own[name] != told[name]]:
        raise ConcmError(f"a worker has {differs[0]}: all need the same kind of machine, Python, torch and concm")
    listed = None if heading.shots is None else {int(label): rows for label, rows in heading.shots.items()}
    return perform(choice, bank, listed or draw(bank, task.draw), heading, task.device, listen, task.knowledge)


def _own(method: str) -> str | None:
    """The text of the file that a method of the user's own is in, if it is in one."""
    file = Path(method.partition(":")[0])
    return file.read_text(encoding="utf-8") if file.suffix == ".py" and file.is_file() else None


@cache
def _brought(name: str, text: str) -> Path:
    """A user's file, written where there was none; it goes when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="concm-")
    _folders.append(folder)
    file = Path(folder.name, name)
    file.write_text(text, encoding="utf-8")
    return file


_folders: list[tempfile.TemporaryDirectory[str]] = []


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
