"""A Flower grid in this process: its nodes are threads that call a real ClientApp, and can die, hang or be replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from flwr.app import Array, Context, Message, RecordDict
from flwr.app.error import Error
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity


def read_arrays_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """`np.load` parses headers with `ast.literal_eval`, which threads of Python 3.11 must not do at the same time."""
    lock, read = threading.Lock(), Array.numpy

    def numpy(self: Any) -> Any:
        with lock:
            return read(self)

    monkeypatch.setattr(Array, "numpy", numpy)


arrays_are_read_one_at_a_time = pytest.fixture(autouse=True)(read_arrays_one_at_a_time)


RUN = 7
GONE, CRASHED, RAISED = 5, 8, 2


def copied(message: Any) -> Any:
    """A message as it arrives elsewhere: from its bytes."""
    return message_from_proto(message_to_proto(message))


class Grid:
    """What a ServerApp uses of Flower's `Grid`.

    Args:
        app: the ClientApp of all nodes.
        partitions: of the nodes at the start; None: a node without one.
    """

    def __init__(self, app: Any, partitions: Iterable[int | None] = range(6), *, of: int = 6) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
        self.app, self.of = app, of
        self.contexts: dict[int, Context] = {}
        self.online: set[int] = set()
        self.held: dict[int, threading.Event] = {}  # nodes whose jobs hang until the event
        self.replies: dict[str, Any] = {}
        self.sent: list[Any] = []
        self._ids, self._messages = count(1), count(1)
        self._threads, self._lock = ThreadPoolExecutor(3), threading.Lock()
        for partition in partitions:
            self.add(partition)

    def add(self, partition: int | None) -> int:
        """Start a node; its id has nothing to do with its partition."""
        node = 1000 + 7 * next(self._ids)
        config: Any = {} if partition is None else {"partition-id": partition, "num-partitions": self.of}
        self.contexts[node] = Context(RUN, node, config, RecordDict(), {})
        self.online.add(node)
        return node

    def node_of(self, partition: int) -> int:
        """The node with a partition."""
        return next(node for node, one in self.contexts.items() if one.node_config.get("partition-id") == partition)

    def kill(self, node: int) -> None:
        """Let a node disappear; its replies are lost."""
        self.online.discard(node)

    def forget(self, node: int) -> None:
        """Restart a node under the same id."""
        self.contexts[node].state = RecordDict()

    def get_node_ids(self) -> list[int]:
        return list(self.online)

    def push_messages(self, messages: Iterable[Any]) -> list[str | None]:
        ids: list[str | None] = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = str(next(self._messages))
            self.sent.append(message)
            ids.append(name if message.metadata.dst_node_id in self.contexts else None)
            self._threads.submit(self._work, copied(message))
        return ids

    def _work(self, message: Any) -> None:
        node = message.metadata.dst_node_id
        if node in self.held and message.metadata.message_type.startswith("train"):
            self.held[node].wait(60)
        try:
            reply = copied(self.app(message, self.contexts[node]))
        except Exception as error:
            reply = Message(Error(RAISED, f"{type(error)}:<'{error}'>"), reply_to=message)
        with self._lock:
            self.replies.setdefault(message.metadata.message_id, reply)

    def fail(self, message_id: str, code: int) -> None:
        """Let the answer to a message be an error."""
        message = next(one for one in self.sent if one.metadata.message_id == message_id)
        with self._lock:
            self.replies[message_id] = Message(Error(code, "reason"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        found = []
        with self._lock:
            for name in message_ids:
                message = next(one for one in self.sent if one.metadata.message_id == name)
                if message.metadata.dst_node_id not in self.online:  # before its reply, as in Flower
                    self.replies.pop(name, None)
                    found.append(Message(Error(GONE, "offline"), reply_to=message))
                elif name in self.replies:
                    found.append(self.replies.pop(name))
        return found

    def close(self) -> None:
        for event in self.held.values():
            event.set()
        self._threads.shutdown()
