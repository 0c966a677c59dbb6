"""Python that the documentation shows runs as it stands.

All fences of a page are run in order, in one namespace, in a folder of made-up photos. The default backbone is a tiny
one there, the bundled bank has few test images and sessions, and the arrays that a page may speak of are given. A fence
after a comment `<!-- not run: why -->` is only compiled. One with a title is also written into the file of that name.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import concm
from concm.data.scenarios import load_scenario
from concm.features.bank import Bank
from concm.methods import registry
from tests.docs.pages import PAGES, ROOT, commands, fences
from tests.support.photographs import BACKBONE, write_class, write_world
from tests.support.tiny import call

WITH_PYTHON = [page for page in PAGES if fences(page, "python")]
METHOD_PAGE = ROOT / "docs" / "how-to" / "add-a-method.md"


@pytest.fixture
def bench_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Methods that a page registers are gone afterwards."""
    registry.entries()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    yield
    registry.entries.cache_clear()


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, bench_registry: None
) -> Iterator[dict[str, Any]]:
    """A folder with all that pages speak of, as the current one; and the arrays that they speak of."""
    monkeypatch.chdir(tmp_path)
    write_world(Path("photos/base"), ["badger", "fox", "hare", "otter"], 12)
    write_world(Path("photos/test"), ["badger", "fox", "hare", "otter", "lynx"], 4, first=100)
    for number, name in enumerate(["a.jpg", "b.jpg", "c.jpg", "x.jpg", "y.jpg"]):
        write_class(Path("."), 1, name="okapi", first=number)[0].rename(name)
    monkeypatch.setattr("concm.classifier.sight.BACKBONE", BACKBONE)
    small = Bank.bundled().vary(sessions=3)
    small = replace(small, test=small.test.where(torch.arange(0, len(small.test.labels), 10)))
    monkeypatch.setattr(Bank, "bundled", classmethod(lambda cls, name="cifar100": small))
    random = np.random.default_rng(0)
    names = load_scenario("cifar100").names[:70]
    y, yt = np.repeat(np.arange(len(names)), 10), np.repeat(np.arange(len(names)), 2)
    centres = random.normal(size=(len(names), 16))
    given = {"X": centres[y] + random.normal(size=(len(y), 16)), "Xt": centres[yt] + random.normal(size=(len(yt), 16))}
    yield {**given, "y": y, "yt": yt, "names": names}
    concm.progress.show(False)


def run(page: Path, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shown_on_a_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(given)
    for fence in fences(page, "python"):
        code = compile(fence.text, fence.where, "exec", dont_inherit=True)
        if fence.title is not None:
            Path(fence.title).write_text(fence.text, encoding="utf-8")
        if fence.run:
            exec(code, vars(module))


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_a_page_runs(page, world, monkeypatch):
    run(page, world, monkeypatch)


@pytest.mark.slow
def test_the_method_of_the_how_to_keeps_the_contract_as_the_page_says(world, monkeypatch, capsys):
    run(METHOD_PAGE, world, monkeypatch)
    [words] = [words for _, words in commands(METHOD_PAGE) if words[:2] == ["concm", "conformance"]]
    assert call(*words[1:]) == 0
    assert "keeps the contract" in capsys.readouterr().out


def test_the_reference_has_every_public_name_and_each_of_its_names_exists():
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: (\S+)$", text, flags=re.M)
    assert {f"concm.{name}" for name in concm.__all__ if name != "__version__"} <= set(shown)
    for path in shown:
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name).__doc__, path


def test_the_page_of_files_has_every_kind_of_file():
    text = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    kinds = set(re.findall(r'^KIND = "(concm-\w+-\d+)"', sources, flags=re.M))
    assert set(re.findall(r"`(concm-\w+-\d+)`", text)) == kinds
    [schema] = re.findall(r"^SCHEMA = (\d+)$", sources, flags=re.M)
    assert f"| schema {schema} |" in text
