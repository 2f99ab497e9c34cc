"""Shorten streams of any length to lists short enough to draw."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Downsampler(Generic[Item]):
    """One in every `step` items of a stream, and the last one.

    >>> few = Downsampler[int](limit=4)
    >>> for number in range(10):
    ...     few.add(number)
    >>> few.step, few.items
    (4, [0, 4, 8, 9])
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.step, self.seen = limit, 1, 0
        self._items: list[Item] = []
        self._last: list[Item] = []

    def add(self, item: Item) -> None:
        """Add the next item."""
        if self.seen % self.step == 0:
            self._items.append(item)
            self._last = []
            if len(self._items) > self.limit:
                self._items, self._last = self._items[::2], self._items[-1:] if len(self._items) % 2 == 0 else []
                self.step *= 2
        else:
            self._last = [item]
        self.seen += 1

    @property
    def items(self) -> list[Item]:
        """The items that are left, in order."""
        return self._items + self._last


class DelaySpans:
    """Mean and largest delay of each class, in at most `limit` spans of equally many rounds."""

    def __init__(self, limit: int) -> None:
        self.limit, self.width = limit, 1
        self._spans: dict[tuple[int, str], tuple[float, int, int, int]] = {}  # time, updates, sum and max of delays

    def add(self, round: int, name: str, time: float, delay: int) -> None:
        """Add an update that was used in this round."""
        while (round - 1) // self.width >= self.limit:
            before, self._spans, self.width = self._spans, {}, 2 * self.width
            for (span, each), totals in before.items():
                self._put(span // 2, each, totals)
        self._put((round - 1) // self.width, name, (time, 1, delay, delay))

    def _put(self, span: int, name: str, new: tuple[float, int, int, int]) -> None:
        time, number, total, most = self._spans.get((span, name), (0.0, 0, 0, 0))
        self._spans[span, name] = (max(time, new[0]), number + new[1], total + new[2], max(most, new[3]))

    @property
    def rows(self) -> list[tuple[str, int, float, float, int]]:
        """Of each span: class, last round, time of the last update, mean and largest delay."""
        return [
            (name, (span + 1) * self.width, time, total / number, most)
            for (span, name), (time, number, total, most) in sorted(self._spans.items())
        ]


class Bar(NamedTuple):
    """A period in which a client was in one state."""

    client: int
    start: float
    end: float
    jobs: int  # merged into this bar


class ClientBars:
    """What clients did over time, as a bounded number of bars.

    If there are too many clients, every second one is left out; if there are too many bars, short gaps are closed.
    """

    def __init__(self, clients: int, bars: int) -> None:
        self.clients, self.bars = clients, bars
        self.stride, self.gap, self.number = 1, -1.0, 0
        self._clients: dict[int, dict[str, list[Bar]]] = {}

    def add(self, state: str, client: int, start: float, end: float) -> None:
        """Add a period in which a client was in this state."""
        if client % self.stride:
            return
        self._put(state, Bar(client, start, end, 1))
        while len(self._clients) > self.clients:
            self.stride *= 2
            self._rebuild({each: states for each, states in self._clients.items() if each % self.stride == 0})
        while self.number > self.bars:
            self.gap = max(2 * self.gap, end / 1000, 1e-9)
            self._rebuild(self._clients)

    def _put(self, state: str, bar: Bar) -> None:
        bars = self._clients.setdefault(bar.client, {}).setdefault(state, [])
        if bars and bar.start - bars[-1].end <= self.gap:
            bars[-1] = Bar(bar.client, bars[-1].start, max(bar.end, bars[-1].end), bars[-1].jobs + bar.jobs)
        else:
            bars.append(bar)
            self.number += 1

    def _rebuild(self, clients: dict[int, dict[str, list[Bar]]]) -> None:
        self._clients, self.number = {}, 0
        for states in clients.values():
            for state, bars in states.items():
                for bar in bars:
                    self._put(state, bar)

    def of(self, state: str) -> list[Bar]:
        """The bars of a state, by client."""
        return [bar for _, states in sorted(self._clients.items()) for bar in states.get(state, ())]
