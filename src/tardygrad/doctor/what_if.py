"""Simulate what a change of settings would do, on the fleet fitted to a record.

A simulation is trusted only if that of the run itself agrees with the record: in the time per round, and in the largest
delay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

from tardygrad import own_code
from tardygrad.core.method import MODE_TEXTS, Method
from tardygrad.doctor.clock_run import ClockResult, clearly_better, faster, gain, run_clock
from tardygrad.doctor.fit_runtimes import fit_fleet
from tardygrad.doctor.search import KEYS, Candidate, Ranking, changes, rank_settings
from tardygrad.errors import Invalid, Starved
from tardygrad.fleet import Fleet
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.runs.history import History
from tardygrad.runs.record import Row
from tardygrad.spec import spec

SIMILAR = 2.0  # the simulated largest delay may differ by this factor
AGREES = 1.3  # the simulated time per round may differ by this factor


class Expected(NamedTuple):
    """A changed method, and the simulations before and after the change."""

    method: Method
    before: Method
    now: ClockResult
    then: ClockResult

    @property
    def name(self) -> str:
        """The changed setting in words."""
        return Candidate(self.method, self.then).name

    @property
    def overrides(self) -> list[str]:
        """The overrides that make the change."""
        return changes(self.method, self.before)

    @property
    def gain(self) -> float:
        """How many times as fast the training is at least."""
        return gain(self.now, self.then)

    def __str__(self) -> str:
        now, then = self.now, self.then
        parts = [f"{now.per_round:.3g} → {then.per_round:.3g} s per round"] if now.time else []
        parts.append(f"mean delay {now.delay_mean:.3g} → {then.delay_mean:.3g} (largest {then.delay_max})")
        parts += [f"{faster(now, then):.2g} times the effective updates per second"] if now.time else []
        parts.append(f"idle share {now.idle:.0%} → {then.idle:.0%}")
        if now.refused or then.refused:
            parts.append(f"refused {now.refused:.1%} → {then.refused:.1%}")
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
    def start_scores(self) -> Mapping[str, float]:
        """The test scores of x_0; none if the task has none, or cannot be built."""
        try:
            recorded = spec.parse(self.history.spec or {}, trust=self.trust)
            task = recorded.build().task
            return task.evaluate(task.init(recorded.run.seed), task.init_module_buffers())
        except (Invalid, OSError):
            return {}

    @cached_property
    def now(self) -> ClockResult | None:
        """The simulation of the run itself; None if it does not match the record."""
        now, rounds = self._clock(self.method), self.history.rounds
        if now is None or not len(rounds):
            return None
        delay, per_round = int(rounds.delays.max()), float(rounds.time[-1]) / len(rounds)
        alike = _within(now.delay_max, delay, SIMILAR) and _within(now.per_round, per_round, AGREES)
        return now if alike else None

    @cached_property
    def ranking(self) -> Ranking | None:
        """The settings for the fitted fleet, ranked as `plan --fit` does it; None if they are not known."""
        return self._rank(self.method)

    @property
    def better(self) -> Expected | None:
        """The setting that the planner recommends; None if that is the present one, or is not known."""
        if self.ranking is None or (best := self.ranking.best) is None or best.current:
            return None
        now = self.ranking.current
        return Expected(best.method, now.method, now.clock, best.clock) if now.clock and best.clock else None

    @cached_property
    def accepting(self) -> Expected | None:
        """The setting without `max_delay`, or the first other one without it that is clearly better than the run."""
        alone = self.expect(max_delay=None)
        if alone is None or clearly_better(alone.now, alone.then) or self.method is None:
            return alone
        ranking = self._rank(alone.method)
        found = (each for each in ranking.settings if each.clock and not each.excluded) if ranking else ()
        others = (Expected(each.method, self.method, alone.now, each.clock) for each in found if each.clock)
        return next((each for each in others if clearly_better(each.now, each.then)), None)

    def _rank(self, method: Method | None) -> Ranking | None:
        if method is None or self.fleet is None or self.now is None:
            return None
        known = self.history.method_settings  # has all keys of the method, except those that are None
        fixed = [key for key in KEYS if known is not None and key not in {*known, "concurrency"}]
        rounds, seed = self.history.requested or len(self.history.rounds), self.history.run.get("seed", 0)
        return rank_settings(method, self.fleet, rounds=rounds, seed=seed, fixed=fixed, cautious=True)

    def expect(self, **changes: object) -> Expected | None:
        """The effect of changed settings; None if unknown or invalid."""
        if self.method is None or self.now is None:
            return None
        try:
            changed = replace(self.method, **changes)  # type: ignore[arg-type]
        except Invalid:
            return None
        then = self._clock(changed)
        return Expected(changed, self.method, self.now, then) if then else None

    def _clock(self, method: Method | None) -> ClockResult | None:
        if method is None or self.fleet is None:
            return None
        try:
            return run_clock(method, self.fleet, rounds=len(self.history.rounds))
        except (Invalid, Starved):
            return None


def _within(value: float, other: float, factor: float) -> bool:
    return value <= factor * other and other <= factor * value


def method_of(history: History, *, trust: bool) -> Method | None:
    """The method of a record. If its settings are not known: one with the same clock, if its description tells."""
    settings = history.ready_method or history.method_settings
    if settings and (method := _built(settings, trust=trust)):
        return method
    described = re.search(r" \((synchronous|server-centric|client-centric), M=(\d{1,9}), ", history.method)
    if described is None or int(described[2]) > history.clients:
        return None
    modes = {text: mode for mode, text in MODE_TEXTS.items()}
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
