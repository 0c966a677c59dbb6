"""The house: which room may use which, what the package offers to the world, and how quiet it is."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import concm
from concm.errors import ConcmError, Misuse
from concm.methods import registry as registered

SOURCE = Path(concm.__file__).parent
SHARED = ("cluster", "errors", "files", "importing", "metrics", "progress", "records", "runtime")
"""Small modules that every room may use; they use no room."""
ORDER = (
    ("data",),
    ("semantics",),
    ("backbones",),
    ("features",),
    ("engine",),
    ("training", "classifier"),
    ("methods",),
    ("evaluation",),
    ("report",),
    ("demo", "server"),
    ("cli",),
)
"""A room may use those on the floors below its own."""
FLOOR = {room: at for at, rooms in enumerate(ORDER) for room in rooms}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def uses(path: Path) -> set[str]:
    """What a module imports of the package, anywhere in it, as the first name behind `concm`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            first, _, rest = node.module.partition(".")
            if first == "concm":
                found |= {rest.partition(".")[0]} if rest else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("concm.")}
    return found - {"__version__"}


@pytest.mark.promise
@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_uses_only_rooms_below_it(path):
    room, *inner = path.relative_to(SOURCE).parts
    if not inner:
        room = room.removesuffix(".py")
        allowed = {*FLOOR, *SHARED} if room in ("__init__", "__main__", "onnx") else set(SHARED)
    else:
        below = {other for other, floor in FLOOR.items() if floor < FLOOR[room]}
        allowed = {room, *below, *SHARED}
    assert uses(path) <= allowed


def test_every_room_introduces_itself():
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms - {"assets"} <= set(FLOOR)
    for room in rooms:
        assert importlib.import_module(f"concm.{room}").__doc__, room


def test_no_file_holds_more_than_one_idea_can_take():
    long = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in modules()}
    assert {name for name, lines in long.items() if lines > 300} <= LONG.keys()


LONG = {
    "classifier/classifier.py": "all that changes a store, most of it documentation",
    "classifier/opened.py": "all that a store is asked for, most of it documentation",
    "classifier/store.py": "one format on disk: reading, transactions, checks and the copy",
    "engine/concm.py": "one algorithm: the verbs, what each does to prototypes, and saving",
    "methods/mamba_fscil.py": "one method in one file: a scan, an objective and the sessions",
}


# what the package offers

PUBLIC = {
    "Bank": "from_arrays load bundled digest base_session parts backbone dimension layout passes vary save",
    "BenchTable": "rows to_markdown to_latex to_csv to_json plot",
    "Classifier": "close store classes classes_ history version fit learn forget photos remove move rename merge "
    "undo predict stream predict_proba evaluate verify backup export learn_name teach known calibrate check features "
    "encoder",
    "ConCM": "fit learn partial_fit decision_function predict_proba predict score get_params set_params",
    "ConcmError": "code",
    "Misuse": "code",
    "Prediction": "",
    "Scenario": "sessions classes_of seen vary",
    "Settings": "needs full",
    "__version__": None,
    "bench": None,
    "method": None,
}


def members(name: str) -> set[str]:
    found = getattr(concm, name)
    ours = [part for part in found.__mro__ if part.__module__.startswith("concm.")]
    fields = getattr(found, "__dataclass_fields__", {})
    return {word for part in ours for word in vars(part) if not word.startswith("_") and word not in fields}


@pytest.mark.promise
def test_the_public_names_are_these_and_none_disappears_unnoticed():
    assert set(concm.__all__) == PUBLIC.keys() == set(dir(concm))
    for name, words in PUBLIC.items():
        if words is not None:
            assert members(name) == set(words.split()), name


def test_every_public_name_has_a_docstring_and_what_can_be_called_an_example():
    for name in set(concm.__all__) - {"__version__"}:
        said = inspect.getdoc(getattr(concm, name)) or ""
        assert said, name
        if not name.endswith(("Error", "Misuse")):
            assert "Examples\n" in said, name
            assert "Parameters\n" in said or "Attributes\n" in said, name


def documented() -> list[str]:
    chosen = [path.relative_to(SOURCE.parent).with_suffix("") for path in modules() if ">>>" in path.read_text()]
    return [".".join(path.parts) for path in chosen]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
    """A copy of the registry of methods for this test alone."""
    monkeypatch.setattr(registered, "_registered", dict(registered.entries()))
    yield
    monkeypatch.undo()
    registered.entries.cache_clear()


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", documented())
def test_the_examples_in_docstrings_are_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONCM_CACHE", str(tmp_path / "cache"))
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed


def test_a_mistake_of_the_caller_is_a_value_error_too():
    assert issubclass(Misuse, ValueError)
    assert issubclass(Misuse, ConcmError)
    assert (ConcmError.code, Misuse.code) == (1, 2)


# how quiet it is


def test_importing_it_imports_nothing_slow_and_changes_nothing():
    program = (
        "import sys, warnings, signal\n"
        "before = list(warnings.filters), signal.getsignal(signal.SIGINT)\n"
        "import concm\n"
        "assert before == (list(warnings.filters), signal.getsignal(signal.SIGINT))\n"
        "assert not {'torch', 'numpy', 'PIL', 'rich', 'matplotlib'} & set(sys.modules)\n"
        "import concm.data.images, concm.report.figures, concm.classifier.classifier\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "from concm.methods import entries\n"
        "assert entries()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_onnxruntime_is_imported_in_one_place_that_keeps_it_from_reporting(tmp_path):
    pytest.importorskip("onnx", reason='onnx is not installed: pip install -e ".[onnx]"')
    naming = re.compile(r"^\s*(import|from) onnxruntime", re.M)
    free = [
        path.name
        for path in modules()
        if naming.search(re.sub(r"if TYPE_CHECKING:\n(    .*\n)+", "", path.read_text()))
    ]
    assert free == []
    program = (
        "import numpy as np\n"
        "from onnx import TensorProto as kind, helper as make\n"
        "own = lambda name: make.make_tensor_value_info(name, kind.FLOAT, ['n', 2])\n"
        "graph = make.make_graph([make.make_node('Relu', ['x'], ['y'])], 'g', [own('x')], [own('y')])\n"
        "model = make.make_model(graph, opset_imports=[make.make_opsetid('', 17)], ir_version=8)\n"
        "from concm.backbones.onnx import session\n"
        "session(model.SerializeToString()).run(None, {'x': np.ones((1, 2), np.float32)})\n"
    )
    home = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    home |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], env=home, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if path.relative_to(SOURCE).parts[0] not in ("cli", "cli.py", "__main__.py")],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_no_message_of_the_library_names_an_option_of_the_command_line(path):
    """Whole commands in backquotes, such as `concm train --method x`, are no options of the caller's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            words = " ".join(
                part.value
                for part in ast.walk(node.exc)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )
            alone = re.sub(r"`?concm [a-z]+[^`]*`?|pip install [^;]*", "", words)
            assert not re.search(r"(?<![\w-])--[a-z]", alone), words
