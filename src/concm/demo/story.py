"""A story on real photos: a shop that knows its apples and pears begins to sell melons and citrus fruit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from concm.classifier.classifier import Classifier
from concm.classifier.evaluation import Evaluation
from concm.classifier.photos import UNKNOWN
from concm.classifier.store import Store
from concm.demo import groceries as shop
from concm.files import write_whole
from concm.report.page import Chapter, Shown, render, thumbnail
from concm.report.tables import say

BASE = 8
SHOTS = 5
SHOWN = 3
Photos = Mapping[str, list[bytes]]


def groceries(out: Path, *, seed: int = 0, device: Literal["auto", "cpu", "cuda"] = "auto") -> None:
    """Learn eight classes, then six more in three sessions of five photos per class, predict, undo, write a page."""
    begun = time.perf_counter()
    taught, asked = shop.photos("train"), shop.photos("test")
    names = list(taught)
    lessons = [names[at : at + 2] for at in range(BASE, len(names), 2)]
    random = np.random.default_rng(seed)
    classifier = _new(out / "shop", device)
    say(f"fit: {BASE} classes, {sum(len(taught[name]) for name in names[:BASE])} photos")
    classifier.fit({name: taught[name] for name in names[:BASE]})
    rows = [_row("fit", time.perf_counter() - begun, classifier, asked)]
    told = [
        Chapter(
            "The shop knows apples and pears",
            f"Taught from the start: {_listed(names[:BASE])}. These photos were never shown to it:",
            _answers(classifier, asked, names[:BASE], random),
        ),
        Chapter(
            "It has never seen a melon or an orange",
            "Photos of classes that come later. The right answer is unknown, though one round fruit looks much like "
            "another; about one in twenty photos of known classes may be called unknown too.",
            _answers(classifier, asked, names[BASE:], random),
        ),
    ]
    for number, lesson in enumerate(lessons, 1):
        shots = {name: [taught[name][at] for at in random.permutation(len(taught[name]))[:SHOTS]] for name in lesson}
        say(f"learn: {_listed(lesson)}, {SHOTS} photos each")
        since = time.perf_counter()
        classifier.learn(shots)
        rows.append(_row(f"learn {_listed(lesson)}", time.perf_counter() - since, classifier, asked))
        cards = tuple(Shown(thumbnail(photo), truth=name) for name in lesson for photo in shots[name])
        told.append(
            Chapter(
                f"Session {number}: {_listed(lesson)}",
                f"{SHOTS} photos and a name each, and then other photos of them:",
                cards + _answers(classifier, asked, lesson, random),
            )
        )
    last = lessons[-1]
    line = classifier.undo()
    say(f"undo: back at version {line.version}, {line.classes} classes")
    told.append(
        Chapter(
            "One step back",
            f"After undo it knows {line.classes} classes again, as if it had never heard of {_listed(last)}:",
            _answers(classifier, asked, last, random),
        )
    )
    backbone = classifier.store.meta["backbone"]
    lead = f"{len(names)} classes of groceries, photographed in shops. Backbone: {backbone}, frozen."
    figures = Chapter(
        "In figures",
        f"All {sum(map(len, asked.values()))} test photos, after each step. Strangers are photos of classes that come "
        "later: the share of them that was given a label all the same.",
        table=(("step", "classes", "accuracy", "base", "later", "strangers", "seconds"), *rows),
    )
    page = out / "index.html"
    write_whole(page, render("Groceries, taught a few photos at a time", lead, [*told, figures]).encode())
    classifier.close()
    say(f"wrote {page}; the classifier is in {classifier.path} ({time.perf_counter() - begun:.0f} s)")


def _new(path: Path, device: Literal["auto", "cpu", "cuda"]) -> Classifier:
    if Store.exists(path):
        Store.open(path).close()  # refuses a folder that is not a store
        shutil.rmtree(path)
    return Classifier(path, device=device)


def _answers(
    classifier: Classifier, asked: Photos, names: Iterable[str], random: np.random.Generator
) -> tuple[Shown, ...]:
    """Some photos of each class with their predictions; for a class that was not taught, "unknown" is right."""
    known = set(classifier.classes_.tolist())
    drawn = [(name, asked[name][at]) for name in names for at in random.permutation(len(asked[name]))[:SHOWN]]
    shown = []
    for (name, photo), said in zip(drawn, classifier.predict([photo for _, photo in drawn]), strict=True):
        right = said.label == (name if name in known else UNKNOWN)
        others = tuple(said.top[:2] if said.unknown else said.top[1:3])
        shown.append(Shown(thumbnail(photo), name, said.label, None if said.unknown else said.score, others, right))
    return tuple(shown)


def _row(step: str, seconds: float, classifier: Classifier, asked: Photos) -> tuple[str, ...]:
    """A row of the table, which is also printed at once."""
    result: Evaluation = classifier.evaluate(asked)
    cells = [result.acc, result.acc_base, result.acc_novel, result.false_accept]
    texts = [f"{value:.1f} %" if value is not None else "–" for value in cells]
    say(f"  accuracy {texts[0]}: base {texts[1]}, later {texts[2]}; of fruits still to come, given a label {texts[3]}")
    return (step, str(result.classes), *texts, f"{seconds:.1f}")


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
