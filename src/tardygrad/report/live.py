"""A report that follows its runs: the same page on 127.0.0.1, made anew whenever a record has changed.

It reads, takes no lock and answers nobody else: a name that merely resolves to this machine is refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tardygrad.errors import Invalid, TardygradError
from tardygrad.report.page import Live
from tardygrad.report.tell import Report, state, tell

HOST = "127.0.0.1"


class Pages:
    """The latest page, made once for each state of the records."""

    def __init__(self, places: Sequence[str]) -> None:
        self.places = places
        self._lock = threading.Lock()
        self._seen, self._page = "", ""

    def state(self) -> str:
        """A token of the records as they are."""
        return state(self.places)

    def page(self) -> str:
        """The page of the records as they are."""
        with self._lock:
            now = self.state()
            if now != self._seen:
                report = tell(self.places)
                self._page, self._seen = report.html(Live(now, said(report))), now
            return self._page


def said(report: Report) -> str:
    """Whether there is more to come."""
    going = [story for story in report.stories if not story.ended]
    if report.stories and not going:
        ends = ", ".join(dict.fromkeys(story.status for story in report.stories))
        return (
            f"Nothing more will come: {'the run has' if len(report.stories) == 1 else 'all runs have'} ended ({ends})."
        )
    return "This page follows the record and changes as it grows. Closing it does nothing to the run."


def serve(places: Sequence[str], port: int) -> ThreadingHTTPServer:
    """A server that is ready; call its `serve_forever`."""
    pages = Pages(places)
    pages.page()  # what is wrong with a record is said here, not in the browser

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
                self._send("application/json", lambda: json.dumps({"state": pages.state()}), body)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _send(self, kind: str, make: Callable[[], str], body: bool) -> None:
            try:
                content = make().encode()
            except TardygradError:  # as when the directory is gone
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the record cannot be read")
                return
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
        return ThreadingHTTPServer((HOST, port), Answer)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise Invalid(f"--port must be free, got {port} ({why}). Use --port 0 for any that is.") from error
