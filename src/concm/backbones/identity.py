"""What features depend on: two encoders of one identity give the same features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from concm.data.transform import Transform
from concm.records import from_json


@dataclass(frozen=True)
class Identity:
    """What features depend on, as files record it: the backbone's name and weights, and the transform of pictures.

    Features that do not come from pictures have no transform. `blocks`, `turns` and `looks` are those of the encoder;
    `layout` has the widths of several readings, and is empty for one.
    """

    name: str
    weights: str
    transform: Transform | None = None
    blocks: int = 1
    turns: int = 1
    looks: int = 1
    layout: tuple[int, ...] = ()

    @property
    def passes(self) -> int:
        """How often the network sees each picture."""
        return self.turns * self.looks

    @classmethod
    def read(cls, data: Any) -> Identity:
        """From JSON; files of before have `mirror`, which is two looks."""
        if isinstance(data, dict) and isinstance(data.get("mirror"), bool):
            data = {"looks": 1 + data["mirror"], **data}
            del data["mirror"]
        return from_json(cls, data)
