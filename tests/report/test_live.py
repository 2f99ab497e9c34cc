"""The server of `watch`: whom it answers, and what."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tardygrad.errors import Invalid
from tardygrad.report import live
from tardygrad.report.live import LiveServer, serve
from tests.report.records import record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("live") / "run", rounds=2, torn=True)


@contextmanager
def serving(path: Path) -> Iterator[LiveServer]:
    with serve([str(path)], 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def port(run: Path) -> Iterator[int]:
    with serving(run) as server:
        yield int(server.server_address[1])


def ask(port: int, path: str = "/", method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_the_page_may_ask_its_own_server_and_nobody_else(port: int) -> None:
    status, body = ask(port)
    assert status == 200
    assert "connect-src 'self'" in body


def test_the_state_changes_when_the_record_does(port: int, run: Path) -> None:
    before = json.loads(ask(port, "/state")[1])
    assert json.loads(ask(port, "/state")[1]) == before
    with (run / "events.jsonl").open("a") as file:
        file.write("x")
    assert json.loads(ask(port, "/state")[1]) != before


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1"])
def test_another_name_for_this_machine_is_refused(port: int, host: str) -> None:
    assert {ask(port, path, host=host)[0] for path in ("/", "/state")} == {403}


def test_there_is_nothing_else_and_it_only_answers_questions(port: int) -> None:
    assert {ask(port, path)[0] for path in ("/../spec.json", "/events.jsonl", "/?x")} == {404}
    assert ask(port, method="HEAD") == (200, "")
    assert {ask(port, method=method)[0] for method in ("POST", "PUT", "DELETE", "OPTIONS")} == {501}


def test_whatever_goes_wrong_with_a_page_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(places: list[str]) -> str:
        raise ZeroDivisionError("<b>by nothing")

    path = record(tmp_path / "run", rounds=1)
    with serving(path) as server:
        port = int(server.server_address[1])
        (path / "events.jsonl").write_text("no JSON\n")
        status, body = ask(port)
        assert (status, "is damaged" in body) == (503, True)
        monkeypatch.setattr("tardygrad.report.live.state", fail)
        for page in ("/", "/state"):
            status, body = ask(port, page)
            assert (status, "ZeroDivisionError: &lt;b&gt;by nothing" in body) == (503, True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("sent", ["GET / HT", "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n", "GET /none HTTP/1.1\r\n\r\n"])
def test_a_browser_that_goes_away_is_not_heard_of(run: Path, sent: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(run) as server:
        server.daemon_threads = False  # closing the server waits for them
        host = f"127.0.0.1:{server.server_address[1]}"
        ask(int(server.server_address[1]))
        for _ in range(3):
            browser = socket.create_connection(("127.0.0.1", int(server.server_address[1])))
            browser.sendall(sent.format(host=host).encode())
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
            browser.close()
        ask(int(server.server_address[1]), "/state")
    assert capsys.readouterr().err == ""


def test_another_failure_of_the_server_is_heard_of(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve([str(run)], 0) as server:
        for error in (ValueError("a mistake of ours"), ConnectionResetError()):
            try:
                raise error
            except Exception:
                server.handle_error(None, ("127.0.0.1", 1))
    err = capsys.readouterr().err
    assert "a mistake of ours" in err
    assert "ConnectionResetError" not in err


def test_a_folder_without_runs_is_refused_at_once_and_a_page_made_when_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="contains no runs or sweeps"):
        serve([str(tmp_path)], 0)
    (record(tmp_path / "run", rounds=1) / "events.jsonl").write_text("no JSON\n")
    serve([str(tmp_path)], 0).server_close()  # which no page could be made of


def test_watching_takes_no_lock_and_writes_nothing(run: Path, port: int) -> None:
    before = sorted(path.name for path in run.iterdir())
    ask(port)
    assert sorted(path.name for path in run.iterdir()) == before == ["events.jsonl", "spec.json"]


def test_a_port_in_use_is_refused(run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(Invalid, match=f"--port must be a free port, got {number} .* Use --port 0"):
            serve([str(run)], number)
    with pytest.raises(Invalid, match="--port must be a free port, got 70000"):
        serve([str(run)], 70_000)


def test_a_connection_that_says_nothing_times_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TIMEOUT", 0.05)
    with serving(run) as server:
        address = "127.0.0.1", int(server.server_address[1])
        with socket.create_connection(address, timeout=30) as silent:
            assert silent.recv(1) == b""
