"""Whether `concm check` finds photos that were put into a wrong class, and how true the accuracy is that it expects.

    python bench/mislabels.py --grocery DIR --work DIR --json docs/results/mislabels.json
    python bench/mislabels.py --cub DIR --work DIR --shots 5 --draws 1 --json docs/results/mislabels_cub.json

The sets are those of bench/photo_sets.py: base classes of up to 20 photos, then 40 classes of some shots. A share of
all taught photos goes to another class: to any, or to one of the three whose means are nearest. Test photos take no
part: accuracies are measured on training photos of the same classes that were not taught. What is expected with five
more photos each is to be compared with what is measured with so many more shots.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from concm.classifier import check
from concm.classifier.classifier import Classifier
from concm.files import write_whole
from photo_sets import BACKBONE, Paths, PhotoSet, cub, deal, encode, grocery, table

SHARE = 0.05
FIRST = 24
"""As many photos fit on a screen."""


def taught(lessons: Sequence[Paths], store: Path, seed: int) -> Classifier:
    """A store of these lessons, made anew."""
    shutil.rmtree(store, ignore_errors=True)
    classifier = Classifier(store, backbone=BACKBONE, seed=seed)
    for index, lesson in enumerate(lessons):
        if index:
            classifier.learn(lesson, broken="skip", duplicates="skip")
        else:
            classifier.fit(lesson, broken="skip", duplicates="skip")
    return classifier


def mixed(lessons: Sequence[Paths], features: Mapping[Path, Tensor], kind: str, seed: int) -> dict[Path, str]:
    """Photos and the wrong class that each is put into; every class keeps two of its own."""
    random = np.random.default_rng((2, seed))
    own = {name: list(paths) for lesson in lessons for name, paths in lesson.items()}
    names = list(own)
    means = F.normalize(torch.stack([torch.stack([features[path] for path in own[name]]).mean(0) for name in names]))
    likeness = (means @ means.T).fill_diagonal_(-1)
    every = [(name, path) for name in names for path in own[name]]
    moved: dict[Path, str] = {}
    left = {name: len(paths) for name, paths in own.items()}
    for at in random.permutation(len(every)):
        name, path = every[at]
        if left[name] > 2 and len(moved) < round(SHARE * len(every)):
            near = likeness[names.index(name)].topk(3).indices.tolist()
            others = [names[at] for at in near] if kind == "near" else [other for other in names if other != name]
            moved[path] = others[random.integers(len(others))]
            left[name] -= 1
    return moved


def planted(photos: PhotoSet, features: Mapping[Path, Tensor], draw: int, shots: int, kind: str, work: Path) -> Any:
    """How many of the photos in a wrong class come first in the list of those likely mislabelled."""
    lessons, _ = deal(photos, draw, shots)
    moved = mixed(lessons, features, kind, draw)
    wrong: list[Paths] = [defaultdict(list) for _ in lessons]
    place = {name: at for at, lesson in enumerate(lessons) for name in lesson}
    truth = {}
    for lesson in lessons:
        for name, paths in lesson.items():
            for path in paths:
                into = moved.get(path, name)
                wrong[place[into]][into].append(path)
                truth[path.name] = name
    with taught(wrong, work / "planted", draw) as classifier:
        begun = time.perf_counter()
        found = classifier.check().mislabelled
        seconds = time.perf_counter() - begun
    planted = {path.name for path in moved}
    hits = [suspect.photo in planted for suspect in found]
    named = [suspect.more_like == truth[suspect.photo] for suspect in found if suspect.photo in planted]
    count = len(moved)
    return {
        "photos": len(truth),
        "planted": count,
        "first_k": 100 * sum(hits[:count]) / count,
        "first_2k": 100 * sum(hits[: 2 * count]) / count,
        "first": sum(hits[:FIRST]),
        "named": 100 * float(np.mean(named)),
        "seconds": seconds,
    }


def expected(photos: PhotoSet, draw: int, shots: int, work: Path) -> Any:
    """The accuracy that is expected of base and later classes, with five more photos too, and what it really is."""
    lessons, unused = deal(photos, draw, shots)
    with taught(lessons, work / "clean", draw) as classifier:
        rows = {row.name: row for row in classifier.check().classes}
        result = classifier.evaluate({name: own for name, own in unused.items() if own}, broken="skip")
    part = {}
    for kind, names in (("base", list(lessons[0])), ("later", [name for own in lessons[1:] for name in own])):
        asked = [name for name in names if name in result.by_class]
        part[kind] = {
            "expected": float(np.mean([rows[name].expected for name in asked])),
            "with_5_more": float(np.mean([rows[name].with_5_more for name in asked])),
            "measured": float(np.mean([100 * result.by_class[name][0] / result.by_class[name][1] for name in asked])),
        }
    return part


def mean(runs: Sequence[Any], *keys: str) -> float:
    return float(np.mean([run[keys[0]] if len(keys) == 1 else run[keys[0]][keys[1]] for run in runs]))


def markdown(results: Mapping[str, Any]) -> str:
    """Both tables."""
    found = []
    for key, runs in results["planted"].items():
        shots, kind = key.split()
        cells = [f"{mean(runs, name):.0f} %" for name in ("first_k", "first_2k", "named")]
        first = f"{mean(runs, 'first'):.1f} of {FIRST}"
        count = f"{mean(runs, 'planted'):.0f} of {mean(runs, 'photos'):.0f}"
        found.append([shots, kind, count, *cells[:2], first, cells[2], f"{mean(runs, 'seconds'):.1f}"])
    head = ["shots", "wrong class", "planted", "in the first k", "in the first 2 k", "first screen", "true class named"]
    told = []
    for shots, runs in results["expected"].items():
        cells = [f"{mean(runs, kind, name):.1f}" for kind in ("base", "later") for name in ("expected", "measured")]
        told.append([shots, *cells, f"{mean(runs, 'later', 'with_5_more'):.1f}"])
    heads = ["shots", "base: expected", "measured", "later: expected", "measured", "expected with 5 more"]
    return "\n\n".join([table([*head, "seconds"], found), table(heads, told)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--grocery", type=Path)
    which.add_argument("--cub", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for stores and for the cache of features")
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 2, 5, 6, 7, 10])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    os.environ["CONCM_CACHE"] = str(options.work / "cache")
    check.MOST = 10_000
    photos = cub(options.cub) if options.cub else grocery(options.grocery)
    features = encode(photos, options.work)
    results: dict[str, Any] = {"planted": defaultdict(list), "expected": defaultdict(list)}
    for draw in range(options.draws):
        for shots in options.shots:
            for kind in ("any", "near") if shots in (5, 10) else ():
                results["planted"][f"{shots} {kind}"].append(planted(photos, features, draw, shots, kind, options.work))
            results["expected"][f"{shots}"].append(expected(photos, draw, shots, options.work))
        print(markdown(results), flush=True)
    write_whole(options.json, json.dumps(results, indent=1).encode())


if __name__ == "__main__":
    main()
