"""A report that follows its runs: the same page on 127.0.0.1, made anew whenever a record has changed.

It reads, takes no lock and answers nobody else: a name that merely resolves to this machine is refused.
"""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

from tardygrad.errors import Invalid, TardygradError
from tardygrad.report.loader import RunView, find, text

HOST = "127.0.0.1"
FILES = ("spec.json", "events.jsonl", "summary.json", "sweep.json", "study.db", "study.db-wal")


class Pages:
    """The latest page, made once for each state of the records."""

    def __init__(self, places: Sequence[str]) -> None:
        self.places = places
        self._lock = threading.Lock()
        self._seen, self._page = "", ""

    def page(self) -> str:
        """The page of the records as they are."""
        from tardygrad.report.build import tell
        from tardygrad.report.page import Live  # with Altair, which is slow to import: first comes the address

        with self._lock:
            now = state(self.places)
            if now != self._seen:
                report = tell(self.places)
                self._page, self._seen = report.html(Live(now, said(report.stories))), now
            return self._page


def state(places: Sequence[str]) -> str:
    """A token that changes whenever a record does."""
    runs, sweeps = find(places)
    stats = [path.stat() for folder, name in product((*runs, *sweeps), FILES) if (path := folder / name).exists()]
    return "-".join(f"{stat.st_size:x}.{stat.st_mtime_ns:x}" for stat in stats)


def said(stories: list[RunView]) -> str:
    """Whether there is more to come."""
    if not stories or not all(story.ended for story in stories):
        return "This page follows the record and changes as it grows. Closing it does nothing to the run."
    ends = ", ".join(dict.fromkeys(story.status for story in stories))
    stopped = [shlex.quote(text(story.path, 1000)) for story in stories if story.status == "stopped"]
    if len(stories) == len(stopped) == 1:
        return f"The run is stopped; it can go on with `tardygrad resume {stopped[0]}`."
    who = "the run has" if len(stories) == 1 else "all runs have"
    more = f" Those that are stopped can go on with `tardygrad resume RUN`, as {stopped[0]}." if stopped else ""
    return f"Nothing more will come: {who} ended ({ends}).{more}"


class Server(ThreadingHTTPServer):
    """One whose terminal hears nothing of a browser that has gone away."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def serve(places: Sequence[str], port: int) -> Server:
    """A server that is ready; call its `serve_forever`. Pages are made when they are asked for."""
    find(places)  # a folder without runs is refused here, not in the browser
    pages = Pages(places)

    class Answer(BaseHTTPRequestHandler):
        """GET and HEAD of the page and of its state."""

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            own = self.connection.getsockname()[1]
            if self.headers.get("Host") not in (f"{HOST}:{own}", f"localhost:{own}"):
                self.send_error(HTTPStatus.FORBIDDEN, "this page is for the machine that it is on")
            elif self.path == "/":
                self._send("text/html", pages.page, body)
            elif self.path == "/state":
                self._send("application/json", lambda: json.dumps({"state": state(places)}), body)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _send(self, kind: str, make: Callable[[], str], body: bool) -> None:
            try:
                content = make().encode()
            except TardygradError as error:  # as when the directory is gone
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the record cannot be read", str(error))
            except Exception as error:  # whatever a record has in it, the terminal stays as it is
                why = text(f"{type(error).__name__}: {error}", 400)
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the page cannot be made", why)
            else:
                self._write(kind, content, body)

        def _write(self, kind: str, content: bytes, body: bool) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal is for people."""

    try:
        return Server((HOST, port), Answer)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise Invalid(f"--port must be free, got {port} ({why}). Use --port 0 for any that is.") from error
