"""Who is joined, who is taken for no cluster, and what is left of a Ray that was started."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tardygrad as tg
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


# ------------------------------------------------------------------------------------------------------------- auto


def test_auto_without_a_cluster_says_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        assert options["address"] == "auto"
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", init)
    for said in ("", "local", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", said)
        with pytest.raises(
            tg.Invalid, match=r"'auto' needs a Ray cluster on this machine, and there is none\. Start one"
        ):
            joining.join(ray, "auto")


@pytest.mark.parametrize(
    ("said", "why"), [("127.0.0.1:1", "ConnectionRefused"), ("ray://nowhere.invalid:1", "gaierror")]
)
def test_auto_names_the_cluster_that_it_found_dead(said: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", said)
    with pytest.raises(tg.Invalid, match=f"got 'auto', which is '{said}' here: {why}"):
        joining.join(ray, "auto")


# ------------------------------------------------------------------------------------------------------ a real head


@pytest.mark.parametrize("named", ["localhost", "auto"])
def test_a_head_is_joined(named: str, head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", head.address)
    joining.join(ray, "auto" if named == "auto" else head.address.replace("127.0.0.1", named))
    try:
        assert ray.get_runtime_context().gcs_address == head.address
        joining.Head(ray).check()
    finally:
        ray.shutdown()


def test_a_head_that_is_gone_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = SimpleNamespace(get_runtime_context=lambda: SimpleNamespace(gcs_address="127.0.0.1:1"))
    head = joining.Head(fake)
    head.check()  # it was just looked at
    monkeypatch.setattr(joining, "HEAD_TIMEOUT", 0.0)
    with pytest.raises(tg.WorkFailed, match=r"the head of the Ray cluster has not answered for 0 s: 127\.0\.0\.1\."):
        head.check()


# --------------------------------------------------------------------------------------------------- a Ray of our own


def test_without_an_address_ray_is_started_whatever_the_environment_says_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    with listening(lambda line: line.close()) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        task = tg.tasks.quadratic(clients=2, dimension=4)
        before = sys.stdout
        with tg.RayPool(task, tg.fedavg(local_lr=0.1, buffer=1, local_steps=1), workers=1, evaluate="between") as pool:
            folder = pool.session._folder
            assert folder
            assert list(folder.glob("session_*/logs"))
            print("a word", flush=True)
            threading.Thread(target=print, args=["a word of Ray's"], name="ray_listen_error_messages").start()
    assert not folder.exists()
    assert sys.stdout is before
    assert capsys.readouterr().out == "a word\n"


def test_a_ray_that_others_could_reach_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.3")
    with pytest.raises(tg.Invalid, match=r"Ray must be started on loopback, and would listen on 10\.0\.0\.3"):
        joining.start(ray, cpus=1, gpus=False, store=joining.MIN_OBJECT_STORE)


def test_a_signal_while_ray_starts_ends_all_that_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["run", "quadratic", "engine.kind=ray", "--out", "run"]
    process = Program("from tardygrad.cli.main import main; main()", *argv)
    family = psutil.Process(process.pid)
    wait_for(lambda: [one for one in family.children() if one.name() == "gcs_server"])
    process.send_signal(signal.SIGTERM)
    begun = family.children(recursive=True)
    _, said = process.communicate(timeout=60)
    assert said == "starting Ray\nerror: stopped; nothing new was recorded.\n"
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
    wait_for(lambda: not [one for one in begun if one.is_running() and one.status() != psutil.STATUS_ZOMBIE])
