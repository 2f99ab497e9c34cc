"""A Flower federation on loopback: a SuperLink and SuperNodes as processes of their own, and apps that run on it.

With TLS and authenticated nodes, as the README of examples/flower_async starts it.
Flower starts a process for every message, each of which would import torch: here they are forks of one that has.
"""

from __future__ import annotations

import json
import os
import re
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


def wait_for(holds: Callable[[], Any], seconds: float = 300.0) -> Any:
    until = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return value


def certificates() -> str:
    """The commands of the example's README that make the certificates."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "examples/flower_async/README.md").read_text(), re.DOTALL)
    return "\n".join(
        line for block in blocks if "openssl" in block for line in block.splitlines() if "node-" not in line
    )


class Federation:
    """A SuperLink, and SuperNodes that come and go.

    Args:
        folder: where Flower and the ServerApp write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._keys = folder, free_port(), 0
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
        subprocess.run(["bash", "-ec", certificates()], cwd=self.folder, check=True, capture_output=True)
        address, root = f"127.0.0.1:{self.port}", self.folder / "ca.crt"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\nroot-certificates = "{root}"\n'
        )
        self._start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key",
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        )  # fmt: skip
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
        """Register a SuperNode and start it."""
        config, key = f"partition-id={partition} num-partitions={of}", f"key-{self._keys}"
        self._keys += 1
        command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key]
        subprocess.run(command, cwd=self.folder, check=True)
        self.flwr("supernode", "register", f"{key}.pub", "here")
        self._start(
            f"node-{partition}", "flower-supernode", "--root-certificates", "ca.crt",
            "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port()),
            "--auth-supernode-private-key", key, "--node-config", config,
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
