"""The application: routes behind the guard, the page from the package, and the server that runs it."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from concm.classifier.opened import WAIT
from concm.data.images import BrokenPicture
from concm.errors import ConcmError, Misuse
from concm.server import api
from concm.server.desk import Desk
from concm.server.security import MOST_BYTES, Guard, Hosts, Keys
from concm.server.sentences import refusal

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
SHORTEST = 16
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def application(desk: Desk, keys: Keys, hosts: Hosts, limit: int = MOST_BYTES) -> Guard:
    """The whole application; it closes the desk when it ends."""
    files = {entry.name: entry.read_bytes() for entry in resources.files("concm.server").joinpath("page").iterdir()}

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise HTTPException(404, "there is no such page")
        return Response(files[name], media_type=KINDS[Path(name).suffix], headers={"Cache-Control": "no-cache"})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        desk.close()

    app = Starlette(
        routes=[Route("/", page), Route("/static/{name}", page), *api.ROUTES],
        exception_handlers={
            HTTPException: _said,
            ConcmError: _said,
            Exception: lambda request, error: JSONResponse({"error": "something went wrong"}, 500),
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.desk, app.state.keys = desk, keys
    return Guard(app, keys, hosts, limit)


def _said(request: Request, error: Exception) -> Response:
    """A sentence for what was wrong with a request."""
    if isinstance(error, HTTPException):
        said = "there is nothing at this address" if error.detail == "Not Found" else error.detail
        return JSONResponse({"error": said}, error.status_code, error.headers)
    status = 422 if isinstance(error, BrokenPicture) else 400 if isinstance(error, Misuse) else 409
    return JSONResponse(refusal(str(error)), status)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    store: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    allow: Sequence[str] = (),
    backbone: str | None = None,
    device: Any = "auto",
    wait: float = WAIT,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a store until it is interrupted; `ready` is told the address, with its token, before the first request."""
    if not is_loopback(host) and token is None:
        raise Misuse(
            f"serving on {host} lets other machines in: choose a `token` of {SHORTEST} characters or more, which is "
            "all that stands between them and your photos; what is sent is not encrypted on its way"
        )
    if token is not None and (len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token):
        raise Misuse(f"a token has {SHORTEST} letters, digits or signs at least")
    keys = Keys(token or secrets.token_urlsafe(32))
    with _listening(host, port) as listener:
        port = listener.getsockname()[1]
        proxies = frozenset(name.lower() for name in allow)
        desk = Desk(store, backbone, device, wait)
        hosts = Hosts(LOOPBACK | {host.lower()}, port, addresses=not is_loopback(host), proxies=proxies)
        shown = _own_address() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{port}/?token={keys.token}")
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        uvicorn.Server(configured(application(desk, keys, hosts))).run(sockets=[listener])


def configured(app: Guard) -> uvicorn.Config:
    """How HTTP is spoken: by h11, also where httptools is installed, which takes headers that never end."""
    return uvicorn.Config(
        app,
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=5,
    )


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that asyncio does not delay
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)  # who comes before the server is up waits
    except (OSError, OverflowError) as error:
        listener.close()
        why = str(getattr(error, "strerror", None) or error).removesuffix(".")
        raise ConcmError(f"cannot listen on {host}, port {port}: {why}; choose another `port`") from error
    return listener


def _own_address() -> str:
    """The address by which others reach this machine; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
