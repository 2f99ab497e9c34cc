"""Simulate what a change of settings would do, on the fleet fitted to a record.

A simulation has as many updates as the run, or more if the slowest client needs them to finish a few jobs. It is
discarded if that client does not finish, or if the simulation of the run itself does not match its largest delay.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

from tardygrad.core.method import Method, Mode
from tardygrad.doctor.clock_run import ClockResult, run_clock, updates_until_slowest
from tardygrad.doctor.fit_runtimes import fit_fleet
from tardygrad.doctor.search import ranked, search, sizes
from tardygrad.doctor.theorems import has_theorem
from tardygrad.errors import Invalid, Starved
from tardygrad.fleet import Fleet
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.runs import own_code
from tardygrad.runs.history import History
from tardygrad.runs.record import Row
from tardygrad.spec import spec

SIMILAR = 2.0  # the simulated largest delay may differ by this factor


class Expected(NamedTuple):
    """A changed method, and the simulations before and after the change."""

    method: Method
    now: ClockResult
    then: ClockResult

    @property
    def faster(self) -> float:
        """Effective updates per second relative to before."""
        return self.now.per_effective / self.then.per_effective if self.then.time else 1.0

    def __str__(self) -> str:
        now, then = self.now, self.then
        parts = [f"largest delay {now.delay_max} → {then.delay_max}, mean {now.delay_mean:.3g} → {then.delay_mean:.3g}"]
        if now.time:
            parts.append(f"{then.per_round / now.per_round:.2g} times the time per round")
            parts.append(f"{self.faster:.2g} times the effective updates per second")
        parts.append(f"idle share {now.idle:.0%} → {then.idle:.0%}")
        parts += [f"{then.refused:.1%} of updates refused"] if then.refused else []
        return ", ".join(parts)


class WhatIf:
    """Simulates changes of a recorded run, as far as its method and fleet are known.

    Args:
        trust: whether to import code that the record names.
    """

    def __init__(self, history: History, *, trust: bool = False) -> None:
        self.history, self.trust = history, trust
        self.method = method_of(history, trust=trust)

    @cached_property
    def fleet(self) -> Fleet | None:
        """The fitted fleet."""
        try:
            return fit_fleet(self.history).fleet
        except Invalid:
            return None

    @cached_property
    def now(self) -> ClockResult | None:
        """The simulation of the run itself; None if it does not match the record."""
        now, seen = self._clock(self.method), self.history.rounds.delays
        if now is None or not seen.size:
            return None
        return now if seen.max() <= SIMILAR * now.delay_max and now.delay_max <= SIMILAR * seen.max() else None

    def expect(self, **changes: object) -> Expected | None:
        """The effect of changed settings; None if unknown or invalid."""
        try:
            changed = replace(self.method, **changes) if self.method else None  # type: ignore[arg-type]
        except Invalid:
            return None
        then = self._clock(changed)
        return Expected(changed, self.now, then) if changed and self.now and then else None

    def within(self, bound: float) -> Expected | None:
        """The best asynchronous mode and M whose delays are within the bound, for the same number of rounds."""
        method, fleet, now = self.method, self.fleet, self.now
        if method is None or fleet is None or now is None:
            return None
        fixed = self.history.method_settings is not None and self.history.setting("mode") is None
        modes: tuple[Mode, ...] = (method.mode,) if fixed else ("server", "client")
        most = method.concurrency or fleet.clients
        tries = [
            replace(method, mode=mode, buffer=buffer)
            for mode in modes
            for buffer in sizes(most, method.buffer)
            if buffer < most
            or (mode == "client" and buffer == most)  # a server that waits for all clients would be synchronous
        ]
        found = ranked(list(search(tries, fleet, rounds=len(self.history.rounds), bound=bound)))
        for setting in found:
            if setting.excluded is None and setting.clock and setting.clock.waits <= bound:
                return Expected(setting.method, now, setting.clock)
        return None

    def downplayed(self) -> str | None:
        """The overrides for downplaying; None if the method or its schedule does not support it."""
        given, plain = self.history.method_settings, "method.downplay=true"
        if not has_theorem(self.history.label):
            return None
        for words, change in ((plain, {}), (f"{plain} method.schedule=theory", {"schedule": "theory"})):
            if given is None or _built(given | {"downplay": True} | change, trust=self.trust):
                return words
        return None

    def _clock(self, method: Method | None) -> ClockResult | None:
        if method is None or self.fleet is None:
            return None
        updates = max(self.history.rounds.delays.size, updates_until_slowest(self.fleet))
        try:
            seen = run_clock(method, self.fleet, rounds=math.ceil(updates / method.buffer))
        except (Invalid, Starved):
            return None
        back = method.max_delay is not None or seen.waits <= SIMILAR * seen.delay_max
        return seen if back else None


def method_of(history: History, *, trust: bool) -> Method | None:
    """The method of a record. If its settings are not known: one with the same clock, if its description tells."""
    if history.method_settings and (method := _built(history.method_settings, trust=trust)):
        return method
    described = re.search(r" \((synchronous|server-centric|client-centric), M=(\d{1,9}), ", history.method)
    if described is None or int(described[2]) > history.clients:
        return None
    modes: dict[str, Mode] = {"synchronous": "sync", "server-centric": "server", "client-centric": "client"}
    late = "downplayed" in history.method
    still = partial(sgdclip, local_lr=0.0, local_clip=0.0, lr=0.0, local_steps=1)
    return still(buffer=int(described[2]), mode=modes[described[1]], downplay=late)


def _built(settings: Row, *, trust: bool) -> Method | None:
    """The method of a spec's table; None if it is not valid, for example because another version wrote it."""
    if not trust and any(own_code.names(settings)):
        return None
    try:
        return spec.build_method(settings)
    except Invalid:
        return None
