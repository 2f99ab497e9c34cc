"""The connection of a pool to Ray: start or join a cluster, monitor it, create actors, and leave it."""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

import torch

from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.processes import process_count
from tardygrad.engines.ray.connection import (
    LOAD_TIMEOUT,
    Head,
    WithoutRay,
    join,
    object_store,
    ray_module,
    start,
)
from tardygrad.engines.ray.group import WorkerGroup, check_group
from tardygrad.engines.ray.payload import pickled
from tardygrad.engines.ray.places import exists, requirements
from tardygrad.engines.ray.server_shards import ServerShard
from tardygrad.engines.ray.worker import WorkerProcess
from tardygrad.engines.ray.workers import Worker
from tardygrad.engines.wire import Wire
from tardygrad.errors import Invalid, WorkFailed, check_choice, check_number, is_number, type_and_first_line

NODES_EVERY = 1.0
"""Seconds after which the list of the cluster's machines is read again."""


class Session:
    """A connection to Ray, from `open` to `close`.

    Args:
        address: of a cluster to join; None starts Ray here.
        cpus, gpus: resources of a worker.
        wire: number format of updates in transit.
        shard_bounds: where the server's vectors are cut into shards.
        processes: of a worker.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        address: str | None,
        cpus: float,
        gpus: float,
        wire: Wire,
        shard_bounds: list[int],
        processes: int,
    ) -> None:
        if address is not None and not re.fullmatch(r"auto|[\w.\-]+:\d{1,5}|\[[\da-fA-F:]+\]:\d{1,5}", address):
            raise Invalid(f"`address` must be 'auto' or host:port, got {address!r}. Leave it out to start Ray here.")
        check_number("cpus_per_worker", cpus)
        if not (is_number(gpus) and (0 <= gpus <= 1 or gpus in range(2, 1025))):
            raise Invalid(f"`gpus_per_worker` must be a fraction of a GPU or a whole number, got {gpus!r}.")
        check_group(task, processes, gpus)
        check_choice("wire", wire, Wire)
        if (device := getattr(task, "device", torch.device("cpu"))).type != "cpu":
            raise Invalid(f"a RayPool needs a task on the CPU, got one on {device}. Use gpus_per_worker to move it.")
        if gpus and not hasattr(task, "to"):
            raise Invalid(f"`gpus_per_worker` needs a task that can be moved (`to`), got a {type(task).__name__}.")
        self.ray = ray_module(loopback=address is None)
        self.task, self.method, self.address, self.cpus, self.gpus = task, method, address, cpus, gpus
        self.wire, self.shard_bounds, self.processes = wire, shard_bounds, processes
        self.startup = "joining Ray" if address else "starting Ray"  # what `open` does
        self._connected_here = False  # whether this session started or joined Ray
        self._head: Head | None = None
        self._folder: Path | None = None  # of the files of a Ray that was started here
        self._quiet: WithoutRay | None = None
        self._payload: Any = None  # task and method, in Ray's object store
        self._nodes: list[dict[str, Any]] = []  # of the cluster, as of the time below
        self._listed = -math.inf

    def open(self, workers: int) -> None:
        """Start Ray for this number of workers, or join it, unless this process is connected already."""
        try:
            payload = pickled(self.task, self.method, self.ray.cloudpickle.dumps)
        except Exception as error:
            raise Invalid(f"task and method must be picklable to be sent: {type_and_first_line(error)}.") from error
        if not self.ray.is_initialized():
            if self.address is None:
                process_count("workers", workers)
                size = object_store(self.task, self.method, workers=workers, payload=len(payload))
                self._folder = start(self.ray, cpus=workers, gpus=self.gpus > 0, store=size)
            else:
                join(self.ray, self.address)
            self._connected_here = True
        try:
            self._head, self._quiet = Head(self.ray), WithoutRay(sys.stdout)
            sys.stdout = cast(TextIO, self._quiet)
            self._payload = self.ray.put(payload)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Call this before any call of Ray: without a connection, Ray would start itself, open to other machines."""
        if self._head is None:
            raise Invalid("use a RayPool inside its `with` block.")
        if not self.ray.is_initialized():
            raise WorkFailed("other code in this process has shut Ray down.")
        self._head.check()

    @property
    def local(self) -> bool:
        """Whether Ray was started here, where CPUs are not counted."""
        return self._connected_here and self.address is None

    def new_worker(self, cpus: float, place: str | None = None, *, processes: int = 1) -> Any:
        """Start the actor of a worker at a place, or of a group of processes, with each process's share of the GPUs."""
        gpus = self.gpus / self.processes * processes
        needs: dict[str, Any] = {"num_cpus": 0 if self.local else cpus, "num_gpus": gpus}
        if not self.local:
            needs |= requirements(place)
        kind, size = (WorkerProcess, []) if processes == 1 else (WorkerGroup, [processes])
        make = self.ray.remote(max_restarts=0, max_task_retries=0, **needs)(kind)
        loads, device = self.ray.cloudpickle.loads, "cuda" if self.gpus else None
        return make.remote(self._payload, loads, torch.get_num_threads(), device, self.wire, self.shard_bounds, *size)

    def shard_maker(self, method: Method) -> Callable[[Any], Any]:
        """A function that starts the actor of a server shard, given its slice of x."""
        options = {"max_restarts": 0, "max_task_retries": 0, "num_cpus": 0, "scheduling_strategy": "SPREAD"}
        make, threads = self.ray.remote(**options)(ServerShard), torch.get_num_threads()
        payload, loads = self.ray.cloudpickle.dumps(method), self.ray.cloudpickle.loads
        return lambda x: make.remote(payload, loads, threads, self.ray.put(x))

    def lacks(self, place: str | None) -> bool:
        """Whether no machine of the cluster is that place now."""
        if place is None or self.local:
            return False
        if (now := time.monotonic()) - self._listed > NODES_EVERY:
            self._nodes, self._listed = self.ray.nodes(), now
        return not exists(place, self._nodes)

    def startable_workers(self, shares: Counter[str | None]) -> int:
        """How many of these workers the cluster can start now, given their number at each place."""
        workers = sum(number for place, number in shares.items() if not self.lacks(place))
        has, needs = self.ray.available_resources(), {"CPU": self.cpus, "GPU": self.gpus}
        if self.local:
            del needs["CPU"]
            if (gpus := has.get("GPU", 0)) < self.gpus:
                raise Invalid(f"`gpus_per_worker` must be at most the GPUs here ({gpus:g}), got {self.gpus:g}.")
        return min([workers, *(int(has.get(name, 0) / each) for name, each in needs.items() if each)])

    def loading(self, workers: Iterable[Worker], seconds: float) -> bool:
        """Whether one of these workers, which have not answered yet, is loading the task after this time."""
        begun = [worker.begun for worker in workers]
        return seconds < LOAD_TIMEOUT and bool(begun and self.ray.wait(begun, timeout=0)[0])

    def why_missing(self, places: Sequence[str]) -> str:
        """Why workers are missing, if there are none at these places."""
        if lacking := [repr(place) for place in places if self.lacks(place)]:
            return f"no machine of the cluster has the resource or label {' or '.join(lacking)}."
        return self.resources()

    def resources(self) -> str:
        """A sentence that says what a worker needs and what the cluster has."""
        has, needs = self.ray.cluster_resources(), f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
        return f"each takes {needs}, and the cluster has {has.get('CPU', 0):g} and {has.get('GPU', 0):g}."

    def close(self) -> None:
        """Stop Ray, or leave the cluster, if this session connected to it. If work failed, Ray's logs are kept."""
        self._payload = None
        if self._connected_here:
            with suppress(Exception):
                self.ray.shutdown()
        if self._quiet and sys.stdout is self._quiet:
            sys.stdout = self._quiet.stream
        if self._folder and not isinstance(sys.exception(), WorkFailed):
            shutil.rmtree(self._folder, ignore_errors=True)
        self._connected_here, self._head, self._folder, self._quiet = False, None, None, None
