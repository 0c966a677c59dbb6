"""From pictures to a frozen backbone, and from there to a feature bank."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from concm.cli.options import Machine, PictureOptions, changes, given, resume_command
from concm.errors import Misuse, at_least, at_most
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
    """Train a backbone on a scenario's base classes; the last epoch counts, nothing is selected.

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
        dataset=_trained_on(dataset, to_json(schedule), validate=validate),
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


def features(
    scenario: str,
    *,
    pictures: PictureOptions,
    backbone: str,
    out: Path,
    machine: Machine = Machine(),  # noqa: B008
    validate: bool = False,
    views: int = 0,
    augment: Literal["shift", "cifar", "imagenet"] = "shift",
    base_views: bool = False,
    blocks: int = 1,
    turns: int = 1,
    looks: int = 1,
    keep_pictures: bool = False,
    base_limit: int | None = None,
    novel_limit: int | None = None,
    precision: Literal["int8", "float16", "float32"] = "float16",
    shards: int | None = None,
    batch: int = 256,
    seed: int = 0,
    on: str = "here",
) -> None:
    """Turn a dataset into a feature bank with a frozen backbone.

    Parameters
    ----------
    scenario
        A bundled scenario (see `concm scenarios`), or `folder` for your own class folders.
    backbone
        A run folder or file of `concm train`, or any other backbone (see `concm backbones --help`).
    out
        The bank to write: a file, or with `--shards` a folder.
    validate
        Extract the validation scenario of a backbone trained with `--validate`: the bank to choose settings on.
    views
        Augmented views to keep of each candidate shot.
    augment
        What a view is: a shift and mirror image, or with AutoAugment by its policy for CIFAR (with a square cut out)
        or for ImageNet, as many authors' training images are.
    base_views
        Keep views of the base images too, for methods that train on them.
    blocks
        How many of the network's last blocks are read, side by side in a feature.
    turns
        In how many quarter turns each picture is read, side by side: 1, 2 or 4, each a pass of its own.
    looks
        How many looks at a picture are averaged, each a pass of its own: 2 adds the mirror image, up to 10 add shifts.
    keep_pictures
        Keep the pictures and the backbone with their features, for methods that go on training it.
    base_limit
        Images to keep of each base class; statistics come from all of them in any case.
    novel_limit
        Candidates to keep of each novel class.
    precision
        How features are stored; int8 has a scale per dimension.
    shards
        Write a folder of so many files, which is read as one bank, in place of one file.
    batch
        Images encoded at once.
    seed
        Seed of the choice of kept images and of the views.
    on
        Where pictures are encoded: `here`; `ray`, a Ray cluster that is started for this command, or the one that
        RAY_ADDRESS names; or `ray://HOST:PORT`. Workers read the same paths, and what was interrupted goes on.
    """
    at_least(1, batch=batch, **({} if shards is None else {"shards": shards}))
    at_least(0, views=views, seed=seed)
    from concm.backbones.encoder import load_encoder
    from concm.evaluation.controls import average, nearest_mean
    from concm.features.extract import extract
    from concm.features.sessions import draw
    from concm.features.shards import Shards
    from concm.features.split import bank_size
    from concm.files import refuse_stream
    from concm.report import tables as text

    refuse_stream(out)
    if on == "here":
        machine.accelerator()
    elif pictures.broken == "skip":
        raise Misuse("`broken=skip` goes with pictures that are read here: on a cluster, remove what it complains of")
    encoder = load_encoder(backbone, pictures.transform(scenario), blocks=blocks, turns=turns, looks=looks)
    dataset = pictures.load(scenario, encoder.transform, unread=on != "here")
    if validate and not str(encoder.meta.get("scenario", "")).endswith("-validation"):
        raise Misuse("--validate needs a backbone that was trained with --validate: this one has seen all base classes")
    dataset = _trained_on(dataset, encoder.meta.get("recipe") or {}, validate=validate)
    if novel_limit is not None and dataset.scenario.sessions:
        at_least(dataset.scenario.shot, novel_limit=novel_limit)
    with machine.encoding(on, out) as where:
        bank = extract(
            encoder,
            dataset,
            where,
            views=views,
            augment=augment,
            base_views=base_views,
            keep_pictures=keep_pictures,
            base_limit=base_limit,
            novel_limit=novel_limit,
            batch=batch,
            seed=seed,
        )
    if isinstance(where, Shards) or where.is_global_zero:
        # Kept with the bank, so that what storing it cost can be checked without the original features.
        runs = nearest_mean(bank, [draw(bank, seed) for seed in range(5)])
        bank = replace(bank, card=replace(bank.card, nearest_mean=average(runs)))
        bank.save(out, precision, shards)
        if isinstance(where, Shards):
            where.clear()
        text.show_bank(bank)
        text.show_nearest_mean(bank.scenario, runs, "mean ± spread of 5 draws")
        text.say(f"wrote {out} ({bank_size(out) / 1e6:.1f} MB)")


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
    draws
        How many draws of the shots.
    seed
        The first draw's seed.
    splits
        Take the shots from published index lists instead.
    way
        Classes per session, instead of the scenario's.
    shot
        Shots per class, instead of the scenario's.
    sessions
        Number of sessions, instead of all that the classes allow.
    figure
        Also draw the accuracies by session into this file (.png, .svg, .pdf).
    """
    at_least(1, draws=draws)
    at_most(10_000, draws=draws)
    at_least(0, seed=seed)
    from concm.evaluation.controls import nearest_mean
    from concm.features.bank import Bank
    from concm.features.sessions import draw, published
    from concm.files import refuse_stream
    from concm.progress import track
    from concm.report import tables as text
    from concm.report.figures import by_session

    refuse_stream(figure)
    chosen = (Bank.load(file) if file else Bank.bundled()).vary(way=way, shot=shot, sessions=sessions)
    text.show_bank(chosen)
    shots = [published(chosen, splits)] if splits else [draw(chosen, seed + at) for at in range(draws)]
    runs = nearest_mean(chosen, track(shots, "nearest class mean"))
    text.show_nearest_mean(chosen.scenario, runs, f"shots of {splits}" if splits else f"mean ± spread of {draws} draws")
    if figure is not None:
        title = f"{chosen.scenario.name}, nearest class mean, {chosen.encoder.name}"
        by_session(chosen.scenario, runs, figure, title)
        text.say(f"wrote {figure}")


def _objectives(choice: Choice) -> Objectives:
    """What a method's own base session minimises."""
    from concm.training.loop import Objectives

    objective, settings = choice.entry.objective, choice.settings
    if objective is None:
        raise Misuse(f"{choice.entry.name} has no base session of its own: train without --method and use its bank")
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


def _trained_on(dataset: Dataset, recipe: dict[str, Any], *, validate: bool) -> Dataset:
    """The data as a base session with this recipe saw it: its validation scenario, its held-out images."""
    seed, share = int(recipe.get("seed", 0)), float(recipe.get("held_out", 0))
    return (dataset.validation(seed=seed) if validate else dataset).holding_out(share, seed=seed)
