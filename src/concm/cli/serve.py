"""The page and the HTTP API."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from concm.cli.options import complain
from concm.cli.stores import Access
from concm.errors import extra_needed


def serve(
    store: Path,
    /,
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    allow_host: tuple[str, ...] = (),
    access: Access = Access(),  # noqa: B008
) -> None:
    """Serve a page for a classifier, and an HTTP API, on this machine.

    Parameters
    ----------
    store
        The classifier's folder.
    port
        The port; 0 takes any that is free.
    host
        The address to listen on. Other machines can reach any but the default, and then a token must be given.
    token
        The token, instead of a new one each time; better given as the variable CONCM_TOKEN, which others cannot see.
    allow_host
        Another host name to accept, such as a proxy's. May be given several times.
    """
    try:
        from concm.server.app import is_loopback
        from concm.server.app import serve as run
    except ImportError as error:
        raise extra_needed("serving", "serve") from error
    from concm.report.tables import say

    def ready(address: str) -> None:
        if not is_loopback(host):
            complain(
                "other machines can reach this: whoever has the token can see, teach and change the classifier, and "
                "what is sent is not encrypted; use a network that you trust, or a proxy with TLS before it"
            )
        say(f"serving {store} at {address}")
        say("open this address in a browser; it contains the access token (Ctrl-C stops the server)")

    with suppress(KeyboardInterrupt):  # the way to end it
        run(
            store,
            host=host,
            port=port,
            token=token or os.environ.get("CONCM_TOKEN") or None,
            allow=allow_host,
            backbone=access.backbone,
            device=access.device,
            wait=access.wait,
            ready=ready,
        )
