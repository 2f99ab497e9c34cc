"""The engine inside a Flower app, in real time: jobs are messages over the app's grid.

A node does one job at a time, as Flower's SuperNodes do.
"""

from __future__ import annotations

import math
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, cast
from weakref import WeakSet

from tardygrad.constructors import constructor
from tardygrad.core.messages import Job, Update
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task, check_task
from tardygrad.engines.flower.client import ERRORS_LOST
from tardygrad.engines.flower.connection import LOST, RAISED, GridLink, NodeReply, parent_has_ended
from tardygrad.engines.flower.nodes import TIMEOUT, Node, Nodes
from tardygrad.engines.flower.records import JobMessages
from tardygrad.engines.flower.weights import WeightMessages, WeightsTask
from tardygrad.engines.real_time import Answer, Gone, RealTimePool, Running
from tardygrad.engines.wire import Wire
from tardygrad.errors import (
    Invalid,
    TardygradError,
    WorkFailed,
    check_choice,
    check_number,
    shortened,
)

open_pools: WeakSet[FlowerPool] = WeakSet()
"""The pools in use in this process; Ctrl-C stops them."""

SILENCE = 120.0
"""Seconds without a reply to a node's first job after which there is a warning."""

FIRST_PAUSE = 0.02
"""Seconds between two requests for replies, at first; later ones take half as long again, up to `poll`."""


@contextmanager
def stopping_on_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C stop the runs in this process: Flower would wait for the end of its ServerApp."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        pools = list(open_pools)
        for pool in pools:
            pool.stopped = True
        if not pools:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(eq=False)
class RunningJob(Running):
    """A job that was sent to a node; the handle is the id of its message."""

    node: Node = field(kw_only=True)


