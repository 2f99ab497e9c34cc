"""How fast does an update get from a worker into the server's sum, against one copy of its bytes?

The way is the real one: `RayPool`, its workers and the vectors of its server, in this process or in shards. A worker
makes one update by the real `perform`, keeps its vectors, and sends these for every job, so that a job costs nothing
but its way. The clock starts when `perform` has returned, with δ (and A) in the worker's memory, and stops when the
gate has passed the update and the fold is done, in all shards: packed, put into Ray's store, found by the driver,
unpacked, looked at, folded. "server" is the last three of these. One update is on its way at a time; between two of
them the same bytes are copied into fresh memory by `np.copy` (which asks for huge pages) and, for comparison, by
`torch.clone` (which does not). "x best" is the median update (the first of a round or a later one, whichever is slower)
to the best `np.copy`, which decides; "x median" is to the median one, which like an update has had to wait for memory.

"first" is the first of a round, whose fold takes fresh memory for the sum; "later" are the others; "cold" is the very
first, with kernels to load and a store whose pages are new. M = 3, client-centric, so that updates are late and the
x_s that DC reads is not x. "updates/s" and the GB/s after it are sustained: two workers that send as fast as they can,
with all that a run does: models put and sent, rounds made. GB/s are of float32 numbers, whatever they travel as.

Ray's workers and shards run at a low priority (nice 15), the driver and the copies do not: other work on the machine
slows the way down more than the copy.

Then, for docs/scale.md: what an arrival costs the driver when vectors are tiny, and `ray.wait` over many jobs.

    python benchmarks/ray_throughput.py [--sizes 1e6 1e7 8.6e7] [--repeats 4] [--page FILE]

With --page the table is also written to that file, and the figures to a .json beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import tardygrad as tg
from tardygrad.core.messages import Job, Refused, Taken, Update
from tardygrad.engines.ray import session, worker
from tardygrad.engines.ray.connection import object_store, ray_module, start
from tardygrad.engines.wire import Wire

WORKERS, M, TINY = 2, 3, 8192
SENT = 20  # updates that are sent as fast as can be
WAITED = (10, 100, 1000)
LARGE, LIMIT = 86_000_000, 5.0  # from so many parameters on, an update must not take longer than so many copies


@dataclass
class Row:
    """What was measured of one way; seconds."""

    parameters: int
    curvature: bool
    shards: int
    wire: str
    sent: int  # bytes of an update
    first: float
    later: float
    server: float  # of the later ones
    cold: float
    copy: float  # the best
    typical: float  # the median one
    clone: float  # the best
    updates: float  # per second, sustained
    cpu: float  # of the driver for each of those
    memory: int  # bytes of all processes at the end

    @property
    def bytes(self) -> int:
        """Of its numbers as float32."""
        return 4 * self.parameters * (1 + self.curvature)

    @property
    def slower(self) -> float:
        return max(self.first, self.later)


def plain(parameters: int) -> tg.Task:
    """So many parameters, and a gradient that costs nothing."""

    class Plain(tg.Task):
        clients = M

        def __init__(self) -> None:
            self.parameters = parameters

        def init(self, seed: int) -> Any:
            return torch.zeros(parameters)

        def batches(self, job: Job) -> Iterator[None]:
            return iter([None])

        def gradient(self, x: Any, batch: None, module_buffers: Any) -> tuple[Any, Any]:
            return torch.zeros(()), torch.full((parameters,), 0.5)

        def evaluate(self, x: Any, module_buffers: Any) -> dict[str, float]:
            return {}

    return Plain()


def ready() -> type:
    """A worker that has its update: the first job's, under the next one's name, and in `loss` when it was there.

    Made here, so that Ray sends it with its code: its workers need not find this file.
    """

    class Ready(worker.WorkerProcess):
        def work(self, *given: Any) -> Any:
            def perform(job: Job, task: tg.Task, method: tg.Method) -> Update:
                if not hasattr(self, "made"):
                    self.made = really(job, task, method)
                return self.made._replace(client=job.client, serial=job.serial, round=job.round, loss=time.monotonic())

            really = worker.perform_in_time
            with patch.object(worker, "perform_in_time", perform):
                return super().work(*given)

    return Ready


def copying(curvature: bool, parameters: int) -> dict[str, Callable[[], object]]:
    """One copy of an update's bytes into fresh memory, in two ways."""
    arrays = [np.full(parameters, 0.5, np.float32) for _ in range(1 + curvature)]
    tensors = [torch.from_numpy(one) for one in arrays]
    return {
        "copy": lambda: [np.copy(one) for one in arrays],
        "clone": lambda: [one.clone() for one in tensors],
    }


