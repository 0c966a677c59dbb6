"""Photos of made-up classes, and stores that were taught from them by commands."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest

from tests.support.photographs import BACKBONE, write_world
from tests.support.shell import (
    BASE,
    KNOWN,
    LATER,
    ROOT,
)
from tests.support.tiny import call


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory):
    """A cache of these tests alone, the tiny backbone within reach of other processes, and no lines about progress."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("concm.progress.SECONDS_BETWEEN_LINES", float("inf"))
        patch.setenv("CONCM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        gc.collect()
        gc.freeze()  # so that collecting what a command left, and only that, takes no time
        yield
        gc.unfreeze()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos: base classes, later ones, one that nobody has taught yet, and photos to ask about."""
    root = tmp_path_factory.mktemp("world")
    write_world(root / "base", BASE, 24)
    write_world(root / "later", LATER, 5)
    write_world(root / "heron", ["heron"], 5)
    write_world(root / "asked", [*KNOWN, "heron"], 4, first=100)
    return root


@pytest.fixture(scope="module")
def taught(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that knows six classes, two of them since its second version."""
    store = tmp_path_factory.mktemp("taught") / "zoo"
    assert call("fit", store, world / "base", "--backbone", BACKBONE) == 0
    assert call("learn", store, world / "later") == 0
    gc.collect()  # the commands' connections
    return store


@pytest.fixture
def zoo(taught: Path, tmp_path: Path) -> Path:
    return shutil.copytree(taught, tmp_path / "zoo")
