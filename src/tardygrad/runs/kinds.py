"""The tables of a spec: the constructors for each `kind`, and the keys they take."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from pathlib import Path
from typing import Any

from tardygrad import methods, own_code, tasks
from tardygrad.constructors import Make, Parameters, parameters
from tardygrad.engines.contract import Pool
from tardygrad.engines.flower.pool import FlowerPool
from tardygrad.engines.ray.pool import RayPool
from tardygrad.engines.sim.pool import SimPool
from tardygrad.engines.threads import ThreadPool
from tardygrad.fleet import AvailabilityFile, Diurnal, Fleet, Link
from tardygrad.runs.settings import RunTable

ENGINES: dict[str, type[Pool]] = {"sim": SimPool, "threads": ThreadPool, "ray": RayPool, "flower": FlowerPool}
KINDS: dict[str, dict[str, Make]] = {
    "task": {
        "causal_lm": tasks.causal_lm,
        "cifar10": tasks.cifar10,
        "digits": tasks.digits,
        "fashion": tasks.fashion,
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
FROM_OTHER_TABLES = ("task", "method", "fleet", "rounds", "grid")
"""Arguments of engines that are not keys of their table, because other tables or the app define them."""


FLEET_KEYS: dict[str, tuple[type, Make]] = {
    "link": (Link, Fleet.linked),
    "diurnal": (Diurnal, Fleet.plus),
    "availability": (AvailabilityFile, Fleet.plus),
}
"""Keys of [fleet] besides a fleet's own: the class of their tables, and the method that changes the fleet."""


def _optional(key: str, kind: type) -> Parameter:
    return Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=kind | None)


def keys_of(table: str, make: Make) -> Parameters:
    """The keys that a kind of a table takes.

    In [fleet], every kind also takes a fleet's fields and `FLEET_KEYS`, except those that are arguments of its own.
    """
    known = dict(parameters(make))
    if table == "fleet":
        fields = {key: parameter for key, parameter in parameters(Fleet).items() if key != "groups"}
        others = fields | {key: _optional(key, kind) for key, (kind, _) in FLEET_KEYS.items()}
        known |= {key: parameter for key, parameter in others.items() if key not in known}
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


def is_simulated(recorded: Mapping[str, Any]) -> bool | None:
    """Whether a run's clock is simulated; records of older versions name the engine only."""
    if "clock" in recorded:
        return bool(recorded["clock"] == "simulated")
    engine = ((recorded.get("spec") or recorded.get("described") or {}).get("engine") or {}).get("kind")
    return ENGINES[engine] is SimPool if isinstance(engine, str) and engine in ENGINES else None


def resume_command(folder: str | Path, tables: Any, options: str = "") -> str:
    """The command that continues a run, given the tables of its spec.

    It has no --trust unless `options` has: who pastes the command is first told which code to read.
    """
    kind = own_code.engine_table(tables).get("kind")
    engine = next((pool for name, pool in ENGINES.items() if name == kind), Pool)
    return engine.resume_command(str(folder), options)
