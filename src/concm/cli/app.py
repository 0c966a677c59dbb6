"""The command line: what there is to type, and how it ends."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from cyclopts import App, CycloptsError, Group, Parameter

from concm import __version__, progress
from concm.cli import banks, base, bench, corrections, demo, keeping, lists, looking, paper, photos, serve
from concm.cli.options import complain, in_options, printable_streams
from concm.errors import ConcmError

app = App(
    name="concm",
    version=__version__,
    help="Teach an image classifier new classes from five photos and a name, without forgetting.",
    help_epilogue="Add `--debug` to any command to see the traceback of an error.",
    default_parameter=Parameter(negative_iterable=()),
    suppress_keyboard_interrupt=False,  # `main` has a sentence for it
)
GROUPS = {
    "Classify photos": (
        *(photos.fit, photos.learn, photos.predict, looking.evaluate, looking.check, photos.calibrate, looking.show),
        *(corrections.forget, corrections.rename, corrections.merge, corrections.move, corrections.remove),
        *(corrections.undo, serve.serve, keeping.verify, keeping.backup, keeping.export, demo.demo),
    ),
    "Compare methods": (
        *(bench.bench, bench.leaderboard, bench.conformance, base.train, banks.features, banks.bank, paper.app),
    ),
    "Look things up": (bench.methods, lists.scenarios, lists.backbones, lists.attributes),
}
for place, (title, commands) in enumerate(GROUPS.items()):
    group = Group(title, sort_key=place)
    for at, command in enumerate(commands):
        if isinstance(command, App):
            command.group, command.sort_key = (group,), at
            app.command(command)
        else:
            app.command(command, group=group, sort_key=at)
app["--help"].group = app["--version"].group = Group("Options", sort_key=len(GROUPS))


class _Lines(logging.Handler):
    """What the library logs, as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        complain(record.getMessage())


@contextmanager
def _traced() -> Iterator[None]:
    """Show where whatever goes wrong came from, also where it is told in a sentence."""
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: a user's mistake becomes one sentence and an exit code of 1 or 2.

    With `--debug` among the words, its traceback is shown too; that of a bug is shown in any case.
    """
    logger = logging.getLogger("concm")
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines())
    logger.setLevel(logging.INFO)
    progress.show()
    printable_streams()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with _traced() if "--debug" in words else nullcontext():
            app([word for word in words if word != "--debug"], exit_on_error=False, print_error=True)
    except CycloptsError:
        sys.exit(2)
    except ConcmError as error:
        complain(in_options(str(error), app))
        sys.exit(error.code)
    except KeyboardInterrupt:
        complain("interrupted; nothing half-written was left behind")
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(1)
