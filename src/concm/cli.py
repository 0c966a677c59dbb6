"""The command line: thin, and free of slow imports until a command really runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from concm import __version__
from concm.errors import ConcmError, Misuse, at_least
from concm.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from concm.data.dataset import Dataset
    from concm.data.transform import Transform

app = App(
    name="concm",
    version=__version__,
    help="Teach an image classifier new classes from five photos and a name, without forgetting.",
    suppress_keyboard_interrupt=False,  # `main` has a sentence for it
)


@Parameter(name="*")
@dataclass(frozen=True)
class Pictures:
    """Which pictures, cut into which sessions."""

    data: Path
    "The folder with the pictures: cifar-100-python, CUB_200_2011, mini-ImageNet, or one folder per class."
    base: int | None = None
    "Number of base classes (your own folders only)."
    way: int | None = None
    "Classes a session, instead of the scenario's."
    shot: int | None = None
    "Shots a class, instead of the scenario's."
    sessions: int | None = None
    "Number of sessions, instead of all that the classes allow."
    image_size: int = 224
    "Pixels that the network sees (your own folders only)."
    splits: Path | None = None
    "Folder of published lists, where mini-ImageNet's train.csv and test.csv may be."
    broken: Literal["refuse", "skip"] = "refuse"
    "What to do with files that cannot be read as pictures."

    def load(self, name: str, transform: Transform | None) -> Dataset:
        """The scenario `name` with its pictures; complaints about skipped ones go to standard error."""
        from concm.data import dataset, scenarios, sources

        if name == "folder":
            if self.base is None:
                raise Misuse("scenario folder needs --base: how many of the class folders are the base classes")
            keys = set(sources.find(self.data, splits=self.splits).train.keys)
            scenario = scenarios.of_folder(
                keys, base=self.base, way=self.way or 5, shot=self.shot or 5, size=self.image_size
            )
        else:
            if self.base is not None:
                raise Misuse(f"--base goes with scenario folder; {name} has its own base classes")
            scenario = scenarios.load(name)
        scenario = scenario.vary(way=self.way, shot=self.shot, sessions=self.sessions)
        found, complaints = dataset.load(
            scenario, self.data, transform=transform, splits=self.splits, broken=self.broken
        )
        for complaint in complaints:
            _complain(f"skipped: {complaint}")
        return found


@Parameter(name="*")
@dataclass(frozen=True)
class Machine:
    """Where it runs."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    "The GPU if there is one, unless you say otherwise."
    devices: int = 1
    "Processes, one per GPU (or torchrun starts them); they share the global batch."
    nodes: int = 1
    "Machines, each with that many processes."

    def fabric(self) -> Fabric:
        """Start the processes."""
        at_least(1, devices=self.devices, nodes=self.nodes)
        import torch
        from lightning_fabric import Fabric

        cuda = torch.cuda.is_available()
        if self.device == "cuda" and not cuda:
            raise Misuse("--device cuda, but torch sees no GPU here; leave --device out, or install torch for CUDA")
        accelerator = "cuda" if cuda and self.device != "cpu" else "cpu"
        if accelerator == "cuda" and self.devices > torch.cuda.device_count():
            raise Misuse(f"--devices {self.devices}, but there are only {torch.cuda.device_count()} GPUs here")
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


@app.command
def train(
    scenario: str,
    *,
    pictures: Pictures,
    out: Path = Path("runs/base"),
    backbone: str = "resnet12",
    recipe: Annotated[Recipe, Parameter(name="*")] = Recipe(),  # noqa: B008
    machine: Machine = Machine(),  # noqa: B008
    weights: str | None = None,
    resume: bool = False,
    validate: bool = False,
    compile: bool | None = None,
    stream: bool = False,
    tensorboard: bool = False,
) -> None:
    """Train a backbone on a scenario's base classes; the last epoch counts, nothing is selected.

    Parameters
    ----------
    scenario
        A bundled scenario (see `concm scenarios`), or `folder` for your own class folders.
    out
        Where the run is written: backbone.safetensors, log.jsonl, and a checkpoint until it is finished.
    backbone
        A registered backbone (see `concm backbones`), or `package.module:factory`.
    weights
        Start resnet18_imagenet from torchvision's state dict: a file, or `torchvision` where that is installed.
    resume
        Go on from the run's checkpoint; the result is the same as without the interruption.
    validate
        Train on part of the base classes and report on the rest, to choose settings without test data.
    compile
        Compile the step; by default on a GPU only.
    stream
        Read images from the memory map even if they would fit on the device.
    tensorboard
        Also log for TensorBoard.
    """
    from concm.backbones import find
    from concm.data.extract import extract
    from concm.report import text
    from concm.training.base_session import BaseSession

    fabric = machine.fabric()
    dataset = pictures.load(scenario, find(backbone).transform)
    session = BaseSession(
        dataset=dataset.validation(seed=recipe.seed) if validate else dataset,
        backbone=backbone,
        recipe=recipe,
        out=out,
        fabric=fabric,
        weights=weights,
        compiled=fabric.device.type == "cuda" if compile is None else compile,
        resident=False if stream else None,
        tensorboard=tensorboard,
    )
    encoder = session.run(resume=resume)
    bank = extract(encoder, session.dataset, fabric)
    if fabric.is_global_zero:
        text.show_run(encoder, out / "backbone.safetensors")
        text.show_bank(bank)


