"""`concm serve` as it is typed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from tests.support.photographs import BACKBONE
from tests.support.shell import ROOT
from tests.support.tiny import call, environment, sentence


@pytest.mark.slow
def test_it_prints_its_address_answers_there_and_ends_quietly(store):
    command = [sys.executable, "-m", "concm", "serve", str(store), "--port", "0", "--backbone", BACKBONE]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    where = {**environment(), "PYTHONPATH": paths, "CONCM_TOKEN": "the-token-of-this-test"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=where) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/(?=\?token=the-token-of-this-test$)", said)
            assert address is not None, said
            request = urllib.request.Request(
                f"{address[0]}api/status", headers={"Authorization": "Bearer the-token-of-this-test"}
            )
            with urllib.request.urlopen(request) as answer:
                assert json.load(answer)["classes"] == 6
            hang_up(int(address[0].split(":")[-1].rstrip("/")))
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 0
            assert server.stderr.read() == ""
        finally:
            server.kill()


def hang_up(port: int) -> None:
    """Begin to send a photo, and go away."""
    head = (
        f"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer the-token-of-this-test\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="photos"; filename="x.jpg"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(head.encode() + bytes(1000))


def test_other_machines_are_let_in_only_with_a_token(store, capsys, monkeypatch):
    monkeypatch.delenv("CONCM_TOKEN", raising=False)
    assert call("serve", store, "--host", "0.0.0.0", "--backbone", BACKBONE) == 2
    said = sentence(capsys.readouterr().err)
    assert "lets other machines in: choose a --token of 16 characters or more" in said
    assert "not encrypted" in said


def test_what_it_means_to_let_others_in_is_said(store, capsys, monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    words = (
        "--host",
        "0.0.0.0",
        "--port",
        0,
        "--token",
        "x" * 20,
        "--allow-host",
        "a.example",
        "--allow-host",
        "b.example",
    )
    assert call("serve", store, *words, "--backbone", BACKBONE) == 0
    said = capsys.readouterr()
    assert "whoever has the token can see, teach and change the classifier" in sentence(said.err)
    assert f"?token={'x' * 20}" in said.out


def test_without_its_packages_it_says_how_to_get_them(store, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "concm.server.app", None)
    assert call("serve", store) == 2
    assert "needs the extra 'serve'" in sentence(capsys.readouterr().err)
