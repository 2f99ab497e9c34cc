"""Processes that start in milliseconds: forks of one process that has imported torch and tardygrad already.

Importing them takes seconds, and the tests start hundreds of processes. `Program` stands in for `subprocess.Popen`, and
Ray starts its workers here while `forked_ray_workers` is active. Tests of imports and of memory need `subprocess`.

Each process that runs tests has one server, which ends with it. A request has a program, its arguments, its environment
and its standard streams; the answers are its process id and, at the end, its exit code.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Self

ROOT = Path(__file__).parents[1]
ADDRESS = "TARDYGRAD_FORKSERVER"  # the environment variable with the server's address, which workers of Ray inherit
MODULES = "TARDYGRAD_FORKSERVER_MODULES"  # that a server imports besides
NUMBER = struct.Struct("!i")


def address() -> str:
    """The address of this process's server, which is started if there is none."""
    if ADDRESS not in os.environ:
        path, stop = start()
        atexit.register(stop)
        os.environ[ADDRESS] = path
    return os.environ[ADDRESS]


def start(*modules: str, env: dict[str, str] | None = None) -> tuple[str, Callable[[], None]]:
    """Start a server that imports more modules; returns its address, and a function that ends it."""
    folder = tempfile.TemporaryDirectory(prefix="forkserver-")
    path = f"{folder.name}/socket"
    environment = (env or dict(os.environ)) | {MODULES: ",".join(modules)}
    command = [sys.executable, "-m", "tests.forkserver", path]
    server = subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, env=environment)
    assert server.stdout
    assert server.stdout.readline() == b"ready\n"

    def stop() -> None:
        server.communicate()  # which closes its input
        folder.cleanup()

    return path, stop


def calling(function: str) -> str:
    """The code of a program that calls `module:function`."""
    module, _, name = function.partition(":")
    return f"import sys; from {module} import {name}; sys.exit({name}())"


def stand_in(path: Path, server: str, function: str) -> None:
    """Write a command that calls `module:function` in a process of a server."""
    call = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.forkserver import forward\n"
    path.write_text(f"#!{sys.executable} -IS\n{call}forward({server!r}, {calling(function)!r})\n")
    path.chmod(0o755)


def forward(server: str, code: str) -> None:
    """Be a process of a server: pass on arguments, signals and the exit code."""
    request = {"code": code, "argv": sys.argv, "env": dict(os.environ), "session": False, "cwd": os.getcwd()}
    answers = ask(server, request, (0, 1, 2))
    (process,) = NUMBER.unpack(answers.recv(NUMBER.size))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(process, number))
    ended = answers.recv(NUMBER.size)
    sys.exit(NUMBER.unpack(ended)[0] if ended else 1)


def ask(path: str, request: dict[str, Any], streams: tuple[int, int, int]) -> socket.socket:
    """Ask a server for a process; its answers come through the socket."""
    connection, message = socket.socket(socket.AF_UNIX), json.dumps(request).encode()
    connection.connect(path)
    socket.send_fds(connection, [NUMBER.pack(len(message))], streams)
    connection.sendall(message)
    return connection


class Program:
    """`python -c code argv` in a process of its own, with the methods of `subprocess.Popen`; all text."""

    def __init__(
        self,
        code: str,
        *argv: str,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        env: dict[str, str] | None = None,
        new_session: bool = False,
        server: str | None = None,
    ) -> None:
        self.stdout, out = _pipe(stdout)
        self.stderr, err = _pipe(stderr)
        server = server or address()
        request = {"code": code, "argv": ["-c", *argv], "env": dict(env or os.environ), "session": new_session}
        with open(os.devnull) as nothing:
            self._answers = ask(server, {**request, "cwd": os.getcwd()}, (nothing.fileno(), out, err))
        for end, ours in ((out, self.stdout), (err, self.stderr)):
            if ours:
                os.close(end)
        (self.pid,) = NUMBER.unpack(self._answers.recv(NUMBER.size))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("the program", timeout or 0)
            (self.returncode,) = NUMBER.unpack(self._answers.recv(NUMBER.size))
            self._answers.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still prints, after its end."""
        with ThreadPoolExecutor(2) as readers:
            out, err = readers.map(_read, (self.stdout, self.stderr))
        self.wait(timeout)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self.communicate()


def _read(stream: IO[str] | None) -> str:
    """All that is left to read."""
    if stream is None or stream.closed:
        return ""
    with stream:
        return stream.read()


def _pipe(stream: int) -> tuple[IO[str] | None, int]:
    """Our end of a standard stream, if it is a pipe, and the end of the process."""
    if stream != subprocess.PIPE:
        return None, stream
    ours, theirs = os.pipe()
    return open(ours), theirs


@contextmanager
def forked_ray_workers() -> Iterator[None]:
    """Clusters of Ray that are started now start their workers here, and at the priority of the tests."""
    from unittest.mock import patch

    from ray._private.parameter import RayParams

    address()  # in the environment of Ray
    init = RayParams.__init__

    def start_here(self: Any, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        self.setup_worker_path = __file__

    with patch.object(RayParams, "__init__", start_here), patch.dict(os.environ, RAY_worker_niceness="0"):
        yield


# The server.


def serve(path: str) -> dict[str, Any]:
    """Fork for every request; returns it in the new process."""
    children: dict[int, socket.socket] = {}
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(100)
    print("ready", flush=True)
    while True:
        ready = select.select([listener, wake, 0], [], [])[0]
        if 0 in ready:  # its owner has ended
            os._exit(0)
        if wake in ready:
            os.read(wake, 1000)
            while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with suppress(OSError), children.pop(ended[0]) as connection:
                    connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(ended[1])))
        if listener in ready:
            connection, _ = listener.accept()
            length, streams, *_ = socket.recv_fds(connection, NUMBER.size, 3)
            message = b""
            while len(message) < NUMBER.unpack(length)[0]:
                message += connection.recv(100_000)
            if child := os.fork():
                children[child] = connection
                for stream in streams:
                    os.close(stream)
                with suppress(OSError):
                    connection.sendall(NUMBER.pack(child))
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for index, stream in enumerate(streams):
                os.dup2(stream, index)
            for opened in (listener, connection, *children.values()):
                opened.close()
            for number in (wake, alarm, *streams):
                os.close(number)
            request: dict[str, Any] = json.loads(message)
            return request


def run(request: dict[str, Any]) -> None:
    """Be the program of a request."""
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    for name in os.environ.keys() - request["env"].keys():
        del os.environ[name]
    changes = {name: value for name, value in request["env"].items() if os.environ.get(name) != value}
    os.environ.update(changes)  # only these: Ray finds the memory of a process's title by the first variable
    sys.argv = request["argv"]
    if "code" not in request:
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    sys.path[0:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(request["code"], "<string>", "exec"), main.__dict__)  # noqa: S102


def main(arguments: list[str]) -> None:
    """The server at an address, or what Ray runs in place of its `setup_worker.py`: it asks for a worker, and ends."""
    if len(arguments) > 1:
        argv = [one for one in arguments if not one.startswith(("--serialized-runtime-env-context", "--language"))]
        request = {"argv": argv, "env": dict(os.environ), "cwd": os.getcwd(), "session": False}
        ask(os.environ[ADDRESS], request, (0, 1, 2)).recv(NUMBER.size)
        return
    own = ("tardygrad.cli.run", "tardygrad.cli.report", "tardygrad.cli.commands", "sklearn.datasets")
    for name in (*own, *filter(None, os.environ.pop(MODULES, "").split(","))):
        import_module(name)
    gc.freeze()
    run(serve(*arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
