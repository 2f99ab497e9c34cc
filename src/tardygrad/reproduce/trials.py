"""The trials of the claims: a method with its settings on one of the paper's fleets, as a spec for any seed.

All trials use one task: digits, a perceptron with 3,466 parameters, and Student-t noise of tail 1.5, whose variance is
infinite, on every gradient. N = 40, K = 5, T = 280, u = 0.1, η_ℓ = 0.3 unless a trial says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tardygrad.core.method import Mode
from tardygrad.fleet import Stragglers
from tardygrad.sweep.store import Result, Run, Store

TASK: dict[str, Any] = {
    "kind": "digits",
    "clients": 40,
    "model": "mlp",
    "dim": 32,
    "noise": {"kind": "student", "tail": 1.5, "scale": 0.02},
}
ROUNDS, BUFFER, LOCAL_STEPS, LOCAL_LR, LOCAL_CLIP = 280, 4, 5, 0.3, 0.1
TUNING = 0
"""The seed for tuning; no verdict uses it."""

_KINDS: dict[str, dict[str, Any]] = {
    "SGDClip": {"kind": "sgdclip"},
    "SD-SGDClip": {"kind": "sgdclip", "downplay": True},
    "Clip²": {"kind": "clip2"},
    "SD-Clip²": {"kind": "clip2", "downplay": True},
    "DC-Clip²": {"kind": "clip2", "compensate": True},
    "FADAS": {"kind": "fadas"},
    "DN+DyLU": {"kind": "dn_dylu"},
    "FADAS, clipped": {"kind": "fadas"},
    "DN+DyLU, clipped": {"kind": "dn_dylu"},
}
_UNCLIPPED = ("FADAS", "DN+DyLU")  # as published


@dataclass(frozen=True)
class Trial:
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

    def at(self, **settings: float) -> Trial:
        """The same trial with other settings."""
        return replace(self, given=tuple({**self.settings, **settings}.items()))

    def on(self, stragglers: Stragglers) -> Trial:
        """The same trial on another fleet."""
        return replace(self, stragglers=stragglers)

    def lasting(self, rounds: int) -> Trial:
        """The same trial with another number of rounds."""
        return replace(self, rounds=rounds)

    def run(self, seed: int) -> Run:
        """The run with a seed."""
        kind = _KINDS[self.method]
        method: dict[str, Any] = {"local_steps": LOCAL_STEPS, "local_lr": LOCAL_LR, "mode": self.mode}
        if self.method not in _UNCLIPPED:
            method["local_clip"] = LOCAL_CLIP
        every_arrival = (
            kind["kind"] == "dn_dylu"
        )  # every arrival is a round, so the same number of updates takes M times the rounds
        if not every_arrival:
            method["buffer"] = self.buffer
        tables = claim_spec(
            TASK,
            self.stragglers,
            {**method, **kind, **self.settings},
            self.rounds,
            often=self.buffer if every_arrival else 1,
            seed=seed,
        )
        return Run(f"{self.label}-{self.stragglers}", tables)


def claim_spec(
    task: dict[str, Any], stragglers: Stragglers, method: dict[str, Any], rounds: int, *, often: int, seed: int
) -> dict[str, Any]:
    """The tables of a spec on one of the paper's fleets, with `often` times the rounds."""
    return {
        "task": task,
        "fleet": {"kind": "paper", "stragglers": stragglers},
        "method": method,
        "engine": {"kind": "sim", "batch": TASK["clients"]},  # a third faster, with other last bits
        "run": {"rounds": rounds * often, "evaluate_every": 10 * often, "seed": seed},
    }


Look = Callable[[Trial, int], Result | None]
"""The result of a trial with a seed; None if it has not been run."""


def looking(store: Store) -> Look:
    """Look up results in a store."""
    return lambda trial, seed: store.look(trial.run(seed))


@dataclass(frozen=True)
class Tuned:
    """A trial whose settings are chosen from a grid, by the final accuracy on the seed for tuning."""

    trial: Trial
    grid: dict[str, tuple[float, ...]]

    def trials(self) -> Iterator[Trial]:
        """Every point of the grid."""
        for values in product(*self.grid.values()):
            yield self.trial.at(**dict(zip(self.grid, values, strict=True)))

    def best(self, look: Look) -> Trial | None:
        """The trial with the best settings; None while a result is missing."""
        found = [(trial, look(trial, TUNING)) for trial in self.trials()]
        if any(result is None for _, result in found):
            return None
        return max(found, key=lambda pair: pair[1].accuracy if pair[1] and pair[1].accuracy is not None else -1.0)[0]

    def edges(self, best: Trial) -> list[str]:
        """The settings whose best value is the smallest or the largest of the grid."""
        return [key for key, values in self.grid.items() if best.settings[key] in (min(values), max(values))]