@app.command
def features(
    scenario: str,
    *,
    pictures: Pictures,
    backbone: str,
    out: Path,
    machine: Machine = Machine(),  # noqa: B008
    views: int = 0,
    mirror: bool = False,
    base_limit: int | None = None,
    novel_limit: int | None = None,
    precision: Literal["int8", "float16", "float32"] = "float16",
    batch: int = 256,
    seed: int = 0,
) -> None:
    """Turn a dataset into a feature bank with a frozen backbone.

    Parameters
    ----------
    scenario
        A bundled scenario (see `concm scenarios`), or `folder` for your own class folders.
    backbone
        A run folder or file of `concm train`, or a backbone that comes with weights (see `concm backbones`).
    out
        The bank to write.
    views
        Augmented views (shift, mirror) to keep of each training image.
    mirror
        Average each feature with the mirror image's: twice the work, better features.
    base_limit, novel_limit
        Images to keep of each base and novel class; statistics come from all base images in any case.
    precision
        How features are stored; int8 has a scale per dimension.
    batch
        Images encoded at once.
    seed
        Of the kept images and the views.
    """
    at_least(1, batch=batch)
    at_least(0, views=views, seed=seed)
    from concm.backbones.encoder import load
    from concm.data import scenarios
    from concm.data.extract import extract
    from concm.data.sessions import draw
    from concm.evaluation.controls import average, nearest_mean
    from concm.report import text

    fabric = machine.fabric()
    natural = scenarios.of_folder("ab", base=2, way=1, shot=1, size=pictures.image_size)
    given = natural if scenario == "folder" else scenarios.load(scenario)
    encoder = load(backbone, given.transform, mirror=mirror)
    dataset = pictures.load(scenario, encoder.transform)
    if novel_limit is not None and dataset.scenario.sessions:
        at_least(dataset.scenario.shot, **{"novel-limit": novel_limit})
    bank = extract(
        encoder,
        dataset,
        fabric,
        views=views,
        base_limit=base_limit,
        novel_limit=novel_limit,
        batch=batch,
        seed=seed,
    )
    if fabric.is_global_zero:
        # Kept with the bank, so that what storing it cost can be checked without the original features.
        bank.card["nearest_mean"] = average(nearest_mean(bank, [draw(bank, seed) for seed in range(5)]))
        bank.save(out, precision)
        text.show_bank(bank)
        text.say(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")


@app.command
def bank(
    file: Path | None = None,
    *,
    draws: int = 5,
    seed: int = 0,
    splits: Path | None = None,
    way: int | None = None,
    shot: int | None = None,
    sessions: int | None = None,
    figure: Path | None = None,
) -> None:
    """Say what a feature bank holds, and nearest-class-mean accuracy by session.

    Parameters
    ----------
    file
        The bank; without it, the CIFAR-100 bank that ships with concm.
    draws, seed
        How many draws of the shots, and the first one's seed.
    splits
        Take the shots from published index lists instead.
    way, shot, sessions
        Other numbers than the scenario's.
    figure
        Also draw the accuracies by session into this file (.png, .svg, .pdf).
    """
    at_least(1, draws=draws)
    at_least(0, seed=seed)
    from concm.data.bank import bundled, load
    from concm.report import text

    chosen = (load(file) if file else bundled()).vary(way=way, shot=shot, sessions=sessions)
    text.show_bank(chosen, draws=draws, seed=seed, splits=splits, figure=figure)


@app.command
def scenarios() -> None:
    """List the bundled scenarios."""
    from concm.data import scenarios as data
    from concm.report import text

    text.show_scenarios([data.load(name) for name in data.names()])


@app.command
def backbones() -> None:
    """List the backbones."""
    from concm.backbones import backbones as registered
    from concm.report import text

    text.show_backbones(registered())


def _complain(sentence: str) -> None:
    sys.stderr.write(f"concm: {sentence}\n")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: a user's mistake becomes one sentence and an exit code of 1 or 2."""
    try:
        app(arguments, exit_on_error=False, print_error=True)
    except CycloptsError:
        sys.exit(2)
    except ConcmError as error:
        _complain(str(error))
        sys.exit(error.code)
    except KeyboardInterrupt:
        _complain("interrupted; nothing half-written was left behind")
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        _complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(1)
