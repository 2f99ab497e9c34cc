"""Starting Ray on this machine, or joining a running cluster. The only file that imports Ray."""

from __future__ import annotations

import math
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tardygrad.core import admission
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.errors import Invalid, WorkFailed, type_and_first_line

MIN_OBJECT_STORE = 80_000_000
"""Size in bytes of the smallest object store that Ray can create."""

HEAD_TIMEOUT = 30.0
"""Seconds without an answer of the cluster's head after which a run fails."""

JOIN_TIMEOUT = 15.0
"""Seconds to wait for an answer of the head when joining a cluster."""

STOP_TIMEOUT = 5.0
"""Seconds without an answer from a server shard after which a run that is stopping fails."""

LOAD_TIMEOUT = 3600.0
"""The same, while workers are loading the task."""

NOTICE = (
    "error: this process was killed, or Ray ended it because one of Ray's own processes on this machine has died. "
    "A recorded run continues from its last checkpoint: tardygrad resume RUN, or tg.resume"
)


def ray_module() -> Any:
    """Import Ray; raises `Invalid` if it is not installed."""
    try:
        import ray
        import ray.cloudpickle
        import ray.exceptions
    except ImportError as error:
        raise Invalid("a RayPool needs Ray. Use pip install -c constraints.txt -e '.[ray]'.") from error
    return ray


def start(ray: Any, *, cpus: int, gpus: bool, store: int) -> None:
    """Start Ray on this machine, listening on loopback only.

    Args:
        cpus: CPUs that Ray may schedule.
        gpus: whether Ray should detect GPUs.
        store: size of the object store in bytes.
    """
    options: dict[str, Any] = {"include_dashboard": False, "num_cpus": cpus, "object_store_memory": store}
    options |= {} if gpus else {"num_gpus": 0}
    try:
        _init(ray, True, address="local", _node_ip_address="127.0.0.1", **options)
    except Exception as error:
        raise Invalid(f"Ray could not be started here: {type_and_first_line(error)}.") from error


def join(ray: Any, address: str) -> None:
    """Join the running cluster at an address, "auto" or host:port."""
    resolved = _find_cluster(ray) if address == "auto" else address
    got = f"{address!r}" if resolved == address else f"{address!r}, which is {resolved!r} here"
    rule = f"`address` must be that of a Ray cluster, got {got}"
    fix = "Give host:port of its head; the port is 6379 unless it was started with another."
    probe: Future[bool] = Future()
    threading.Thread(target=_probe, args=(ray, resolved, probe), daemon=True).start()
    try:
        is_head = probe.result(timeout=JOIN_TIMEOUT)
    except TimeoutError as error:
        raise Invalid(f"{rule}, which has not answered in {JOIN_TIMEOUT:g} s. {fix}") from error
    except Exception as error:
        raise Invalid(f"{rule}: {type_and_first_line(error)}. {fix}") from error
    if not is_head:
        raise Invalid(f"{rule}, where something else listens. {fix}")
    try:
        _init(ray, resolved.startswith(("127.", "localhost:", "[::1]:")), address=resolved)
    except Exception as error:
        raise Invalid(f"{rule}: {type_and_first_line(error)}.") from error


def _find_cluster(ray: Any) -> str:
    """The address that "auto" stands for: RAY_ADDRESS, or else a cluster on this machine."""
    try:
        found = ray._private.services.get_ray_address_from_environment("auto", None)
    except ConnectionError:
        found = "local"
    if found == "local":  # RAY_ADDRESS may say so; Ray would start a cluster of its own
        fix = "Start one (ray start --head), or leave `address` out to start Ray for this run."
        raise Invalid(f"`address` 'auto' needs a Ray cluster on this machine, and there is none. {fix}")
    return str(found)


def _probe(ray: Any, address: str, result: Future[bool]) -> None:
    """Run `_is_head` in a thread of its own: Ray's client blocks signals, and may wait for minutes."""
    try:
        result.set_result(_is_head(ray, address))
    except Exception as error:
        result.set_exception(error)


