"""The container: what its recipe copies, installs and runs exists."""

from __future__ import annotations

import json
import re
import tomllib

from concm.cli.app import app
from tests.docs.pages import ROOT

RECIPE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
LINES = re.findall(r"^([A-Z]+) (.+)$", RECIPE, flags=re.M)


def words(instruction: str) -> list[str]:
    return [rest for name, rest in LINES if name == instruction]


def test_what_it_copies_exists_and_is_all_that_the_build_needs():
    own = [rest for rest in words("COPY") if not rest.startswith("--from")]
    copied = {word for rest in own for word in rest.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"src", "pyproject.toml", "constraints.txt", project["readme"], *project["license-files"]} <= copied


def test_what_it_installs_are_extras_that_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', "\n".join(words("RUN")))
    assert {"photos", "serve"} <= set(extras.split(",")) <= set(project["optional-dependencies"])


def test_it_runs_a_command_that_there_is_with_options_that_it_has():
    (entry,), command = (json.loads(words(name)[0]) for name in ("ENTRYPOINT", "CMD"))
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert entry in scripts
    called, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
    assert called.__name__ == "serve"
    assert (str(bound.args[0]), bound.kwargs["host"]) == (words("VOLUME")[0], "0.0.0.0")
    assert words("EXPOSE") == [str(bound.kwargs["port"])]


def test_it_does_not_run_as_root_and_keeps_its_store_in_a_volume():
    assert words("USER") == ["concm"]
    assert words("VOLUME") == ["/store"]
