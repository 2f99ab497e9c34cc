"""The engine inside a Flower app, in real time: jobs are messages over the app's grid.

A job waits until its client's node is free, is then a `RunningJob`, and comes back as a message: its update, or the
loss of its client. A node does one job at a time, as Flower's SuperNodes do.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self
from weakref import WeakSet

from tardygrad.constructors import constructor
from tardygrad.core.messages import Job, Joined, Lost, Message, Update
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task, check_task
from tardygrad.engines.contract import Pending, Pool
from tardygrad.engines.flower.client import ERRORS_LOST
from tardygrad.engines.flower.connection import LOST, RAISED, GridLink, NodeReply, parent_has_ended
from tardygrad.engines.flower.nodes import TIMEOUT, Node, Nodes
from tardygrad.engines.flower.records import JobMessages
from tardygrad.engines.flower.weights import WeightMessages, WeightsTask
from tardygrad.engines.real_time import Deadlines, Losses
from tardygrad.engines.wire import Wire
from tardygrad.errors import (
    Interrupted,
    Invalid,
    TardygradError,
    TimeUp,
    WorkFailed,
    check_choice,
    check_number,
    shortened,
)

open_pools: WeakSet[FlowerPool] = WeakSet()
"""The pools in use in this process; Ctrl-C stops them."""

SILENCE = 120.0
"""Seconds without a reply to a node's first job after which there is a warning."""

POLLS = 0.02, 0.5
"""Seconds between two requests for replies: at first, and at most, after many requests without a reply."""


@dataclass(eq=False)
class RunningJob:
    """A job that was sent to a node."""

    job: Job
    node: Node
    began: float
    late: bool = False  # it has timed out, and its client is lost
    ignored: bool = False  # its run has ended


def _messages(task: Task, method: Method, wire: Wire) -> JobMessages | WeightMessages:
    if not isinstance(task, WeightsTask):
        return JobMessages(task, method, wire)
    if wire != "float32":
        raise Invalid(f"`wire` must be float32 for a ClientApp of your own, got {wire!r}.")
    return WeightMessages(task, method)


