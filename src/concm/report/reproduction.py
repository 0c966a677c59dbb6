"""Whether a measured row is its paper's: judged session by session, and by the last base and novel accuracy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from concm.evaluation.published import distance, implied
from concm.evaluation.results import Cut
from concm.evaluation.statistics import Printed, Row, Table

NEAR = 3.0
"""Points within which a row is called reproduced: of root mean square distance session by session, and at the end."""
ALIASES = {"imprint": "iw"}


@dataclass(frozen=True)
class Verdict:
    """How far a measured row lies from the printed one: harmonic means by session, and last base and novel accuracy.

    The last two are solved from the printed last harmonic mean and accuracy; none where they contradict each other.
    """

    rms: float | None
    ahm: float | None
    fa: float | None
    last_base: float | None
    last_novel: float | None

    @property
    def near(self) -> bool:
        """Whether it lands on the printed row session by session."""
        return self.rms is not None and self.rms <= NEAR

    @property
    def reproduced(self) -> bool:
        """Whether it also ends with the printed row's base and novel accuracy, as far as these are known."""
        return self.near and not self._off

    @property
    def _off(self) -> list[str]:
        """Which accuracies at the end are not the printed row's."""
        last = {"base": self.last_base, "novel": self.last_novel}
        return [name for name, value in last.items() if value is not None and abs(value) > NEAR]

    @property
    def words(self) -> str:
        """The verdict as the page says it."""
        if self.near and self._off:
            return f"near session by session, but not in its last {' and '.join(self._off)} accuracy"
        return f"reproduced within {NEAR:g} points" if self.reproduced else "not reproduced"

    @classmethod
    def of(cls, row: Row, printed: Printed, cut: Cut) -> Verdict:
        """Of a measured row beside a printed one."""
        share = cut.base / (cut.base + cut.sessions * cut.way)
        known = printed.fa is not None and len(printed.hm) == cut.sessions
        there = implied(printed.hm[-1], printed.fa or 0.0, share) if known else None
        return cls(
            rms=distance(row.hm, printed.hm),
            ahm=None if printed.ahm is None else row.ahm - printed.ahm,
            fa=None if printed.fa is None else row.fa - printed.fa,
            last_base=None if there is None else row.last_base - there[0],
            last_novel=None if there is None else row.last_novel - there[1],
        )


def printed(found: Table, row: Row) -> Printed | None:
    """The published row of a method; variants of it have none, but for the paper's own form."""
    name, _, variant = row.method.partition(":")
    rows = {_key(entry.method): entry for entry in found.published}
    return None if variant not in ("", "published", "released") else rows.get(_key(name))


def _key(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return ALIASES.get(plain, plain)
