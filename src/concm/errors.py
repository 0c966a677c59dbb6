"""The one exception that reaches users: a sentence that names the thing, the place and the way out."""

from __future__ import annotations


class ConcmError(Exception):
    """A user-facing failure; the command line prints it without a traceback and exits with `code`."""

    code = 1


class Misuse(ConcmError):
    """The request itself is wrong (an option, a name, a combination), so nothing was attempted."""

    code = 2
