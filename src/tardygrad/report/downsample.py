"""Shorten lists of any length to lists short enough to draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from tardygrad.runs.history import ClientHistory

Item = TypeVar("Item")


class Sample(NamedTuple, Generic[Item]):
    """Every `step`-th item of a list, and the last one."""

    items: list[Item]
    step: int


def sample(items: Sequence[Item], limit: int) -> Sample[Item]:
    """At most `limit` items of a list, evenly spaced, and the last one.

    >>> sample(range(10), limit=4)
    Sample(items=[0, 4, 8, 9], step=4)
    """
    step = 1
    while len(items) > step * limit:
        step *= 2
    last = [items[-1]] if items and (len(items) - 1) % step else []
    return Sample([*items[::step], *last], step)


class Bar(NamedTuple):
    """A period in which a client was in one state."""

    client: int
    start: float
    end: float
    jobs: int  # merged into this bar


class ClientBars(NamedTuple):
    """What clients did over time, as a bounded number of bars."""

    working: list[Bar]
    away: list[Bar]
    stride: int  # one in this many clients is drawn
    gap: float  # gaps of up to this many seconds are closed; negative: none are


def client_bars(clients: Sequence[ClientHistory], time: float, *, most: int, limit: int) -> ClientBars:
    """Bars of at most `most` clients, and at most `limit` bars: short gaps are closed if there are too many.

    Args:
        time: at the end of the record.
    """
    active = [number for number, client in enumerate(clients) if client.jobs or client.away]
    stride, gap = 1, -1.0
    while sum(number % stride == 0 for number in active) > most:
        stride *= 2
    drawn = [number for number in active if number % stride == 0]
    working = [Bar(number, job.start, job.end, 1) for number in drawn for job in clients[number].jobs]
    away = [Bar(number, start, end, 1) for number in drawn for start, end in clients[number].away]
    while len(working) + len(away) > limit:
        gap = max(2 * gap, time / 1000, 1e-9)
        working, away = _merged(working, gap), _merged(away, gap)
    return ClientBars(working, away, stride, gap)


def _merged(bars: Iterable[Bar], gap: float) -> list[Bar]:
    """The bars, without gaps up to this many seconds between those of one client."""
    found: list[Bar] = []
    for bar in bars:
        last = found[-1] if found else None
        if last and last.client == bar.client and bar.start - last.end <= gap:
            found[-1] = Bar(bar.client, last.start, max(bar.end, last.end), last.jobs + bar.jobs)
        else:
            found.append(bar)
    return found
