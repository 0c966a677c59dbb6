"""From pictures and a frozen backbone to a feature bank, and what such a bank holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from concm.cli.base import trained_on
from concm.cli.options import Machine, PictureOptions
from concm.errors import Misuse, at_least, at_most


def features(
    scenario: str,
    /,
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
    size: int | None = None,
    keep_pictures: bool = False,
    base_limit: int | None = None,
    novel_limit: int | None = None,
    test_limit: int | None = None,
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
        How views are made: `shift` shifts and mirrors; `cifar` and `imagenet` use that dataset's AutoAugment policy,
        and `cifar` also cuts out a square.
    base_views
        Keep views of the base images too, for methods that train on them.
    blocks
        How many of the network's last blocks are read, side by side in a feature.
    turns
        In how many quarter turns each picture is read, side by side: 1, 2 or 4, each a pass of its own.
    looks
        How many looks at a picture are averaged, each a pass of its own: 2 adds the mirror image, up to 10 add shifts.
    size
        Side of the square that the backbone sees, in pixels, if not the one that it was trained with. Larger is slower
        and often more accurate.
    keep_pictures
        Keep the pictures and the backbone with their features, for methods that go on training it.
    base_limit
        Images to keep of each base class; statistics come from all of them in any case.
    novel_limit
        Candidates to keep of each novel class; first those that `--splits` lists for the sessions, if it does.
    test_limit
        Test images to keep of each class, for a small bank; figures of it are of those alone.
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
    from concm.backbones.references import load_encoder
    from concm.evaluation.controls import average, nearest_mean
    from concm.features.extract import extract
    from concm.features.sessions import draw, listed
    from concm.features.shards import Shards
    from concm.features.split import bank_size
    from concm.files import refuse_stream
    from concm.report import tables as text

    refuse_stream(out)
    if on == "here":
        machine.accelerator()
    elif pictures.broken == "skip":
        raise Misuse("`broken=skip` goes with pictures that are read here: on a cluster, remove what it complains of")
    how = {"blocks": blocks, "turns": turns, "looks": looks}
    encoder = load_encoder(backbone, pictures.transform(scenario), **how, size=size)
    dataset = pictures.load(scenario, encoder.transform, unread=on != "here")
    if validate and not str(encoder.meta.get("scenario", "")).endswith("-validation"):
        raise Misuse("--validate needs a backbone that was trained with --validate: this one has seen all base classes")
    dataset = trained_on(dataset, encoder.meta.get("recipe") or {}, validate=validate)
    if novel_limit is not None and dataset.scenario.sessions:
        at_least(dataset.scenario.shot, novel_limit=novel_limit)
    names: list[str] = []
    if pictures.splits is not None and (pictures.splits / "session_2.txt").is_file():
        names = [line for _, line in listed(pictures.splits, dataset.scenario.sessions)]
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
            test_limit=test_limit,
            listed=names,
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
    /,
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
