"""Serve a report on 127.0.0.1 and rebuild it whenever a record changes.

The server only reads. It refuses requests with any other host name, even if that resolves to
this machine.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

from tardygrad.errors import Invalid, TardygradError
from tardygrad.report.loader import RunView, find
from tardygrad.runs.history import is_locked
from tardygrad.runs.record_values import printable

HOST = "127.0.0.1"
TIMEOUT = 10.0  # seconds without a byte after which a connection ends
FILES = ("spec.json", "events.jsonl", "summary.json", "sweep.json", "comparison.json", "study.jsonl")


class Pages:
    """The latest page, built once for each state of the records."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self._lock = threading.Lock()
        self._seen, self._page = "", ""

    def page(self) -> str:
        """The page for the current records."""
        from tardygrad.report.build import build  # slow (Altair): imported after the address was printed
        from tardygrad.report.page import Live

        with self._lock:
            now = state(self.paths)
            if now != self._seen:
                report = build(self.paths)
                self._page, self._seen = report.html(Live(now, status(report.runs))), now
            return self._page


def state(paths: Sequence[str]) -> str:
    """A token that changes whenever a record does."""
    runs, sweeps = find(paths)
    locks = "".join(str(int(bool(is_locked(folder)))) for folder in runs)  # a run that was killed changes no file
    stats = [path.stat() for folder, name in product((*runs, *sweeps), FILES) if (path := folder / name).exists()]
    return "-".join([locks, *(f"{stat.st_size:x}.{stat.st_mtime_ns:x}" for stat in stats)])


def status(runs: list[RunView]) -> str:
    """Whether the page will still change."""
    if not runs or not all(run.history.ended or run.history.was_killed for run in runs):
        return "This page updates itself while the run continues. Closing it does not affect the run."
    ends = ", ".join(dict.fromkeys(run.history.state for run in runs))
    hints = [run.history.resume_hint for run in runs if run.history.resume_hint]
    if len(runs) == len(hints) == 1:
        return f"The run was {ends}. Continue it with `{hints[0]}`."
    who = "the run has" if len(runs) == 1 else "all runs have"
    more = f" To continue one of those that did not finish: `{hints[0]}`." if hints else ""
    return f"This page is final: {who} ended ({ends}).{more}"


class LiveServer(ThreadingHTTPServer):
    """An HTTP server that does not report browsers that disconnect."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def serve(paths: Sequence[str], port: int) -> LiveServer:
    """A server that listens; call its `serve_forever`. Pages are built on request."""
    find(paths)  # fail here, not in the browser, if there are no runs
    pages = Pages(paths)

    class Handler(BaseHTTPRequestHandler):
        """Answers GET and HEAD requests for the page and its state."""

        timeout = TIMEOUT

        def do_GET(self) -> None:
            own = self.connection.getsockname()[1]
            if self.headers.get("Host") not in (f"{HOST}:{own}", f"localhost:{own}"):
                self.send_error(HTTPStatus.FORBIDDEN, "this page is only for the machine that serves it")
            elif self.path == "/":
                self._send("text/html", pages.page)
            elif self.path == "/state":
                self._send("application/json", lambda: json.dumps({"state": state(paths)}))
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        do_HEAD = do_GET

        def _send(self, kind: str, make: Callable[[], str]) -> None:
            try:
                content = make().encode()
            except TardygradError as error:  # for example, the directory is gone
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the record cannot be read", str(error))
                return
            except Exception as error:  # a strange record must not fill the terminal with tracebacks
                why = printable(f"{type(error).__name__}: {error}", 400)
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the page cannot be built", why)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Do not log requests."""

    try:
        return LiveServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise Invalid(f"--port must be a free port, got {port} ({why}). Use --port 0 for any free port.") from error
