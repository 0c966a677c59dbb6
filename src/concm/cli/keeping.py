"""Keeping a classifier safe, and taking it elsewhere."""

from __future__ import annotations

from pathlib import Path

from concm.cli.options import complain
from concm.cli.stores import Access
from concm.errors import ConcmError


def verify(store: Path, /, *, access: Access = Access()) -> None:  # noqa: B008
    """Check a store for damage: its database, every version that undo can reach, and its backbone.

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
            raise ConcmError(f"{store} is damaged, in places: {len(wrong)}; step back with undo, or use a backup")
        say(f"{store} is sound: {len(classifier.history)} versions, {len(classifier.classes)} classes")


def backup(store: Path, destination: Path, /, *, access: Access = Access()) -> None:  # noqa: B008
    """Copy a store to a new folder. Others can predict meanwhile; learning waits. A damaged store is refused.

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
    """Export the classifier, to run it without torch.

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
