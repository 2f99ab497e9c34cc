"""Search the settings for a fleet: simulate every M, mode and concurrency, and rank them by speed.

Speed is the time per effective update, where an update of delay p counts as 1/p. That is its weight in downplayed
methods; for other methods it is a compromise between many stale updates and few fresh ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tardygrad.core.method import Method, Mode
from tardygrad.doctor.clock_run import ClockResult, run_clock
from tardygrad.errors import Invalid, Starved
from tardygrad.fleet import Fleet

SIZES = 12  # values of M to try, besides the current one
MODES: tuple[Mode, ...] = ("sync", "server", "client")


class Candidate(NamedTuple):
    """A setting and the result of its simulation."""

    method: Method
    clock: ClockResult | None  # None: it cannot run
    excluded: str | None  # why it is ruled out
    current: bool = False  # the spec's own setting
    warning: str | None = None  # why it may disappoint; it keeps its rank

    @property
    def seconds(self) -> float:
        """Seconds per effective update."""
        return self.clock.per_effective if self.clock else float("inf")


def sizes(clients: int, also: int) -> list[int]:
    """Values of M to try: all if there are few, or else evenly spaced on a log scale; and the current one.

    >>> sizes(1000, also=25)
    [1, 2, 4, 7, 12, 23, 25, 43, 81, 152, 285, 534, 1000]
    """
    few = range(1, clients + 1) if clients <= SIZES else map(int, np.geomspace(1, clients, SIZES).round())
    return sorted({*few, also})


def settings(method: Method, clients: int) -> list[Method]:
    """The current setting first, then all others to try.

    With a limited concurrency, jobs go to random clients: otherwise the same few clients would always work.
    """
    found = [method]
    places = (None, *sorted({clients // 2, clients // 4} - {0, clients}, reverse=True))
    for mode in MODES:
        for buffer in sizes(clients, method.buffer):
            for concurrency in places[: 1 if mode == "sync" else None]:
                if concurrency is None or mode == "client" or concurrency >= buffer:
                    dispatch = "random" if concurrency else method.dispatch
                    found.append(replace(method, mode=mode, buffer=buffer, concurrency=concurrency, dispatch=dispatch))
    return [found[0], *(each for each in found[1:] if not _same(each, method))]


def _same(one: Method, other: Method) -> bool:
    """Whether both have the same clock."""
    places = {None, one.buffer} if one.mode == "sync" else {one.concurrency}
    return (one.mode, one.buffer) == (other.mode, other.buffer) and other.concurrency in places


def search(
    tried: Iterable[Method], fleet: Fleet, *, rounds: int, bound: float, parameters: int = 0, seed: int = 0
) -> Iterator[Candidate]:
    """Simulate the settings one by one; the first is the current one.

    Args:
        bound: settings with a larger delay, in rounds, are ruled out.
    """
    for number, method in enumerate(tried):
        try:
            clock = run_clock(method, fleet, rounds=rounds, parameters=parameters, seed=seed)
        except (Invalid, Starved) as error:
            why = "it starves" if isinstance(error, Starved) else str(error).partition(", got")[0]
            yield Candidate(method, None, why, number == 0)
            continue
        late = f"its largest delay is above {bound:.4g}" if clock.delay_max > bound else None
        yield Candidate(method, clock, late, number == 0)


def ranked(tried: Sequence[Candidate]) -> list[Candidate]:
    """The fastest first, ruled-out settings last; of equals, the smaller M first."""
    return sorted(tried, key=lambda setting: (setting.excluded is not None, setting.seconds, setting.method.buffer))


class Ranking(NamedTuple):
    """All settings that were tried, the best first; those that cannot run last."""

    settings: list[Candidate]

    @property
    def best(self) -> Candidate | None:
        """The recommended setting; None if no setting can run."""
        return self.settings[0] if self.settings and self.settings[0].clock else None

    @property
    def sync(self) -> Candidate | None:
        """The best synchronous setting; None if none can run."""
        return next((each for each in self.settings if each.method.mode == "sync" and each.clock), None)

    @property
    def current(self) -> Candidate | None:
        """The setting of the method that was given; None if it was not tried."""
        return next((each for each in self.settings if each.current), None)


def rank_settings(
    method: Method,
    fleet: Fleet,
    *,
    rounds: int,
    parameters: int = 0,
    seed: int = 0,
    modes: Sequence[Mode] = MODES,
    bound: float = float("inf"),
    watch: Callable[[Iterator[Candidate], int], Iterable[Candidate]] = lambda found, total: found,
) -> Ranking:
    """Rank the settings of a method for a fleet: every mode and M, with all, half and a quarter of the clients working.

    This function decides what `plan --search` and the doctor recommend. A setting's `seconds` are comparable: one with
    half the seconds is twice as fast. `changes(ranking.best.method, method)` are the overrides to paste.

    Args:
        rounds: the length of the run.
        parameters: size of the model, which sets how long messages take on a link; 0 for a fitted fleet.
        modes: modes to try.
        bound: the largest delay that the theory allows; a setting above it gets a warning, and keeps its rank.
        watch: passes the settings on as they are simulated, given their number; for a progress bar.
    """
    tries = [method, *(each for each in settings(method, fleet.clients)[1:] if each.mode in modes)]
    tried = search(tries, fleet, rounds=rounds, bound=float("inf"), parameters=parameters, seed=seed)
    found = [_warned(each, bound) for each in watch(tried, len(tries))]
    return Ranking(ranked(found))


def _warned(setting: Candidate, bound: float) -> Candidate:
    late = setting.clock is not None and setting.clock.delay_max > bound
    return setting._replace(warning=f"largest delay above {bound:.4g}" if late else None)


def changes(method: Method, before: Method) -> list[str]:
    """The overrides that turn one method into another."""
    found = []
    for key in ("mode", "buffer", "concurrency", "dispatch", "max_delay"):
        if (value := getattr(method, key)) != getattr(before, key):
            found.append(f"method.{key}={'' if value is None else value}")
    return found
