"""The baselines and their search spaces; all learn the claims' task with the same number of client updates.

Rates have the same ranges for all methods. A method that was published without local clipping is included as published
and once more with it. Local steps use SGD for all, also where AdamW was published (DN+DyLU, HALoS). Settings that are
not searched keep their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any, Literal, NamedTuple

from optuna.distributions import FloatDistribution, IntDistribution

from tardygrad.fleet import Stragglers
from tardygrad.reproduce.trials import BUFFER, LOCAL_STEPS, ROUNDS, TASK, claim_run
from tardygrad.spec.spec import override
from tardygrad.sweeps.store import Run

Range = FloatDistribution | IntDistribution
Point = dict[str, float]
"""A value for every setting."""


def _log(low: float, high: float) -> FloatDistribution:
    return FloatDistribution(low, high, log=True)


_MANY = {"buffer": BUFFER}
_LOCAL_LR, _LR = _log(0.003, 1.0), _log(0.003, 10.0)
_RATES = {"local_lr": _LOCAL_LR, "lr": _LR}
_LOCAL_CLIP = {"local_clip": _log(0.01, 1.0)}
_CLIPS = {**_RATES, **_LOCAL_CLIP, "clip": _log(0.0003, 0.1)}
_LOWER = {
    "local_lower": _log(0.00001, 0.01),
    "lower": _log(0.0000003, 0.0003),
}  # lower thresholds, below the upper ones
_MOMENTUM, _SHARE = FloatDistribution(0.0, 0.95), FloatDistribution(0.0, 1.0)
_LATE = {"weight": {"kind": "polynomial"}}
_REGIONS = {
    "local_lr": _LOCAL_LR,
    "region_lr": _LR,
    "lr": _LR,
    "region_momentum": _MOMENTUM,
    "momentum": _MOMENTUM,
    "blend": _SHARE,
}
_FOUR = {"regions": 4, "every": 8, "optimizer": "SGD", "norm": "coordinate"}  # published with AdamW and the L2 norm


class Baseline(NamedTuple):
    """A method and its search space."""

    label: str
    method: dict[str, Any]  # the kind, and the settings that are not searched
    space: Mapping[str, Range]  # a key may be dotted, such as `weight.exponent`


_PUBLISHED = {
    "fadas": Baseline("FADAS", {"kind": "fadas", **_MANY}, {**_RATES, "tau_c": _log(1.0, 100.0)}),
    "dn-dylu": Baseline(
        "DN+DyLU",
        {"kind": "dn_dylu"},
        {**_RATES, "period": IntDistribution(4, 64, log=True), "momentum": _MOMENTUM},
    ),
    "fedbuff": Baseline("FedBuff", {"kind": "fedbuff", **_MANY, **_LATE}, {**_RATES, "weight.exponent": _SHARE}),
    "fedasync": Baseline("FedAsync", {"kind": "fedasync", **_LATE}, {**_RATES, "weight.exponent": _SHARE}),
    "dc-asgd": Baseline("DC-ASGD-a", {"kind": "dcasgd", "adaptive": True}, {**_RATES, "strength": _log(0.02, 20.0)}),
    "halos": Baseline("HALoS", {"kind": "halos", **_FOUR, "local_clip": inf}, _REGIONS),
}
"""Without local clipping."""

BASELINES: dict[str, Baseline] = {
    "clip2": Baseline("Clip²", {"kind": "clip2", **_MANY}, _CLIPS),
    "sd-clip2": Baseline("SD-Clip²", {"kind": "clip2", **_MANY, "downplay": True}, _CLIPS),
    "dc-clip2": Baseline("DC-Clip²", {"kind": "clip2", **_MANY, "compensate": True}, _CLIPS),
    "sync-bi2clip": Baseline("sync-Bi²Clip", {"kind": "tailopt", **_MANY, "mode": "sync"}, {**_CLIPS, **_LOWER}),
    **_PUBLISHED,
    **{
        f"{name}-clipped": baseline._replace(
            label=f"{baseline.label}, clipped",
            method={key: value for key, value in baseline.method.items() if key != "local_clip"},
            space={**baseline.space, **_LOCAL_CLIP},
        )
        for name, baseline in _PUBLISHED.items()
    },
}

CLIPPED = {f"{name}-clipped": name for name in _PUBLISHED}
"""Methods with added local clipping, and the same method as published."""


class Lesson(NamedTuple):
    """A task, and the accuracy in per cent to which the time is measured."""

    task: dict[str, Any]
    target: float


Name = Literal["digits", "fashion"]
LESSONS: dict[Name, Lesson] = {
    "digits": Lesson(TASK, 90.0),
    "fashion": Lesson({**TASK, "kind": "fashion", "model": "cnn", "dim": 4, "batch_size": 16, "test_rows": 2000}, 75.0),
}


@dataclass(frozen=True)
class BaselineTrial:
    """A baseline with its settings on one of the paper's fleets, without a seed."""

    name: str
    stragglers: Stragglers
    given: tuple[tuple[str, float], ...] = ()
    lesson: Name = "digits"
    data: str | None = None  # the folder of its images

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        return BASELINES[self.name].label

    @property
    def settings(self) -> Point:
        """The searched settings."""
        return dict(self.given)

    def at(self, point: Point) -> BaselineTrial:
        """The same trial with these settings."""
        return replace(self, given=tuple(point.items()))

    def lowest(self) -> BaselineTrial:
        """The same trial with the lowest value of every setting."""
        return self.at({key: range.low for key, range in BASELINES[self.name].space.items()})

    def edges(self) -> list[str]:
        """The settings in the first or last twentieth of a logarithmic range, which could be made wider."""
        space = BASELINES[self.name].space
        return [key for key, value in self.given if _outer(value, space[key])]

    def run(self, seed: int) -> Run:
        """The run with a seed."""
        baseline = BASELINES[self.name]
        task = LESSONS[self.lesson].task | ({} if self.data is None else {"data": self.data})
        method = {"local_steps": LOCAL_STEPS, "mode": "client", **deepcopy(baseline.method)}
        run = claim_run(self.label, self.stragglers, method, task, ROUNDS, seed)
        for key, value in self.given:
            override(run.spec, f"method.{key}={value!r}")
        return run


def _outer(value: float, range: Range) -> bool:
    return range.log and not 0.05 <= log(value / range.low) / log(range.high / range.low) <= 0.95
