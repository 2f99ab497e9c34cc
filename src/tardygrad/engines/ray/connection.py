"""Starting Ray on this machine, or joining a running cluster. The only file that imports Ray."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
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

ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray replaces 127.0.0.1 by an address that others can reach, unless this variable is 0 when it is imported."""


def ray_module(*, loopback: bool = True) -> Any:
    """Import Ray, without reports of its use; raises `Invalid` if it is not installed.

    Args:
        loopback: whether a Ray that is started here should listen on loopback only.
    """
    if "ray" not in sys.modules:
        for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", *[ON_LOOPBACK] * loopback):
            os.environ.setdefault(name, "0")
    try:
        import ray
        import ray.cloudpickle
        import ray.exceptions
        import ray.util
    except ImportError as error:
        raise Invalid("a RayPool needs Ray. Use pip install -c constraints.txt -e '.[ray]'.") from error
    return ray


def check_loopback(ray: Any) -> None:
    """Raise `Invalid` if Ray would listen outside this machine."""
    if (ip := ray.util.get_node_ip_address()) != "127.0.0.1":
        rule = f"Ray must be started on loopback, and would listen on {ip}, as this process imported it earlier"
        raise Invalid(f"{rule}. Set {ON_LOOPBACK}=0 before that, or start a cluster and give its `address`.")


def start(ray: Any, *, cpus: int, gpus: bool, store: int) -> Path:
    """Start Ray on this machine, listening on loopback only; returns the folder of its files.

    Args:
        cpus: CPUs that Ray may schedule.
        gpus: whether Ray should detect GPUs.
        store: size of the object store in bytes.
    """
    check_loopback(ray)
    folder = Path(mkdtemp(prefix="ray-", dir="/tmp"))  # a short path, for sockets
    options: dict[str, Any] = {"include_dashboard": False, "num_cpus": cpus, "object_store_memory": store}
    options |= {"_temp_dir": str(folder), "_node_ip_address": "127.0.0.1"} | ({} if gpus else {"num_gpus": 0})
    try:
        _init(ray, address="local", **options)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        raise Invalid(f"Ray could not be started here: {type_and_first_line(error)}.") from error
    return folder


def join(ray: Any, address: str) -> None:
    """Join the running cluster at an address, "auto" or host:port; "auto" is RAY_ADDRESS, or one on this machine."""
    named = os.environ.get("RAY_ADDRESS", "")
    resolved = named if address == "auto" and named not in ("", "auto", "local") else address
    got = f"{address!r}" if resolved == address else f"{address!r}, which is {resolved!r} here"
    rule = f"`address` must be that of a Ray cluster, got {got}"
    fix = "Give host:port of its head; the port is 6379 unless it was started with another."
    try:
        if resolved != "auto":
            _connect(resolved, JOIN_TIMEOUT)  # `ray.init` would retry for minutes
        with patch.dict(os.environ):
            os.environ.pop("RAY_ADDRESS", None)
            _init(ray, address=resolved)
    except Exception as error:
        if resolved == "auto":
            fix = "Start one (ray start --head), or leave `address` out to start Ray for this run."
            raise Invalid(f"`address` 'auto' needs a Ray cluster on this machine, and there is none. {fix}") from error
        raise Invalid(f"{rule}: {type_and_first_line(error)}. {fix}") from error


def _connect(address: str, timeout: float) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=timeout).close()


def _init(ray: Any, **options: Any) -> None:
    """Connect to Ray, or start it. Ray installs its own handler for SIGTERM: the one before is put back."""
    handler = signal.getsignal(signal.SIGTERM) if threading.current_thread() is threading.main_thread() else None
    terminated = False
    try:
        ray.init(logging_level="ERROR", log_to_driver=False, configure_logging=False, **options)
    except BaseException as error:  # Ctrl-C included: stop what has already started
        terminated = isinstance(error, SystemExit) and error.code == signal.SIGTERM
        with suppress(Exception):
            ray.shutdown()
        if not terminated:
            raise
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
    if terminated:
        signal.raise_signal(signal.SIGTERM)
        raise SystemExit(signal.SIGTERM)


class WithoutRay:
    """Standard output without the words of Ray's own threads, such as about the deaths of workers."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        quiet = threading.current_thread().name.startswith("ray_")
        return len(text) if quiet else int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Head:
    """The head of a cluster. Call `check` often: Ray ends this process once the head has been gone for a minute."""

    def __init__(self, ray: Any) -> None:
        self._address = ray.get_runtime_context().gcs_address
        self._last_check = self._last_answer = time.monotonic()

    def check(self) -> None:
        """Raise `WorkFailed` if the head has not answered for long."""
        if (now := time.monotonic()) - self._last_check < HEAD_TIMEOUT / 10:
            return
        self._last_check = now
        with suppress(OSError):
            _connect(self._address, 1.0)
            self._last_answer = now
        if now - self._last_answer > HEAD_TIMEOUT:
            host = self._address.rpartition(":")[0]
            raise WorkFailed(f"the head of the Ray cluster has not answered for {HEAD_TIMEOUT:g} s: {host}.")


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
