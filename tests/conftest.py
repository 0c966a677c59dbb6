"""Fixtures that every room may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, max_examples=40, derandomize=True, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CONCM_CACHE", str(folder))
    return folder
