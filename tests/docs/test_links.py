"""Links and pictures lead somewhere, the site has every page, and what it lists is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import NOTEBOOKS, PAGES, ROOT, anchors, links

CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAV = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", CONFIG.partition("\nnav:\n")[2], flags=re.M)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_relative_link_and_picture_exists(page):
    for link in links(page):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{relative(page)} links to {link}"
        directive = anchor.startswith("concm.") and f"::: {anchor}\n" in file.read_text(encoding="utf-8")
        if anchor and file.suffix == ".md" and not directive:
            assert anchor in anchors(file), f"{relative(page)} links to {link}"


@pytest.mark.parametrize("page", [page for page in PAGES if "docs" in page.parts], ids=relative)
def test_pages_of_the_site_link_within_the_site(page):
    for link in links(page):
        target = link.partition("#")[0]
        assert (page.parent / target).resolve().is_relative_to(ROOT / "docs"), f"{relative(page)} links to {link}"


def test_every_page_is_in_the_navigation_once_and_every_entry_exists():
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if "docs" in page.parts]
    assert sorted(NAV) == sorted(pages)


def test_stylesheets_of_the_site_exist():
    sheets = re.findall(r"^ +- (\S+\.css)$", CONFIG, flags=re.M)
    assert sheets
    assert all((ROOT / "docs" / sheet).is_file() for sheet in sheets)


def test_every_notebook_is_listed_on_their_page():
    listed = links(ROOT / "docs" / "notebooks" / "index.md")
    assert {notebook.name for notebook in NOTEBOOKS} <= set(listed)
