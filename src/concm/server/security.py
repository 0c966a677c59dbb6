"""Who may speak to the server: the right host, the right origin, a token, and nothing that another page sent.

A browser shows the token once, in the address that the command prints, and keeps a cookie from then on. What it sends
with the cookie counts only from the server's own page, with the page's own CSRF token. Programs send the token itself
as `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = ("/healthz", "/readyz")
"""Answered without a token: whether the server lives and whether it can answer, and nothing of what it knows."""
MOST_BYTES = 200_000_000
"""Of one request."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "media-src 'self' blob:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
CACHE = b"cache-control"
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
STRANGER = "Open the address that `concm serve` printed, with its token."


@dataclass(frozen=True)
class Keys:
    """The token, and what is derived from it: the cookie's value and the page's CSRF token."""

    token: str = field(repr=False)

    def derived(self, purpose: str) -> str:
        """A value that only somebody with the token can know, and that does not give it away."""
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()

    @property
    def cookie(self) -> str:
        """The cookie's value."""
        return self.derived("cookie")

    @property
    def csrf(self) -> str:
        """What the page sends beside its cookie."""
        return self.derived("csrf")


@dataclass(frozen=True)
class Hosts:
    """The names under which the server may be asked for, so that no other name can be made to point at it.

    Where it listens to other machines, any address in figures is fine too: only names can be made to point elsewhere.
    `proxies` are names of something before it, which has a port of its own.
    """

    names: frozenset[str]
    port: int
    addresses: bool = False
    proxies: frozenset[str] = frozenset()

    def know(self, host: str) -> bool:
        """Whether a Host header, with its port, is one of ours."""
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = port, ""
        if name.lower() in self.proxies:
            return True
        if port not in ("", str(self.port)) or (not port and self.port != 80):
            return False
        name = name.lower().strip("[]")
        return name in self.names or (self.addresses and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same(one: str, other: str) -> bool:
    """Whether two secrets agree, in a time that does not say where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


class Guard:
    """Stands before the whole application, and decides before anything of it runs."""

    def __init__(self, app: ASGIApp, keys: Keys, hosts: Hosts, limit: int = MOST_BYTES) -> None:
        self.app, self.keys, self.hosts, self.limit = app, keys, hosts, limit
        self.cookie = f"concm-{hosts.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, let in, or pass on with a bound on what may be sent."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        request = Request(scope)
        answer, begun = self._answer(request), False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await (answer or self.app)(scope, _limited(receive, self.limit), _with_headers(noted))
        except ClientDisconnect:
            return  # who hung up is not there to be answered
        except asyncio.CancelledError:  # the server ends, and the rest of the request will not be waited for
            if begun:
                raise
            await _refusal(503, "the server is ending")(scope, receive, _with_headers(send))

    def _answer(self, request: Request) -> Response | None:
        """What is said instead of the application, if anything."""
        headers = request.headers
        if not self.hosts.know(headers.get("host", "")):
            return _refusal(421, "this server does not go by that name")
        origin = headers.get("origin")
        if origin is not None and not self._ours(origin, headers["host"]):
            return _refusal(403, "requests of other pages are refused")
        arriving = request.method == "GET" and request.scope["path"] == "/"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not arriving:
            return _refusal(403, "requests of other pages are refused")
        if int(headers.get("content-length", "0") or 0) > self.limit:
            return _refusal(413, f"at most {self.limit // 10**6} million bytes are taken at a time")
        if request.scope["path"] in OPEN:
            return None
        if request.scope["path"] == "/favicon.ico":
            return Response(status_code=204)
        if arriving and "token" in request.query_params:
            return self._arrival(request)
        return self._unknown(request)

    def _ours(self, origin: str, host: str) -> bool:
        scheme, _, name = origin.partition("://")
        return scheme in ("http", "https") and name == host and self.hosts.know(name)

    def _arrival(self, request: Request) -> Response:
        """The token in the address becomes a cookie, and the address is rid of it."""
        if not same(request.query_params["token"], self.keys.token):
            return _refusal(401, "this is not the token of this server")
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        answer = RedirectResponse(f"/?{urlencode(rest)}" if rest else "/", 303)
        answer.set_cookie(self.cookie, self.keys.cookie, path="/", httponly=True, samesite="strict")
        return answer

    def _unknown(self, request: Request) -> Response | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return None if same(token.strip(), self.keys.token) else _refusal(401, "this is not the token")
        if not same(request.cookies.get(self.cookie, ""), self.keys.cookie):
            if request.scope["path"] == "/":
                return PlainTextResponse(STRANGER, 401)
            return _refusal(401, "a token is needed: send the header Authorization: Bearer TOKEN")
        if request.method in ("GET", "HEAD"):
            return None
        if "origin" not in request.headers or not same(request.headers.get("x-csrf-token", ""), self.keys.csrf):
            return _refusal(403, "changes are taken from the server's own page only")
        return None


def _refusal(status: int, why: str) -> JSONResponse:
    headers = {"Connection": "close", "Cache-Control": "no-store"}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": why}, status, headers)


def _limited(receive: Receive, limit: int) -> Receive:
    """Counts what arrives, for a request may not say how long it is, or say less."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise HTTPException(413, f"at most {limit // 10**6} million bytes are taken at a time")
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message["headers"])
            if not any(name == CACHE for name, _ in own):
                own.append((CACHE, b"no-store"))
            message["headers"] = own + _HEADERS
        await send(message)

    return sent
