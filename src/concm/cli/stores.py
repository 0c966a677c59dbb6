"""What commands on a store share: how it is opened, how photos are read, and what is told afterwards."""

from __future__ import annotations

import codecs
import json as js
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from concm.cli.options import complain

if TYPE_CHECKING:
    from concm.classifier.classifier import Classifier


@Parameter(name="*")
@dataclass(frozen=True)
class Access:
    """How to open a store."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    "Where to compute; `auto` uses a GPU if there is one."
    wait: float = 60
    "Seconds to wait for another process that is changing the store."
    backbone: str | None = None
    "The network that sees the photos; a store knows its own, but code and ONNX files must be named each time."

    def open(self, store: Path, seed: int = 0, **readings: int | None) -> Classifier:
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
            **readings,
        )


@Parameter(name="*")
@dataclass(frozen=True)
class Changing(Access):
    """How to open a store that is changed, and how to tell what was done."""

    json: bool = False
    "Print what was done as JSON."

    @contextmanager
    def changing(self, store: Path, *, made: bool = True, **how: Any) -> Iterator[Classifier]:
        """The classifier in that folder, `made` already or not; what the block did to it is told."""
        with self.open(store, **how) as classifier:
            begun, before = time.perf_counter(), classifier.version if made else 0
            yield classifier
            self._told(classifier, time.perf_counter() - begun, before)

    def _told(self, classifier: Classifier, seconds: float, before: int) -> None:
        from concm.report.tables import say

        line = classifier.history[-1]
        for remark in classifier.remarks:
            complain(remark)
        if self.json:
            print_json({**asdict(line), "seconds": round(seconds, 3), "remarks": classifier.remarks})
        elif line.version == before:
            say(f"version {line.version} as before: {line.classes} classes, {line.photos} photos")
        else:
            say(
                f"{line.action}: {line.detail}; version {line.version}, {line.classes} classes, {line.photos} photos "
                f"({seconds:.1f} s)"
            )


@Parameter(name="*")
@dataclass(frozen=True)
class Reading:
    """How labelled photos are read."""

    broken: Literal["refuse", "skip"] = "refuse"
    "What to do with files that cannot be read as pictures."
    nested: Literal["refuse", "flatten"] = "refuse"
    "What to do with folders of photos within a class folder."


@Parameter(name="*")
@dataclass(frozen=True)
class Naming:
    """How new names are taken."""

    similar_names: Literal["refuse", "keep"] = "refuse"
    "What to do with names that differ in nothing but capitals, spaces, hyphens and underscores."


@Parameter(name="*")
@dataclass(frozen=True)
class Teaching(Naming, Reading):
    """How photos that are taught are read."""

    duplicates: Literal["refuse", "skip"] = "refuse"
    "What to do with a picture that two classes claim."


def print_json(value: dict[str, Any], *, lines: bool = False) -> None:
    """JSON on standard output, on one line or on many."""
    narrow = codecs.lookup(sys.stdout.encoding or "ascii").name != "utf-8"  # its numbers for letters are not JSON's
    sys.stdout.write(js.dumps(value, ensure_ascii=narrow, indent=None if lines else 1) + "\n")
    sys.stdout.flush()
