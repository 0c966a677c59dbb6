"""A server in this process, asked as browsers and programs ask, and a real one on a port of its own."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from concm.server.app import LOOPBACK, _listening, application, configured
from concm.server.desk import Desk
from concm.server.security import Hosts, Keys
from tests.support.photographs import BACKBONE, picture

TOKEN = "a-token-of-the-tests"
KEYS = Keys(TOKEN)
PORT = 8000
HOST = f"127.0.0.1:{PORT}"
ORIGIN = f"http://{HOST}"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
NEW = 300


def png(name: str, number: int = NEW) -> bytes:
    """A photo of a made-up class as a file."""
    file = io.BytesIO()
    Image.fromarray(picture(name, number)).save(file, "PNG")
    return file.getvalue()


def sent(*photos: tuple[str, bytes]) -> list[tuple[str, tuple[str, bytes, str]]]:
    """Files of a form, as clients are given them."""
    return [("photos", (name, content, "image/png")) for name, content in photos]


def several(name: str, count: int, first: int = NEW) -> list[Any]:
    return sent(*((f"{name}{number}.png", png(name, number)) for number in range(first, first + count)))


@contextmanager
def client(store: Path, **how: Any) -> Iterator[TestClient]:
    """A program that knows the token."""
    guard = application(Desk(store, BACKBONE, "cpu"), KEYS, Hosts(LOOPBACK, PORT), **how)
    with TestClient(guard, base_url=ORIGIN, headers=BEARER, follow_redirects=False) as found:
        yield found


def browser(program: TestClient) -> TestClient:
    """A browser that opened the address with the token: it has the cookie now."""
    found = TestClient(program.app, base_url=ORIGIN, follow_redirects=False)
    assert found.get("/", params={"token": TOKEN}).status_code == 303
    return found


def own_page(other: TestClient) -> dict[str, str]:
    """The headers that the server's own page sends."""
    return {"Origin": ORIGIN, "X-CSRF-Token": other.get("/api/session").json()["csrf"], "Sec-Fetch-Site": "same-origin"}


@contextmanager
def running(store: Path) -> Iterator[str]:
    """A real server; its address, with the token."""
    with _listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        guard = application(Desk(store, BACKBONE, "cpu"), KEYS, Hosts(LOOPBACK, port))
        server = uvicorn.Server(configured(guard))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}/?token={TOKEN}"
        finally:
            server.should_exit = True
            thread.join(10)
