"""Options that several commands share, as groups that know what to do with their values."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from cyclopts import App, Parameter

from concm.errors import ConcmError, Misuse, at_least, no_gpu

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from concm.data.dataset import Dataset
    from concm.data.transform import Transform
    from concm.features.shards import Shards


def complain(sentence: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"concm: {sentence}\n")


def printable_streams() -> None:
    """Write what a terminal has no letter for, or a path that is no text, as its number instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def in_options(sentence: str, app: App) -> str:
    """A library's sentence, in which arguments stand in backquotes, as one about the options of this command line."""
    commands = [app[name] for name in app if not name.startswith("-")]
    known = {option for command in commands if command.default_command for option in _options(command)}

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in known:
            return found.group(0)
        words = f"--{name.replace('_', '-')}"
        return words if value is None else f"{words} {value.strip(chr(34))}"

    return re.sub(r"`([a-z_]+)(?:=([^`]+))?`", option, sentence)


def _options(command: App) -> list[str]:
    """The names of a command's options, as its function has them."""
    words = [word for item in command.assemble_argument_collection() for word in item.names]
    return [word.removeprefix("--").replace("-", "_") for word in words]


def resume_command() -> str:
    """The command that was typed, with --resume."""
    program = Path(sys.argv[0]).name
    words = [*(["python", "-m", "concm"] if program == "__main__.py" else [program]), *sys.argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


@Parameter(name="*")
@dataclass(frozen=True)
class PictureOptions:
    """Which pictures, cut into which sessions."""

    data: Path
    "The folder with the pictures: cifar-100-python, CUB_200_2011, mini- or Tiny-ImageNet, or one folder per class. \
Or a list: a CSV file of the columns path, label and perhaps part (train or test), or a folder of such files."
    base: int | None = None
    "Number of base classes (your own folders only)."
    way: int | None = None
    "Classes per session, instead of the scenario's."
    shot: int | None = None
    "Shots per class, instead of the scenario's."
    sessions: int | None = None
    "Number of sessions, instead of all that the classes allow."
    image_size: int = 224
    "Pixels that the network sees (your own folders only)."
    splits: Path | None = None
    "Folder of published lists: mini-ImageNet's train.csv and test.csv, and those of the sessions, if they are there."
    broken: Literal["refuse", "skip"] = "refuse"
    "What to do with files that cannot be read as pictures."

    def transform(self, name: str) -> Transform:
        """How pictures of the scenario `name` enter a network that brings no transform of its own."""
        from concm.data import scenarios

        return scenarios.natural(self.image_size) if name == "folder" else scenarios.load_scenario(name).transform

    def load(self, name: str, transform: Transform | None, *, unread: bool = False) -> Dataset:
        """The scenario `name` with its pictures, read or not; complaints about skipped ones go to standard error."""
        from concm.data import dataset, scenarios, sources
        from concm.progress import first_process

        at_least(1, image_size=self.image_size)
        if name == "folder":
            if self.base is None:
                raise Misuse("scenario folder needs `base`: how many of the class folders are the base classes")
            keys = set(sources.find_source(self.data, splits=self.splits).train.keys)
            scenario = scenarios.of_folder(
                keys, base=self.base, way=self.way or 5, shot=self.shot or 5, size=self.image_size
            )
        else:
            if self.base is not None:
                raise Misuse(f"`base` goes with scenario folder; {name} has its own base classes")
            scenario = scenarios.load_scenario(name)
        scenario = scenario.vary(way=self.way, shot=self.shot, sessions=self.sessions)
        found, complaints = dataset.load_dataset(
            scenario, self.data, transform=transform, splits=self.splits, broken=self.broken, unread=unread
        )
        for complaint in complaints if first_process() else []:
            complain(f"skipped: {complaint}")
        return found


def changes(kind: type[Any]) -> type[Any]:
    """A group of options that has each of a settings class, none of them set: what is given replaces its value."""
    hints, optional = get_type_hints(kind), []
    for item in fields(kind):
        shown = f"{item.metadata['help']} [default: {item.default}]"
        optional.append((item.name, Annotated[hints[item.name] | None, Parameter(help=shown)], None))
    where = {"__module__": __name__}
    return Parameter(name="*")(make_dataclass(f"Given{kind.__name__}", optional, frozen=True, namespace=where))


def given(options: Any) -> dict[str, Any]:
    """The options of such a group that were given."""
    return {item.name: value for item in fields(options) if (value := getattr(options, item.name)) is not None}


@Parameter(name="*")
@dataclass(frozen=True)
class Machine:
    """Where it runs."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    "Where to compute; `auto` uses a GPU if there is one."
    devices: int = 1
    "Processes, one per GPU (or torchrun starts them); they share the global batch."
    nodes: int = 1
    "Machines, each with that many processes."

    def accelerator(self) -> Literal["cpu", "cuda"]:
        """What it comes to here; refuses what there is not, before any long work."""
        at_least(1, devices=self.devices, nodes=self.nodes)
        import torch

        cuda = torch.cuda.is_available()
        if self.device == "cuda" and not cuda:
            raise no_gpu()
        if not cuda or self.device == "cpu":
            return "cpu"
        if self.devices > torch.cuda.device_count():
            raise Misuse(f"--devices {self.devices}, but there are only {torch.cuda.device_count()} GPUs here")
        return "cuda"

    def fabric(self) -> Fabric:
        """Start the processes; those that this one starts begin the command anew, so load pictures before."""
        import torch
        from lightning_fabric import Fabric

        accelerator = self.accelerator()
        if accelerator == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        fabric = Fabric(
            accelerator=accelerator,
            devices=self.devices,
            num_nodes=self.nodes,
            precision="bf16-mixed" if accelerator == "cuda" else "32-true",
        )
        fabric.launch()
        return fabric

    @contextmanager
    def encoding(self, on: str, out: Path) -> Iterator[Fabric | Shards]:
        """Where pictures are encoded for a bank: by processes of this command, or on a cluster."""
        from concm.evaluation.workers import OnRay, place
        from concm.features.shards import Shards

        if on == "here":
            yield self.fabric()
            return
        folder = out.with_name(f"{out.name}.shards")
        with place(on, self.device) as where:
            assert isinstance(where, OnRay)
            try:
                yield Shards(where.cluster, where.device, folder)
            except KeyboardInterrupt as error:
                raise ConcmError(
                    f"interrupted; what is encoded is in {folder}, the same command does the rest"
                ) from error
