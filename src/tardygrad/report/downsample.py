"""Streams of any length as lists of a bounded one: what is left out or merged can be said in words."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Thin(Generic[Item]):
    """One in every `step` items of a stream, and the last one.

    >>> few = Thin[int](limit=4)
    >>> for number in range(10):
    ...     few.add(number)
    >>> few.step, few.kept
    (4, [0, 4, 8, 9])
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.step, self.seen = limit, 1, 0
        self._items: list[Item] = []
        self._last: list[Item] = []

    def add(self, item: Item) -> None:
        """The next one."""
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
    def kept(self) -> list[Item]:
        """What is left, in order."""
        return self._items + self._last


class Lateness:
    """The delays of classes over the rounds: mean and largest in at most so many spans of equal length."""

    def __init__(self, limit: int) -> None:
        self.limit, self.width = limit, 1
        self._spans: dict[tuple[int, str], tuple[float, int, int, int]] = {}  # time, updates, sum and most of delays

    def add(self, round: int, name: str, time: float, delay: int) -> None:
        """An update that was used."""
        while (round - 1) // self.width >= self.limit:
            before, self._spans, self.width = self._spans, {}, 2 * self.width
            for (span, each), held in before.items():
                self._put(span // 2, each, held)
        self._put((round - 1) // self.width, name, (time, 1, delay, delay))

    def _put(self, span: int, name: str, new: tuple[float, int, int, int]) -> None:
        time, number, total, most = self._spans.get((span, name), (0.0, 0, 0, 0))
        held = (max(time, new[0]), number + new[1], total + new[2], max(most, new[3]))
        self._spans[span, name] = held

    @property
    def kept(self) -> list[tuple[str, int, float, float, int]]:
        """Class, last round of the span, time of the last update in it, mean and largest delay."""
        return [
            (name, (span + 1) * self.width, time, total / number, most)
            for (span, name), (time, number, total, most) in sorted(self._spans.items())
        ]


class Bar(NamedTuple):
    """A stretch of a client's time."""

    client: int
    start: float
    end: float
    jobs: int  # how many are drawn as one


class Lanes:
    """What clients did over time, as a bounded number of bars.

    Of too many clients every second is left out; then bars with gaps too short to be seen are merged.
    """

    def __init__(self, clients: int, bars: int) -> None:
        self.clients, self.bars = clients, bars
        self.stride, self.gap, self.number = 1, -1.0, 0
        self._lanes: dict[int, dict[str, list[Bar]]] = {}

    def add(self, state: str, client: int, start: float, end: float) -> None:
        """A client was in a state from start to end."""
        if client % self.stride:
            return
        self._put(state, Bar(client, start, end, 1))
        while len(self._lanes) > self.clients:
            self.stride *= 2
            self._again({each: lane for each, lane in self._lanes.items() if each % self.stride == 0})
        while self.number > self.bars:
            self.gap = max(2 * self.gap, end / 1000, 1e-9)
            self._again(self._lanes)

    def _put(self, state: str, bar: Bar) -> None:
        lane = self._lanes.setdefault(bar.client, {}).setdefault(state, [])
        if lane and bar.start - lane[-1].end <= self.gap:
            lane[-1] = Bar(bar.client, lane[-1].start, max(bar.end, lane[-1].end), lane[-1].jobs + bar.jobs)
        else:
            lane.append(bar)
            self.number += 1

    def _again(self, lanes: dict[int, dict[str, list[Bar]]]) -> None:
        self._lanes, self.number = {}, 0
        for lane in lanes.values():
            for state, bars in lane.items():
                for bar in bars:
                    self._put(state, bar)

    def kept(self, state: str) -> list[Bar]:
        """The bars of a state, by client."""
        return [bar for _, lane in sorted(self._lanes.items()) for bar in lane.get(state, ())]
