"""What a node does with a message: make method and task, do the job, and remember what must stay with the client."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import uuid4

import torch

from tardygrad.core import admission
from tardygrad.core.messages import Job, StateReference, Update
from tardygrad.core.method import Method
from tardygrad.core.task import Task, check_task
from tardygrad.engines.contract import Residuals, pack, perform
from tardygrad.engines.flower import records
from tardygrad.engines.flower.connection import flwr
from tardygrad.engines.same_task import is_same
from tardygrad.engines.threads import use_threads
from tardygrad.errors import Invalid, TardygradError, WorkFailed, type_and_first_line

Make = Callable[[Any], tuple[Method, Task]]
"""Takes Flower's `Context`, of the server or of a node; returns a method and a task."""

ERRORS_LOST = "the node has lost the client's compression errors"
"""The error message after which a client counts as lost, and starts again with errors of zero."""


class Work(NamedTuple):
    """What a node made from its source."""

    method: Method
    task: Task
    settings: dict[str, int]  # of both, as `records.settings_of` gives them


_lock = threading.Lock()
_works: dict[str, dict[tuple[int, int], Work]] = {}
"""What this process has made for an app, by run and node; the app cannot keep it, because a simulation sends a copy of
it with every message."""


class ClientWork:
    """Answers the messages of a server.

    Args:
        make: makes method and task on a node.
        own_data: whether they may differ from node to node.
    """

    def __init__(self, make: Make, *, own_data: bool) -> None:
        self._make, self._own_data, self._name = make, own_data, uuid4().hex

    def query(self, content: Any, context: Any) -> Any:
        """Which clients a node serves."""
        return node_content(context, own_data=self._own_data)

    def train(self, content: Any, context: Any) -> Any:
        """Do a job."""
        try:
            use_threads()
            torch.set_num_threads(int(content["job"]["threads"]))  # a replay needs as many for the same bits
            work = self._work(context)
            records.check_settings(work.settings, json.loads(str(content["job"]["settings"])))
            return _reply(content, context, work)
        except WorkFailed as error:
            return records.error_content(str(error))
        except TardygradError as error:
            return records.error_content(f"a node could not prepare its job: {type_and_first_line(error)}.")

    def _work(self, context: Any) -> Work:
        key = (int(context.run_id), int(context.node_id) if self._own_data else 0)
        with _lock:
            if self._name not in _works:
                _works.clear()  # those of another app
            works = _works.setdefault(self._name, {})
        if key not in works:
            method, task = self._make(context)
            check_task(task)
            task = next((other.task for other in list(works.values()) if is_same(other.task, task)), task)
            works[key] = Work(method, task, records.settings_of(method, task))
        return works[key]


def node_content(context: Any, *, own_data: bool) -> Any:
    """The reply of a node that says which clients it serves: those whose number modulo n is p.

    Args:
        own_data: whether the node decides whose data it uses, and not the job.
    """
    node = context.node_config
    known = {name: str(node[name]) for name in ("partition-id", "num-partitions") if name in node}
    for name, text in known.items():
        if not re.fullmatch(r"-?\d+(\.0)?", text):
            raise Invalid(f"`{name}` of a node must be a whole number, got {text}")
    numbers = {name: int(text.removesuffix(".0")) for name, text in known.items()}
    facts = {"host": socket.gethostname(), "own-data": own_data}
    return flwr().RecordDict({"node": flwr().ConfigRecord(numbers | facts)})


def _reply(content: Any, context: Any, work: Work) -> Any:
    config, memory = content["job"], NodeMemory(context)
    job, wire = records.job_of(content), config["wire"]
    down = records.count_bytes(content.array_records.values())
    residuals = memory.residuals(job.client, int(config["last"]))
    if residuals is None:
        return records.error_content(ERRORS_LOST)
    update = perform(memory.with_state(job), work.task, work.method)
    if work.method.keep == "worker":
        update = memory.hold_state(update)
    packed, left = pack(update, residuals, wire)
    if wire != "float32":
        memory.keep_residuals(job, left)
    return records.reply_content(update, packed, down=down, host=socket.gethostname())


class NodeMemory:
    """What a node remembers of its clients from job to job, in the state of Flower's context, which stays there.

    Flower may keep that state for later runs, so everything is marked with the run.
    """

    def __init__(self, context: Any) -> None:
        self._state, self._run = context.state, str(context.run_id)
        self.name = f"{context.run_id}.{context.node_id}"  # in references to the states that the node holds

    def residuals(self, client: int, last: int) -> Residuals | None:
        """The compression errors of a client after its job `last` (−1: none yet); None if the node has lost them."""
        if last < 0:
            return {}
        mark = self._state.get(f"tardygrad.mark.{client}")
        if mark is None or (mark["run"], mark["serial"]) != (self._run, last):
            return None
        return records.tensors_of(self._state.get(f"tardygrad.errors.{client}"))

    def keep_residuals(self, job: Job, residuals: Residuals) -> None:
        """Keep a client's compression errors after a job."""
        mark = {"run": self._run, "serial": job.serial}
        self._state[f"tardygrad.mark.{job.client}"] = flwr().ConfigRecord(mark)
        self._state[f"tardygrad.errors.{job.client}"] = records.array_record(records.numpy_of(residuals))

    def with_state(self, job: Job) -> Job:
        """The job with the optimizer state that it starts from, if the node holds it.

        That state stays on the node, in case the server refuses the job's update; all others of the client are dropped.
        """
        if not isinstance(job.state, StateReference):
            return job
        here, prefix = f"{job.state.worker}.{job.state.serial}", f"tardygrad.state.{job.client}."
        for name in [name for name in self._state if name.startswith(prefix) and name != prefix + here]:
            del self._state[name]
        held = self._state.get(prefix + here) if job.state.worker == self.name else None
        return job if held is None else job._replace(state=records.tensors_of(held))

    def hold_state(self, update: Update) -> Update:
        """Keep the optimizer state of an update on the node, and send a reference to it instead.

        A state that is not finite is sent, so that the server refuses the update.
        """
        if not isinstance(update.state, dict) or not admission.finite(update):
            return update
        name = f"tardygrad.state.{update.client}.{self.name}.{update.serial}"
        self._state[name] = records.array_record(records.numpy_of(update.state))
        return update._replace(state=StateReference(self.name, update.serial))
