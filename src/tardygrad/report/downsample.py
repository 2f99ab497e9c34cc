"""Shorten lists of any length to lists short enough to draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
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

    working: list[Bar]  # without the time in which a client was asleep and its job suspended
    asleep: list[Bar]
    away: list[Bar]
    stride: int  # one in this many clients is drawn
    gap: float  # gaps of up to this many seconds are closed; negative: none are


def client_bars(clients: Sequence[ClientHistory], time: float, *, most: int, limit: int) -> ClientBars:
    """Bars of at most `most` clients, and at most `limit` bars: short gaps are closed if there are too many.

    Args:
        time: at the end of the record.
    """
    active = [number for number, client in enumerate(clients) if client.jobs or client.away or client.asleep]
    stride, gap = 1, -1.0
    while sum(number % stride == 0 for number in active) > most:
        stride *= 2
    drawn = [number for number in active if number % stride == 0]
    working = [bar for number in drawn for bar in _working(number, clients[number])]
    asleep = [Bar(number, start, end, 1) for number in drawn for start, end in clients[number].asleep]
    away = [Bar(number, start, end, 1) for number in drawn for start, end in clients[number].away]
    while len(working) + len(asleep) + len(away) > limit:
        gap = max(2 * gap, time / 1000, 1e-9)
        working, asleep, away = (_merged(bars, gap) for bars in (working, asleep, away))
    return ClientBars(working, asleep, away, stride, gap)


def _working(number: int, client: ClientHistory) -> Iterator[Bar]:
    """The jobs of a client, in pieces where it was asleep; the first piece counts the job."""
    spans = client.asleep
    first = 0
    for start, end, *_ in client.jobs:
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        begin, jobs = start, 1
        for sleep, wake in islice(spans, first, None):
            if sleep >= end:
                break
            if sleep > begin:
                yield Bar(number, begin, sleep, jobs)
                jobs = 0
            begin = max(begin, wake)
        if begin < end or jobs:
            yield Bar(number, min(begin, end), end, jobs)


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
