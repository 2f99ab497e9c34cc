"""Search the settings for a fleet: rank every mode, M and concurrency by their predicted time.

That is the time for a number of effective updates (clock_run.py says how they are counted): a prediction that knows the
clock but not the task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tardygrad.core.method import MODE_TEXTS, Method, Mode
from tardygrad.doctor.clock_run import FRESH, ClockResult, clearly_better, run_clock
from tardygrad.errors import Invalid, Starved
from tardygrad.fleet import Fleet
from tardygrad.runs.summary import plural

SIZES = 12  # values of M to try, besides the current one
MODES: tuple[Mode, ...] = ("sync", "server", "client")
KEYS = ("mode", "buffer", "concurrency", "dispatch")  # what the settings differ in
WORTH = 1.05  # a smaller gain is not worth a change: times are not so precise

Watch = Callable[[Iterator[Any], int, str], Iterable[Any]]
"""Passes items on, given their number and name: for a progress bar."""


class Candidate(NamedTuple):
    """A setting and the simulation of its clock."""

    method: Method
    clock: ClockResult | None  # None: it cannot run
    excluded: str | None = None  # why it is ruled out
    current: bool = False  # the method's own setting
    warning: str | None = None  # why it may disappoint; it keeps its rank
    seconds: float = math.inf  # predicted for the work of the current setting's run
    rounds: int = 0  # in that time

    @property
    def name(self) -> str:
        """The setting in words."""
        mode = MODE_TEXTS[self.method.mode]
        few = self.method.concurrency if self.method.mode != "sync" else None
        return f"{mode}, M = {self.method.buffer}" + (f", {few} clients working" if few else "")


class Ranking(NamedTuple):
    """All settings that were tried, the best first; those that are ruled out last."""

    settings: list[Candidate]
    cautious: bool = False  # recommend only what is clearly better than the current setting

    @property
    def best(self) -> Candidate | None:
        """The recommended setting; None if none can run."""
        usable = [each for each in self.settings if each.excluded is None and each.seconds < math.inf]
        now = self.current.clock
        if self.cautious and now and self.current in usable:
            clear = (each for each in usable if each.clock and clearly_better(now, each.clock))
            return next(clear, self.current)
        if self.current in usable and self.current.seconds <= WORTH * usable[0].seconds:
            return self.current
        return usable[0] if usable else None

    @property
    def caveat(self) -> str | None:
        """What the setting that is ranked first may need."""
        first = self.settings[0]
        if first.clock is None or first.excluded or first.clock.lag <= FRESH:
            return None
        name = "It" if first is self.best else f"{first.name[0].upper()}{first.name[1:]}, is faster by the clock, but"
        steps = f"the model makes {first.clock.lag:.2g} steps while an update is under way"
        return f"{name} may need a smaller learning rate: {steps}"

    @property
    def sync(self) -> Candidate | None:
        """The best synchronous setting; None if none can run."""
        return next((each for each in self.settings if each.method.mode == "sync" and each.clock), None)

    @property
    def current(self) -> Candidate:
        """The method's own setting."""
        return next(each for each in self.settings if each.current)

    def faster(self, than: Candidate | None) -> float | None:
        """How many times as fast the best setting is; None if that is unknown."""
        if self.best is None or than is None or than.seconds == math.inf:
            return None
        return than.seconds / self.best.seconds if self.best.seconds > 0 else 1.0

    def answer(self) -> str:
        """The recommendation in one sentence."""
        best, sync, first = self.best, self.sync, self.settings[0]
        if best is None:
            return "no setting can be recommended: all are ruled out"
        time = f"{_seconds(best.seconds)} for {plural(best.rounds, 'round')}"
        text = f"{'keep' if best.current else 'use'} {best.name}: {time}"
        if best.current and best is not first and self.cautious:
            return f"{text}; no other setting is clearly better"
        if best.current and best is not first:
            return f"{text}; it is as good as the fastest, {first.name} ({_seconds(first.seconds)})"
        if best is sync:
            others = (each for each in self.settings if each.method.mode != "sync" and each.excluded is None)
            return text + self._versus(next(others, None), "the best asynchronous setting")
        text += self._versus(sync, "the best synchronous setting")
        return (
            text if self.current in (best, sync) else text + self._versus(self.current, "the current setting", " and ")
        )

    def _versus(self, other: Candidate | None, name: str, join: str = ", ") -> str:
        if other is None or other.clock is None:
            return f"; {name} cannot run" if other else ""
        ratio = self.faster(other) or math.inf
        number = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"
        times = "" if number == "1" else f"{number} times "
        return f"{join}{times}as fast as {name} ({_seconds(other.seconds)})"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def sizes(clients: int, also: int) -> list[int]:
    """Values of M to try: all if there are few, or else evenly spaced on a log scale; and the current one.

    >>> sizes(1000, also=25)
    [1, 2, 4, 7, 12, 23, 25, 43, 81, 152, 285, 534, 1000]
    """
    few = range(1, clients + 1) if clients <= SIZES else map(int, np.geomspace(1, clients, SIZES).round())
    return sorted({*few, also})


