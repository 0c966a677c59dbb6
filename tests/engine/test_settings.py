"""Settings come from files too: what a stranger's file may ask for is bounded."""

from __future__ import annotations

import pytest

from concm.engine.settings import Settings
from concm.records import from_json, to_json

WORK = ("replay", "width", "heads", "hidden", "per_base", "per_novel", "batch", "base_steps", "steps")


@pytest.mark.parametrize("name", WORK)
def test_no_file_asks_for_endless_work(name):
    with pytest.raises(ValueError, match=f"setting {name} must be .* at most"):
        from_json(Settings, {**to_json(Settings()), name: 10**9})


@pytest.mark.parametrize("name", ["shots", "steps", "attention", "hidden"])
def test_nor_for_endless_episodes(name):
    asked = to_json(Settings())
    asked["calibration"][name] = 10**9
    with pytest.raises(ValueError, match=f"setting {name} must be .* at most"):
        from_json(Settings, asked)


def test_settings_come_back_from_their_file():
    assert from_json(Settings, to_json(Settings.full())) == Settings.full()
