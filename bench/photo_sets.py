"""`concm` beside classifiers that are retrained on the same features, on two sets of photos with few shots.

    python bench/photo_sets.py --grocery DIR --cub DIR --work DIR --json docs/results/photo_sets.json
    python bench/photo_sets.py --few DIR --work DIR --json docs/results/photo_sets_few.json
    python bench/photo_sets.py --json docs/results/photo_sets.json --markdown

GroceryStoreDataset's folder holds classes.csv and the lists train.txt, test.txt and val.txt: 41 base classes, then four
sessions of ten, in a random order. CUB holds train/ and test/ with one folder per class: of its first 100 classes, in
their own order, 60 are base classes, then four sessions of ten; with `--few`, 10 of 50 in a random order. A base class
has 20 photos. What is in the file already is not run again; `--markdown` prints its tables, most of which
docs/photos.md shows. It needs the extra `bench`, for scikit-learn.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from concm import __version__, progress
from concm.classifier import opened as predicting
from concm.classifier.answers import whole
from concm.classifier.classifier import Classifier
from concm.classifier.evaluation import auroc, calibration_error
from concm.classifier.stream import encoded, in_piles
from concm.files import write_whole
from concm.metrics import accuracies, confusion, harmonic, trade_off

BACKBONE = "efficientnet_lite0"
BASE_PHOTOS, WAY, UNUSED = 20, 10, 10
SHOTS = (1, 2, 5, 10)
SHRINKAGE = 2.0
CONSTANTS = np.round(np.arange(-0.1, 0.4, 0.005), 3)
RETRAINED = ("lr", "lr_unit", "svm", "ridge")
TITLES = {
    "concm": "`concm`",
    "ncm": "nearest class mean",
    "lr": "logistic regression",
    "lr_unit": "the same, unit features",
    "svm": "linear SVM",
    "ridge": "ridge",
    "recipe_hm": "simple recipe, by HM",
    "recipe_acc": "simple recipe, by accuracy",
}
CONTROLS = tuple(TITLES)[1:]
Paths = dict[str, list[Path]]


# Photos


@dataclass(frozen=True)
class PhotoSet:
    """Photos by class name; `train` has its classes in the order in which they are taught, the first `base` at once."""

    name: str
    base: int
    train: Paths
    test: Paths
    val: Paths = field(default_factory=dict)

    @property
    def sessions(self) -> list[list[str]]:
        """The classes of each session."""
        names = list(self.train)
        return [names[: self.base], *(names[at : at + WAY] for at in range(self.base, len(names), WAY))]

    @property
    def every(self) -> list[Path]:
        """All photos."""
        return [path for part in (self.train, self.test, self.val) for own in part.values() for path in own]


def shuffled(names: Iterable[str]) -> list[str]:
    """The order of the classes, which is the same in all draws."""
    ordered = list(names)
    return [ordered[at] for at in np.random.default_rng(0).permutation(len(ordered))]


def grocery(folder: Path) -> PhotoSet:
    with open(folder / "classes.csv", newline="", encoding="utf-8") as file:
        names = [row[0].replace("-", " ") for row in list(csv.reader(file))[1:]]

    def part(listed: str) -> Paths:
        found: Paths = {name: [] for name in shuffled(names)}
        for line in (folder / listed).read_text(encoding="utf-8").splitlines():
            path, fine, _ = (word.strip() for word in line.split(","))
            found[names[int(fine)]].append(folder / path)
        return found

    test = {name: own[:12] for name, own in part("test.txt").items()}
    return PhotoSet("grocery", 41, part("train.txt"), test, part("val.txt"))


def cub(folder: Path) -> PhotoSet:
    return birds("cub", folder, sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())[:100], 60)


def few(folder: Path) -> PhotoSet:
    return birds("few", folder, shuffled(sorted(path.name for path in (folder / "train").iterdir()))[:50], 10)


def birds(name: str, folder: Path, folders: Sequence[str], base: int) -> PhotoSet:
    """Classes of CUB in this order."""

    def part(named: str, most: int | None = None) -> Paths:
        found = {key: sorted((folder / named / key).iterdir())[:most] for key in folders}
        return {key.split(".", 1)[-1].replace("_", " "): own for key, own in found.items()}

    return PhotoSet(name, base, part("train"), part("test", 10))


def deal(photos: PhotoSet, draw: int, shots: int) -> tuple[list[Paths], Paths]:
    """What each session teaches, and photos of all classes that no number of shots teaches; fewer shots are a part."""
    random = np.random.default_rng((1, draw))
    lessons: list[Paths] = []
    unused: Paths = {}
    for index, names in enumerate(photos.sessions):
        lessons.append({})
        for name in names:
            own = [photos.train[name][at] for at in random.permutation(len(photos.train[name]))]
            lessons[-1][name] = own[: shots if index else BASE_PHOTOS]
            most = max(SHOTS) if index else BASE_PHOTOS
            unused[name] = own[most : most + UNUSED]
    return lessons, unused


# Controls


def nearest_mean(features: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Cosines (n, classes) of what is asked to the means of unit features."""
    unit = F.normalize(features)
    means = torch.stack([unit[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    return F.normalize(asked) @ F.normalize(means).T


def retrained(kind: str, features: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Scores (n, classes) of a linear classifier of scikit-learn; those of logistic regression are probabilities.

    All but `lr` see unit features; on these, at C = 1, the probabilities of logistic regression are nearly flat.
    """
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.svm import LinearSVC

    models: dict[str, Callable[[], Any]] = {
        "lr": lambda: LogisticRegression(C=1.0, class_weight="balanced", max_iter=2000),
        "svm": lambda: LinearSVC(C=1.0, class_weight="balanced"),
        "ridge": lambda: RidgeClassifier(alpha=1.0, class_weight="balanced"),
    }
    seen, new = (part if kind == "lr" else F.normalize(part) for part in (features, asked))
    model = models[kind.split("_")[0]]().fit(seen.numpy(), labels.numpy())
    ask = model.predict_proba if kind.startswith("lr") else model.decision_function
    return torch.from_numpy(ask(new.numpy()))


def whitening(features: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    """What makes cosines those of the covariance within classes, shrunk towards a multiple of the identity."""
    unit = F.normalize(features)
    groups = [unit[labels == label] for label in set(labels.tolist())]
    within = torch.cat([own - own.mean(0) for own in groups])
    covariance = within.T @ within / max(1, len(unit) - len(groups))
    level = covariance.diagonal().mean()
    root = torch.linalg.cholesky(covariance + SHRINKAGE * level * torch.eye(len(covariance)))
    return lambda asked: F.normalize(torch.linalg.solve_triangular(root, F.normalize(asked).T, upper=False).T)


def numbered(groups: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The groups in a row, and the number of the group that each item is of."""
    return torch.cat(list(groups)), torch.cat([torch.full((len(own),), at) for at, own in enumerate(groups)])


def rehearsed_constants(features: Tensor, labels: Tensor, shots: int, splits: int = 10) -> dict[str, float]:
    """The constants on novel scores with the best mean HM and accuracy where base photos alone play all parts."""
    found: dict[str, list[Any]] = {"hm": [], "acc": []}
    for split in range(splits):
        random = np.random.default_rng((2, split))
        order = random.permutation(int(labels.max()) + 1)
        old = len(order) - len(order) // 2
        taught, held = list[Tensor](), list[Tensor]()
        for place, label in enumerate(order):
            rows = (labels == label).nonzero().flatten()[random.permutation(int((labels == label).sum()))]
            out = max(1, len(rows) // 4)
            held.append(rows[:out])
            taught.append(rows[out:] if place < old else rows[out : out + shots])
        (few, learned), (more, asked) = numbered(taught), numbered(held)
        metric = whitening(features[few[learned < old]], learned[learned < old])
        scores = nearest_mean(metric(features[few]), learned, metric(features[more]))
        base, novel = trade_off(scores, asked, old, CONSTANTS)
        share = float((asked < old).double().mean())
        found["hm"].append([harmonic(*pair) for pair in zip(base, novel, strict=True)])
        found["acc"].append(share * base + (1 - share) * novel)
    return {key: float(CONSTANTS[np.mean(values, 0).argmax()]) for key, values in found.items()}


# One run


def figures(labels: Tensor, taken: Tensor, classes: int, base: int) -> dict[str, float | None]:
    found = accuracies(confusion(labels, taken, classes), base)
    later = classes > base
    novel, hm = (found.acc_novel, found.hm) if later else (None, None)
    return {"acc": found.acc, "base": found.acc_base, "novel": novel, "hm": hm}


def judged(labels: Tensor, best: Tensor, sure: Tensor, familiar: Tensor, classes: int) -> dict[str, float | None]:
    """Calibration error on known photos, and how well `familiar` tells them from those of classes still to come."""
    known = labels < classes
    apart = 100 * auroc(familiar[known], familiar[~known]) if not bool(known.all()) else None
    guesses = torch.stack([sure, torch.zeros_like(sure)], 1)[known]  # one column is the guess, one all else
    return {"ece": calibration_error(guesses, (best != labels)[known].long()), "auroc": apart}


@dataclass(frozen=True)
class Answers:
    """Best guess (a place among the classes), its probability, familiarity and refusal of each photo."""

    best: Tensor
    sure: Tensor
    familiar: Tensor
    refused: Tensor


def answers(classifier: Classifier, names: Sequence[str], photos: Sequence[Path], features: Tensor) -> Answers:
    """What `predict` says of photos whose features are in the cache."""
    with patch.object(predicting, "in_piles", partial(in_piles, remember=True)):
        said = classifier.predict(photos, top=1)
    familiar = [getattr(one, "familiarity", None) for one in said]
    if None in familiar:
        known = classifier.known()
        familiar = known.confidence.familiarity(known.scores(features)).tolist()
    best = torch.tensor([names.index(one.top[0][0]) for one in said])
    sure = torch.tensor([one.score for one in said])
    return Answers(best, sure, torch.tensor(familiar), torch.tensor([one.unknown for one in said]))


class Run:
    """One draw of one set with one number of shots."""

    def __init__(
        self, photos: PhotoSet, features: Mapping[Path, Tensor], draw: int, shots: int, store: Path, looks: int
    ) -> None:
        self.photos, self.features, self.shots = photos, features, shots
        self.names = list(photos.train)
        self.lessons, self.unused = deal(photos, draw, shots)
        self.classifier = Classifier(store, backbone=BACKBONE, seed=draw, looks=looks)
        self.seconds: dict[str, Any] = {"learn": []}

    def stacked(self, paths: Iterable[Path]) -> Tensor:
        """Features (n, d) of photos."""
        return torch.stack([self.features[path] for path in paths])

    def asked(self, part: Paths, classes: int | None = None) -> tuple[list[Path], Tensor]:
        """The photos of the first classes, and their labels."""
        pairs = [(path, at) for at, name in enumerate(self.names[:classes]) for path in part.get(name, ())]
        return [path for path, _ in pairs], torch.tensor([at for _, at in pairs])

    def refused(self, part: Paths, classes: int) -> float | None:
        """The share of photos of known classes that is called unknown, in per cent."""
        paths, _ = self.asked(part, classes)
        if not paths:
            return None
        said = answers(self.classifier, self.names, paths, self.stacked(paths))
        return 100 * float(said.refused.double().mean())

    def teach(self, index: int) -> None:
        """Teach a session and note the seconds: those of `fit` without encoding, those of `learn` with it."""
        begun = time.perf_counter()
        if index:
            self.classifier.learn(self.lessons[index], broken="skip")
            self.seconds["learn"].append(time.perf_counter() - begun)
        else:
            self.classifier.fit(self.lessons[index], broken="skip")
            self.seconds["fit"] = time.perf_counter() - begun

    def seen(self, classes: int) -> tuple[Tensor, Tensor]:
        """Features and labels of all photos in the store."""
        rows = [[row.features[0] for row in self.classifier.store.photos(name)] for name in self.names[:classes]]
        return numbered([torch.stack(own) for own in rows])

    def session(self, index: int) -> dict[str, Any]:
        """Teach a session and measure everything after it."""
        self.teach(index)
        classes, base = self.photos.base + WAY * index, self.photos.base
        paths, labels = self.asked(self.photos.test)
        known, features = labels < classes, self.stacked(paths)
        said = answers(self.classifier, self.names, paths, features)
        learned = self.seen(classes)
        if not index:
            self.metric, self.constants = whitening(*learned), rehearsed_constants(*learned, self.shots)
        best = {kind: retrained(kind, *learned, features).max(1) for kind in RETRAINED}
        best["ncm"] = nearest_mean(*learned, features).max(1)
        white = nearest_mean(self.metric(learned[0]), learned[1], self.metric(features))
        novel = (torch.arange(classes) >= base).float()
        best |= {f"recipe_{key}": (white + constant * novel).max(1) for key, constant in self.constants.items()}
        sure = {kind: best[kind].values for kind in ("lr", "lr_unit")}
        taken = {"concm": said.best} | {kind: own.indices for kind, own in best.items()}
        return {
            "classes": classes,
            "accuracy": {kind: figures(labels[known], taken[kind][known], classes, base) for kind in TITLES},
            "concm": judged(labels, said.best, said.sure, said.familiar, classes),
            **{kind: judged(labels, taken[kind], sure[kind], sure[kind], classes) for kind in sure},
            "refused": {
                "unused": self.refused(self.unused, classes),
                "test": 100 * float(said.refused[known].double().mean()),
                "val": self.refused(self.photos.val, classes),
            },
        }

    def calibrated(self) -> float | None:
        """The share refused of one half of the validation photos after calibrating on the other, if the library can."""
        calibrate = getattr(self.classifier, "calibrate", None)
        if calibrate is None or not self.photos.val:
            return None
        calibrate({name: own[::2] for name, own in self.photos.val.items() if own})
        return self.refused({name: own[1::2] for name, own in self.photos.val.items()}, len(self.names))

    def all(self) -> dict[str, Any]:
        """All sessions, then the speed of `predict` and what calibrating gives."""
        sessions = [self.session(index) for index in progress.track(range(len(self.lessons)), "sessions")]
        paths = self.asked(self.photos.test)[0][::10]
        begun = time.perf_counter()
        self.classifier.predict(paths)
        self.seconds["predict_one"] = (time.perf_counter() - begun) / len(paths)
        after = self.calibrated()
        return {"sessions": sessions, "constants": self.constants, "calibrated": after, "seconds": self.seconds}


# Results


def mean(runs: Sequence[Any], *keys: str) -> float | None:
    """The mean over runs of the value that the keys lead to, where there is one; sessions of a run count alike."""
    if keys:
        deeper = [run[keys[0]] for run in runs if run is not None]
        flat = [item for value in deeper for item in (value if isinstance(value, list) else [value])]
        return mean(flat, *keys[1:])
    values = [value for value in runs if value is not None]
    return float(np.mean(values)) if values else None


def shown(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def markdown(runs: Sequence[dict[str, Any]]) -> str:
    """The tables of all sets: accuracies, differences to the controls, and what is known of unknown photos and time."""
    parts = []
    for name in dict.fromkeys(run["set"] for run in runs):
        own = [run for run in runs if run["set"] == name]
        by = {shots: [run for run in own if run["shots"] == shots] for shots in sorted({run["shots"] for run in own})}
        lasts = {shots: [run["sessions"][-1]["accuracy"] for run in part] for shots, part in by.items()}
        parts += [accuracy_table(name, lasts), lead_table(name, lasts), confidence_table(name, by)]
    return "\n\n".join(parts)


def accuracy_table(name: str, lasts: Mapping[int, list[Any]]) -> str:
    def cell(part: list[Any], kind: str) -> str:
        acc, base, novel, hm = (shown(mean(part, kind, key)) for key in ("acc", "base", "novel", "hm"))
        return f"{acc}/{base}/{novel}/**{hm}**"

    rows = [[f"{shots} (draws: {len(part)})", *(cell(part, kind) for kind in TITLES)] for shots, part in lasts.items()]
    return table([f"{name}, shots", *TITLES.values()], rows)


def leads(part: list[Any], key: str) -> list[float]:
    """By how much `concm` is ahead of the best control and of each one."""
    own, *others = (mean(part, kind, key) or 0.0 for kind in TITLES)
    return [own - other for other in (max(others), *others)]


def lead_table(name: str, lasts: Mapping[int, list[Any]]) -> str:
    ahead = {shots: (leads(part, "acc"), leads(part, "hm")) for shots, part in lasts.items()}
    ahead |= {"mean": tuple(np.mean([pair[at] for pair in ahead.values()], 0) for at in (0, 1))}  # type: ignore[dict-item]
    rows = [
        [str(shots), *(f"{shown(acc, '+')} / {shown(hm, '+')}" for acc, hm in zip(*pair, strict=True))]
        for shots, pair in ahead.items()
    ]
    titles = [TITLES[kind] for kind in CONTROLS]
    return table([f"{name}: `concm` ahead (accuracy / HM) of", "the best control", *titles], rows)


def confidence_table(name: str, by: Mapping[int, list[Any]]) -> str:
    head = ["ECE", "ECE of LR", "refused, unused", "refused, test", "refused, val", "val after `calibrate`"]
    head += ["AUROC", "AUROC of LR", "`fit` s", "`learn` s", "`predict` ms"]
    rows = []
    for shots, part in by.items():
        ends = [run["sessions"][-1] for run in part]
        values = [mean(ends, "concm", "ece"), mean(ends, "lr", "ece")]
        values += [mean(ends, "refused", kind) for kind in ("unused", "test", "val")] + [mean(part, "calibrated")]
        values += [mean(part, "sessions", kind, "auroc") for kind in ("concm", "lr")]
        values += [mean(part, "seconds", "fit"), mean(part, "seconds", "learn")]
        rows.append([str(shots), *map(shown, values), shown(1000 * (mean(part, "seconds", "predict_one") or 0))])
    return table([f"{name}, shots", *head], rows)


# Everything


def encode(photos: PhotoSet, work: Path, looks: int = 1) -> dict[Path, Tensor]:
    """The features of all photos of a set, from the cache where they are in it."""
    encoder = Classifier(work / "none", backbone=BACKBONE, looks=looks).encoder
    items = encoded(encoder, photos.every, remember=True, title=f"photos of {photos.name}")
    return {path: whole(item).features for path, item in zip(photos.every, items, strict=True)}


def run_all(
    photos: PhotoSet, todo: Sequence[tuple[int, int]], work: Path, looks: int, keep: Callable[[Any], None]
) -> None:
    features = encode(photos, work, looks) if todo else {}
    for draw, shots in todo:
        print(f"{photos.name}, draw {draw}, {shots} shots", flush=True)
        store = work / f"{photos.name}-{draw}-{shots}"
        shutil.rmtree(store, ignore_errors=True)
        found = Run(photos, features, draw, shots, store, looks).all()
        run = {"set": photos.name, "draw": draw, "shots": shots} | found
        shutil.rmtree(store)
        keep(run)
        print(markdown([run]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grocery", type=Path)
    parser.add_argument("--cub", type=Path)
    parser.add_argument("--few", type=Path, help="CUB's folder: ten base classes, then forty others")
    parser.add_argument("--work", type=Path, help="folder for stores and for the cache of features")
    parser.add_argument("--shots", type=int, nargs="+", choices=SHOTS, default=SHOTS)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--looks", type=int, default=1, help="at each photo; a file has runs of one number of them")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--markdown", action="store_true", help="only print the tables of the file")
    options = parser.parse_args()
    before = json.loads(options.json.read_text()) if options.json.exists() else {"runs": []}
    runs = before["runs"]
    if runs and before.get("looks", 1) != options.looks:
        parser.error(f"{options.json} has runs with another number of looks")
    if not options.markdown:
        if options.work is None:
            parser.error("--work is needed")
        os.environ["CONCM_CACHE"] = str(options.work / "cache")
        progress.show()

        def keep(run: dict[str, Any]) -> None:
            runs.append(json.loads(json.dumps(run), parse_float=lambda figure: round(float(figure), 4)))
            runs.sort(key=lambda one: (one["set"] != "grocery", one["shots"], one["draw"]))
            about = {"backbone": BACKBONE, "looks": options.looks, "concm": __version__, "cores": os.cpu_count()}
            write_whole(options.json, json.dumps({**about, "runs": runs}, separators=(",", ":")).encode())

        wanted = [(draw, shots) for draw in range(options.draws) for shots in options.shots]
        for load, folder in ((grocery, options.grocery), (cub, options.cub), (few, options.few)):
            if folder is not None:
                photos = load(folder)
                done = {(run["draw"], run["shots"]) for run in runs if run["set"] == photos.name}
                run_all(photos, [pair for pair in wanted if pair not in done], options.work, options.looks, keep)
    print(markdown(runs))


if __name__ == "__main__":
    main()