def settings(method: Method, clients: int, fixed: Collection[str] = ()) -> list[Method]:
    """The current setting first, then all others to try.

    With a limited concurrency, jobs go to random clients: otherwise the same few clients would always work.
    Settings that are the same as others are left out: server-centric ones with M = 1 are client-centric, and those that
    wait for all working clients are synchronous.

    Args:
        fixed: keys of the current setting that must not change.
    """
    found = []
    for mode in MODES:
        for buffer in sizes(clients, method.buffer):
            for working in [clients, *sorted({clients // 2, clients // 4} - {0, clients}, reverse=True)]:
                same = {"server": buffer in (1, working), "client": buffer == working == 1}.get(mode, False)
                if (same and "mode" not in fixed) or working < {"sync": clients, "server": buffer, "client": 1}[mode]:
                    continue
                few: dict[str, Any] = {"concurrency": working, "dispatch": "random"} if working < clients else {}
                found.append(replace(method, **{"mode": mode, "buffer": buffer, "concurrency": None} | few))
    others = (each for each in found if all(getattr(each, key) == getattr(method, key) for key in fixed))
    return [method, *(each for each in others if not _same(each, method))]


def _same(method: Method, other: Method) -> bool:
    """Whether both have the same clock."""
    places = {None, method.buffer} if method.mode == "sync" else {method.concurrency}
    return (method.mode, method.buffer) == (other.mode, other.buffer) and other.concurrency in places


def rank_settings(
    method: Method,
    fleet: Fleet,
    *,
    rounds: int,
    parameters: int = 0,
    seed: int = 0,
    fixed: Collection[str] = (),
    max_delay: float = math.inf,
    tolerated: float = math.inf,
    cautious: bool = False,
    watch: Watch = lambda items, total, what: items,
) -> Ranking:
    """Rank the settings of a method for a fleet: every mode and M, with all, half and a quarter of the clients working.

    This function decides what `plan --search` and the doctor recommend. `changes(ranking.best.method, method)` are the
    overrides to paste. It knows nothing about the task, so another M than the current one is a guess;
    `fixed=["buffer"]` compares only settings whose rounds are alike.

    Args:
        rounds: the length of the current setting's run.
        parameters: size of the model, which sets how long messages take on a link; 0 for a fitted fleet.
        seed: of the clock.
        fixed: keys of the current setting that must not change, such as "mode".
        max_delay: settings with a larger delay, in rounds, are ruled out.
        tolerated: settings with a larger delay get a warning, and keep their rank.
        cautious: for a run that works: recommend only what is clearly better than its setting.
    """
    tries = settings(method, fleet.clients, fixed)
    work = rounds * math.sqrt(method.buffer)  # roughly, to simulate more rounds if they are smaller
    enough = [max(rounds, math.ceil(work / math.sqrt(each.buffer))) for each in tries]
    simulated = (_clock(each, fleet, most, parameters, seed) for each, most in zip(tries, enough, strict=True))
    clocks = list(watch(simulated, len(tries), "settings"))
    unit = next((clock for clock in clocks if isinstance(clock, ClockResult)), None)
    work = unit.effective / unit.rounds * rounds if unit else 0.0
    found: list[Candidate] = []
    known = set()  # if at most half of the clients are awake at a time, a limit of half of them changes nothing
    for each, clock in zip(tries, clocks, strict=True):
        current = each is method
        if isinstance(clock, str):
            found.append(Candidate(each, None, clock, current))
        elif (each.mode, each.buffer, clock) not in known:
            known.add((each.mode, each.buffer, clock))
            found.append(_candidate(each, clock, work, current=current, max_delay=max_delay, tolerated=tolerated))
    found.sort(key=lambda each: (each.excluded is not None, each.seconds, each.method.buffer))
    return Ranking(found, cautious)


def _clock(method: Method, fleet: Fleet, rounds: int, parameters: int, seed: int) -> ClockResult | str:
    """The clock of a setting, or why it cannot run."""
    try:
        clock = run_clock(method, fleet, rounds=rounds, parameters=parameters, seed=seed)
    except Starved:
        return "it starves"
    except Invalid as error:
        return str(error).partition(", got")[0]
    return clock if clock.effective else "its updates have no weight"


def _candidate(
    method: Method, clock: ClockResult, work: float, *, current: bool, max_delay: float, tolerated: float
) -> Candidate:
    """A setting with its time and rounds for a number of effective updates."""
    rounds = work * clock.rounds / clock.effective
    excluded, warning = (
        f"its largest delay is above {most:.4g}" if clock.delay_max > most else None for most in (max_delay, tolerated)
    )
    return Candidate(method, clock, excluded, current, warning, rounds * clock.per_round, max(round(rounds), 1))


def changes(method: Method, before: Method) -> list[str]:
    """The overrides that turn one method into another."""
    found = []
    for key in (*KEYS, "max_delay"):
        if (value := getattr(method, key)) != getattr(before, key):
            found.append(f"method.{key}={'' if value is None else value}")
    return found
