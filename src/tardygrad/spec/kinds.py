"""The constructors for each `kind` of a spec's tables, and the keys they take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tardygrad import tasks
from tardygrad.engines.pool import Pool
from tardygrad.engines.ray.pool import RayPool
from tardygrad.engines.sim.pool import SimPool
from tardygrad.engines.threads import ThreadPool
from tardygrad.errors import Invalid, check_integer
from tardygrad.fleet import Available, Crash, Fault, Fleet, Group, Link, Slow
from tardygrad.methods.clip2 import clip2
from tardygrad.methods.dcasgd import dcasgd
from tardygrad.methods.diloco import diloco
from tardygrad.methods.dn_dylu import dn_dylu
from tardygrad.methods.fadas import fadas
from tardygrad.methods.fedadam import fedadam
from tardygrad.methods.fedasync import fedasync
from tardygrad.methods.fedavg import fedavg
from tardygrad.methods.fedavgm import fedavgm
from tardygrad.methods.fedbuff import fedbuff
from tardygrad.methods.fedyogi import fedyogi
from tardygrad.methods.halos import halos
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.methods.tailopt import tailopt
from tardygrad.runs.run import LEAST, Settings
from tardygrad.spec.signature import (
    Make,
    Parameters,
    parameters,
)


def grouped(*, groups: tuple[Group, ...]) -> Fleet:
    """Clients in groups.

    Args:
        groups: a list of tables with `name`, `clients`, `runtime` and optionally `link`.
    """
    return Fleet(groups)


def afflicted(
    fleet: Fleet,
    *,
    server_time: float = 0.0,
    crashes: tuple[Crash, ...] = (),
    slow: tuple[Slow, ...] = (),
    available: tuple[Available, ...] = (),
    faults: tuple[Fault, ...] = (),
    link: Link | None = None,
) -> Fleet:
    """Add failures, slow-downs and links to a fleet: the keys of [fleet] that every kind takes.

    Args:
        server_time: seconds that the server needs for each update.
        crashes: a list of tables with `client`, `at` and, if the client comes back, `back`.
        slow: a list of tables with `client`, `at`, `until` and `factor`; a factor of inf is a pause.
        available: a list of tables with `client`, `windows` (pairs of start and end) and, if they repeat, `period`.
        faults: a list of tables with `client`, `job` (its number, from 0) and `sends`: "nan" or "twice".
        link: latency and bandwidth of every client.
    """
    fleet = replace(fleet, server_time=server_time, crashes=crashes, slow=slow, available=available, faults=faults)
    return fleet.linked(link) if link else fleet


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
    "fleet": {"paper": Fleet.paper, "groups": grouped, "trace": Fleet.trace},
    "method": {
        "clip2": clip2,
        "dcasgd": dcasgd,
        "diloco": diloco,
        "dn_dylu": dn_dylu,
        "fadas": fadas,
        "fedadam": fedadam,
        "fedasync": fedasync,
        "fedavg": fedavg,
        "fedavgm": fedavgm,
        "fedbuff": fedbuff,
        "fedyogi": fedyogi,
        "halos": halos,
        "sgdclip": sgdclip,
        "tailopt": tailopt,
    },
    "engine": {**ENGINES},
}
TABLES = (*KINDS, "run")
FROM_OTHER_TABLES = ("task", "method", "fleet", "rounds")
"""Arguments of engines and of `afflicted` that are not keys of their table, because other tables define them."""


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """The table [run].

    Args:
        rounds: number of rounds, T.
        seed: seed of every random stream except the task's data.
        evaluate_every: rounds between evaluations; 0 is never, otherwise the last round is always evaluated.
        checkpoint_every: rounds between checkpoints.
        tail_every: rounds between estimates of the tail of the updates; 0 is never.
        threads: threads of torch; one is fastest for small models, and another number may change a run's bits.
        track: experiment trackers that get every round.
    """

    rounds: int
    seed: int = 0
    evaluate_every: int = 10
    checkpoint_every: int = 10
    tail_every: int = 0
    threads: int = 1
    track: tuple[Literal["tensorboard", "wandb", "trackio", "mlflow"], ...] = ()

    def __post_init__(self) -> None:
        for name, least in (LEAST | {"threads": 1}).items():
            check_integer(name, getattr(self, name), least)
        if self.threads > 1024:
            raise Invalid(f"`threads` must be 1024 at most, got {self.threads}.")

    def settings(self) -> Settings:
        """The settings for `tardygrad.begin`."""
        return {
            "rounds": self.rounds,
            "seed": self.seed,
            "evaluate_every": self.evaluate_every,
            "checkpoint_every": self.checkpoint_every,
            "tail_every": self.tail_every,
        }


def keys_of(table: str, make: Make) -> Parameters:
    """The keys that a kind of a table takes."""
    found = {**parameters(make), **(parameters(afflicted) if table == "fleet" else {})}
    return {key: parameter for key, parameter in found.items() if key not in FROM_OTHER_TABLES}


def places(key: str, value: str = "VALUE") -> str:
    """A hint for a key that was given without its table; empty if no table has it.

    >>> places("rounds", "100")
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
