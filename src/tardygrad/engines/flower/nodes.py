"""The nodes of a Flower federation, and which of them works for which client.

Node ids are random, so a new node is asked for its `partition-id` p and `num-partitions` n: it serves the clients whose
number is p modulo n. A node that has none or is not asked gets the first client that has no node, unless the method
needs to know whose data a node has. A client stays with its node until that is gone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tardygrad.engines.flower.connection import LOST, GridLink, NodeReply, flwr
from tardygrad.errors import Invalid, WorkFailed, shortened

NODES_EVERY = 1.0
"""Seconds after which the nodes are listed again."""

TIMEOUT = 120.0
"""Seconds without any node, or without an answer of one, after which a run fails."""


class Messages(Protocol):
    """What the messages of an app say about its nodes."""

    handshake: str  # the type of the message that asks a node which clients it serves; "" does not ask
    no_answer: str  # why a node whose ClientApp does not know that message cannot take part

    def unfit(self, facts: Mapping[str, Any]) -> str:
        """Why a node with this answer cannot take part; empty if it can."""


@dataclass
class Node:
    """A node, and the clients that it serves."""

    id: int
    partition: int | None = None  # None: the node has none, and is free for the first client without a node
    partitions: int = 0
    host: str = ""
    assigned: bool = False  # whether the partition is that of such a client, and not the node's own

    def serves(self, client: int) -> bool:
        """Whether a client's data is on this node."""
        return self.partition is not None and client % self.partitions == self.partition


class Nodes:
    """The nodes that are online.

    Args:
        clients: their number.
        messages: what to ask a node, and which answers let it take part.
    """

    def __init__(self, link: GridLink, clients: int, messages: Messages) -> None:
        self._link, self._clients, self._messages = link, clients, messages
        self._known: dict[int, Node] = {}  # all nodes that have answered
        self._unfit: set[int] = set()  # those whose answer was an error
        self._online: set[int] = set()
        self._node_of: dict[int, int] = {}  # client → its node
        self.asked: dict[str, int] = {}  # id of a question → the node
        self._listed = -math.inf

    @property
    def available(self) -> list[Node]:
        """The nodes that can work now, by id."""
        return [self._known[node] for node in sorted(self._online) if node in self._known]

    def refresh(self) -> None:
        """List the nodes again, if that was not just done, and ask new ones."""
        if (now := time.monotonic()) - self._listed < NODES_EVERY:
            return
        self._listed, self._online = now, self._link.nodes()
        for node in sorted(self._online - self._known.keys() - self._unfit - set(self.asked.values())):
            if not self._messages.handshake:
                self._known[node] = Node(node)
            elif message := self._link.send(flwr().RecordDict({}), node, self._messages.handshake):
                self.asked[message] = node

    def answered(self, reply: NodeReply) -> None:
        """Handle a new node's answer to which clients it serves; raises an error if it cannot take part."""
        node = self.asked.pop(reply.message_id)
        if reply.code in LOST:
            return  # it is asked again when it is back
        self._unfit.add(node)
        facts = reply.content.get("node") if reply.code is None else None
        if facts is None:
            unknown = reply.code is None or "No query function" in reply.error
            why = self._messages.no_answer if unknown else f"{reply.error}."
            raise WorkFailed(f"node {node} cannot take part: {why}")
        partition, partitions = facts.get("partition-id"), facts.get("num-partitions", self._clients)
        numbers = [0 if partition is None else partition, partitions]
        if not (all(type(number) is int for number in numbers) and {"host", "own-data"} <= facts.keys()):
            raise WorkFailed(
                f"node {node} cannot take part: its answer is not as expected: {shortened(repr(facts), 200)}."
            )
        if reason := self._messages.unfit(facts):
            raise WorkFailed(f"node {node} cannot take part: {reason}")
        if partition is not None and not (0 <= partition < partitions and partitions >= 1):
            rule = "`partition-id` of a node must be at least 0 and below `num-partitions`"
            raise Invalid(f"{rule}, got {partition} and {partitions} from node {node}.")
        self._unfit.remove(node)
        self._known[node] = new = Node(node, partition, partitions, str(facts["host"]))
        for other in self._known.values():
            if other.assigned and other.partition is not None and new.serves(other.partition):
                other.partition, other.assigned = None, False  # free for another client

    def find(self, client: int, stuck: Collection[int] = ()) -> Node | None:
        """The node of a client; None if there is none.

        Args:
            stuck: nodes that are online but do not answer.
        """
        able = {node.id: node for node in self.available if node.id not in stuck}
        if (own := able.get(self._node_of.get(client, 0))) and own.serves(client):
            return own
        serving = [node for node in able.values() if node.serves(client)]
        if not serving:
            serving = [node for node in able.values() if node.partition is None][:1]
            for node in serving:
                node.partition, node.partitions, node.assigned = client, self._clients, True
        if not serving:
            return None
        loads = list(self._node_of.values())
        node = min(serving, key=lambda node: (loads.count(node.id), node.id))
        self._node_of[client] = node.id
        return node

    def gone(self, node: int) -> None:
        """A node does not answer any more; it is back when it is listed again."""
        self._online.discard(node)
        self._listed = time.monotonic()


def count_nodes(link: GridLink, least: int) -> int:
    """Wait until at least `least` nodes are online and their number has not changed for a second; return it."""
    began, last, since = time.monotonic(), 0, time.monotonic()
    while last < least or time.monotonic() - since < NODES_EVERY:
        if (count := len(link.nodes())) != last:
            last, since = count, time.monotonic()
        if last < least and time.monotonic() - began > TIMEOUT:
            fix = "Start SuperNodes, or use a smaller buffer."
            raise WorkFailed(f"a round needs {least} nodes, and {last} are online after {TIMEOUT:g} s. {fix}")
        time.sleep(NODES_EVERY / 10)
    return last
