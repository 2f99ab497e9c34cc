"""The trials of the claims: a method with its settings on one of the paper's fleets, as a spec for any seed.

All trials use one task: digits, a perceptron with 3,466 parameters, and Student-t noise of tail 1.5, whose variance is
infinite, on every gradient. N = 40, K = 5, T = 280, u = 0.1, η_ℓ = 0.3 unless a trial says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from statistics import mean, stdev
from typing import Any

from tardygrad.core.method import Mode
from tardygrad.fleet import Stragglers
from tardygrad.sweeps.store import PlannedRun, StoredResult

TASK: dict[str, Any] = {
    "kind": "digits",
    "clients": 40,
    "model": "mlp",
    "dim": 32,
    "noise": {"kind": "student", "tail": 1.5, "scale": 0.02},
}
TASK_TEXT = (
    f"Task: {TASK['kind']}, {TASK['model']} of width {TASK['dim']}, with {TASK['noise']['kind']} noise of tail "
    f"{TASK['noise']['tail']} and scale {TASK['noise']['scale']} on every gradient"
)
ROUNDS, BUFFER, LOCAL_STEPS, LOCAL_LR, LOCAL_CLIP = 280, 4, 5, 0.3, 0.1
TUNING = 0
"""The seed for tuning; no verdict uses it."""
FLEETS: tuple[Stragglers, ...] = ("mild", "large")

KINDS: dict[str, dict[str, Any]] = {
    "SGDClip": {"kind": "sgdclip"},
    "SD-SGDClip": {"kind": "sgdclip", "downplay": True},
    "Clip²": {"kind": "clip2"},
    "SD-Clip²": {"kind": "clip2", "downplay": True},
    "DC-Clip²": {"kind": "clip2", "compensate": True},
    "FADAS": {"kind": "fadas"},
    "DN+DyLU": {"kind": "dn_dylu"},
}
UNCLIPPED = ("FADAS", "DN+DyLU")
"""Methods that the paper on Clip² runs without local clipping; with it, their label ends in `, clipped`."""


@dataclass(frozen=True)
class ClaimTrial:
    """A method with its settings, without a seed."""

    method: str
    mode: Mode = "client"
    stragglers: Stragglers = "large"
    buffer: int = BUFFER  # M
    rounds: int = ROUNDS  # T
    given: tuple[tuple[str, float], ...] = ()  # its own settings, besides the common ones

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        return f"{'sync-' * (self.mode == 'sync')}{self.method}"

    @property
    def settings(self) -> dict[str, float]:
        """Its own settings, besides the common ones."""
        return dict(self.given)

    def at(self, **settings: float) -> ClaimTrial:
        """The same trial with other settings."""
        return replace(self, given=tuple({**self.settings, **settings}.items()))

    def run(self, seed: int) -> PlannedRun:
        """The run with a seed."""
        kind = KINDS[self.method.removesuffix(", clipped")]
        method = {"local_steps": LOCAL_STEPS, "local_lr": LOCAL_LR, "mode": self.mode, **kind, **self.settings}
        if self.method not in UNCLIPPED:
            method["local_clip"] = LOCAL_CLIP
        if kind["kind"] != "dn_dylu":
            method["buffer"] = self.buffer
        often = 1 if "buffer" in method else BUFFER  # a method whose every arrival is a round gets M times the rounds
        tables = {
            "task": TASK,
            "fleet": {"kind": "paper", "stragglers": self.stragglers},
            "method": method,
            "engine": {"kind": "sim", "batch": TASK["clients"]},  # a third faster, with other last bits
            "run": {"rounds": self.rounds * often, "evaluate_every": 10 * often, "seed": seed},
        }
        return PlannedRun(f"{self.label}-{self.stragglers}", tables)


ResultOf = Callable[[ClaimTrial, int], StoredResult | None]
"""The result of a trial with a seed; None if it has not been run."""


def mean_spread(scores: Sequence[float]) -> tuple[float, float | None]:
    """The mean over seeds and the standard deviation, None for a single seed."""
    return mean(scores), stdev(scores) if len(scores) > 1 else None


def mean_time(results: Sequence[StoredResult]) -> float:
    """The mean simulated time of the runs that finished; of all runs if none did."""
    finished = [result.time for result in results if result.status == "finished"]
    return mean(finished or [result.time for result in results])


@dataclass(frozen=True)
class Tuned:
    """A trial whose settings are chosen from a grid, by the final accuracy on the seed for tuning."""

    trial: ClaimTrial
    grid: dict[str, tuple[float, ...]]

    def trials(self) -> Iterator[ClaimTrial]:
        """Every point of the grid."""
        for values in product(*self.grid.values()):
            yield self.trial.at(**dict(zip(self.grid, values, strict=True)))

    def best(self, result_of: ResultOf) -> ClaimTrial | None:
        """The trial with the best settings; None while a result is missing."""
        found = {trial: result for trial in self.trials() if (result := result_of(trial, TUNING))}
        if len(found) < prod(map(len, self.grid.values())):
            return None
        scores = {trial: -1.0 if result.accuracy is None else result.accuracy for trial, result in found.items()}
        return max(scores, key=lambda trial: scores[trial])

    def edges(self, best: ClaimTrial) -> list[str]:
        """The settings whose best value is the smallest or the largest of the grid."""
        return [key for key, values in self.grid.items() if best.settings[key] in (min(values), max(values))]
