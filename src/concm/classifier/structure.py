"""A structure file as programs without torch read it: what an exported network needs to know of the classes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concm.classifier.answers import Prediction, share_below
from concm.classifier.photos import UNKNOWN
from concm.errors import ConcmError, loading

KIND = "concm-structure-2"
GOES_WITH = ("encoder", "metric")
"""What a network has in it: by which encoder photos are seen, and the digest of the metric."""
_TYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "BOOL": np.bool_}


@dataclass(frozen=True)
class Structure:
    """The inputs of the network beside pictures, the meaning of its outputs, and what of the network they go with.

    Files of before do not say the latter.
    """

    tensors: dict[str, NDArray[Any]]
    labels: list[str]
    base: int
    version: int
    quantiles: list[float]
    goes_with: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Structure:
        """From a file; one that is damaged or of another kind is refused."""
        with loading(path, "structure file", "export it again"):
            data = path.read_bytes()
            begin = 8 + int.from_bytes(data[:8], "little")
            head = json.loads(data[8:begin])
            about = head.pop("__metadata__", {})
            if about.get("kind") != KIND:
                raise ConcmError(f"{path} is no structure that this concm reads (format {KIND}); export it again")
            tensors = {}
            for name, own in head.items():
                first, last = own["data_offsets"]
                values: NDArray[Any] = np.frombuffer(data[begin + first : begin + last], _TYPES[own["dtype"]])
                tensors[name] = values.reshape(own["shape"])
                if not np.isfinite(values).all():
                    raise ValueError(f"{name} has values that are no numbers")
            meta = json.loads(about["meta"])
            goes_with = {name: meta[name] for name in GOES_WITH if name in meta}
            found = cls(tensors, meta["labels"], meta["base"], meta["version"], meta["quantiles"], goes_with)
            if any(len(found.labels) != len(tensors[name]) for name in ("bias", "offset") if name in tensors):
                raise ValueError("it has other classes than labels")
            return found

    def threshold(self, rate: float) -> float:
        """The familiarity that this share of known photos does not reach."""
        if rate <= 0 or not self.quantiles:
            return -np.inf
        return float(np.quantile(np.asarray(self.quantiles, np.float64), rate))

    @cached_property
    def _usual(self) -> list[float]:
        return [self.threshold(percent / 100) for percent in range(1, 101) if self.quantiles]

    def prediction(
        self, name: str, probabilities: NDArray[np.float32], familiarity: float, unknown_rate: float, top: int
    ) -> Prediction:
        """What a photo with these outputs shows, as the classifier itself would say it."""
        best = np.argsort(-probabilities, kind="stable")[:top]
        guesses = [(self.labels[at], float(probabilities[at])) for at in best]
        strange = familiarity < self.threshold(unknown_rate)
        return Prediction(
            label=UNKNOWN if strange else guesses[0][0],
            score=guesses[0][1],
            top=guesses,
            unknown=strange,
            novel=bool(best[0] >= self.base),
            version=self.version,
            photo=name,
            familiarity=share_below(familiarity, self._usual),
        )
