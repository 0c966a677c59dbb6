"""What a store was made with: all that its features depend on, as its database records it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from concm.backbones.encoder import Identity
from concm.classifier import database
from concm.classifier.store import Store
from concm.errors import ConcmError, loading
from concm.files import has_digest
from concm.records import from_json, to_json


@dataclass(frozen=True)
class Made:
    """The backbone as the user named it, the encoder's identity, the seed, concm's version, and a digest of a file.

    That file is the backbone's, in the store if it was trained with concm or came from timm. `rehearsal` has how well
    each trust in names did, and `licence` is that of the weights where it is known.
    """

    backbone: str
    encoder: Identity
    seed: int
    concm: str
    file: str | None = None
    rehearsal: dict[str, float] = field(default_factory=dict)
    licence: str | None = None

    @classmethod
    def of(cls, store: Store) -> Made:
        """What a store says of itself."""
        with loading(database.file(store.path), "database of a store", "restore the folder from a backup"):
            encoder = to_json(Identity.read(store.meta["encoder"]))
            made = from_json(cls, {**store.meta, "encoder": encoder})
            if not 0 <= made.seed < 2**63:
                raise ValueError(f"its seed is {made.seed}")
            return made

    def check(self, file: Path) -> None:
        """Refuse a backbone's file that is missing, or not the one that was written."""
        if self.file is None:
            return
        if not file.is_file():
            raise ConcmError(f"{file} is missing, which the store's photos were seen with")
        if not has_digest(file, self.file):
            raise ConcmError(f"{file} is damaged: it is not the backbone file that was written")
