"""Reads CIFAR's pickled batches through an unpickler that cannot run code."""

from __future__ import annotations

import codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core import multiarray

from concm.errors import ConcmError

# All that numpy arrays and byte strings need; a file that asks for anything else is refused.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): multiarray._reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): multiarray._reconstruct,
    ("_codecs", "encode"): codecs.encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ADMITTED[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    """One CIFAR batch file as {key: value}, keys as text, whichever Python wrote it."""
    try:
        with path.open("rb") as file:
            batch = _Unpickler(file, encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in batch.items()}
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError, IndexError) as error:
        raise ConcmError(f"{path} is not a CIFAR batch file ({error}); download cifar-100-python again") from error
