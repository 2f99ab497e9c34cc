"""The constructors for each `kind` of a spec's tables, and the keys they take."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter
from typing import cast

from tardygrad import methods, tasks
from tardygrad.engines.pool import Pool
from tardygrad.engines.ray.pool import RayPool
from tardygrad.engines.sim.pool import SimPool
from tardygrad.engines.threads import ThreadPool
from tardygrad.errors import check_integer
from tardygrad.fleet import Fleet, Link
from tardygrad.runs.run import DEFAULTS, MINIMUM, Settings
from tardygrad.runs.track import TrackerName
from tardygrad.spec.signature import Make, Parameters, parameters

ENGINES: dict[str, type[Pool]] = {"sim": SimPool, "threads": ThreadPool, "ray": RayPool}
KINDS: dict[str, dict[str, Make]] = {
    "task": {
        "cifar10": tasks.cifar10,
        "digits": tasks.digits,
        "fashion": tasks.fashion,
        "glue": tasks.glue,
        "lm": tasks.lm,
        "logistic": tasks.logistic,
        "mnist": tasks.mnist,
        "quadratic": tasks.quadratic,
    },
    "fleet": {"paper": Fleet.paper, "groups": Fleet, "trace": Fleet.trace},
    "method": {name: make for name, make in sorted(vars(methods).items()) if callable(make)},
    "engine": {**ENGINES},
}
TABLES = (*KINDS, "run")
FROM_OTHER_TABLES = ("task", "method", "fleet", "rounds")
"""Arguments of engines that are not keys of their table, because other tables define them."""


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """The table [run].

    Args:
        rounds: number of rounds, T.
        seed: seed of every random stream except the task's data and split.
        evaluate_every: rounds between evaluations; 0 is never, otherwise the last round is always evaluated.
        checkpoint_every: rounds between checkpoints; on threads and on Ray, half that number.
        tail_every: rounds between estimates of the tail of the updates; 0 is never.
        threads: threads of torch; one is fastest for small models, and another number may change a run's bits.
        track: experiment trackers that get every round.
    """

    rounds: int
    seed: int = DEFAULTS["seed"]
    evaluate_every: int = DEFAULTS["evaluate_every"]
    checkpoint_every: int = DEFAULTS["checkpoint_every"]
    tail_every: int = DEFAULTS["tail_every"]
    threads: int = 1
    track: tuple[TrackerName, ...] = ()

    def __post_init__(self) -> None:
        for name, least in MINIMUM.items():
            check_integer(name, getattr(self, name), least)
        check_integer("threads", self.threads, most=1024)

    def settings(self) -> Settings:
        """The settings for `tardygrad.begin`."""
        return cast(Settings, {name: getattr(self, name) for name in MINIMUM})


def keys_of(table: str, make: Make) -> Parameters:
    """The keys that a kind of a table takes; in [fleet], every kind also takes the fields of a fleet, and a link."""
    known = dict(parameters(make))
    if table == "fleet":
        fields = {key: parameter for key, parameter in parameters(Fleet).items() if key != "groups"}
        known |= fields | {"link": Parameter("link", Parameter.KEYWORD_ONLY, default=None, annotation=Link | None)}
    return {key: parameter for key, parameter in known.items() if key not in FROM_OTHER_TABLES}


def suggest_table(key: str, value: str) -> str:
    """A hint for a key that was given without its table; empty if no table has it.

    >>> suggest_table("rounds", "100")
    'Write run.rounds=100.'
    """
    table, _, name = key.rpartition(".")
    tables = [other for other, known in all_keys().items() if name in known and table in ("", other)]
    return f"Write {' or '.join(f'{other}.{name}={value}' for other in tables)}." if tables else ""


def all_keys() -> dict[str, list[str]]:
    """Every key of every table, whatever its kind."""
    known = {"run": list(parameters(RunTable))}
    for table, kinds in KINDS.items():
        known[table] = list(dict.fromkeys(key for make in kinds.values() for key in keys_of(table, make)))
    return known
