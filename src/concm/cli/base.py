"""From pictures to a frozen backbone."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concm.cli.options import Machine, PictureOptions, changes, given, resume_command
from concm.errors import Misuse
from concm.records import to_json
from concm.training.recipe import Recipe, Schedule

if TYPE_CHECKING:
    from concm.data.dataset import Dataset
    from concm.methods import Choice
    from concm.training.loop import Objectives

    GivenRecipe = Any
else:
    GivenRecipe = changes(Recipe)


def train(
    scenario: str,
    /,
    *,
    pictures: PictureOptions,
    out: Path = Path("runs/base"),
    backbone: str = "resnet12",
    method: str | None = None,
    recipe: GivenRecipe = GivenRecipe(),  # noqa: B008
    machine: Machine = Machine(),  # noqa: B008
    weights: str | None = None,
    resume: bool = False,
    validate: bool = False,
    compile: bool | None = None,
    stream: bool = False,
    tensorboard: bool = False,
) -> None:
    """Train a backbone on a scenario's base classes. The last epoch's weights are kept.

    Parameters
    ----------
    scenario
        A bundled scenario (see `concm scenarios`), or `folder` for your own class folders.
    out
        Where the run is written: backbone.safetensors, log.jsonl, and a checkpoint until it is finished.
    backbone
        A registered backbone (see `concm backbones`), or `package.module:factory`.
    method
        The base session of a method that has its own (see `concm methods`), with settings if you like: the schedule is
        then the method's, and so are views and loss.
    weights
        Start resnet18_imagenet from torchvision's state dict: a file, or `torchvision` where that is installed.
    resume
        Go on from the run's checkpoint; the result is the same as without the interruption.
    validate
        Train on part of the base classes and report on the rest, to choose settings without test data.
    compile
        Compile the step; by default on one GPU.
    stream
        Read images from the memory map even if they would fit on the device.
    tensorboard
        Also log for TensorBoard.
    """
    from concm.backbones import find_backbone
    from concm.evaluation.controls import nearest_mean
    from concm.features.extract import extract
    from concm.features.sessions import draw
    from concm.methods import choose
    from concm.report import tables as text
    from concm.training.loop import BaseRun, Interrupted

    machine.accelerator()
    if weights not in (None, "torchvision") and not Path(str(weights)).is_file():
        raise Misuse(f"no weights file at {weights}")
    choice = None if method is None else choose(method)
    schedule = _schedule(choice, given(recipe))
    dataset = pictures.load(scenario, find_backbone(backbone, pictures.transform(scenario)).transform)
    fabric = machine.fabric()
    session = BaseRun(
        dataset=trained_on(dataset, to_json(schedule), validate=validate),
        backbone=backbone,
        recipe=schedule,
        out=out,
        fabric=fabric,
        objective=None if choice is None else _objectives(choice),
        weights=weights,
        compiled=fabric.device.type == "cuda" and fabric.world_size == 1 if compile is None else compile,
        resident=False if stream else None,
        tensorboard=tensorboard,
    )
    try:
        encoder = session.run(resume=resume)
    except Interrupted as error:
        raise Interrupted(f"{error}; go on with: {resume_command()}") from error
    bank = extract(encoder, session.dataset, fabric)
    if fabric.is_global_zero:
        text.show_run(encoder, out / "backbone.safetensors")
        text.show_bank(bank)
        runs = nearest_mean(bank, [draw(bank, at) for at in range(5)])
        text.show_nearest_mean(bank.scenario, runs, "mean ± spread of 5 draws")


def _objectives(choice: Choice) -> Objectives:
    """What a method's own base session minimises."""
    from concm.training.loop import Objectives

    objective, settings = choice.entry.objective, choice.settings
    assert objective is not None  # else there is no schedule
    recorded = {"method": choice.entry.name, "settings": choice.recorded}
    return Objectives(lambda stage: objective(stage, settings), recorded)


def _schedule(choice: Choice | None, changed: dict[str, Any]) -> Schedule:
    """Our recipe, or a method's own schedule, with what was given on the command line."""
    if choice is None:
        return Recipe(**changed)
    if choice.entry.objective is None:
        raise Misuse(f"{choice.entry.name} has no base session of its own: train without --method and use its bank")
    ours = [name for name in changed if name not in {item.name for item in fields(Schedule)}]
    if ours:
        raise Misuse(
            f"--{ours[0].replace('_', '-')} belongs to our own base session; "
            f"the settings of {choice.entry.name} are given with it: --method {choice.entry.name}:name=value"
        )
    return replace(choice.entry.objective.schedule, **changed)


def trained_on(dataset: Dataset, recipe: dict[str, Any], *, validate: bool) -> Dataset:
    """The data as a base session with this recipe saw it: its validation scenario, its held-out images."""
    seed, share = int(recipe.get("seed", 0)), float(recipe.get("held_out", 0))
    return (dataset.validation(seed=seed) if validate else dataset).holding_out(share, seed=seed)
