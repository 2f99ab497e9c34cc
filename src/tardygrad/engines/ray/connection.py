"""Ray, started here on loopback or joined where it runs: the one file that imports it."""

from __future__ import annotations

import math
import os
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tardygrad.core import admission
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.errors import Invalid, WorkFailed

LEAST = 80_000_000
"""Bytes of the smallest store that Ray makes."""

HEAD = 30.0
"""Seconds that a cluster's head may be away."""

SILENT = 15.0
"""Seconds that one may take to answer when it is joined."""


def ray_module() -> Any:
    """Ray, if it is installed."""
    try:
        import ray
        import ray.cloudpickle
        import ray.exceptions
    except ImportError as error:
        raise Invalid("a RayPool needs Ray. Install it: pip install 'tardygrad[ray]'") from error
    return ray


def start(ray: Any, *, cpus: int, gpus: bool, store: int) -> None:
    """Start Ray on this machine, for no other to see.

    Args:
        cpus: as Ray counts them.
        gpus: whether to look for any.
        store: bytes of memory for what is under way.
    """
    told: dict[str, Any] = {"include_dashboard": False, "num_cpus": cpus, "object_store_memory": store}
    told |= {} if gpus else {"num_gpus": 0}
    try:
        _init(ray, True, address="local", _node_ip_address="127.0.0.1", **told)
    except Exception as error:
        raise Invalid(f"Ray could not be started here: {first_line(error)}.") from error
    if not (found := ray.nodes()[0]["NodeManagerAddress"]).startswith("127."):
        ray.shutdown()
        raise Invalid(f"Ray must stay on loopback, and {ray.__version__} listens on {found}. Install ray==2.55.1.")
    ray._private.worker._global_node.begun_by = __name__


def join(ray: Any, address: str) -> None:
    """Join a running cluster, "auto" or host:port."""
    found = _nearby(ray) if address == "auto" else address
    got = f"{address!r}" if found == address else f"{address!r}, which is {found!r} here"
    rule = f"`address` must be that of a Ray cluster, got {got}"
    fix = "Give host:port of its head; the port is 6379 unless it was started with another."
    head: Future[bool] = Future()
    threading.Thread(target=_look, args=(ray, found, head), daemon=True).start()
    try:
        is_one = head.result(timeout=SILENT)
    except TimeoutError as error:
        raise Invalid(f"{rule}, and who listens there has not answered in {SILENT:g} s. {fix}") from error
    except Exception as error:
        raise Invalid(f"{rule}: {first_line(error)}. {fix}") from error
    if not is_one:
        raise Invalid(f"{rule}, where something else listens. {fix}")
    try:
        _init(ray, found.startswith(("127.", "localhost:", "[::1]:")), address=found)
    except Exception as error:
        raise Invalid(f"{rule}: {first_line(error)}.") from error


def _nearby(ray: Any) -> str:
    """The cluster that "auto" means: that of RAY_ADDRESS, or else one on this machine."""
    try:
        found = ray._private.services.get_ray_address_from_environment("auto", None)
    except ConnectionError:
        found = "local"
    if found == "local":  # by RAY_ADDRESS; Ray would start another
        fix = "Start one (ray start --head), or leave `address` out to start Ray for this run."
        raise Invalid(f"`address` 'auto' needs a Ray cluster on this machine, and there is none. {fix}")
    return str(found)


def _look(ray: Any, address: str, head: Future[bool]) -> None:
    """See who listens at an address, in a thread of its own: Ray's part hears no signal, and may wait for long."""
    try:
        head.set_result(_greeted(ray, address))
    except Exception as error:
        head.set_exception(error)


