"""Who is joined, who is taken for no cluster, and what is left of a Ray that was started."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tardygrad as tg
from tardygrad.cli.main import main
from tardygrad.engines.ray import connection as joining
from tests.engines.test_ray_pool import wait_for
from tests.forkserver import Program

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),  # Ray's
]

ELSE = r", where something else listens\. Give host:port of its head; the port is 6379 unless"


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of someone who answers every call so."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:  # closed
                    return
                answer(line)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def website() -> Iterator[str]:
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Quiet", (BaseHTTPRequestHandler,), {"log_message": print})
    ) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


def test_a_website_is_no_cluster() -> None:
    with website() as address, pytest.raises(tg.Invalid, match=ELSE):
        joining.join(ray, address)


@pytest.mark.parametrize("words", [b"", b"220 mail ready\r\n", b"\x00\x00"])
def test_nor_is_one_who_says_something_else_or_hangs_up(words: bytes) -> None:
    def answer(line: socket.socket) -> None:
        line.sendall(words)
        line.recv(100)
        line.close()

    with listening(answer) as address, pytest.raises(tg.Invalid, match=f"got '{address}'(?:{ELSE}|: Connection)"):
        joining.join(ray, address)


def test_one_who_is_silent_is_refused_by_the_command_in_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    assert joining.JOIN_TIMEOUT <= 15
    monkeypatch.setattr(joining, "JOIN_TIMEOUT", 0.3)
    monkeypatch.chdir(tmp_path)
    held: list[socket.socket] = []
    with listening(held.append) as address, pytest.raises(SystemExit) as ended:
        main(["run", "quadratic", "engine.kind=ray", f"engine.address={address}"])
    assert ended.value.code == 2
    said = f"error: `address` must be that of a Ray cluster, got '{address}', which has not answered in"
    assert capfd.readouterr().err.startswith(f"joining Ray\n{said} 0.3 s. Give host:port of its head;")
    assert not list(tmp_path.iterdir())
    for line in held:
        line.close()


def test_nor_one_who_greets_and_then_says_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(line: socket.socket) -> None:
        with suppress(OSError):
            line.recv(100)
            line.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        line.close()

    monkeypatch.setattr(joining, "JOIN_TIMEOUT", 0.5)
    with listening(answer) as address, pytest.raises(tg.Invalid, match=r"has not answered in 0.5 s|something else"):
        joining.join(ray, address)


# ------------------------------------------------------------------------------------------------------------- auto


def test_auto_without_a_cluster_says_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray._private.services, "find_gcs_addresses", set)
    monkeypatch.setattr(ray._private.services, "find_bootstrap_address", lambda _: None)
    for said in ("", "local", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", said)
        with pytest.raises(
            tg.Invalid, match=r"'auto' needs a Ray cluster on this machine, and there is none\. Start one"
        ):
            joining.join(ray, "auto")
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("said", "why"), [("127.0.0.1:1", "ConnectionRefused"), ("ray://nowhere.invalid:1", "gaierror")]
)
def test_auto_names_the_cluster_that_it_found_dead(said: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", said)
    with pytest.raises(tg.Invalid, match=f"got 'auto', which is '{said}' here: {why}"):
        joining.join(ray, "auto")


# ------------------------------------------------------------------------------------------------------ a real head


@pytest.mark.parametrize("named", ["127.0.0.1", "localhost", "auto"])
def test_a_head_is_joined_and_its_folder_left_as_it_is(named: str, head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", head.address)
    joining.join(ray, "auto" if named == "auto" else head.address.replace("127.0.0.1", named))
    try:
        assert ray.get_runtime_context().gcs_address == head.address
        watch, folder = (
            joining.Monitor(ray, started=False),
            Path(ray._private.worker._global_node.get_session_dir_path()),
        )
    finally:
        ray.shutdown()
    watch.close()
    assert (folder / "logs").exists()


def test_a_head_that_is_slow_to_answer_is_waited_for(head: Any) -> None:
    process = head.head_node.all_processes["gcs_server"][0].process
    process.send_signal(signal.SIGSTOP)
    threading.Timer(1.2, process.send_signal, (signal.SIGCONT,)).start()
    began = time.monotonic()
    joining.join(ray, head.address)
    ray.shutdown()
    assert time.monotonic() - began > 0.6


def test_another_port_of_a_cluster_is_no_head(head: Any) -> None:
    with pytest.raises(tg.Invalid, match=ELSE):
        joining.join(ray, f"127.0.0.1:{head.head_node.node_manager_port}")


# --------------------------------------------------------------------------------------------------- a Ray of our own


def test_without_an_address_ray_is_started_whatever_the_environment_says_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with listening(lambda line: line.close()) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        joining.start(ray, cpus=1, gpus=False, store=joining.MIN_OBJECT_STORE)
        watch, node = joining.Monitor(ray, started=True), ray._private.worker._global_node
        folder = Path(node.get_session_dir_path())
        assert node.is_head()
        assert node.gcs_address != address
        assert (folder / "logs").exists()
        watch.check()
        ray.shutdown()
    watch.close()
    assert not folder.exists()
    assert not folder.with_name("session_latest").is_symlink() or folder.with_name("session_latest").exists()


def remains(folder: Path, *, started: bool = True, running: bool = False, error: Exception | None = None) -> bool:
    """Whether a session's folder is there when a pool has ended so."""
    (folder / "logs").mkdir(parents=True)
    folder.with_name("session_latest").symlink_to(folder)
    node = SimpleNamespace(get_session_dir_path=lambda: str(folder), raylet_socket_name="none")
    context = SimpleNamespace(gcs_address="127.0.0.1:1")
    fake = SimpleNamespace(
        _private=SimpleNamespace(worker=SimpleNamespace(_global_node=node)),
        get_runtime_context=lambda: context,
        is_initialized=lambda: running,
    )
    watch = joining.Monitor(fake, started=started)
    try:
        raise error or KeyError
    except Exception:
        watch.close()
    assert folder.with_name("session_latest").is_symlink() == folder.exists()
    return folder.exists()


