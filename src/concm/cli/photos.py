"""The classifier for one's own photos."""

from __future__ import annotations

import codecs
import json as js
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App, Parameter

from concm.cli.options import complain
from concm.errors import ConcmError, Misuse
from concm.records import to_json

if TYPE_CHECKING:
    from concm.classifier.classifier import Classifier

Broken = Literal["refuse", "skip"]
Duplicates = Literal["refuse", "skip"]
Nested = Literal["refuse", "flatten"]
Similar = Literal["refuse", "keep"]
Lean = Literal["base", "even", "novel"]


@Parameter(name="*")
@dataclass(frozen=True)
class Access:
    """How to open a store."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    "The GPU if there is one, unless you say otherwise."
    wait: float = 60
    "Seconds to wait for another process that is changing the store."
    backbone: str | None = None
    "The network that sees the photos; a store knows its own, but code and ONNX files must be named each time."

    def open(self, store: Path, seed: int = 0, blocks: int | None = None, looks: int | None = None) -> Classifier:
        """The classifier in that folder, made or yet to be made; to be closed."""
        from concm.classifier.classifier import Classifier

        def waiting() -> None:
            complain(f"another process is changing {store}; waiting for it, {self.wait:g} seconds at most")

        return Classifier(
            store,
            self.backbone,
            device=self.device,
            seed=seed,
            wait=self.wait,
            waiting=waiting,
            blocks=blocks,
            looks=looks,
        )


def fit(
    store: Path,
    photos: Path,
    /,
    *,
    broken: Broken = "refuse",
    duplicates: Duplicates = "refuse",
    nested: Nested = "refuse",
    similar_names: Similar = "refuse",
    lean: Lean = "even",
    blocks: int | None = None,
    looks: int | None = None,
    seed: int = 0,
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Make a classifier from its base classes.

    Parameters
    ----------
    store
        The folder to make; it holds all that the classifier knows.
    photos
        A folder that holds one folder of photos for each class, two classes or more; or a CSV file of paths and labels.
    broken
        What to do with files that cannot be read as pictures.
    duplicates
        What to do with a picture that two classes claim.
    nested
        What to do with folders of photos within a class folder.
    similar_names
        What to do with names that differ in nothing but capitals, spaces, hyphens and underscores.
    lean
        What counts where base and new classes compete: accuracy over all classes (`base`), the harmonic mean of both
        kinds (`novel`), or both alike.
    blocks
        How many of the network's last blocks photos are read from; unless you say otherwise, 2 of EfficientNet-Lite and
        1 of other networks.
    looks
        How many looks at a photo are averaged, each a forward pass: 2 adds the mirror image, up to 10 add shifts; 1
        unless you say otherwise.
    seed
        Seed of all random choices.
    json
        Print what was done as JSON.
    """
    with access.open(store, seed, blocks, looks) as classifier:
        begun = time.perf_counter()
        ways: dict[str, Any] = {"duplicates": duplicates, "nested": nested, "similar_names": similar_names}
        classifier.fit(photos, broken=broken, lean=lean, **ways)
        told(classifier, begun, json)


