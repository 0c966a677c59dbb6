"""onnxruntime, kept from reporting to its makers: nothing that concm does leaves the machine by itself.

Its builds send events unless they are told otherwise before they are imported, so it is imported here and nowhere else.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def onnxruntime() -> Any:
    """The package; an `ImportError` where it is not installed. Who sets ORT_DISABLE_TELEMETRY has decided already."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return importlib.import_module("onnxruntime")
