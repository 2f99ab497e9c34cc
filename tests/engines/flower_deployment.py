"""A Flower federation on loopback: a SuperLink and SuperNodes as processes of their own, and apps that run on it.

Flower starts a process for every message, each of which would import torch: here they are forks of one that has.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any, Self

import psutil

from tests import forkserver

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "flower-superexec": "flwr.supercore.cli:flower_superexec",
    "flower-superlink": "flwr.superlink.cli:flower_superlink",
    "flower-supernode": "flwr.supernode.cli:flower_supernode",
    "flwr": "flwr.cli.app:app",
    "flwr-clientapp": "flwr.supernode.cli:flwr_clientapp",
    "flwr-serverapp": "flwr.superlink.cli:flwr_serverapp",
    "flwr-simulation": "flwr.simulation.app:flwr_simulation",
}
MODULES = (
    "tardygrad.flower", "flwr.cli.app", "flwr.supercore.cli", "flwr.superlink.cli", "flwr.superlink.main",
    "flwr.superlink.runtime.run_serverapp", "flwr.supernode.cli", "flwr.supernode.main",
    "flwr.supernode.runtime.run_clientapp", "flwr.simulation.app",
)  # fmt: skip


def addresses_of(processes: Iterable[Any]) -> list[str]:
    """The addresses at which processes listen."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found += [one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
    return [address.removeprefix("::ffff:") for address in found]


def is_running(number: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for(holds: Callable[[], Any], seconds: float = 120.0) -> Any:
    until = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return value


class Federation:
    """A SuperLink, and SuperNodes that come and go.

    Args:
        folder: where Flower and the ServerApp write.
        simulation: whether the SuperLink simulates its nodes.
    """

    def __init__(self, folder: Path, *, simulation: bool = False) -> None:
        self.folder, self.simulation, self.port = folder, simulation, free_port()
        self.bin = folder / "bin"
        self.env = dict(os.environ) | {
            "PATH": os.pathsep.join([str(self.bin), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT / "src"),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_ADDRESS": "local",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
        self.processes: dict[str, forkserver.Program] = {}

    def __enter__(self) -> Self:
        home = self.folder / "flwr"
        for folder in (home, self.bin):
            folder.mkdir(parents=True)
        self._server, self._stop_server = forkserver.start(*MODULES, env=self.env)
        for name, function in COMMANDS.items():
            forkserver.stand_in(self.bin / name, self._server, function)
        address = f"127.0.0.1:{self.port}"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )
        options = ["--simulation"] if self.simulation else []
        options += ["--host", "127.0.0.1", "--port", str(self.port), "--disable-runtime-dependency-installation"]
        self._start("superlink", "flower-superlink", "--insecure", *options)
        wait_for(self._answers)
        return self

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log, chdir(self.folder):
            self.processes[name] = forkserver.Program(
                forkserver.calling(COMMANDS[command[0]]), *command[1:],
                stdout=log.fileno(), stderr=log.fileno(), env=self.env, new_session=True, server=self._server,
            )  # fmt: skip

    def _answers(self) -> bool:
        assert self.processes["superlink"].poll() is None, self.log("superlink")
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def add(self, partition: int, of: int) -> None:
        """Start a SuperNode."""
        config = f"partition-id={partition} num-partitions={of}"
        self._start(
            f"node-{partition}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}",
            "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """End a process and those that it started, as if their machine had failed."""
        self.processes.pop(name).kill()
        for process in self.running():
            with suppress(OSError):
                if os.readlink(f"/proc/{process.pid}/fd/1") == str(self.folder / f"{name}.log"):
                    process.kill()

    def flwr(self, *arguments: str) -> str:
        """The output of a `flwr` command."""
        done = subprocess.run(
            [self.bin / "flwr", *arguments], env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app: Path, **config: Any) -> str:
        """Start an app; returns the id of its run."""
        text = " ".join(f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in config.items())
        return str(json.loads(self.flwr("run", str(app), "--format", "json", "--run-config", text))["run-id"])

    def status(self, run: str) -> str:
        """Of a run."""
        rows = json.loads(self.flwr("list", "--format", "json"))["runs"]
        return str(next(row["status"] for row in rows if str(row["run-id"]) == run))

    def running(self) -> list[Any]:
        """The processes of this federation, which Flower and the server of forks have started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get("FLWR_HOME") == self.env["FLWR_HOME"] or self._server in process.cmdline()
                found += [process] if ours and is_running(process.pid) else []
        return found

    def listeners(self) -> list[str]:
        """The addresses at which they listen."""
        return addresses_of(self.running())

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self.processes)):
            self.processes[name].terminate()
            self.processes[name].wait(60)
        self._stop_server()
        until = time.monotonic() + 60
        while (strays := self.running()) and time.monotonic() < until:
            time.sleep(0.1)
        self.strays = strays  # should be none
        for process in strays:
            process.kill()
