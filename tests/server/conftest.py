"""A store that is served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

from starlette.testclient import TestClient

from tests.support.photographs import pictures
from tests.support.serving import client
from tests.support.zoo import made


@pytest.fixture(autouse=True)
def _own_cache(cache):
    """Nothing here touches the user's."""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """A store of five base classes and one that was learned, to be copied."""
    path = tmp_path_factory.mktemp("fitted") / "zoo"
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(path.parent / "cache"))
        with made(path) as zoo:
            zoo.learn({"okapi": pictures("okapi", 4)})
    return path


@pytest.fixture
def store(fitted, tmp_path) -> Path:
    """A copy of this test alone."""
    return shutil.copytree(fitted, tmp_path / "zoo")


@pytest.fixture
def program(store) -> Iterator[TestClient]:
    """A program that knows the token."""
    with client(store) as found:
        yield found