def took(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    made = function()
    seconds = time.perf_counter() - began
    del made
    return seconds


class Way:
    """A server on a pool, and the moments at which updates were in its sum."""

    def __init__(self, pool: tg.RayPool, task: tg.Task, method: tg.Method) -> None:
        self.pool, self.task = pool, task
        self.server = tg.Server(method, task.init(0), clients=M, seed=0, vectors=pool.vectors)
        self.jobs = deque(self.server.dispatch())
        self.found = self.folded = 0.0
        take, receive = self.server.take, pool.transport.receive

        def finding(*given: Any) -> Update:
            self.found = time.monotonic()
            return receive(*given)

        def taking(taken: Taken) -> None:
            take(taken)
            if pool.shards:
                pool.shards._get([])  # they were only told
            self.folded = time.monotonic()

        pool.transport.receive, self.server.take = finding, taking  # type: ignore[method-assign]

    def send(self, jobs: int) -> None:
        for _ in range(jobs):
            self.pool.submit(self.jobs.popleft())

    def receive(self) -> tuple[float, float, int]:
        """The next update: seconds from worker to sum, of these at the server, and the bytes it had."""
        message = self.pool.next()
        if not isinstance(message, Update):
            raise SystemExit(f"a worker was lost: {message}.")
        happened, jobs = self.server.receive(message, self.pool.now)
        if isinstance(happened, Refused):
            raise SystemExit(f"an update was refused: {happened}.")
        self.jobs += jobs
        return self.folded - message.loss, self.folded - self.found, message.up


def measure(
    parameters: int, *, curvature: bool, shards: int = 1, wire: Wire = "float32", repeats: int, sent: int = SENT
) -> Row:
    """One way, on the Ray that runs."""
    task, method = plain(parameters), how(curvature)
    with (
        patch.object(session, "WorkerProcess", ready()),
        tg.RayPool(
            task, method, workers=WORKERS, cpus_per_worker=0, server_shards=shards, wire=wire, evaluate="between"
        ) as pool,
    ):
        way = Way(pool, task, method)
        copies = copying(curvature, parameters)
        cold, copied = math.nan, {name: list[float]() for name in copies}
        first, later = list[tuple[float, float]](), list[tuple[float, float]]()
        for number in range((repeats + 1) * M):
            way.send(1)
            seconds, server, size = way.receive()
            if number == 0:
                cold = seconds
            elif number >= M:
                (first if number % M == 0 else later).append((seconds, server))
            for name, function in copies.items():
                copied[name].append(took(function))
        del copies
        way.send(M)
        for _ in range(WORKERS):  # all are at work
            way.receive()
            way.send(1)
        began, cpu = time.monotonic(), time.process_time()
        for _ in range(sent):
            way.receive()
            way.send(1)
        lasted, cpu = time.monotonic() - began, time.process_time() - cpu
        memory = memory_held()
        for _ in range(M):
            way.receive()
    whole, at_server = zip(*later, strict=True)
    return Row(
        parameters, curvature, shards, wire, size, median(one for one, _ in first), median(whole), median(at_server),
        cold, min(copied["copy"]), median(copied["copy"]), min(copied["clone"]), sent / lasted, cpu / sent, memory,
    )  # fmt: skip


def how(curvature: bool) -> tg.Method:
    return tg.sgdclip(
        local_lr=0.1, local_clip=1.0, lr=1.0, buffer=M, local_steps=1, mode="client", compensate=curvature
    )


def memory_held() -> int:
    """Bytes of memory of this process and all that it started, what they share counted once."""
    import psutil

    mine, total = psutil.Process(), 0
    for one in (mine, *mine.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            total += one.memory_full_info().pss
    return total


def waiting(counts: Iterable[int], repeats: int = 30) -> dict[int, float]:
    """Seconds of `ray.wait` when one of so many answers is there."""
    ray = ray_module()

    class Slow:
        def sleep(self) -> None:
            time.sleep(600)

    slow, there, made = ray.remote(num_cpus=0)(Slow).remote(), ray.put(0), {}
    pending: list[Any] = []
    for count in counts:
        pending += [slow.sleep.remote() for _ in range(count - 1 - len(pending))]
        asked = [*pending, there]
        made[count] = median(took(partial(ray.wait, asked, timeout=0.1)) for _ in range(repeats))
    ray.kill(slow)
    return made


def room(parameters: int) -> int:
    """Bytes of the store that a pool with curvature gives itself."""
    return object_store(plain(parameters), how(True), workers=WORKERS, payload=0)


@contextmanager
def started(parameters: int) -> Iterator[None]:
    """Ray on this machine, for all pools of a size."""
    ray = ray_module()
    folder = start(ray, cpus=WORKERS, gpus=False, store=room(parameters))
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def ways(parameters: int, wires: Iterable[Wire]) -> Iterator[dict[str, Any]]:
    """What is measured at a size: both kinds, one shard and two, and narrow numbers where they are asked for."""
    for curvature in (False, True):
        for shards in (1, 2):
            yield {"parameters": parameters, "curvature": curvature, "shards": shards}
    yield from ({"parameters": parameters, "curvature": False, "wire": wire} for wire in wires)


def table(rows: list[Row]) -> Table:
    made = Table("parameters", "update", "shards", "wire", box=None, pad_edge=False)
    for heading in (
        "MB", "first ms", "later ms", "server ms", "cold ms", "copy ms", "clone ms", "x best", "x median", "GB/s",
        "updates/s", "GB/s", "GB held",
    ):  # fmt: skip
        made.add_column(heading, justify="right")
    for row in rows:
        seconds = row.first, row.later, row.server, row.cold, row.copy, row.clone
        others = (
            row.slower / row.copy, row.slower / row.typical, row.bytes / row.later / 1e9,
            row.updates, row.bytes * row.updates / 1e9, row.memory / 1e9,
        )  # fmt: skip
        named = f"{row.parameters:,}", "δ, A" if row.curvature else "δ", str(row.shards), row.wire
        milliseconds = [f"{1000 * one:.1f}" for one in seconds]
        made.add_row(*named, f"{row.sent / 1e6:.1f}", *milliseconds, *(f"{one:.2f}" for one in others))
    return made


def verdicts(rows: list[Row]) -> list[str]:
    """Whether large updates pass."""
    lines = []
    for row in rows:
        if row.parameters >= LARGE:
            what = f"{row.parameters:,} parameters, {'δ and A' if row.curvature else 'δ only'}, shards {row.shards}"
            ratio = row.slower / row.copy
            verdict = "passes" if ratio <= LIMIT else "FAILS"
            lines.append(f"{what}: {ratio:.2f} copies, {verdict} (at most {LIMIT:g})")
    return lines


def told(rows: list[Row], tiny: list[Row], waits: dict[int, float]) -> str:
    """All that was measured, for people."""
    said = StringIO()
    console = Console(width=165, file=said)
    console.print(table(rows))
    for line in verdicts(rows):
        console.print(line)
    for one in tiny:
        each = f"{1000 * one.cpu:.2f} ms of the driver's CPU for each"
        console.print(f"{one.parameters:,} parameters, shards {one.shards}: {one.updates:.0f} updates/s, {each}")
    for count, seconds in waits.items():
        console.print(f"ray.wait, one of {count:,} there: {1000 * seconds:.2f} ms")
    for size in sorted({row.parameters for row in rows}):
        console.print(f"store at {size:,} parameters: {room(size) / 1e9:.1f} GB")
    return "\n".join(line.rstrip() for line in said.getvalue().splitlines()) + "\n"


def write(page: Path, command: str, text: str, figures: dict[str, Any]) -> None:
    """The page, and the figures beside it."""
    made = f"torch {torch.__version__}, Ray {ray_module().__version__}, Python {platform.python_version()}"
    load = f"Load at the end (mean of 15 minutes): {os.getloadavg()[2]:.1f}"
    machine = f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}), {made}. {load}."
    page.write_text(
        f"# Updates through the server\n\n{machine} What the columns are: `benchmarks/ray_throughput.py`.\n\n"
        f"```text\n$ {command}\n{text}```\n",
        "utf-8",
    )
    page.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--sizes", type=float, nargs="+", default=[1e6, 1e7, 8.6e7])
    ask.add_argument("--repeats", type=int, default=4)
    ask.add_argument("--page", type=Path)
    asked = ask.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with started(TINY):
        waits = waiting(WAITED)
        tiny = [measure(TINY, curvature=False, shards=shards, repeats=1, sent=400) for shards in (1, 2)]
    for size in map(int, asked.sizes):
        with started(size):
            for way in ways(size, get_args(Wire)[1:] if size == 10_000_000 else ()):
                print(*way.values(), flush=True)
                rows.append(measure(**way, repeats=asked.repeats))
    text = told(rows, tiny, waits)
    print(text)
    if asked.page:
        sizes = " ".join(f"{size:g}" for size in asked.sizes)
        command = f"python benchmarks/ray_throughput.py --sizes {sizes} --repeats {asked.repeats}"
        write(asked.page, command, text, {"rows": [*map(asdict, rows)], "tiny": [*map(asdict, tiny)], "wait": waits})


if __name__ == "__main__":
    main()
