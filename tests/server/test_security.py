"""The server from outside, as an attacker would meet it."""

from __future__ import annotations

import asyncio
import io
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from starlette.requests import Request
from starlette.testclient import TestClient

from concm.errors import ConcmError, Misuse
from concm.server.app import _listening, is_loopback, serve
from concm.server.security import HEADERS, Guard, Hosts, Keys
from tests.support.serving import (
    BEARER,
    HOST,
    KEYS,
    ORIGIN,
    TOKEN,
    browser,
    client,
    own_page,
    png,
    running,
    sent,
    several,
)

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'


@pytest.fixture
def stranger(program) -> TestClient:
    """Somebody without a token."""
    return TestClient(program.app, base_url=ORIGIN, follow_redirects=False)


# without a token


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/status", "/api/openapi.json", "/api/inbox", "/api/map"])
def test_nothing_is_told_without_a_token(stranger, path):
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "okapi" not in answer.text


@pytest.mark.parametrize("path", ["/api/predict", "/api/learn", "/api/undo", "/api/photos/remove", "/api/export"])
def test_nothing_is_done_without_a_token(stranger, program, path):
    before = program.get("/api/status").json()
    assert stranger.post(path, json={}).status_code == 401
    assert stranger.post(path, files=several("cat", 1)).status_code == 401
    assert program.get("/api/status").json() == before


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_whether_it_lives_is_told_to_anyone_and_nothing_else(stranger, path):
    answer = stranger.get(path)
    assert answer.status_code == 200
    assert answer.json().keys() == {"status"}


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ä" * 9])
def test_a_wrong_token_opens_nothing(stranger, token):
    assert stranger.get("/", params={"token": token}).status_code == 401
    assert stranger.get("/api/status", headers={"Authorization": f"Bearer {token}".encode()}).status_code == 401
    stranger.cookies.set("concm-8000", token.encode("ascii", "ignore").decode())
    assert stranger.get("/api/status").status_code == 401


def test_the_token_is_no_cookie_and_a_cookie_is_no_token(stranger):
    stranger.cookies.set("concm-8000", TOKEN)
    assert stranger.get("/api/status").status_code == 401
    assert stranger.get("/api/status", headers={"Authorization": f"Bearer {KEYS.cookie}"}).status_code == 401
    assert TOKEN not in repr(Keys(TOKEN))


