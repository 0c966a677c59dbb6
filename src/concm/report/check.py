"""What `concm check` prints."""

from __future__ import annotations

from collections.abc import Sequence

from concm.classifier.check import Check, ClassCheck, Suspect
from concm.report.tables import print_whole, ruled, say

WORDS = {"enough": "enough photos", "more photos": "more photos would help", "confused": "looks like another class"}


def show_check(found: Check, most: int) -> None:
    """Classes with the worst first, then the photos to look at and the confusions, at most so many of each."""
    expected = "" if found.expected is None else f", {found.expected:.0f} % of photos like these expected to be right"
    say(f"version {found.version}: {len(found.classes)} classes{expected}")
    table = ruled("class", "photos", "separate", "expected", "with 5 more each", "20 more each", "verdict", title="")
    table.columns[-1].justify = "left"
    for row in sorted(found.classes, key=_worst):
        figures = [_per_cent(value) for value in (row.expected, row.with_5_more, row.with_20_more)]
        verdict = WORDS[row.verdict] if row.photos else "has no photo yet"
        table.add_row(row.name, str(row.photos), str(row.separate), *figures, verdict)
    print_whole(table)
    _suspects("likely mislabelled", found.mislabelled, most)
    _suspects("do harm to others", found.harmful, most)
    if found.confused:
        confused = ruled("confused", "taken for", "photos no.", "because of no.", title="")
        for column in confused.columns[1:]:
            column.justify = "left"
        for pair in found.confused[:most]:
            confused.add_row(pair.name, pair.taken_for, _numbers(pair.photos), _numbers(pair.because))
        print_whole(confused)
    if not (found.mislabelled or found.harmful or found.confused):
        say("every photo is most like its own class")


def _worst(row: ClassCheck) -> float:
    return -1.0 if row.expected is None else row.expected


def _suspects(title: str, photos: Sequence[Suspect], most: int) -> None:
    if not photos:
        return
    table = ruled(title, "number", "class", "more like", "doubt", "harm", title="")
    table.columns[2].justify = table.columns[3].justify = "left"
    for photo in photos[:most]:
        figures = (f"{photo.doubt:.2f}", f"{photo.harm:+.1f}")
        table.add_row(photo.photo, str(photo.number), photo.name, photo.more_like, *figures)
    print_whole(table)
    if len(photos) > most:
        say(f"… and {len(photos) - most} more")


def _per_cent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"


def _numbers(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
