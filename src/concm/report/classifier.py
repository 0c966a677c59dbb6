"""What the classifier's commands print, and its model card."""

from __future__ import annotations

from collections.abc import Iterable

from concm.classifier.classifier import Classifier
from concm.classifier.evaluation import Evaluation
from concm.classifier.prediction import Prediction
from concm.records import from_json
from concm.report.tables import print_whole, ruled, say


def show_prediction(prediction: Prediction) -> None:
    """A line: what it is, how sure, and what else it might be."""
    (first, score), *others = prediction.top
    rest = ", ".join(f"{name} {share:.2f}" for name, share in others[:2])
    if prediction.unknown:
        say(f"{prediction.photo}: unknown (most like {first} {score:.2f}{f', {rest}' if rest else ''})")
    else:
        say(f"{prediction.photo}: {first} {score:.2f}{f' (then {rest})' if rest else ''}")


def show_classes(classifier: Classifier) -> None:
    """Classes and history."""
    meta = classifier.store.meta
    say(f"{classifier.path}: version {classifier.version}, backbone {meta['backbone']} ({meta['encoder']['weights']})")
    classes = ruled("class", "photos", "since version", "learned", title="")
    for row in classifier.classes:
        classes.add_row(row.name, str(row.photos), str(row.added), "base" if row.base else "later")
    print_whole(classes)
    history = ruled("version", "when (UTC)", "action", "classes", "photos", "what", title="")
    history.columns[-1].justify = "left"
    for line in classifier.history:
        figures = (str(line.classes), str(line.photos))
        history.add_row(str(line.version), _when(line.created), line.action, *figures, line.detail)
    print_whole(history)


def show_evaluation(result: Evaluation, worst: int = 5) -> None:
    """Accuracy, honesty, refusals, and the classes that go wrong most."""
    say(f"version {result.version}: {result.photos} photos of known classes, {result.classes} classes known")
    for title, text in _figures(result):
        say(f"  {title:34} {text}")
    shares = sorted((right / count, name) for name, (right, count) in result.by_class.items())
    poor = [f"{name} {100 * share:.0f} %" for share, name in shares[:worst] if share < 1]
    if poor:
        say(f"  most often wrong: {', '.join(poor)}")


def _figures(result: Evaluation) -> list[tuple[str, str]]:
    lines = [("accuracy", f"{result.acc:.2f} %")]
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
    meta, classes, history = classifier.store.meta, classifier.classes, classifier.history
    encoder = meta["encoder"]
    base = sum(row.base for row in classes)
    lines = [
        f"# {classifier.path.resolve().name}",
        "",
        f"An image classifier of {len(classes)} classes ({base} from the start, {len(classes) - base} learned later), "
        f"version {classifier.version}, made with concm {meta['concm']}: a frozen backbone, and classes that are added "
        "from a few photos each without retraining it (ConCM, few-shot class-incremental learning).",
        "",
        "## Backbone",
        "",
        f"`{meta['backbone']}`, weights `{encoder['weights']}`, {encoder['transform']['size']} pixels.",
        "",
        "## Evaluation",
        "",
    ]
    measured = classifier.store.evaluations()
    if measured:
        row = measured[-1]
        result = from_json(Evaluation, row.result)
        behind = (
            "" if row.version == classifier.version else f" (of version {row.version}: what came later is not in it)"
        )
        lines += [f"On {result.photos} photos from `{row.source}`, {row.created[:10]}{behind}.", ""]
        lines += [*_markdown(("figure", "value"), _figures(result)), ""]
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
        "It knows the classes above and calls what is unlike all of them unknown; how often it errs in that stands "
        "under Evaluation, if photos of other classes were given there. The features and thumbnails of its photos are "
        "kept in the folder, the photos themselves are not.",
        "",
    ]
    return "\n".join(lines)


def _when(created: str) -> str:
    return created[:19].replace("T", " ")


def _markdown(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    def line(cells: Iterable[object]) -> str:
        return f"| {' | '.join(str(cell).replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"

    return [line(head), line("---" for _ in head), *map(line, rows)]
