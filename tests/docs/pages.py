"""The pages of the documentation as tests read them: fences of code with their lines, inline code, and links."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
NOT_RUN = re.compile(r"<!-- not run: .+ -->")


@dataclass(frozen=True)
class Fence:
    """A block of code: its language, what stands behind that, its text and its first line."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    run: bool

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path, *languages: str) -> list[Fence]:
    """The fences of a page in these languages; one after a comment `<!-- not run: why -->` is not to be run."""
    found, lines, at = list[Fence](), page.read_text(encoding="utf-8").splitlines(), 0
    while at < len(lines):
        opened = re.match(r"( *)```(\w+)(.*)", lines[at])
        if opened is None:
            at += 1
            continue
        indent, language, rest = opened.groups()
        end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
        text = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end]) + "\n"
        title = re.search(r'title="([^"]+)"', rest)
        before = next((line for line in reversed(lines[:at]) if line.strip()), "")
        run = NOT_RUN.fullmatch(before.strip()) is None
        if language in languages:
            found.append(Fence(page, at + 1, language, title and title[1], text, run))
        at = end + 1
    return found


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Every command of the page's shell fences, as where it stands and its words; comments are left out."""
    found = []
    for fence in fences(page, "sh"):
        text = fence.text.replace("\\\n", " ")
        found += [(fence.where, words) for line in text.splitlines() if (words := shlex.split(line, comments=True))]
    return found


def prose(page: Path) -> str:
    """The page without its fences."""
    return re.sub(r"^ *```\w*.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def inline(page: Path) -> list[str]:
    """Code within the sentences and tables of a page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def links(page: Path) -> list[str]:
    """Where links and pictures of a page lead to, as far as that is in this repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as links have them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
