"""Places: where in a cluster clients are pinned, and how many workers each place gets.

A place is the name of a Ray resource ("hospital-a"), a node ("node:10.0.0.3"; Ray gives every node a resource of that
name) or a node's label ("zone=eu"). If Ray is started here, there is one machine, and places are names of workers only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tardygrad.core.task import Task, ids_of
from tardygrad.errors import Invalid

RESOURCE_SHARE = 0.001
"""How much of a place's resource a worker takes: so little that any number of workers fits into 1."""


class Places:
    """The places of the clients.

    Args:
        place: client number or id to place, where text that is an id is never a number; for the other clients the
            task's own `where` decides, if it has one.
    """

    def __init__(self, task: Task, place: Mapping[int | str, str] | None) -> None:
        self._clients = task.clients
        self._of: dict[int, str] = {}
        given: dict[int, Any] = {client: task.where(client) for client in range(task.clients)}
        numbers = _numbers(place or {}, task)
        if len(set(numbers)) < len(numbers):
            raise Invalid(f"the keys of `place` must be different clients, got {', '.join(map(repr, place or {}))}.")
        given |= zip(numbers, (place or {}).values(), strict=True)
        for client, where in given.items():
            if where is not None:
                self._of[client] = _checked(where, client)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(self._of.values()))

    def of(self, client: int) -> str | None:
        """Where a client is pinned; None: it works anywhere."""
        return self._of.get(client)

    def spread(self, workers: int) -> Counter[str | None]:
        """The number of workers of each place: at least one; the rest go where a worker has the most clients.

        Clients that are not pinned count as one more place, None, whose workers are anywhere.
        """
        clients = Counter[str | None](self._of.values())
        if unpinned := self._clients - clients.total():
            clients[None] = unpinned
        spread = Counter(dict.fromkeys(clients, 1))
        for _ in range(workers - len(clients)):
            spread[max(clients, key=lambda place: (clients[place] / spread[place], place is None))] += 1
        return spread


def by_id(place: Mapping[int | str, str], task: Task) -> Mapping[int | str, str]:
    """The same places by the clients' ids if they have any: a record's keys are text, and "0" may be another's id."""
    ids = ids_of(task)
    if ids is None:
        return place
    return {ids[number]: where for number, where in zip(_numbers(place, task), place.values(), strict=True)}


def requirements(place: str | None) -> dict[str, Any]:
    """The options of a Ray actor that must run at a place."""
    if place is None:
        return {}
    key, equals, value = place.partition("=")
    return {"label_selector": {key: value}} if equals else {"resources": {place: RESOURCE_SHARE}}


def exists(place: str, nodes: list[dict[str, Any]]) -> bool:
    """Whether one of these nodes, as `ray.nodes()` lists them, is that place."""
    key, equals, value = place.partition("=")
    alive = [node for node in nodes if node["Alive"]]
    if equals:
        return any(node["Labels"].get(key) == value for node in alive)
    return any(place in node["Resources"] for node in alive)


def _numbers(names: Iterable[int | str], task: Task) -> list[int]:
    """The numbers of clients, from their numbers or ids."""
    by_id = {name: number for number, name in enumerate(ids_of(task) or ())}
    numbers = []
    for name in names:
        number: Any = by_id.get(name) if isinstance(name, str) else None
        if number is None:
            number = int(name) if isinstance(name, str) and name.isdecimal() else name
        if type(number) is not int or not 0 <= number < task.clients:
            known = f"0 to {task.clients - 1}" + (", or their ids" if by_id else "")
            raise Invalid(f"the keys of `place` must be numbers of clients, {known}, got {name!r}.")
        numbers.append(number)
    return numbers


def _checked(where: object, client: int) -> str:
    if isinstance(where, str) and re.fullmatch(r"[\w.:/-]+(=[\w.-]+)?", where) and where not in ("CPU", "GPU"):
        return where
    rule = "a place must be the name of a Ray resource, node:ADDRESS, or a label as key=value"
    raise Invalid(f"{rule}, got {where!r} for client {client}.")
