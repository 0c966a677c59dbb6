"""What the classifier's commands print, and its model card."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from concm.classifier import database
from concm.classifier.answers import Prediction
from concm.classifier.classifier import Classifier
from concm.classifier.confidence import TOO_FEW
from concm.classifier.evaluation import Evaluation
from concm.classifier.made import Made
from concm.classifier.proof import DATABASE
from concm.classifier.rehearsal import SURE
from concm.errors import loading
from concm.files import write_whole
from concm.records import from_json
from concm.report.tables import print_whole, ruled, say


def show_prediction(prediction: Prediction) -> None:
    """A line: what it is, how sure, and what else it might be."""
    (first, score), *others = prediction.top
    rest = ", ".join(f"{name} {share:.2f}" for name, share in others[:2])
    if prediction.unknown:
        familiar = f"{100 * (prediction.familiarity or 0):.0f} % of known photos are as strange"
        say(f"{prediction.photo}: unknown (unlike what is known: {familiar}; most like {first})")
    else:
        say(f"{prediction.photo}: {first} {score:.2f}{f' (then {rest})' if rest else ''}")


def show_classes(classifier: Classifier) -> None:
    """Classes and history."""
    made = Made.of(classifier.store)
    say(f"{classifier.path}: version {classifier.version}, backbone {made.backbone} ({made.encoder.weights})")
    classes = ruled("class", "photos", "since version", "learned", title="")
    for row in classifier.classes:
        learned = "base" if row.base else "later" if row.photos else "by its name"
        classes.add_row(row.name, str(row.photos), str(row.added), learned)
    print_whole(classes)
    for sentence in reasons(classifier):
        say(sentence)
    history = ruled("version", "when (UTC)", "action", "classes", "photos", "what", title="")
    history.columns[-1].justify = "left"
    for line in classifier.history:
        figures = (str(line.classes), str(line.photos))
        history.add_row(str(line.version), _when(line.created), line.action, *figures, line.detail)
    print_whole(history)


def reasons(classifier: Classifier) -> list[str]:
    """What was chosen for this store, and why, in sentences."""
    known, tried = classifier.known(), Made.of(classifier.store).rehearsal
    settings, point = known.engine.settings, known.engine.point
    told = [f"names are trusted by a factor of {settings.trust:g}"]
    if tried:
        figures = ", ".join(f"{value:.1f} with {trust}" for trust, value in tried.items())
        told[0] += f", by a rehearsal on the base classes (accuracy and HM: {figures}; another factor than the first "
        told[0] += f"must be {SURE:g} point better in every part of it)"
    if point is not None:
        told.append(f"scores of new classes are lifted by {point[0]:.3f} (lean {settings.lean})")
        if len(point) == 3:
            told[-1] += f", with which {100 * point[1]:.0f} % of base and {100 * point[2]:.0f} % of new photos are "
            told[-1] += "expected to be right"
    if not known.confidence.enough:
        told.append(TOO_FEW)
    if known.confidence.adapted:
        told.append("probabilities and the rate of unknown were calibrated on photos of yours")
    return told


def show_photos(name: str, rows: Sequence[Mapping[str, object]]) -> None:
    """The photos of a class, with the numbers by which they can be removed or moved."""
    table = ruled("photo", "number", title=name)
    for row in rows:
        table.add_row(str(row["photo"]), str(row["number"]))
    print_whole(table)


def show_evaluation(result: Evaluation, worst: int = 5) -> None:
    """Accuracy, honesty, refusals, and the classes that go wrong most."""
    say(f"version {result.version}: {result.photos} photos of known classes, {result.classes} classes known")
    for title, text in figures(result):
        say(f"  {title:34} {text}")
    shares = sorted((right / count, name) for name, (right, count) in result.by_class.items())
    poor = [f"{name} {100 * share:.0f} %" for share, name in shares[:worst] if share < 1]
    if poor:
        say(f"  most often wrong: {', '.join(poor)}")
    if result.confused:
        pairs = [f"{one} for {other} ({count})" for one, other, count in result.confused[:worst]]
        say(f"  most often taken: {', '.join(pairs)}")


def write_predictions(path: Path, found: Sequence[Prediction]) -> None:
    """Answers as a CSV file; `guess` is the best guess, also of a photo that was called unknown."""
    rows = [(one.photo, one.label, one.top[0][0], one.score, one.unknown, one.familiarity) for one in found]
    _write(path, ("path", "label", "guess", "score", "unknown", "familiarity"), rows)


def write_wrong(path: Path, result: Evaluation) -> None:
    """The photos whose best guess was wrong, as a CSV file."""
    rows = [(one.photo, one.truth, one.guess, one.score, one.unknown) for one in result.wrong]
    _write(path, ("path", "label", "guess", "score", "unknown"), rows)


def write_confusion(path: Path, result: Evaluation) -> None:
    """How many photos of each class (rows) had which best guess (columns), as a CSV file."""
    taken = {(one, other): count for one, other, count in result.confused}
    taken |= {(name, name): right for name, (right, _) in result.by_class.items()}
    names = sorted({name for pair in taken for name in pair})
    rows = [(name, *(taken.get((name, other), 0) for other in names)) for name in sorted(result.by_class)]
    _write(path, ("label", *names), rows)


def _write(path: Path, head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    write_whole(path, text.getvalue().encode())


def figures(result: Evaluation) -> list[tuple[str, str]]:
    """What was measured, in words and numbers."""
    lines = [("accuracy", f"{result.acc:.2f} %")]
    if result.taught:
        given = result.photos + result.strangers
        lines.insert(0, ("taught, so no test of it", f"{result.taught} of {given} photos"))
    if result.acc_base is not None:
        lines.append(("… of base classes", f"{result.acc_base:.2f} %"))
    if result.acc_novel is not None:
        lines.append(("… of classes learned later", f"{result.acc_novel:.2f} %"))
    if result.hm is not None:
        lines.append(("harmonic mean of the two", f"{result.hm:.2f} %"))
    lines.append(("expected calibration error", f"{result.ece:.2f} %"))
    lines.append(("known photos called unknown", f"{result.refused:.2f} % (asked for: {result.unknown_rate:g} %)"))
    if result.false_accept is not None and result.auroc is not None:
        lines.append((f"given a label, of {result.strangers} strangers", f"{result.false_accept:.2f} %"))
        lines.append(("known against strangers, AUROC", f"{result.auroc:.2f} %"))
    return lines


def card(classifier: Classifier) -> str:
    """A Markdown card: what this classifier is, what it was taught, how well it does, how to load it."""
    made, classes, history = Made.of(classifier.store), classifier.classes, classifier.history
    pixels = made.encoder.transform.size if made.encoder.transform else "any number of"
    licence = f"; licence of the weights: {made.licence}" if made.licence else ""
    base = sum(row.base for row in classes)
    strangers = (
        "It knows the classes above and calls what is unlike all of them unknown; how often it errs in that stands "
        "under Evaluation, if photos of other classes were given there."
        if classifier.known().confidence.enough
        else f"It knows the classes above and calls every photo one of them: {TOO_FEW}."
    )
    lines = [
        f"# {classifier.path.resolve().name}",
        "",
        f"An image classifier of {len(classes)} classes ({base} from the start, {len(classes) - base} learned later), "
        f"version {classifier.version}, made with concm {made.concm}: a frozen backbone, and classes that are added "
        "from a few photos each without retraining it (ConCM, few-shot class-incremental learning).",
        "",
        "## Backbone",
        "",
        f"`{made.backbone}`, weights `{made.encoder.weights}`, {pixels} pixels, "
        f"forward passes per picture: {made.encoder.passes}{licence}.",
        "",
        "## Evaluation",
        "",
    ]
    measured = classifier.store.evaluations()
    if measured:
        row = measured[-1]
        with loading(database.file(classifier.path), *DATABASE):
            result = from_json(Evaluation, row.result)
        behind = (
            "" if row.version == classifier.version else f" (of version {row.version}: what came later is not in it)"
        )
        lines += [f"On {result.photos} photos from `{row.source}`, {row.created[:10]}{behind}.", ""]
        lines += [*_markdown(("figure", "value"), figures(result)), ""]
    else:
        lines += ["Not evaluated yet: `concm evaluate` measures it on labelled photos.", ""]
    lines += ["## Classes", ""]
    lines += _markdown(
        ("class", "photos", "since version", "learned"),
        [(row.name, row.photos, row.added, "base" if row.base else "later") for row in classes],
    )
    lines += ["", "## Versions", ""]
    lines += _markdown(
        ("version", "when (UTC)", "action", "what", "classes", "photos"),
        [(at.version, _when(at.created), at.action, at.detail, at.classes, at.photos) for at in history],
    )
    lines += [
        "",
        "## How to load it",
        "",
        "```python",
        "import concm",
        "",
        f'classifier = concm.Classifier("{classifier.path.resolve().name}")',
        'classifier.predict(["photo.jpg"])',
        "```",
        "",
        "## Limits",
        "",
        f"{strangers} The features and thumbnails of its photos are kept in the folder, the photos themselves are not.",
        "",
    ]
    return "\n".join(lines)


def _when(created: str) -> str:
    return created[:19].replace("T", " ")


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    def line(cells: Iterable[object]) -> str:
        return f"| {' | '.join(str(cell).replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"

    return [line(head), line("---" for _ in head), *map(line, rows)]
