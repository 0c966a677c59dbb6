"""Throughput and latency of `concm serve` at 1, 8 and 32 clients, beside the bare encoder on one core.

    python bench/serving.py --json docs/results/serving.json

The server runs in a process of its own, first on one core, with the clients in this one on the others, and then on all
cores, with the clients among them. The encoder alone is measured by turns with it, on one core: the store's own
encoder, in the same runtime and on one thread, on one photo that is decoded already (its central square as bytes), and
on a batch of 32; and, beside it, in torch. What decoding takes by itself is told too: no answer can do without it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

BOUNDARY = "photo-of-the-bench"
KEEP = "none"
"""Nothing is kept: these photos are noise, and all of them would wait to be named."""


def photo(seed: int, width: int = 500, height: int = 375) -> bytes:
    """A JPEG with the detail of a photograph: noise at several scales."""
    random = np.random.default_rng(seed)
    layers = [
        np.asarray(Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)).resize((width, height)))
        for side in (4, 16, 64)
    ]
    file = io.BytesIO()
    Image.fromarray(np.mean(layers, 0).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_store(path: Path, size: int | None) -> None:
    """Twenty classes of ten photos each."""
    from concm import Classifier

    with Classifier(path, device="cpu", size=size) as made:
        made.fit({f"class {label}": [photo(100 * label + at) for at in range(10)] for label in range(20)})


def encoder_alone(size: int | None) -> None:
    """For each line that comes in: milliseconds of 20 photos that are decoded already, one by one, and of a batch."""
    import torch

    from concm.classifier.sight import Sight
    from concm.data.images import decode

    torch.set_num_threads(1)
    encoder, plain = (Sight(Path("none"), size=size).encoder(None, "cpu") for _ in "ab")
    plain.__dict__["_fast"] = plain.network  # in torch, whatever else is installed
    files = [photo(at) for at in range(32)]
    pixels = torch.from_numpy(np.stack([decode(file, encoder.transform.resize) for file in files]))
    encoder(pixels), plain(pixels)
    for _ in sys.stdin:
        single, used = [], time.process_time()
        for at in range(20):
            begun = time.perf_counter()
            encoder(pixels[at : at + 1])
            single.append(1000 * (time.perf_counter() - begun))
        used, begun = time.process_time() - used, time.perf_counter()
        encoder(pixels)
        batch = time.perf_counter() - begun
        begun = time.perf_counter()
        plain(pixels[:1])
        torch_ms = 1000 * (time.perf_counter() - begun)
        begun = time.perf_counter()
        for file in files[:20]:
            decode(file, encoder.transform.resize)
        decode_ms = 1000 * (time.perf_counter() - begun) / 20
        found = {"single": single, "cpu_ms": 1000 * used / 20, "batch": 1000 * batch / 32}
        found |= {"torch": torch_ms, "decode": decode_ms}
        print(json.dumps(found), flush=True)


def spread(times: list[float]) -> dict[str, float]:
    """The 5th, 50th and 99th percentile; the first is what a busy machine allows when it happens to be idle."""
    return {f"p{100 * share:g}_ms": float(np.quantile(times, share)) for share in (0.05, 0.5, 0.99)}


def answered(line: socket.socket) -> bytes:
    """One whole answer, read as plainly as a client in a fast language would."""
    said = b""
    while b"\r\n\r\n" not in said:
        said += line.recv(65536)
    over = said.index(b"\r\n\r\n") + 4
    length = re.search(rb"(?i)content-length: (\d+)", said[:over])
    assert length is not None
    while len(said) < over + int(length[1]):
        said += line.recv(65536)
    return said


def ask(port: int, token: str, clients: int, seconds: float) -> tuple[list[float], float]:
    """Milliseconds of every answer, and photos per second; each client sends one after the other on a connection."""
    photos = [photo(1000 + at) for at in range(8)]
    head = (
        f"POST /api/predict?keep={KEEP} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    )
    times: list[float] = []
    over = time.perf_counter() + seconds

    def client(number: int) -> None:
        line = socket.create_connection(("127.0.0.1", port))
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(10**9):
            content = photos[(number + at) % len(photos)]
            part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="photos"; filename="{at}.jpg"\r\n\r\n'
            body = part.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
            request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            begun = time.perf_counter()
            line.sendall(request)
            said = answered(line)
            if not said.startswith(b"HTTP/1.1 200"):
                raise SystemExit(said.decode())
            times.append(1000 * (time.perf_counter() - begun))
            if time.perf_counter() > over:
                return

    begun = time.perf_counter()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, len(times) / (time.perf_counter() - begun)


def used(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    server: subprocess.Popen[str], encoder: subprocess.Popen[str], rounds: int, seconds: float
) -> dict[str, Any]:
    """Encoder and server by turns, so that whatever else the machine does falls on both."""
    assert server.stdout is not None
    address = re.search(r":(\d+)/\?token=(\S+)", server.stdout.readline())
    assert address is not None
    port, token = int(address[1]), address[2]

    def alone() -> dict[str, Any]:
        assert encoder.stdin is not None
        assert encoder.stdout is not None
        encoder.stdin.write("go\n")
        encoder.stdin.flush()
        return dict(json.loads(encoder.stdout.readline()))

    alone()
    ask(port, token, 2, 1)
    ask(port, token, 1, 1)
    single, batch, plain, decoding = list[float](), list[float](), list[float](), list[float]()
    encoder_cpu, rows = list[float](), []
    for clients in (1, 8, 32):
        times, rates, begun = list[float](), list[float](), used(server.pid)
        for _ in range(rounds):
            found = alone()
            single += found["single"]
            batch.append(found["batch"])
            encoder_cpu.append(found["cpu_ms"])
            plain.append(found["torch"])
            decoding.append(found["decode"])
            some, rate = ask(port, token, clients, seconds)
            times += some
            rates.append(rate)
        cpu = 1000 * (used(server.pid) - begun) / len(times)
        rows.append({"clients": clients, **spread(times), "per_second": statistics.median(rates), "cpu_ms": cpu})
    own = {
        **spread(single),
        "batch_per_second": 1000 / statistics.median(batch),
        "cpu_ms": statistics.median(encoder_cpu),
        "torch_p50_ms": statistics.median(plain),
        "decode_p50_ms": statistics.median(decoding),
    }
    ratios: dict[str, float] = {name: rows[0][name] / own[name] for name in ("p5_ms", "p50_ms", "cpu_ms")}
    return {"encoder": own, "server": rows, "ratios": ratios}


def told(where: str, result: dict[str, Any]) -> None:
    """Print what was measured in one place."""
    own = result["encoder"]
    print(f"encoder alone: p50 {own['p50_ms']:.1f} ms a photo, {own['batch_per_second']:.0f} photos/s in batches of 32")
    print(f"… in torch: p50 {own['torch_p50_ms']:.1f} ms a photo; decoding alone: {own['decode_p50_ms']:.1f} ms")
    for row in result["server"]:
        figures = f"p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms, {row['per_second']:.0f} photos/s"
        print(f"on {where}, {row['clients']:>2} clients: {figures}")
    ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in result["ratios"].items())
    print(f"one photo through the API on {where} / the encoder alone on one: {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="for each number of clients")
    parser.add_argument("--seconds", type=float, default=2, help="of a round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--size", type=int, help="pixels that the network sees; those of a new store otherwise")
    parser.add_argument("--encoder", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.encoder:
        encoder_alone(given.size)
        return
    cores = os.sched_getaffinity(0)
    pinned = ["taskset", "-c", str(max(cores))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    os.environ.pop("OMP_NUM_THREADS", None)
    one = {**pipes, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    size = [] if given.size is None else ["--size", str(given.size)]
    result: dict[str, Any] = {"cores": len(cores), "size": given.size}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CONCM_CACHE"] = one["env"]["CONCM_CACHE"] = folder
        make_store(Path(folder, "store"), given.size)
        command = [sys.executable, "-m", "concm", "serve", str(Path(folder, "store")), "--port", "0", "--device", "cpu"]
        for name, place, how in (("one_core", pinned, one), ("all_cores", [], pipes)):
            os.sched_setaffinity(0, (cores - {max(cores)} if place else cores) or cores)
            with subprocess.Popen([*place, *command], **how) as server:
                with subprocess.Popen([*pinned, sys.executable, __file__, "--encoder", *size], **one) as encoder:
                    result[name] = measure(server, encoder, given.rounds, given.seconds)
                server.terminate()
            told(name.replace("_", " "), result[name])
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
