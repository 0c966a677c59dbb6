"""Stores of made-up animals that several tests begin with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from concm.classifier.classifier import Classifier
from tests.support.photographs import BACKBONE, pictures
from tests.support.zoo import (
    FEW,
    QUICK,
    base_photos,
    made,
    opened,
)


@pytest.fixture(autouse=True)
def _own_cache(cache):
    """Nothing here touches the user's."""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """A store of the base classes, to be copied."""
    root = tmp_path_factory.mktemp("fitted")
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(root / "cache"))
        zoo = Classifier(root / "zoo", BACKBONE, device="cpu").fit(base_photos(), settings=QUICK)
        zoo.store.close()
    return root / "zoo"


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """A store of two photos of each of two classes."""
    path = tmp_path_factory.mktemp("few") / "zoo"
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(path.parent / "cache"))
        made(path, {name: pictures(name, 2) for name in FEW}).store.close()
    return path


@pytest.fixture
def zoo(fitted, tmp_path) -> Classifier:
    """A classifier of the base classes, of this test alone."""
    return opened(shutil.copytree(fitted, tmp_path / "zoo"))


@pytest.fixture
def used(zoo) -> Classifier:
    """One whose lock file is there already."""
    return zoo.learn({"okapi": pictures("okapi", 2)})