class FlowerPool(Pool):
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

    task: Task
    method: Method
    deadline: float = math.inf
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
        self.task, self.method, self.wire, self.wait, self.drain = task, method, wire, wait, drain
        self.deadlines, self.losses = Deadlines(patience, grace), Losses()
        self.link = GridLink(grid, ttl)
        self.messages = _messages(task, method, wire)
        self.no_replay = self.messages.no_replay
        self.nodes = Nodes(self.link, task.clients, self.messages)
        self.waiting: deque[Job] = deque()
        self.running: dict[str, RunningJob] = {}  # by the ids of their messages
        self.ready: deque[Message] = deque()
        self.absent: set[int] = set()  # clients that are lost until they have a node
        self.last: dict[int, int] = {}  # client → its last job, if its node has its compression errors
        self._replied: set[int] = set()  # nodes that have replied to a job
        self._worked: set[int] = set()  # nodes that have sent an update
        self._flaky: set[int] = set()  # those of them that have raised an error
        self._began: float | None = None
        self.stopped = False  # for good: by Ctrl-C, or because Flower has ended
        self._interrupted, self._entered, self._last_answer, self._pause = False, False, 0.0, POLLS[0]

    @classmethod
    def resume_command(cls, folder: str, options: str) -> str:
        """The command of Flower, which starts the runs of its apps itself."""
        config = f'out="{Path(folder).absolute()}" resume=true'
        return f"flwr run APP --run-config {shlex.quote(config)}"

    @property
    def now(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    @property
    def parallel(self) -> int | None:  # type: ignore[override]
        return len(self.nodes.available) or None

    def submit(self, job: Job) -> None:
        self._check()
        if not self.waiting:
            self._last_answer = time.monotonic()  # the pool may have been idle
        self.waiting.append(job)
        self._start_jobs()

    def next(self) -> Message | None:
        while True:
            self._check_interrupt()
            self._check()
            if self.now >= self.deadline:
                raise TimeUp(f"the run's {self.deadline:g} s are over.")
            if self.ready:
                return self.ready.popleft()
            if not (self.waiting or self.absent or any(not running.ignored for running in self.running.values())):
                return None
            self._collect()
            self._time_out()
            self._warn_of_silence()
            self._rejoin()
            self._start_jobs()
            if any(not running.late for running in self.running.values()) or self.ready:
                self._last_answer = time.monotonic()
            elif time.monotonic() - self._last_answer > TIMEOUT:
                raise WorkFailed(f"no node has answered for {TIMEOUT:g} s. {self.status()}")

    def interrupt(self, on: bool = True) -> None:
        """Make the present or next call of `next` raise `Interrupted`, or withdraw that; callable from any thread."""
        self._interrupted = on

    def _check_interrupt(self) -> None:
        self.stopped = self.stopped or parent_has_ended()
        if self._interrupted or self.stopped:
            self._interrupted = False
            raise Interrupted("interrupted while waiting for a message.")

    def _check(self) -> None:
        if self._began is None:
            raise Invalid("use a FlowerPool inside its `with` block.")

    def _start_jobs(self) -> None:
        """Send waiting jobs to the nodes of their clients, if these are free; lose clients without a node."""
        if not self.waiting:
            return
        self.nodes.refresh()
        busy = {running.node.id for running in self.running.values()}
        skipped: list[Job] = []
        while self.waiting:
            job = self.waiting.popleft()
            node = self.nodes.find(job.client, self._stuck())
            if node is None:
                self._lose_client(job.client)
            elif node.id in busy:
                skipped.append(job)
            else:
                content = self.messages.content(job, self.last.get(job.client, -1))
                message = self.link.send(content, node.id, self.messages.kind, str(job.round))
                if message is None:
                    self.nodes.gone(node.id)
                    self._lose(job, LOST[5])
                    continue
                self.running[message] = RunningJob(job, node, time.monotonic())
                busy.add(node.id)
        self.waiting.extend(skipped)

    def _stuck(self) -> set[int]:
        """Nodes with a job that has timed out."""
        return {running.node.id for running in self.running.values() if running.late}

    def _collect(self) -> None:
        """Handle the replies that have arrived; if there are none, wait a little."""
        if replies := self.link.pull([*self.running, *self.nodes.asked]):
            self._pause = POLLS[0]
        failed: TardygradError | None = None
        for reply in replies:
            joins = reply.message_id in self.nodes.asked
            try:
                if joins:
                    self.nodes.answered(reply)
                elif reply.message_id in self.running:
                    self._finish(reply)
            except TardygradError as error:
                if joins and self._entered:  # the run goes on without it
                    print(f"warning: {error}", file=sys.stderr)
                else:
                    failed = failed or error  # after the other replies, which Flower gives only once
        if failed:
            raise failed
        if not replies:
            time.sleep(max(min(self._pause, self.deadline - self.now), 0.0))
            self._pause = min(1.5 * self._pause, POLLS[1])

    def _finish(self, reply: NodeReply) -> None:
        """Handle the reply to a job, or Flower's report that there will be none."""
        running = self.running.pop(reply.message_id)
        job = running.job
        self._replied.add(running.node.id)
        if reply.code == 5:
            self.nodes.gone(running.node.id)
        if running.ignored:
            return
        update = self._read(running, reply)
        if isinstance(update, str):
            if not (reply.code in LOST or update == ERRORS_LOST or self._may_work_again(running, reply, update)):
                raise WorkFailed(update)
            if not running.late:
                self._lose(job, update.removesuffix(".") if reply.code is None else reply.error)
            return
        self._worked.add(running.node.id)
        self.deadlines.took(job.client, time.monotonic() - running.began)
        if not running.late:
            self.losses.pop(job.client, None)
            self.last |= {job.client: job.serial} if self.wire != "float32" else {}
        self.ready.append(update)

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

    def _lose(self, job: Job, why: str) -> None:
        """Lose a job whose node is gone, whose ClientApp has crashed, or which has timed out."""
        self.losses.add(job, why)
        self._lose_client(job.client)

    def _lose_client(self, client: int) -> None:
        """Report a client as lost until it has a node; its compression errors are lost."""
        self.last.pop(client, None)
        self.ready.append(Lost(client))
        self.absent.add(client)

    def _rejoin(self) -> None:
        """Report lost clients as back that have a node again."""
        if self.absent:
            self.nodes.refresh()
        for client in sorted(self.absent):
            if self.nodes.find(client, self._stuck()):
                self.absent.remove(client)
                self.ready.append(Joined(client))

    def _time_out(self) -> None:
        """Lose jobs that have timed out; their updates may still arrive."""
        now = time.monotonic()
        for running in self.running.values():
            limit = self.deadlines.limit(running.job.client)
            if not (running.late or running.ignored) and now - running.began > limit:
                running.late = True
                self._lose(running.job, f"it took longer than {limit:.3g} s")

    def _warn_of_silence(self) -> None:
        """Warn about nodes that have not replied to their first job, if their ClientApp may never reply."""
        since = time.monotonic() - SILENCE
        silent = {running.node.id for running in self.running.values() if running.began < since} - self._replied
        if self.messages.no_reply and silent:
            self._replied |= silent  # warn once
            names = f"node{'s' * (len(silent) > 1)} {', '.join(map(str, sorted(silent)))}"
            print(f"warning: no reply from {names} for {SILENCE:g} s. {self.messages.no_reply}", file=sys.stderr)

    def pending(self) -> Pending:
        """The clients with jobs in flight: these jobs are lost when the run is resumed."""
        at_work = [running.job for running in self.running.values() if not (running.late or running.ignored)]
        out = {job.client: job.serial for job in (*self.waiting, *at_work)}
        others = (*self.absent, *(message.client for message in self.ready))
        out |= {client: 0 for client in others if client not in out}
        return Pending(self.now, [], [(self.now, client, serial) for client, serial in out.items()])

    def restore(self, pending: Pending) -> None:
        self._began = time.monotonic() - pending.now
        for _, client, _ in pending.due:
            self._lose_client(client)

    def begin(self) -> None:
        """Prepare for a run; updates for the run before will be ignored."""
        for running in self.running.values():
            running.ignored = True
        for state in (self.waiting, self.ready, self.absent, self.last, self.losses):
            state.clear()
        self._began = self._began and time.monotonic()

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
        self._began = self._last_answer = time.monotonic()
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
            self._collect()

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
                self._collect()

    def close(self) -> None:
        open_pools.discard(self)
        self._began = None
        for state in (self.running, self.waiting, self.ready, self.absent, self.last):
            state.clear()
