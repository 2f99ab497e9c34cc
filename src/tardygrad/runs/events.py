"""The events of a record, each possible after those before it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tardygrad.errors import Invalid
from tardygrad.runs.record import Row, read_lines

KINDS = ("dispatch", "arrival", "refusal", "loss", "join", "advance", "tail", "evaluation", "resume")


def events(path: Path, clients: int) -> Iterator[Row]:
    """The events of a run as they are read, until one that cannot have happened.

    Args:
        path: of events.jsonl.
        clients: N.
    """
    so_far = _SoFar(clients)
    for number, row in enumerate(read_lines(path), 1):
        if wrong := so_far.wrong(row):
            raise Invalid(f"line {number} of {str(path)!r} cannot have happened: {wrong}")
        yield row


class _SoFar:
    """What the events have come to."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.now, self.round = 0.0, 0
        self.out: dict[int, tuple[int, int]] = {}  # client to serial and round of its job
        self.sent: dict[int, int] = {}  # client to the number of its jobs

    def wrong(self, row: Row) -> str:
        """What is wrong with the next event; nothing if it is possible."""
        kind, now = row.get("event"), row.get("time")
        if kind not in KINDS:
            return f"`event` must be one of {', '.join(KINDS)}, got {_cut(kind)}. Use the version that wrote it."
        if type(now) not in (int, float) or not self.now <= now < math.inf:  # type: ignore[operator]
            return f"`time` must be a number, {self.now:g} or later, got {_cut(now)}."
        self.now = now  # type: ignore[assignment]
        if kind in ("dispatch", "arrival", "refusal", "loss", "join"):
            return self._client(kind, row)
        if kind == "advance":
            self.round += 1
            if row.get("round") != self.round:
                return f"`round` must be {self.round}, got {_cut(row.get('round'))}."
        return ""

    def _client(self, kind: str, row: Row) -> str:
        client, serial, begun = row.get("client"), row.get("serial"), row.get("round")
        if type(client) is not int or not 0 <= client < self.clients:
            return f"`client` must be a whole number from 0 to {self.clients - 1}, got {_cut(client)}."
        sent, job = self.sent.get(client, 0), self.out.get(client)
        if kind == "loss":
            self.out.pop(client, None)
        elif kind == "dispatch":
            if job is not None or serial != sent:
                why = f"its job {sent - 1} is out" if job else f"its next is job {sent}"
                return f"client {client} cannot be sent job {_cut(serial)}: {why}."
            if type(begun) is not int or not 0 <= begun <= self.round:  # a region counts its own
                return f"`round` must be a whole number from 0 to {self.round}, got {_cut(begun)}."
            self.sent[client], self.out[client] = sent + 1, (serial, begun)
        elif kind == "arrival" and job != (serial, begun):
            return f"job {_cut(serial)} of client {client} from round {_cut(begun)} is not out."
        elif kind == "refusal" and (type(serial) is not int or not 0 <= serial < sent):
            return f"job {_cut(serial)} of client {client} was never sent."
        if kind in ("arrival", "refusal") and job == (serial, begun):
            del self.out[client]
        return ""


def _cut(value: Any) -> str:
    return repr(value)[:60]
