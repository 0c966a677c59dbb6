"""Code that a user names: `package.module:name` or `file.py:name`; the current folder is searched too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

FAILURES = (ImportError, AttributeError, OSError, ValueError, TypeError, SyntaxError)
"""What importing code that is not there, or is no code, raises."""


def imported(module: str, attribute: str) -> Any:
    """What a module or a Python file calls `attribute`."""
    with _current_folder():
        found = _loaded(Path(module)) if module.endswith(".py") else import_module(module)
    return getattr(found, attribute)


def _loaded(file: Path) -> Any:
    """A file as a module, under a name that no other module can have."""
    content = blake2b(file.read_bytes(), digest_size=8).hexdigest() if file.is_file() else ""
    name = f"concm_own:{file.resolve()}:{content}"  # an edited file is another module
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ImportError(f"no Python file at {file}")
    if name not in sys.modules:
        sys.modules[name] = module_from_spec(spec)  # before it runs: dataclasses look their module up
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contextmanager
def _current_folder() -> Iterator[None]:
    """Allow imports from the current folder, as `python -m` does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