def test_the_token_leaves_the_address_and_becomes_a_cookie_that_scripts_cannot_read(stranger):
    answer = stranger.get("/", params={"token": TOKEN, "view": "map"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?view=map")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert stranger.get("/").status_code == 200


# another host, another origin


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example:8000", "localhost:80", "127.0.0.1", "", "[::1]"],
)
def test_a_name_that_is_not_ours_is_refused_even_with_the_token(program, host):
    """As when a name of somebody else is made to point at this machine."""
    assert program.get("/api/status", headers={"Host": host}).status_code == 421
    assert program.get("/healthz", headers={"Host": host}).status_code == 421


def test_where_others_may_come_in_addresses_and_given_names_are_ours_and_other_names_are_not():
    hosts = Hosts(frozenset({"localhost"}), 8000, addresses=True, proxies=frozenset({"shop.example"}))
    assert all(map(hosts.know, ("192.168.0.7:8000", "[fe80::1]:8000", "LOCALHOST:8000")))
    assert all(map(hosts.know, ("shop.example", "Shop.example:8443")))  # a proxy, on a port of its own
    assert not any(map(hosts.know, ("evil.example:8000", "192.168.0.7:8001", "192.168.0.7.evil.example:8000")))
    assert Hosts(frozenset({"localhost"}), 80).know("localhost")


ORIGINS = ["http://evil.example", "null", "http://127.0.0.1:8001", "https://evil.example:8000", "", "file://", HOST]


@pytest.mark.parametrize("origin", ORIGINS)
def test_another_origin_is_refused_even_with_cookie_and_token(program, origin):
    page = browser(program)
    for who in (program, page):
        assert who.get("/api/status", headers={"Origin": origin}).status_code == 403
        headers = own_page(page) | {"Origin": origin}
        assert who.post("/api/undo", json={}, headers=headers).status_code == 403
    assert program.get("/api/status").json()["version"] == 2


def test_an_origin_that_is_ours_under_another_of_our_names_is_refused(program):
    assert program.post("/api/undo", json={}, headers={"Origin": "http://localhost:8000"}).status_code == 403


def test_what_another_site_makes_a_browser_send_is_refused(program):
    page = browser(program)
    for site in ("cross-site", "same-site"):
        assert page.get("/api/status", headers={"Sec-Fetch-Site": site}).status_code == 403
        assert page.get("/api/photos/1/thumbnail", headers={"Sec-Fetch-Site": site}).status_code == 403
    assert page.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to it


@pytest.mark.parametrize("missing", ["X-CSRF-Token", "Origin"])
def test_a_cookie_alone_changes_nothing(program, missing):
    page = browser(program)
    headers = own_page(page)
    del headers[missing]
    assert page.post("/api/undo", json={}, headers=headers).status_code == 403
    assert page.post("/api/predict", files=several("cat", 1), headers=headers).status_code == 403
    assert page.post("/api/undo", json={}, headers=own_page(page) | {"X-CSRF-Token": "0" * 64}).status_code == 403
    assert program.get("/api/status").json()["version"] == 2
    assert page.post("/api/undo", json={}, headers=own_page(page)).status_code == 200


def test_a_form_of_another_page_cannot_send_json(program):
    text = {"Content-Type": "text/plain"}
    assert program.post("/api/undo", content=b"{}", headers=text).status_code == 415
    assert program.post("/api/learn", content=b"{}", headers=text).status_code == 415


@pytest.mark.parametrize("path", ["/", "/api/status", "/healthz", "/nowhere", "/api/photos/1/thumbnail"])
def test_every_answer_has_the_headers_that_keep_a_browser_safe(program, path):
    answer = program.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert "access-control-allow-origin" not in answer.headers
    assert program.get("/", headers={"Host": "evil.example"}).headers["X-Frame-Options"] == "DENY"


# what is sent


def test_too_much_is_refused_before_it_is_read_and_while_it_is(store):
    with client(store, limit=20_000) as program:
        large = [("photos", ("a.png", b"\x00" * 30_000, "image/png"))]
        assert program.post("/api/predict", files=large).status_code == 413

        def endless():
            for _ in range(100):
                yield b"\x00" * 1000

        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = program.post("/api/predict", content=endless(), headers=kind)  # it does not say how long it is
        assert answer.status_code in (400, 413)
        assert (
            program.post("/api/undo", content=endless(), headers={"Content-Type": "application/json"}).status_code
            == 413
        )
        assert program.get("/api/status").json()["version"] == 2


def test_a_photo_that_is_too_large_and_too_many_photos_are_refused(program, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("concm.server.uploads.MOST_BYTES", 1000)
        assert program.post("/api/predict", files=several("cat", 1)).status_code == 422
        assert program.post("/api/learn", data={"name": "gnu"}, files=several("gnu", 1)).status_code == 422
    monkeypatch.setattr("concm.server.uploads.MOST_FILES", 3)
    assert program.post("/api/predict", files=several("cat", 4)).status_code == 400


@pytest.mark.parametrize(
    "content", [SVG, b"", b"GIF89a", b"<html>", b"\xff\xd8\xff\xe0" + b"\x00" * 99, b"%PDF-1.4", b"%!PS-Adobe EPSF"]
)
def test_what_is_no_photo_is_named_as_a_failure_and_never_kept(program, content):
    answer = program.post("/api/predict?keep=all", files=sent(("drawing.svg", content)))
    assert answer.status_code == 422
    [said] = answer.json()["failures"]
    assert said.startswith("drawing.svg cannot be read as a picture")
    assert program.post("/api/learn", data={"name": "gnu"}, files=sent(("x.svg", content))).status_code == 422
    assert program.get("/api/status").json()["inbox"] == 0


def test_a_picture_of_too_many_pixels_is_refused(program):
    from tests.support.data import huge_png

    answer = program.post("/api/predict", files=sent(("bomb.png", huge_png(60_000))))
    assert answer.status_code == 422


def test_what_is_served_of_a_photo_is_made_anew_and_small(program):
    """Nothing that was hidden in the file comes back."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png("submarine"))).resize((900, 900)).save(file, "JPEG", comment=b"<script>alert(1)</script>")
    [found] = program.post("/api/predict?keep=all", files=sent(("a.html", file.getvalue()))).json()["predictions"]
    answer = program.get(f"/api/inbox/{found['inbox']}/thumbnail")
    assert answer.headers["content-type"] == "image/jpeg"
    assert b"script" not in answer.content
    with Image.open(io.BytesIO(answer.content)) as small:
        assert (small.format, max(small.size)) == ("JPEG", 128)


NAMES = [
    "../../etc/passwd",
    "..\\..\\boot.ini",
    "/etc/passwd",
    "a\x00b.png",
    "<img src=x onerror=alert(1)>.png",
    "x" * 999,
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_file_is_only_a_name(program, store, name):
    before = sorted(path.name for path in store.parent.rglob("*"))
    [found] = program.post("/api/predict?keep=all", files=sent((name, png("cat")))).json()["predictions"]
    assert "/" not in found["photo"]
    assert "\\" not in found["photo"]
    assert len(found["photo"]) <= 100
    assert {path.name for path in store.parent.rglob("*")} - set(before) <= {"inbox.db-wal", "inbox.db-shm", "inbox.db"}


PATHS = [
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static/%2e%2e/app.py",
    "/static/index.html%00.js",
    "/api/exports/..%2f..%2fstore.db",
    "/api/exports/../../store.db",
    "/api/photos/..%2f1/thumbnail",
    "/api/photos/-1/thumbnail",
    f"/api/photos/{2**70}/thumbnail",
    "/api/classes/..%2f..%2fetc/photos",
    "/store.db",
    f"{ORIGIN}//evil.example/",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_anywhere_else(program, path):
    assert program.get(path).status_code in (404, 409)


HUGE = ["99999999999999999999999", str(2**63), "9" * 5000, "-1", "1.0", "٣"]


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("path", ["photos/{}/thumbnail", "inbox/{}/thumbnail", "jobs/{}"])
def test_a_number_that_nothing_can_have_is_not_there(program, path, number):
    answer = program.get(f"/api/{path.format(number)}")
    assert (answer.status_code, answer.json()["error"]) == (404, "there is nothing of this number")


@pytest.mark.parametrize("number", [99999999999999999999999, 2**63, -(2**70), True, 1.0])
@pytest.mark.parametrize("path", ["learn", "inbox/dismiss", "photos/remove", "photos/move"])
def test_impossible_numbers_of_photos_are_refused_and_not_called_damage(program, path, number):
    body = {"classes": {"gnu": [number]}, "photos": [number], "to": "gnu"}
    answer = program.post(f"/api/{path}", json=body)
    assert answer.status_code == 400
    assert "numbers" in answer.json()["error"]


@pytest.mark.parametrize("name", ["../x", "a/b", "unknown", "", "x" * 101, "a\nb"])
def test_a_class_cannot_be_called_what_is_no_name(program, name):
    answer = program.post("/api/learn", data={"name": name}, files=several("gnu", 2))
    assert answer.status_code == 400
    assert program.get("/api/status").json()["version"] == 2


BODIES = [
    b"",
    b"[]",
    b"{",
    b"7",
    b'{"photos": ["a"]}',
    b'{"photos": 7}',
    b'{"photos": [1e400]}',
    b"[" * 100_000,
    b"\xff",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("path", ["/api/photos/remove", "/api/inbox/dismiss", "/api/classes/merge", "/api/learn"])
def test_nonsense_is_refused_with_a_sentence(program, path, body):
    answer = program.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_no_address_is_ever_fetched(program, monkeypatch):
    def refused(*words):
        raise AssertionError(f"something was to be fetched: {words}")

    monkeypatch.setattr("socket.getaddrinfo", refused)
    data = {"photos": "http://127.0.0.1:9/x.jpg", "url": "http://127.0.0.1:9/x.jpg"}
    assert program.post("/api/predict", data=data).status_code in (400, 415)
    assert (
        program.post("/api/predict", data=data, files=sent(("http://127.0.0.1:9/x.jpg", png("cat")))).status_code == 200
    )


# where it listens


def test_only_this_machine_is_let_in_unless_a_token_is_chosen(tmp_path):
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.0.0.2")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.7", "shop.example")))
    with pytest.raises(Misuse, match=r"serving on 0\.0\.0\.0 lets other machines in: choose a `token`"):
        serve(tmp_path / "zoo", host="0.0.0.0")
    with pytest.raises(Misuse, match="a token has 16 letters"):
        serve(tmp_path / "zoo", host="0.0.0.0", token="short")
    with pytest.raises(ConcmError, match="there is no store"):
        serve(tmp_path / "zoo", port=0)
    with pytest.raises(ConcmError, match="cannot listen on 127"):
        serve(tmp_path / "zoo", port=70_000)


def test_answers_are_not_held_back_until_the_other_side_says_that_it_got_their_beginning():
    """asyncio switches Nagle's algorithm off for sockets that name TCP, and for those only."""
    with _listening("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_headers_that_never_end_do_not_fill_the_memory(store):
    """Some packages that read HTTP take any number of them, before anybody could ask for a token."""
    with running(store) as address, socket.create_connection(("127.0.0.1", urlsplit(address).port), 10) as line:
        said = b""
        with suppress(ConnectionError):  # it hangs up, perhaps before its answer is read
            line.sendall(b"GET /healthz HTTP/1.1\r\n")
            for number in range(200):
                line.sendall(b"X-%d: %s\r\n" % (number, b"x" * 10_000))
            said = line.recv(100)
    assert not said or said.startswith(b"HTTP/1.1 400")


def test_a_program_needs_no_cookie_and_no_csrf_token(program):
    assert program.post("/api/undo", json={}, headers=BEARER).status_code == 200


# requests that never end


def asked(receive) -> list[dict[str, Any]]:
    """What the guard sends where an application waits for the whole of a request with the token."""

    async def app(scope, receive, send):
        await Request(scope, receive).body()

    sent: list[dict[str, Any]] = []

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8000"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/api/predict", "headers": headers, "query_string": b""}
    guard = Guard(app, Keys(TOKEN), Hosts(frozenset({"127.0.0.1"}), 8000))

    async def ended() -> None:
        task = asyncio.ensure_future(guard(scope, receive, send))
        await asyncio.sleep(0.05)
        task.cancel()
        await task

    asyncio.run(ended())
    return sent


def test_who_hangs_up_in_the_middle_is_no_error_and_gets_no_answer():
    async def receive():
        return {"type": "http.disconnect"}

    assert asked(receive) == []


def test_where_the_server_ends_before_a_request_does_that_is_said():
    async def receive():
        await asyncio.sleep(60)

    start, body = asked(receive)
    assert start["status"] == 503
    assert (b"x-content-type-options", b"nosniff") in start["headers"]
    assert b"the server is ending" in body["body"]
