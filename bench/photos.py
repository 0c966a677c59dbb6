"""The whole story on real photos, through the command line: CUB-200-2011, 100 base classes, ten sessions of ten.

    python bench/photos.py --data CUB --work DIR [--shots 5] [--seed 0] [--json FILE]

CUB holds train/ and test/ with one folder per class. Nearest class mean on the same features is the control. Whatever
is in DIR already is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from concm.classifier.classifier import Classifier
from concm.classifier.photos import by_class
from concm.classifier.stream import Encoded, encoded
from concm.data import scenarios
from concm.metrics import accuracies, confusion
from concm.records import to_json

CONCM = str(Path(sys.executable).with_name("concm"))


def concm(*words: object) -> tuple[dict[str, Any], float]:
    """Run a command; returns what it printed as JSON, and seconds on the clock."""
    begun = time.perf_counter()
    done = subprocess.run([CONCM, *map(str, words), "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - begun


def plain(folder: str) -> str:
    return re.sub(r"^\d+\.", "", folder).replace("_", " ")


def link(photos: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for photo in photos:
        if not (folder / photo.name).exists():
            os.symlink(photo.resolve(), folder / photo.name)


def lay_out(data: Path, work: Path, shots: int, seed: int) -> list[list[str]]:
    """Class folders of the base classes, of each session and of all test photos; returns the sessions' classes."""
    scenario = scenarios.load_scenario("cub200")
    known = {path.name: path for path in (data / "train").iterdir()}
    groups = [[plain(scenario.keys[at]) for at in scenario.classes_of(index)] for index in range(scenario.sessions + 1)]
    for index in range(scenario.sessions + 1):
        for label in scenario.classes_of(index):
            key = scenario.keys[label]
            photos = sorted(known[key].iterdir())
            if index:
                drawn = np.random.default_rng((seed, label)).permutation(len(photos))[:shots]
                link([photos[at] for at in drawn], work / f"session{index:02}" / plain(key))
            else:
                link(photos, work / "base" / plain(key))
            link(sorted((data / "test" / key).iterdir()), work / "test" / plain(key))
    return groups


def nearest_mean(classifier: Classifier, test: dict[str, list[Any]], groups: list[list[str]]) -> list[dict[str, float]]:
    """The control: cosine to class means of the same photos' features, session by session."""
    names = [name for group in groups for name in group]
    means = torch.stack([torch.stack([p.features[0] for p in classifier.store.photos(name)]).mean(0) for name in names])
    pairs = [(at, photo) for at, name in enumerate(names) for photo in test[name]]
    found = list(encoded(classifier._encoder, [photo for _, photo in pairs], remember=True, title="test photos"))
    features = torch.stack([item.features for item in found if isinstance(item, Encoded)])
    labels = torch.tensor([at for at, _ in pairs])
    scores = F.normalize(features) @ F.normalize(means).T
    rows = []
    for index in range(len(groups)):
        seen = sum(map(len, groups[: index + 1]))
        chosen = labels < seen
        matrix = confusion(labels[chosen], scores[chosen][:, :seen].argmax(1), seen)
        rows.append(to_json(accuracies(matrix, len(groups[0]))))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work: Path = options.work
    groups = lay_out(options.data, work, options.shots, options.seed)
    store, once = work / "store", work / "after_fit"
    shutil.rmtree(store, ignore_errors=True)
    fit, clock = concm("fit", store, work / "base", "--seed", options.seed, "--broken", "skip")
    print(f"fit: {fit['photos']} photos, {fit['seconds']:.1f} s ({clock:.1f} s with the start of Python)")
    shutil.rmtree(once, ignore_errors=True)
    shutil.copytree(store, once)
    sessions: list[dict[str, Any]] = []
    for index in range(len(groups)):
        learned: dict[str, Any] = {"seconds": None, "clock": None}
        if index:
            told, spent = concm("learn", store, work / f"session{index:02}", "--broken", "skip")
            learned = {"seconds": told["seconds"], "clock": spent}
        measured, _ = concm("evaluate", store, work / "test")
        measured.pop("by_class")
        sessions.append({**measured, **learned})
        print("  ".join(f"{key} {sessions[-1][key]:.2f}" for key in SHOWN if sessions[-1][key] is not None))
    one = work / "session01" / groups[1][0]
    single = [concm("learn", _copy(once, work / "single"), groups[1][0], one) for _ in range(3)]
    told, spent = sorted(single, key=lambda pair: pair[0]["seconds"])[1]
    print(f"learn one class of {options.shots} photos, 100 known: {told['seconds']:.2f} s ({spent:.2f} s on the clock)")
    classifier = Classifier(store)
    control = nearest_mean(classifier, dict(by_class(work / "test")), groups)
    summary = {
        "ahm": float(np.mean([row["hm"] for row in sessions[1:]])),
        "fa": sessions[-1]["acc"],
        "control_ahm": float(np.mean([row["hm"] for row in control[1:]])),
        "control_fa": control[-1]["acc"],
        "ece": float(np.mean([row["ece"] for row in sessions])),
        "refused": float(np.mean([row["refused"] for row in sessions])),
        "false_accept": float(np.mean([row["false_accept"] for row in sessions[:-1]])),
        "auroc": float(np.mean([row["auroc"] for row in sessions[:-1]])),
        "fit_seconds": fit["seconds"],
        "learn_one_seconds": told["seconds"],
        "learn_one_clock": spent,
    }
    print(json.dumps(summary, indent=1))
    if options.json:
        about = {"backbone": classifier.store.meta["backbone"], "machine": platform.machine(), "cores": os.cpu_count()}
        about |= {"shots": options.shots, "seed": options.seed}
        result = {**about, "summary": summary, "sessions": sessions, "nearest_mean": control}
        options.json.write_text(json.dumps(result, indent=1))


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


SHOWN = (
    "version",
    "classes",
    "acc",
    "acc_base",
    "acc_novel",
    "hm",
    "ece",
    "refused",
    "false_accept",
    "auroc",
    "seconds",
)

if __name__ == "__main__":
    main()