def _is_head(ray: Any, address: str) -> bool:
    """Whether a Ray head listens at an address. `ray.init` would retry for minutes, so check this first.

    A head speaks HTTP/2: even a busy one starts with a frame of type 4 (SETTINGS). Another HTTP/2 server does so too,
    but fails Ray's first call.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=JOIN_TIMEOUT) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            with connection.makefile("rb") as answer:
                if answer.read(4)[3:] != b"\x04":
                    return False
    try:
        ray._raylet.GcsClient(address=address)
    except ray.exceptions.RpcError:
        return False
    return True


def _init(ray: Any, loopback: bool, **options: Any) -> None:
    try:
        with local_settings(ray, loopback):
            ray.init(logging_level="ERROR", log_to_driver=False, configure_logging=False, **options)
    except BaseException:  # Ctrl-C included: stop what has already started
        with suppress(Exception):
            ray.shutdown()
        raise


@contextmanager
def local_settings(ray: Any, loopback: bool) -> Iterator[None]:
    """Change Ray's settings while it starts, and restore them afterwards.

    1. Ray replaces a loopback address by an external one unless the first variable is 0. It reads the variable when it
       is imported, which may have been earlier, so its constant is set too.
    2. Ray prints the deaths of workers to standard output, whatever `log_to_driver` says.
    3. Ray installs its own handler for SIGTERM, which would end this process with exit code 15.
    4. On the head Ray starts an autoscaler, a process that forwards logs, and the server of its dashboard, for which it
       waits. This head has nothing to scale, forwards no logs, and has no dashboard.
    5. Ray's workers look for modules in the current directory first, where anyone's numpy.py may be. They do so only if
       this process does, unless they are told that they have a directory of their own.
    """
    handler = signal.getsignal(signal.SIGTERM) if threading.current_thread() is threading.main_thread() else None
    with ExitStack() as stack:
        if handler is not None:
            stack.callback(signal.signal, signal.SIGTERM, handler)
        if loopback:
            _set_variable(stack, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
            stack.enter_context(patch.object(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False))
        for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
            _set_variable(stack, name, "0")
        stack.enter_context(patch.object(ray._private.worker, "listen_error_messages", lambda *_: None))
        stack.enter_context(patch.object(ray._private.utils, "set_sigterm_handler", lambda *_: None))
        if str(Path.cwd()) not in map(os.path.abspath, sys.path):
            stack.enter_context(patch.object(ray.job_config.JobConfig, "_runtime_env_has_working_dir", lambda _: True))
        for name in ("start_monitor", "start_log_monitor", "start_api_server"):
            stack.enter_context(patch.object(ray._private.node.Node, name, lambda node, **_: None))
        yield


def _set_variable(stack: ExitStack, name: str, value: str) -> None:
    """Set an environment variable until the stack is closed; `patch.dict` would write all others again too."""
    old = os.environ.get(name)
    os.environ[name] = value
    if old is None:
        stack.callback(os.environ.pop, name)
    else:
        stack.callback(os.environ.update, {name: old})


class Monitor:
    """Checks that Ray is alive. Call `check` often, and before every call of Ray: Ray exits a process that calls it
    after the raylet of this machine has died, and every process once the head has been gone for a minute. That can also
    happen between two checks, and none of this process's code runs then: a shell waits beside it to print `NOTICE`.

    Args:
        started: whether Ray was started here, so that its session folder is deleted at the end.
    """

    def __init__(self, ray: Any, *, started: bool) -> None:
        node = ray._private.worker._global_node
        self._ray, self._folder = ray, Path(node.get_session_dir_path()) if started else None
        self._process: int | None = None  # a pidfd of the raylet: readable once that has ended
        with suppress(AttributeError, OSError), socket.socket(socket.AF_UNIX) as raylet:
            raylet.connect(node.raylet_socket_name)
            process, _, _ = struct.unpack("3i", raylet.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self._process = os.pidfd_open(process)
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._last_check = self._last_answer = time.monotonic()
        command = ["/bin/sh", "-c", 'read line || printf "%s\\n" "$0" >&2', NOTICE]
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE)  # reads a line, or the end of this process

    def check(self) -> None:
        if self._process is not None and select.select([self._process], [], [], 0)[0]:
            raise WorkFailed("Ray has died on this machine, and all jobs in flight are lost.")
        if (now := time.monotonic()) - self._last_check < HEAD_TIMEOUT / 10:
            return
        self._last_check = now
        with suppress(OSError):
            socket.create_connection(self._head, timeout=1.0).close()
            self._last_answer = now
        if now - self._last_answer > HEAD_TIMEOUT:
            raise WorkFailed(f"the head of the Ray cluster has not answered for {HEAD_TIMEOUT:g} s: {self._head[0]}.")

    def close(self) -> None:
        """Stop monitoring. Delete the session folder if Ray was started here; if work failed, its logs are kept."""
        self._shell.communicate(b"\n")
        if self._process is not None:
            os.close(self._process)
        if self._folder and not self._ray.is_initialized() and not isinstance(sys.exception(), WorkFailed):
            with suppress(OSError):
                latest = self._folder.with_name("session_latest")
                if latest.readlink() == self._folder:  # Ray never replaces a dangling link
                    latest.unlink()
            shutil.rmtree(self._folder, ignore_errors=True)


def object_store(task: Task, method: Method, *, workers: int, payload: int) -> int:
    """The size of the object store in bytes: the task, start vectors, updates in transit or buffered, and 50 % on top.

    Args:
        payload: bytes of task and method.
    """
    vector, module_buffers = 4 * task.parameters, task.init_module_buffers()
    model = vector + (sum(flat.nbytes for flat in module_buffers) if module_buffers else 0)
    sent_state = admission.expected_state(method) if method.keep is True else {}
    state = vector * sum(like is None for like in sent_state.values())
    update = model + state + vector * method.compensate
    servers = len(method.regions.members(task.clients)) if method.regions else 1
    sent, back = workers + servers + 2, servers * method.buffer + 2 * workers
    wanted = max(MIN_OBJECT_STORE, math.ceil(1.5 * (payload + sent * (model + state) + back * update)))
    try:
        shared = os.statvfs("/dev/shm")
    except (AttributeError, OSError):  # not on this system
        return wanted
    most, least = shared.f_bavail * shared.f_frsize // 2, payload + model + state + update
    if most < max(least, MIN_OBJECT_STORE):
        has, needs = f"{most / 1e6:.0f} MB", f"{max(least, MIN_OBJECT_STORE) / 1e6:.0f} MB"
        raise Invalid(
            f"/dev/shm is too small: half of it ({has}) must hold the task and one job ({needs}). Enlarge it."
        )
    return min(wanted, most)


def has_process(ray: Any, actor: Any) -> bool:
    """Whether Ray has started a process for an actor, whose constructor may still be running."""
    return bool(ray._private.state.actors(actor._actor_id.hex()).get("Pid"))
