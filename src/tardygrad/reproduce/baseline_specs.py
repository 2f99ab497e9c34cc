"""Who is compared, and what of each is searched; all of them learn the claims' task with as many clients' updates.

Rates have the same ranges for everyone. A method that was published without local clipping is there as published, and
once more with it. Local steps are SGD's for everyone, also where AdamW was published (DN+DyLU, HALoS). What is not
searched has its default.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any, Literal, NamedTuple

from optuna.distributions import FloatDistribution, IntDistribution

from tardygrad.fleet import Stragglers
from tardygrad.reproduce.trials import BUFFER, LOCAL_STEPS, ROUNDS, TASK
from tardygrad.reproduce.tuning import Point, Space
from tardygrad.spec.spec import override


def _log(low: float, high: float) -> FloatDistribution:
    return FloatDistribution(low, high, log=True)


_MANY = {"buffer": BUFFER}
_LOCAL_LR, _LR = _log(0.003, 1.0), _log(0.003, 10.0)
_RATES = {"local_lr": _LOCAL_LR, "lr": _LR}
_LOCAL_CLIP = {"local_clip": _log(0.01, 1.0)}
_CLIPS = {**_RATES, **_LOCAL_CLIP, "clip": _log(0.0003, 0.1)}
_LOWER = {"local_lower": _log(0.00001, 0.01), "lower": _log(0.0000003, 0.0003)}  # below what they must not exceed
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
_FOUR = {"regions": 4, "every": 8, "optimizer": "SGD", "norm": "coordinate"}  # as published AdamW and the L2 norm


class Contender(NamedTuple):
    """A method, and what of it is searched."""

    label: str
    method: dict[str, Any]  # the kind, and what is not searched
    space: Space  # a key may lead into a table, as `weight.exponent` does

    @property
    def often(self) -> int:
        """Rounds for one of the others: M where every arrival is a round."""
        return BUFFER // int(self.method.get("buffer", 1))


_PUBLISHED = {
    "fadas": Contender("FADAS", {"kind": "fadas", **_MANY}, {**_RATES, "tau_c": _log(1.0, 100.0)}),
    "dn-dylu": Contender(
        "DN+DyLU",
        {"kind": "dn_dylu"},
        {**_RATES, "period": IntDistribution(4, 64, log=True), "momentum": _MOMENTUM},
    ),
    "fedbuff": Contender("FedBuff", {"kind": "fedbuff", **_MANY, **_LATE}, {**_RATES, "weight.exponent": _SHARE}),
    "fedasync": Contender("FedAsync", {"kind": "fedasync", **_LATE}, {**_RATES, "weight.exponent": _SHARE}),
    "dc-asgd": Contender("DC-ASGD-a", {"kind": "dcasgd", "adaptive": True}, {**_RATES, "strength": _log(0.02, 20.0)}),
    "halos": Contender("HALoS", {"kind": "halos", **_FOUR, "local_clip": inf}, _REGIONS),
}
"""Without local clipping."""

CONTENDERS: dict[str, Contender] = {
    "clip2": Contender("Clip²", {"kind": "clip2", **_MANY}, _CLIPS),
    "sd-clip2": Contender("SD-Clip²", {"kind": "clip2", **_MANY, "downplay": True}, _CLIPS),
    "dc-clip2": Contender("DC-Clip²", {"kind": "clip2", **_MANY, "compensate": True}, _CLIPS),
    "sync-bi2clip": Contender("sync-Bi²Clip", {"kind": "tailopt", **_MANY, "mode": "sync"}, {**_CLIPS, **_LOWER}),
    **_PUBLISHED,
    **{
        f"{name}-clipped": one._replace(
            label=f"{one.label}, clipped",
            method={key: value for key, value in one.method.items() if key != "local_clip"},
            space={**one.space, **_LOCAL_CLIP},
        )
        for name, one in _PUBLISHED.items()
    },
}

CLIPPED = {f"{name}-clipped": name for name in _PUBLISHED}
"""Those with local clipping that is not their own, and as published."""


class Lesson(NamedTuple):
    """What is learnt, and an accuracy in per cent to be reached on the way."""

    task: dict[str, Any]
    target: float


Name = Literal["digits", "fashion"]
LESSONS: dict[Name, Lesson] = {
    "digits": Lesson(TASK, 90.0),
    "fashion": Lesson({**TASK, "kind": "fashion", "model": "cnn", "dim": 4, "batch_size": 16, "test_rows": 2000}, 75.0),
}


@dataclass(frozen=True)
class Entry:
    """A contender with its settings on one of the paper's fleets, without a seed."""

    name: str
    stragglers: Stragglers
    given: tuple[tuple[str, float], ...] = ()
    lesson: Name = "digits"
    data: str | None = None  # where its images are

    @property
    def label(self) -> str:
        """What tables and figures call it."""
        return CONTENDERS[self.name].label

    @property
    def settings(self) -> Point:
        """What was searched."""
        return dict(self.given)

    def at(self, point: Point) -> Entry:
        """The same with these settings."""
        return replace(self, given=tuple(point.items()))

    def lowest(self) -> Entry:
        """The same with the smallest value of everything."""
        ranges: Any = CONTENDERS[self.name].space
        return self.at({key: one.low for key, one in ranges.items()})

    def edges(self) -> list[str]:
        """The settings in the first or the last twentieth of a range that could be wider: those of one by factors."""
        ranges: Any = CONTENDERS[self.name].space
        return [key for key, value in self.given if _outer(value, ranges[key])]

    def spec(self, seed: int) -> dict[str, Any]:
        """The tables of a spec."""
        one = CONTENDERS[self.name]
        where = {} if self.data is None else {"data": self.data}
        tables: dict[str, Any] = {
            "task": {**LESSONS[self.lesson].task, **where},
            "fleet": {"kind": "paper", "stragglers": self.stragglers},
            "method": {"local_steps": LOCAL_STEPS, "mode": "client", **deepcopy(one.method)},
            "engine": {"kind": "sim", "batch": TASK["clients"]},
            "run": {"rounds": ROUNDS * one.often, "evaluate_every": 10 * one.often, "seed": seed},
        }
        for key, value in self.given:
            override(tables, f"method.{key}={value!r}")
        return tables


def _outer(value: float, range: FloatDistribution | IntDistribution) -> bool:
    return range.log and not 0.05 <= log(value / range.low) / log(range.high / range.low) <= 0.95
