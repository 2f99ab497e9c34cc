"""Requests to `tardygrad watch` from browsers and programs that mean no good: one page for its own machine, no more."""

from __future__ import annotations

import socket
import threading
from contextlib import chdir, redirect_stderr
from io import StringIO
from pathlib import Path
from random import Random

from tardygrad.report.live import serve
from tests.cli.conftest import SMALL
from tests.hostile.verdicts import Tally, command

PATHS = [  # here and below, the first two are answered
    "/", "/state", "/../spec.json", "/%2e%2e/spec.json", "/run/events.jsonl", "//etc/passwd", "*", "http://x/", "/\0",
]  # fmt: skip
HOSTS = ["{own}", "localhost:{port}", "127.0.0.1", "example.com", "{own}.example.com", "0.0.0.0:{port}", "", "[::1]"]
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "get", "\x16\x03\x01"]
IDLE = 200  # connections that send half a request and stay open: four times as many as may be open at once
SECONDS = 60.0  # after which an answer does not come


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Send strange requests while many half requests stay open; each gets its page, or a refusal."""
    random, tally = Random(seed), Tally("requests")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(SMALL)
    errors = StringIO()
    with chdir(folder), redirect_stderr(errors):
        assert command("run", "small.toml", "run.rounds=2", "--out", "run").code == 0
        server = serve(["run"], 0)
        port = int(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        idle = list[socket.socket]()
        try:
            for number in range(tries):
                if number % 4 == 0 and len(idle) < IDLE:
                    idle += [_half_a_request(random, port) for _ in range(8)]
                method, path, host = (
                    random.choice(each[: random.choice((2, None))]) for each in (METHODS, PATHS, HOSTS)
                )
                host = host.format(own=f"127.0.0.1:{port}", port=port)
                more = random.choice(["", "X: " + "y" * 100_000 + "\r\n", "X:\r\n" * 200, "Content-Length: 9\r\n"])
                what = f"{method!r} {path!r} Host: {host!r} and {len(more)} more bytes"
                own = host in (f"127.0.0.1:{port}", f"localhost:{port}")
                served = method in ("GET", "HEAD") and path in ("/", "/state") and own and len(more) < 500
                try:
                    answer = _answer(
                        port, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n"
                    )
                except TimeoutError:
                    tally.add("hung", what)
                    continue
                ok = answer.startswith(b"HTTP/1.0 200 ")
                tally.add("wrong" if ok != served else "right" if ok else "refused", what, repr(answer[:200]))
        finally:
            for connection in idle:
                connection.close()
            server.shutdown()
            server.server_close()
    if "Traceback" in errors.getvalue():
        tally.add("traceback", "all requests", errors.getvalue()[-600:])
    return tally


def _half_a_request(random: Random, port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), SECONDS)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1"[: random.randrange(30)])
    return connection


def _answer(port: int, request: str) -> bytes:
    """All that the server sends before it closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        try:
            connection.sendall(request.encode())
            while part := connection.recv(100_000):
                received += part
        except (ConnectionError, BrokenPipeError):  # it has stopped to listen
            pass
    return received