class FlowerPool(RealTimePool):
    """Jobs on the nodes of a Flower app, in a `with` statement in its ServerApp's main function.

    If a node is gone or its ClientApp crashes, the run goes on: the job and its client are lost, and the client joins
    again when the node is back or another one serves it. The same happens if a job takes too long. When its late update
    arrives, the server refuses the update and the client joins again.

    Args:
        grid: the `Grid` that Flower passes to the main function.
        wire: number format of updates in transit; a client's rounding error is added to its next update (error
            feedback).
        patience: a job times out after the median of its client's own times plus `patience` of their median absolute
            deviations; inf: never.
        grace: seconds that every job has before it can time out.
        ttl: seconds after which Flower drops a message without a reply.
        wait: seconds to wait at the start until all clients have a node; then the run begins with those that do.
        drain: seconds to wait at the end for jobs under way, which would block their nodes in the next run.
    """

    poll = 0.5
    opens_data = False
    startup = "waiting for Flower's nodes"
    resume_keys: ClassVar[tuple[str, ...]] = ("patience", "grace", "ttl", "wait", "drain")

    @constructor
    def __init__(
        self,
        task: Task,
        method: Method,
        *,
        grid: Any = None,
        wire: Wire = "float32",
        patience: float = 10.0,
        grace: float = 60.0,
        ttl: float = 43_200.0,
        wait: float = 120.0,
        drain: float = 30.0,
    ) -> None:
        check_method(method)
        check_task(task)
        check_choice("wire", wire, Wire)
        check_number("ttl", ttl, above=True)
        check_number("wait", wait)
        check_number("drain", drain)
        super().__init__(task, method, patience=patience, grace=grace)
        self.wire, self.wait, self.drain = wire, wait, drain
        self.link = GridLink(grid, ttl)
        self.messages: JobMessages | WeightMessages
        if isinstance(task, WeightsTask):
            if wire != "float32":
                raise Invalid(f"`wire` must be float32 for a ClientApp of your own, got {wire!r}.")
            self.messages = WeightMessages(task, method)
        else:
            self.messages = JobMessages(task, method, wire)
        self.no_replay = self.messages.no_replay
        self.nodes = Nodes(self.link, task.clients, self.messages)
        self.last: dict[int, int] = {}  # client → its last job, if its node has its compression errors
        self._replied: set[int] = set()  # nodes that have replied to a job
        self._worked: set[int] = set()  # nodes that have sent an update
        self._flaky: set[int] = set()  # those of them that have raised an error
        self.stopped = False  # for good: by Ctrl-C, or because Flower has ended
        self._entered, self._pause = False, FIRST_PAUSE

    @classmethod
    def resume_command(cls, folder: str, options: str) -> str:
        """The command of Flower, which starts the runs of its apps itself."""
        config = f'out="{Path(folder).absolute()}" resume=true'
        return f"flwr run APP --run-config {shlex.quote(config)}"

    @property
    def parallel(self) -> int | None:  # type: ignore[override]
        return len(self.nodes.available) or None

    def _check_interrupt(self) -> None:
        self.stopped = self.stopped or parent_has_ended()
        self._interrupted = self._interrupted or self.stopped
        super()._check_interrupt()

    def _start(self, job: Job) -> RunningJob | None:
        """Send a job to its client's node, if that is free."""
        self.nodes.refresh()
        node = self.nodes.find(job.client, self._stuck())
        if node is None or node.id in (running.node.id for running in self._sent()):
            return None
        content = self.messages.content(job, self.last.get(job.client, -1))
        message = self.link.send(content, node.id, self.messages.kind, str(job.round))
        if message is None:
            self.nodes.gone(node.id)
            return None
        return RunningJob(job, message, node=node)

    def _can_serve(self, client: int) -> bool:
        return self.nodes.find(client, self._stuck()) is not None

    def _sent(self) -> list[RunningJob]:
        return cast(list[RunningJob], list(self.running.values()))

    def _stuck(self) -> set[int]:
        """Nodes with a job that has timed out."""
        return {running.node.id for running in self._sent() if running.late_at is not None and not running.ignored}

    def _poll(self, seconds: float) -> Iterator[tuple[RunningJob, Answer]]:
        """The replies that have arrived; if there are none, wait a little."""
        replies = self.link.pull([*cast(dict[str, RunningJob], self.running), *self.nodes.asked])
        for reply in replies:
            if reply.message_id in self.nodes.asked:
                self._meet(reply)
            elif running := cast("RunningJob | None", self.running.get(reply.message_id)):
                yield running, self._answer(running, reply)
        if not replies:
            time.sleep(min(self._pause, seconds))
        self._pause = FIRST_PAUSE if replies else 1.5 * self._pause
        if self.absent:
            self.nodes.refresh()
        self._warn_of_silence()

    def _meet(self, reply: NodeReply) -> None:
        """Handle a new node's answer to which clients it serves."""
        try:
            self.nodes.answered(reply)
        except TardygradError as error:
            if not self._entered:
                raise
            print(f"warning: {error}", file=sys.stderr)  # the run goes on without it

    def _answer(self, running: RunningJob, reply: NodeReply) -> Answer:
        """The update in a reply, or Flower's report that there will be none."""
        self._replied.add(running.node.id)
        if reply.code == 5:
            self.nodes.gone(running.node.id)
        update = self._read(running, reply)
        if isinstance(update, str):
            if reply.code in LOST or update == ERRORS_LOST or self._may_work_again(running, reply, update):
                return Gone(update.removesuffix(".") if reply.code is None else reply.error)
            return WorkFailed(update)
        self._worked.add(running.node.id)
        if running.late_at is None and not running.ignored:
            self.last |= {running.job.client: running.job.serial} if self.wire != "float32" else {}
        return update

    def _read(self, running: RunningJob, reply: NodeReply) -> Update | str:
        """The update in a reply, or what went wrong."""
        work = f"the work of {running.job} on node {running.node.id} failed"
        if reply.code is not None:
            return f"{work}: {reply.error}."
        try:
            return self.messages.update(running.job, reply.content, str(running.node.id))
        except Exception as error:  # whatever a node sends
            return f"{work}: its reply is not as expected: {type(error).__name__}: {shortened(str(error), 200)}."

    def _may_work_again(self, running: RunningJob, reply: NodeReply, failure: str) -> bool:
        """Whether the node has worked before, and may do so again; warns at its first failure."""
        node = running.node.id
        if reply.code not in (None, RAISED) or node not in self._worked:
            return False
        if node not in self._flaky:
            self._flaky.add(node)
            print(f"warning: a job is lost: {failure} Later ones of this node are not reported.", file=sys.stderr)
        return True

    def _forget(self, client: int) -> None:
        self.last.pop(client, None)

    def _warn_of_silence(self) -> None:
        """Warn about nodes that have not replied to their first job, if their ClientApp may never reply."""
        since = time.monotonic() - SILENCE
        silent = {running.node.id for running in self._sent() if running.began < since} - self._replied
        if self.messages.no_reply and silent:
            self._replied |= silent  # warn once
            names = f"node{'s' * (len(silent) > 1)} {', '.join(map(str, sorted(silent)))}"
            print(f"warning: no reply from {names} for {SILENCE:g} s. {self.messages.no_reply}", file=sys.stderr)

    def _clear(self) -> None:
        super()._clear()
        self.last.clear()

    def status(self) -> str:
        """How many clients have no node; empty if all have one."""
        without = [client for client in range(self.task.clients) if not self.nodes.find(client, self._stuck())]
        if not without:
            return ""
        first = ", ".join(map(str, without[:5])) + ", …" * (len(without) > 5)
        fix = "Start SuperNodes with these as partition-id, or set num-supernodes of a simulation."
        return f"{len(without)} of {self.task.clients} clients have no node: {first}. {fix}"

    def __enter__(self) -> Self:
        open_pools.add(self)
        try:
            self._wait_for_nodes()
        except BaseException:
            self.close()
            raise
        self._began = self._last_sign = time.monotonic()
        self._entered = True
        return self

    def _wait_for_nodes(self) -> None:
        """Wait until every client has a node, at most `wait` seconds if there is any node."""
        began = self._began = time.monotonic()
        while missing := self.status():
            self._check_interrupt()
            waited = time.monotonic() - began
            if self.nodes.available and waited > self.wait:
                print(f"warning: the run begins without some clients. {missing}", file=sys.stderr)
                break
            if waited > max(TIMEOUT, self.wait):
                raise WorkFailed(f"no node has answered for {waited:.0f} s. {missing}")
            self.nodes.refresh()
            self._collect(self.poll)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and not self.stopped:
            self._drain()
        self.close()

    def _drain(self) -> None:
        """Wait for jobs under way, so that they do not block their nodes in the next run."""
        self.begin()  # which ignores their updates
        until, self.deadline = time.monotonic() + self.drain, math.inf
        while self.running and time.monotonic() < until:
            with suppress(TardygradError):
                self._collect(self.poll)

    def close(self) -> None:
        open_pools.discard(self)
        super().close()
