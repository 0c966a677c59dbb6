"""The library's sentences, in which arguments stand in backquotes, as answers about the fields of a request."""

from __future__ import annotations

import re
from typing import Any

_CHOICE = re.compile(r'`(duplicates|similar_names)="([a-z]+)"`')


def refusal(sentence: str) -> dict[str, Any]:
    """An error as JSON; where a field answers what is asked back, `choice` has it, for whoever asks people."""
    said = {"error": _CHOICE.sub(r'`"\1": "\2"`', sentence).replace("`move`", "`/api/photos/move`")}
    found = _CHOICE.search(sentence)
    return said if found is None else {**said, "choice": {found[1]: found[2]}}