def test_only_the_folder_of_a_ray_that_was_started_here_and_has_ended_goes_and_not_if_work_failed(
    tmp_path: Path,
) -> None:
    assert not remains(tmp_path / "a/session_1")
    assert remains(tmp_path / "b/session_1", started=False)
    assert remains(tmp_path / "c/session_1", running=True)
    assert remains(tmp_path / "d/session_1", error=tg.WorkFailed("Ray has died"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_ray_starts_ends_all_that_has_begun(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["run", "quadratic", "engine.kind=ray", "--out", "run"]
    process = Program("from tardygrad.cli.main import main; main()", *argv)
    family = psutil.Process(process.pid)
    wait_for(lambda: [one for one in family.children() if one.name() == "gcs_server"])
    process.send_signal(number)
    begun = family.children(recursive=True)
    _, said = process.communicate(timeout=60)
    assert said == "starting Ray\nerror: stopped; nothing new was recorded.\n"
    assert process.returncode == code
    assert not list(tmp_path.iterdir())
    wait_for(lambda: not [one for one in begun if one.is_running() and one.status() != psutil.STATUS_ZOMBIE])


@pytest.mark.parametrize(("own", "elsewhere"), [([], True), ([""], False), (["."], False)])
def test_workers_look_for_modules_here_only_if_the_driver_does(
    own: list[str], elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    installed = [path for path in sys.path if Path(path).is_absolute()]
    monkeypatch.setattr(sys, "path", [*own, *installed])
    with joining.local_settings(ray, True):
        assert ray.job_config.JobConfig()._runtime_env_has_working_dir() is elsewhere
    assert not ray.job_config.JobConfig()._runtime_env_has_working_dir()
