"""Reads CIFAR's pickled batches through an unpickler that cannot run code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from concm.errors import loading

CIFAR = ("CIFAR batch file", "download cifar-100-python again")


class _Kind:
    """Stands for numpy.dtype, whose own state can be damaged into a crash."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        text = name.decode() if isinstance(name, bytes) else name
        if text not in ("u1", "i4", "i8"):
            raise pickle.UnpicklingError(f"it holds an array of {text!r}")
        self.name = text

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in (">", b">"):
            self.name = f">{self.name[-2:]}"


class _Array:
    """Stands for numpy.ndarray; the array is made here, from plain bytes."""

    value: NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        self.fill(data, kind, shape, "F" if fortran else "C")

    def fill(self, data: bytes, kind: _Kind, shape: tuple[int, ...], order: Any) -> _Array:
        self.value = np.frombuffer(data, np.dtype(kind.name)).reshape(shape, order=order)
        return self


class _Reconstruct:
    __slots__ = ()

    def __call__(self, *_: object) -> _Array:
        return _Array()


class _FromBuffer:
    __slots__ = ()

    def __call__(self, data: bytes, kind: _Kind, shape: tuple[int, ...], order: Any) -> _Array:
        return _Array().fill(data, kind, shape, order)


class _Encode:
    __slots__ = ()

    def __call__(self, text: str, _: str = "latin1") -> bytes:
        return text.encode("latin1")


# All that numpy arrays and byte strings need; a file that asks for anything else is refused.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _Encode(),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Reconstruct() for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FromBuffer() for core in ("core", "_core")},
}


class _Unpickler(pickle._Unpickler):
    """The unpickler that is written in Python: no number in a file makes it take memory for what does not come."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_bytearray8(self: Any) -> None:
        """A byte array, of as many bytes as there are."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ADMITTED[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    """One CIFAR batch file as {key: value}, keys as text, whichever Python wrote it."""
    with loading(path, *CIFAR):
        batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return {
            key.decode() if isinstance(key, bytes) else str(key): value.value if isinstance(value, _Array) else value
            for key, value in batch.items()
        }