def learn(
    store: Path,
    what: str,
    /,
    *images: str,
    by_name: bool = False,
    broken: Broken = "refuse",
    duplicates: Duplicates = "refuse",
    nested: Nested = "refuse",
    similar_names: Similar = "refuse",
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Teach a classifier new classes, or give it more photos of known ones.

    Parameters
    ----------
    store
        The classifier's folder.
    what
        A folder that holds one folder of photos for each class; a CSV file of paths and labels; or a class name,
        followed by its photos.
    images
        Photos of that class: files, folders and globs.
    by_name
        Teach the class by its name alone, before its first photo: it is expected to look like its kin.
    broken
        What to do with files that cannot be read as pictures.
    duplicates
        What to do with a picture that two classes claim.
    nested
        What to do with folders of photos within a class folder.
    similar_names
        What to do with names that differ in nothing but capitals, spaces, hyphens and underscores.
    json
        Print what was done as JSON.
    """
    from concm.classifier.folders import is_list

    if by_name and images:
        raise Misuse("`by_name` teaches a class without photos, and photos are given")
    if not by_name and not images and not Path(what).is_dir() and not is_list(what):
        raise Misuse(f"no folder at {what}; give a folder of class folders, or a class name and then its photos")
    with access.open(store) as classifier:
        from concm.classifier.photos import find_photos

        begun, before = time.perf_counter(), classifier.version
        given = {what: find_photos(images)} if images else what
        ways: dict[str, Any] = {"duplicates": duplicates, "nested": nested, "similar_names": similar_names}
        if by_name:
            classifier.learn_name(what)
        else:
            classifier.learn(given, broken=broken, **ways)
        told(classifier, begun, json, before)


def predict(
    store: Path,
    /,
    *images: str,
    top: int = 3,
    unknown_rate: float = 0.05,
    csv: Path | None = None,
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Say what photos show, one line each as they come, or "unknown".

    Parameters
    ----------
    store
        The classifier's folder.
    images
        Files, folders and globs.
    top
        How many guesses to give.
    unknown_rate
        The share of photos of known classes that may be called unknown; 0 never says unknown.
    csv
        Write the answers into this file too, as a table.
    json
        Print one JSON object per line.
    """
    if not images:
        raise Misuse("concm predict takes photos after the store: files, folders or globs")
    from concm.classifier.folders import left_out
    from concm.classifier.photos import find_photos
    from concm.data.images import BrokenPicture
    from concm.report.classifier import show_prediction, write_predictions

    broken, answers = 0, []
    for sentence in left_out(images):
        complain(sentence)
    with access.open(store) as classifier:
        for found in classifier.stream(find_photos(images), unknown_rate=unknown_rate, top=top):
            if isinstance(found, BrokenPicture):
                broken += 1
                complain(str(found))
                continue
            answers.append(found)
            if json:
                _print(asdict(found), lines=True)
            else:
                show_prediction(found)
    if csv is not None:
        write_predictions(csv, answers)
    if broken:
        raise ConcmError(f"files that could not be read: {broken}")


def show(
    store: Path,
    name: str | None = None,
    /,
    *,
    card: Path | None = None,
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Show classes and history, or the photos of a class.

    Parameters
    ----------
    store
        The classifier's folder.
    name
        A class, to list its photos with the numbers by which they can be removed or moved.
    card
        Write a Markdown card: backbone, classes, photos, evaluation, versions, how to load it.
    json
        Print classes, history and evaluations as JSON.
    """
    from concm.files import is_stream, write_whole
    from concm.report import classifier as report
    from concm.report.tables import say

    with access.open(store) as classifier:
        if card is not None:
            write_whole(card, report.card(classifier).encode(errors="backslashreplace"))
            if not is_stream(card):
                say(f"wrote {card}")
        elif name is not None:
            rows = [{"number": row.id, "photo": row.label, "digest": row.digest} for row in classifier.photos(name)]
            if json:
                _print({"store": str(store), "version": classifier.version, "class": name, "photos": rows})
            else:
                report.show_photos(name, rows)
        elif json:
            listed = {
                "classes": [asdict(row) for row in classifier.classes],
                "history": [asdict(row) for row in classifier.history],
                "evaluations": [asdict(row) for row in classifier.store.evaluations()],
            }
            _print({"store": str(store), "version": classifier.version, "made_with": classifier.store.meta, **listed})
        else:
            report.show_classes(classifier)


def calibrate(
    store: Path,
    photos: Path,
    /,
    *,
    broken: Broken = "refuse",
    nested: Nested = "refuse",
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Adapt probabilities and the rate of "unknown" to labelled photos of new conditions; no class is changed.

    Parameters
    ----------
    store
        The classifier's folder.
    photos
        A folder with one folder of photos for each known class that it shows; or a CSV file of paths and labels.
    broken
        What to do with files that cannot be read as pictures.
    nested
        What to do with folders of photos within a class folder.
    json
        Print what was done as JSON.
    """
    with access.open(store) as classifier:
        begun = time.perf_counter()
        classifier.calibrate(photos, broken=broken, nested=nested)
        told(classifier, begun, json)


def forget(store: Path, name: str, /, *, json: bool = False, access: Access = Access()) -> None:  # noqa: B008
    """Drop a class; `concm undo` brings it back.

    Parameters
    ----------
    store
        The classifier's folder.
    name
        The class.
    json
        Print what was done as JSON.
    """
    with access.open(store) as classifier:
        begun = time.perf_counter()
        classifier.forget(name)
        told(classifier, begun, json)


def undo(store: Path, /, *, json: bool = False, access: Access = Access()) -> None:  # noqa: B008
    """Step back one version.

    Parameters
    ----------
    store
        The classifier's folder.
    json
        Print the version that is current now as JSON.
    """
    from concm.report.tables import say

    with access.open(store) as classifier:
        line = classifier.undo()
    if json:
        _print(asdict(line))
    else:
        say(f"back at version {line.version}: {line.classes} classes, {line.photos} photos")


def evaluate(
    store: Path,
    photos: Path,
    /,
    *,
    unknown_rate: float = 0.05,
    broken: Broken = "refuse",
    nested: Nested = "refuse",
    wrong: Path | None = None,
    confusion: Path | None = None,
    json: bool = False,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Measure a classifier on labelled photos; folders of classes that it does not know test its "unknown".

    Parameters
    ----------
    store
        The classifier's folder; the figures are kept there, for its card.
    photos
        A folder that holds one folder of photos for each class; or a CSV file of paths and labels.
    unknown_rate
        The share of photos of known classes that may be called unknown.
    broken
        What to do with files that cannot be read as pictures.
    nested
        What to do with folders of photos within a class folder.
    wrong
        Write the photos whose best guess was wrong into this file, as a table.
    confusion
        Write the confusion matrix into this file, as a table: a row per class, a column per best guess.
    json
        Print the figures as JSON.
    """
    from concm.report.classifier import show_evaluation, write_confusion, write_wrong

    with access.open(store) as classifier:
        result = classifier.evaluate(photos, unknown_rate=unknown_rate, broken=broken, nested=nested)
    if wrong is not None:
        write_wrong(wrong, result)
    if confusion is not None:
        write_confusion(confusion, result)
    for remark in classifier.remarks:
        complain(remark)
    if json:
        _print(to_json(result))
    else:
        show_evaluation(result)


def verify(store: Path, /, *, access: Access = Access()) -> None:  # noqa: B008
    """Check that nothing in a store is damaged: its database, and the state of every version that undo can reach.

    Parameters
    ----------
    store
        The classifier's folder.
    """
    from concm.report.tables import say

    with access.open(store) as classifier:
        wrong = classifier.verify()
        for sentence in wrong:
            complain(sentence)
        if wrong:
            raise ConcmError(f"{store} is damaged in {len(wrong)} places; step back with undo, or use a backup")
        say(f"{store} is sound: {len(classifier.history)} versions, {len(classifier.classes)} classes")


def backup(store: Path, destination: Path, /, *, access: Access = Access()) -> None:  # noqa: B008
    """Copy a store consistently, while others go on predicting; who wants to learn waits meanwhile.

    Parameters
    ----------
    store
        The classifier's folder.
    destination
        A new folder for the copy.
    """
    from concm.report.tables import say

    with access.open(store) as classifier:
        say(f"wrote {classifier.backup(destination)}, version {classifier.version}")


def export(
    store: Path,
    /,
    *,
    onnx: Path | None = None,
    structure: Path | None = None,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Write the classifier for use without torch.

    Parameters
    ----------
    store
        The classifier's folder.
    onnx
        The network: pictures and a structure in, probabilities out. It stays the same while classes are learned.
    structure
        What the classifier knows now, the second input of that network; by default beside it.
    """
    from concm.files import refuse_stream
    from concm.report.tables import say

    refuse_stream(onnx, structure)
    with access.open(store) as classifier:
        written = classifier.export(onnx, structure)
    for path in written:
        say(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


demo = App(name="demo", help="A story on real photos, from the first class to the page that shows it.")


@demo.command(name="photos")
def demo_photos(
    *,
    out: Path = Path("runs/demo"),
    seed: int = 0,
    access: Access = Access(),  # noqa: B008
) -> None:
    """Teach a classifier a shop's groceries: eight classes, six more in three sessions, an unknown, and an undo.

    Parameters
    ----------
    out
        Where the store and the page are written; a store from before is replaced.
    seed
        Seed of the choice of photos that are shown and taught.
    """
    from concm.demo.story import groceries

    groceries(out, seed=seed, device=access.device)


def told(classifier: Classifier, begun: float, json: bool, before: int = 0) -> None:
    """What the newest version is, and what there was to remark; `before` is the version that it may still be."""
    from concm.report.tables import say

    line, seconds = classifier.history[-1], time.perf_counter() - begun
    for remark in classifier.remarks:
        complain(remark)
    if json:
        _print({**asdict(line), "seconds": round(seconds, 3), "remarks": classifier.remarks})
    elif line.version == before:
        say(f"version {line.version} as before: {line.classes} classes, {line.photos} photos")
    else:
        say(
            f"{line.action}: {line.detail}; version {line.version}, {line.classes} classes, {line.photos} photos "
            f"({seconds:.1f} s)"
        )


def _print(value: dict[str, Any], *, lines: bool = False) -> None:
    narrow = codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8"  # its numbers for letters are not JSON's
    sys.stdout.write(js.dumps(value, ensure_ascii=narrow, indent=None if lines else 1) + "\n")
    sys.stdout.flush()
