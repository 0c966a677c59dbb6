"""The command line: what there is to type, and how it ends."""

from __future__ import annotations

import sys

from cyclopts import App, CycloptsError

from concm import __version__
from concm.cli import base, bench, lists, photos
from concm.cli.options import complain
from concm.errors import ConcmError

app = App(
    name="concm",
    version=__version__,
    help="Teach an image classifier new classes from five photos and a name, without forgetting.",
    suppress_keyboard_interrupt=False,  # `main` has a sentence for it
)
for command in (
    *(photos.fit, photos.learn, photos.predict, photos.show, photos.forget, photos.undo, photos.evaluate),
    *(photos.export, photos.demo),
    *(bench.bench, bench.methods, bench.conformance),
    *(base.train, base.features, base.bank),
    *(lists.attributes, lists.scenarios, lists.backbones),
):
    app.command(command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: a user's mistake becomes one sentence and an exit code of 1 or 2."""
    try:
        app(arguments, exit_on_error=False, print_error=True)
    except CycloptsError:
        sys.exit(2)
    except ConcmError as error:
        complain(str(error))
        sys.exit(error.code)
    except KeyboardInterrupt:
        complain("interrupted; nothing half-written was left behind")
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(1)
