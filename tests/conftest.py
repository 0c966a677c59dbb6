"""Fixtures that every room may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background, whose children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # some tests import onnxruntime themselves

settings.register_profile("repeatable", deadline=None, max_examples=40, derandomize=True, database=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test comes first, so that at the end no process waits for it."""
    items.sort(key=lambda item: item.path.name != "test_package.py")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CONCM_CACHE", str(folder))
    return folder
