"""Pictures that are there twice: those that a class has already, that it is given twice, and that two classes claim.

And those that come again: a photo that was removed is in the folder that it came from still.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Literal, get_args

from concm.classifier.lesson import Lesson
from concm.classifier.stream import Encoded
from concm.errors import ConcmError, Misuse

Duplicates = Literal["refuse", "skip"]
_OTHERWISE = {True: "A known photo gets another class with `move`", False: "Give it to one class alone"}
"""What to do about a disputed picture where nothing is left to learn without it, by whether another class has it."""


def check_duplicates(duplicates: str) -> None:
    """Refuse a word that is no way to deal with a picture that two classes claim."""
    if duplicates not in get_args(Duplicates):
        raise Misuse(f"`duplicates` is one of {', '.join(get_args(Duplicates))}, not {duplicates!r}")


def not_removed(lesson: Lesson, removed: Callable[[str, str], bool]) -> Lesson:
    """The lesson without pictures that were `removed` from their class; a class that gets no others gets these."""
    left, remarks = dict[str, list[Encoded]](), list[str]()
    for name, items in lesson.photos.items():
        left[name] = [item for item in items if not removed(name, item.digest)] or items
        if gone := len(items) - len(left[name]):
            of = f"{gone} of {len(items)} photos of {name!r} were removed from it before"
            remarks.append(f"{of}, and are left out: give them alone to teach them again")
    return Lesson(left, [*lesson.remarks, *remarks])


def only_new(
    lesson: Lesson, duplicates: Duplicates, owner: Callable[[str], str | None] = lambda digest: None
) -> Lesson:
    """The lesson without pictures that are there already; `owner` gives the class that has a digest.

    What its own class has, or gets twice, is left out with a remark. What two classes claim is refused or, with "skip",
    left out of all of them but the one that has it already. Classes of which nothing is left are left out too.
    """
    claims: dict[str, dict[str, str]] = defaultdict(dict)
    for name, items in lesson.photos.items():
        for item in items:
            claims[item.digest].setdefault(name, item.name)
    fresh: dict[str, list[Encoded]] = {}
    known, repeated, disputed, elsewhere = Counter[str](), list[str](), list[str](), False
    for name, items in lesson.photos.items():
        own: dict[str, Encoded] = {}
        for item in items:
            has = owner(item.digest)
            others = [f"{photo} ({other})" for other, photo in claims[item.digest].items() if other != name]
            if has == name:
                known[name] += 1
            elif has is not None:
                elsewhere |= not disputed
                disputed.append(f"{item.name} ({name}) is already known as a photo of {has!r}")
            elif others:
                disputed.append(f"{item.name} ({name}) and {others[0]} are the same picture")
            elif item.digest in own:
                repeated.append(f"{item.name} is the same picture as {own[item.digest].name}: it counts once")
            else:
                own[item.digest] = item
        if own:
            fresh[name] = list(own.values())
    if disputed and duplicates == "refuse":
        ways = 'Such pictures can be left out with `duplicates="skip"`' if fresh else _OTHERWISE[elsewhere]
        raise Misuse(f"{disputed[0]}: which is it? {ways}")
    if not fresh and disputed:
        raise ConcmError("nothing is left to learn: other classes claim all of these pictures")
    remarks = [
        f"{count} of {len(lesson.photos[name])} photos of {name!r} are known already" for name, count in known.items()
    ]
    return Lesson(fresh, [*lesson.remarks, *remarks, *repeated, *(f"skipped: {words}" for words in disputed)])
