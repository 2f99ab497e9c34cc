"""Arms of an experiment: a method with its settings on one of the paper's fleets, as a spec for any seed.

Everything is learnt on one task: digits, a perceptron of 3,466 parameters, and on every gradient Student-t noise of
tail 1.5, whose variance is infinite. N = 40, K = 5, T = 280, u = 0.1, η_ℓ = 0.3 unless an arm says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, Protocol

from tardygrad.core.method import Mode
from tardygrad.fleet import Stragglers

TASK: dict[str, Any] = {
    "kind": "digits",
    "clients": 40,
    "model": "mlp",
    "dim": 32,
    "noise": {"kind": "student", "tail": 1.5, "scale": 0.02},
}
ROUNDS, BUFFER, LOCAL_STEPS, LOCAL_LR, LOCAL_CLIP = 280, 4, 5, 0.3, 0.1
TUNING = 0
"""The seed on which settings are chosen; no verdict looks at it."""

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
class Arm:
    """A method with its settings, without a seed."""

    method: str
    mode: Mode = "client"
    stragglers: Stragglers = "large"
    buffer: int = BUFFER  # M
    rounds: int = ROUNDS  # T
    given: tuple[tuple[str, float], ...] = ()  # settings of the method, besides the common ones

    @property
    def label(self) -> str:
        """What tables and figures call it."""
        return f"{'sync-' * (self.mode == 'sync')}{self.method}"

    @property
    def settings(self) -> dict[str, float]:
        """What it is given besides the common settings."""
        return dict(self.given)

    def at(self, **settings: float) -> Arm:
        """The same with other settings."""
        return replace(self, given=tuple({**self.settings, **settings}.items()))

    def on(self, stragglers: Stragglers) -> Arm:
        """The same on another fleet."""
        return replace(self, stragglers=stragglers)

    def lasting(self, rounds: int) -> Arm:
        """The same for more rounds, or fewer."""
        return replace(self, rounds=rounds)

    def spec(self, seed: int) -> dict[str, Any]:
        """The tables of a spec."""
        kind = _KINDS[self.method]
        work: dict[str, Any] = {"local_steps": LOCAL_STEPS, "local_lr": LOCAL_LR, "mode": self.mode}
        if self.method not in _UNCLIPPED:
            work["local_clip"] = LOCAL_CLIP
        often = 1
        if kind["kind"] == "dn_dylu":
            often = self.buffer  # every arrival is a round: as many updates as the others have
        else:
            work["buffer"] = self.buffer
        return {
            "task": TASK,
            "fleet": {"kind": "paper", "stragglers": self.stragglers},
            "method": {**work, **kind, **self.settings},
            "engine": {"kind": "sim", "batch": TASK["clients"]},  # a third faster, with other last bits
            "run": {"rounds": self.rounds * often, "evaluate_every": 10 * often, "seed": seed},
        }


class Result(NamedTuple):
    """What came of one run."""

    status: str
    accuracy: float | None  # in per cent, after the last round; None: it did not get there
    time: float  # simulated seconds
    curve: list[tuple[int, float, float | None, float | None]]  # round, time, test loss, test accuracy in per cent
    clipped: float  # share of the coordinates of Δ_t, mean over rounds
    local_clipped: float  # share of the coordinates of gradients


class Runnable(Protocol):
    """What can be run with a seed: an arm, or what is like one."""

    @property
    def label(self) -> str: ...

    @property
    def stragglers(self) -> Stragglers: ...

    def spec(self, seed: int) -> dict[str, Any]: ...


GradientRequest = tuple[Arm, int]
"""A run: an arm and a seed."""

Look = Callable[[Arm, int], Result | None]
"""A run's result, if it is there."""


@dataclass(frozen=True)
class Tuned:
    """An arm whose settings are chosen from a grid by the last accuracy on the seed for tuning."""

    arm: Arm
    grid: dict[str, tuple[float, ...]]

    def trials(self) -> Iterator[Arm]:
        """Every point of the grid."""
        for values in product(*self.grid.values()):
            yield self.arm.at(**dict(zip(self.grid, values, strict=True)))

    def best(self, look: Look) -> Arm | None:
        """The arm with the best settings; None while a trial is missing."""
        found = [(arm, look(arm, TUNING)) for arm in self.trials()]
        if any(result is None for _, result in found):
            return None
        return max(found, key=lambda one: one[1].accuracy if one[1] and one[1].accuracy is not None else -1.0)[0]

    def edges(self, best: Arm) -> list[str]:
        """The settings of which the best value is the smallest or the largest tried."""
        return [key for key, values in self.grid.items() if best.settings[key] in (min(values), max(values))]
