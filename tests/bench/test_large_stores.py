"""The bench on stores of many classes: such a store is built, opened, taught one more class and asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "large_stores.py"


def test_a_store_of_synthetic_features_is_built_and_measured():
    words = [sys.executable, str(SCRIPT), "--classes", "40"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("classes 40 ")
    assert "accuracy 1 " in done.stdout
