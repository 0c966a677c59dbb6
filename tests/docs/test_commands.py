"""Every command, option, target, script and extra that the documentation shows exists; the reference has them all."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from cyclopts import App, CycloptsError

from concm.cli.app import app
from tests.docs.pages import PAGES, ROOT, commands, inline

REFERENCE = ROOT / "docs" / "reference" / "commands.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
SHOWN = [(where, words) for page in PAGES for where, words in commands(page)]


def typed(words: list[str]) -> list[str] | None:
    """What follows `concm` in a line of a shell, if it calls that."""
    if words[0] == "concm":
        return words[1:]
    return words[words.index("concm") + 1 :] if words[0] == "torchrun" and "concm" in words else None


def leaves(known: App, path: tuple[str, ...] = ()) -> dict[str, App]:
    """All commands by what is typed for them."""
    found: dict[str, App] = {}
    for name in known:
        if not name.startswith("-"):
            found |= leaves(known[name], (*path, name))
            if known[name].default_command is not None:
                found[" ".join((*path, name))] = known[name]
    return found


COMMANDS = leaves(app)


def options(name: str) -> set[str]:
    """The options of a command as it is typed, with what it has from the whole application."""
    with app.app_stack(name.split()):
        collection = COMMANDS[name].assemble_argument_collection()
    return {word for item in collection for word in item.names if word.startswith("--")}


OPTIONS = {name: options(name) for name in COMMANDS}
EVERY_OPTION = set().union(*OPTIONS.values(), {"--help", "--version", "--debug"})


@pytest.mark.parametrize(
    ("where", "words"), [(where, own) for where, words in SHOWN if (own := typed(words)) is not None]
)
def test_a_command_that_is_shown_can_be_typed(where, words):
    try:
        app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        pytest.fail(f"{where}: concm {' '.join(words)}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_within_sentences_exist(page):
    for code in inline(page):
        words = code.split()
        if words[0] == "concm" and len(words) > 1 and words[1] not in ("COMMAND", "--help", "--version"):
            name = next((name for name in COMMANDS if f"{' '.join(words[1:])} ".startswith(f"{name} ")), None)
            assert name is not None, f"{page.name}: `{code}`"
            known = OPTIONS[name] | {"--help"}
        elif words[0].startswith("--"):
            known = EVERY_OPTION
        else:
            continue
        asked = {word.strip("[]") for word in words if word.startswith("--")}
        assert asked <= known, f"{page.name}: `{code}`"


def test_make_targets_scripts_and_extras_exist():
    for where, words in SHOWN:
        if words[0] == "make":
            assert set(words[1:]) <= TARGETS, where
        for word in words:
            if word.endswith(".py") and word.startswith(("bench/", "tools/")):
                assert (ROOT / word).is_file(), where
            if extras := re.fullmatch(r"(?:\.|concm)\[([\w,]+)\]", word):
                assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys(), where
    for page in PAGES:
        for script in re.findall(r"\b(?:bench|tools)/\w+\.py\b", page.read_text(encoding="utf-8")):
            assert (ROOT / script).is_file(), f"{page.name}: {script}"


def test_installation_lists_every_extra():
    text = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.M)) == PROJECT["optional-dependencies"].keys()


def sections(page: Path) -> dict[str, str]:
    """The parts of a page by their headings."""
    parts = re.split(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_every_option_of_a_command_and_no_other(name):
    parts = sections(REFERENCE)
    text = parts[f"concm {name}"]
    shared = [parts[heading] for heading in parts if f"(#{heading.lower().replace(' ', '-')})" in text]
    rows = [line.split("|")[1] for line in "\n".join([text, *shared]).splitlines() if line.startswith("|")]
    listed = {word for row in rows for word in re.findall(r"`(--[\w-]+)`", row)}
    own = {option for option in OPTIONS[name] if not option.startswith("--no-")}
    assert listed == own