def _greeted(ray: Any, address: str) -> bool:
    """Whether a head listens there. Whoever it is, Ray would try for minutes, so look first who answers, and how.

    A head speaks HTTP/2, whose first frame is of type 4, however busy it is; others that do know no such call.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=SILENT) as line:
        if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            with line.makefile("rb") as heard:
                if heard.read(4)[3:] != b"\x04":
                    return False
    try:
        ray._raylet.GcsClient(address=address)
    except ray.exceptions.RpcError:
        return False
    return True


def _init(ray: Any, loopback: bool, **told: Any) -> None:
    try:
        with _settled(ray, loopback):
            ray.init(logging_level="ERROR", log_to_driver=False, configure_logging=False, **told)
    except BaseException:  # Ctrl-C, say: what has begun goes
        with suppress(Exception):
            ray.shutdown()
        raise


@contextmanager
def _settled(ray: Any, loopback: bool) -> Iterator[None]:
    """Ray's settings while it starts; afterwards all is as it was.

    1. Without the first of the variables, Ray puts an outside address in the place of a loopback one. It reads it when
       it is imported, which may have been long ago.
    2. It prints the deaths of workers on standard output, whatever `log_to_driver` says.
    3. It takes SIGTERM for itself, and would end with exit code 15.
    """
    here = ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] if loopback else []
    names = [*here, "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"]
    inside: list[tuple[Any, str, Any]] = [
        (ray._private.worker, "listen_error_messages", lambda *_: None),
        (ray._private.utils, "set_sigterm_handler", lambda *_: None),
    ]
    inside += [(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)] if loopback else []
    were = [(module, name, getattr(module, name, None)) for module, name, _ in inside]
    said = {name: os.environ.get(name) for name in names}
    handler = signal.getsignal(signal.SIGTERM) if threading.current_thread() is threading.main_thread() else None
    try:
        os.environ |= dict.fromkeys(names, "0")
        for module, name, value in inside:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in were:
            setattr(module, name, value)
        for name, text in said.items():
            os.environ.pop(name, None)
            os.environ |= {} if text is None else {name: text}
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


class Monitor:
    """Whether Ray is still there. Ray ends the process that asks it for anything once its own part of this machine is
    dead, and any process when its head has been away for a minute; so look here first, and often."""

    def __init__(self, ray: Any) -> None:
        node = ray._private.worker._global_node
        self._ray, self._folder = ray, None  # of a Ray that was started here
        if getattr(node, "begun_by", None) == __name__:
            self._folder = Path(node.get_session_dir_path())
        self._process: int | None = None  # a descriptor that can be read when the process has ended
        with suppress(AttributeError, OSError), socket.socket(socket.AF_UNIX) as line:
            line.connect(node.raylet_socket_name)
            process, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self._process = os.pidfd_open(process)
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._looked = self._answered = time.monotonic()

    def check(self) -> None:
        if self._process is not None and select.select([self._process], [], [], 0)[0]:
            raise WorkFailed("Ray has died on this machine, and with it all that was under way.")
        if (now := time.monotonic()) - self._looked < HEAD / 10:
            return
        self._looked = now
        with suppress(OSError):
            socket.create_connection(self._head, timeout=1.0).close()
            self._answered = now
        if now - self._answered > HEAD:
            raise WorkFailed(f"the head of the Ray cluster has not answered for {HEAD:g} s: {self._head[0]}.")

    def close(self) -> None:
        """Look no more. What a Ray of ours has left on the disk goes, unless work has failed: its logs may say why."""
        if self._process is not None:
            os.close(self._process)
            self._process = None
        if self._folder and not self._ray.is_initialized() and not isinstance(sys.exception(), WorkFailed):
            with suppress(OSError):
                latest = self._folder.with_name("session_latest")
                if latest.readlink() == self._folder:  # Ray never replaces a link to nothing
                    latest.unlink()
            shutil.rmtree(self._folder, ignore_errors=True)


def object_store(task: Task, method: Method, *, workers: int, payload: int) -> int:
    """Bytes for what is under way: the task, start vectors, updates on their way or in a buffer, and some room.

    Args:
        payload: bytes of task and method.
    """
    vector, module_buffers = 4 * task.parameters, task.init_module_buffers()
    model = vector + (sum(flat.nbytes for flat in module_buffers) if module_buffers else 0)
    state = vector * sum(like is None for like in admission.expected(method).values())
    update = model + state + vector * method.compensate
    sizes = method.regions.sizes if method.regions else 1
    servers = sizes if isinstance(sizes, int) else len(sizes)
    sent, back = workers + servers + 2, servers * method.buffer + 2 * workers
    wanted = max(LEAST, math.ceil(1.5 * (payload + sent * (model + state) + back * update)))
    try:
        shared = os.statvfs("/dev/shm")
    except (AttributeError, OSError):  # not on this system
        return wanted
    most, least = shared.f_bavail * shared.f_frsize // 2, payload + model + state + update
    if most < max(least, LEAST):
        needs = f"{max(least, LEAST) / 1e6:.0f} MB"
        raise Invalid(f"half of /dev/shm must hold the task and a job ({needs}), got {most / 1e6:.0f} MB. Enlarge it.")
    return min(wanted, most)


def first_line(error: Exception) -> str:
    """What an error says, in a line.

    >>> first_line(ValueError("No luck.  \\nAt all."))
    'ValueError: No luck'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])[:300].rstrip(".")
