"""Specs: the one place where strings become objects.

A spec is TOML (or JSON) with the tables [task] [fleet] [method] [engine] [run]. A table's `kind` names a constructor of
`KINDS`; its other keys are that constructor's own keyword arguments, with the types and defaults of its signature (see
signature.py). `clients` is said once, in [task] or in [fleet], and flows to the other.

Overrides: `method.lr=0.1` sets a key, `method.clip=` removes it.

Every broken rule is an `Invalid` of one sentence or two: the rule, the value, the fix.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tardygrad import tasks
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.pool import Pool
from tardygrad.engines.ray.pool import RayPool
from tardygrad.engines.sim.pool import SimPool
from tardygrad.engines.threads import ThreadPool
from tardygrad.errors import Invalid, check_integer, nearest
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
from tardygrad.runs.memory import Memory, Needs, bound, foresee, needs
from tardygrad.runs.run import LEAST, Settings
from tardygrad.spec.signature import (
    Make,
    Parameters,
    Table,
    arguments,
    call,
    choose,
    construct,
    parameters,
    read,
    shown,
    written_arguments,
)


def _grouped(*, groups: tuple[Group, ...]) -> Fleet:
    """Clients in groups.

    Args:
        groups: a list of tables with `name`, `clients`, `runtime` and optionally `link`.
    """
    return Fleet(groups)


def _afflicted(
    fleet: Fleet,
    *,
    server_time: float = 0.0,
    crashes: tuple[Crash, ...] = (),
    slow: tuple[Slow, ...] = (),
    available: tuple[Available, ...] = (),
    faults: tuple[Fault, ...] = (),
    link: Link | None = None,
) -> Fleet:
    """What every kind of fleet takes besides its own keys.

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
    "fleet": {"paper": Fleet.paper, "groups": _grouped, "trace": Fleet.trace},
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
_MADE = (
    "task",
    "method",
    "fleet",
    "rounds",
)  # arguments that come from other tables: those of engines, and of _afflicted


@dataclass(frozen=True, kw_only=True)
class Length:
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
        """The same for `tardygrad.begin`."""
        return {
            "rounds": self.rounds,
            "seed": self.seed,
            "evaluate_every": self.evaluate_every,
            "checkpoint_every": self.checkpoint_every,
            "tail_every": self.tail_every,
        }


class Part(NamedTuple):
    """A table, read: what to call, and with what."""

    kind: str
    make: Make
    arguments: Table  # all of them, defaults included


class Built(NamedTuple):
    """What a run needs."""

    method: Method
    task: Task
    fleet: Fleet | None
    engine: Part
    run: Length

    @property
    def rounds(self) -> int:
        """T."""
        return self.run.rounds

    @property
    def simulated(self) -> bool:
        """Whether the run is on the simulator, whose clock is known beforehand."""
        return self.engine.make is SimPool

    def pool(self) -> Pool:
        """The engine, for a `with` statement."""
        wanted = inspect.signature(self.engine.make).parameters
        made = {name: getattr(self, name) for name in _MADE if name in wanted}
        pool: Pool = call(self.engine.make, made | self.engine.arguments, "engine")
        return pool

    def needs(self) -> Needs:
        """What the vectors of a recorded run take, each by itself."""
        who = "processes" if self.simulated else "threads"
        many = {who: self.engine.arguments["workers"], "batch": self.engine.arguments.get("batch", 1)}
        return needs(self.method, self.task, **many, checkpoint_every=self.run.checkpoint_every)

    def memory(self, messages: int | None = None) -> Memory:
        """What they take together at the most; simulated, as far as so many messages ahead show."""
        if not self.simulated or self.fleet is None:
            return bound(self.method, self.task, self.needs(), rounds=self.rounds)
        rounds, seed = self.rounds, self.run.seed
        return foresee(self.method, self.task, self.fleet, self.needs(), rounds=rounds, seed=seed, messages=messages)


@dataclass(frozen=True)
class Spec:
    """A spec whose every key is known and of the right type; `build` checks what only constructors know."""

    name: str
    task: Part
    fleet: Part | None
    method: Part
    engine: Part
    run: Length

    @property
    def simulated(self) -> bool:
        """Whether it asks for the simulator."""
        return self.engine.make is SimPool

    def build(self, task: Task | None = None) -> Built:
        """Everything a run needs, made; the task only if it is not there already."""
        method = call(self.method.make, self.method.arguments, "method")
        task = call(self.task.make, self.task.arguments, "task") if task is None else task
        return Built(method, task, _fleet(self.fleet) if self.fleet else None, self.engine, self.run)

    def resolved(self) -> Table:
        """The spec with all defaults filled in, as strict JSON; `parse` reads it back.

        A trace is written out in full, so a record needs no other file.
        """
        fleet = self.fleet
        if fleet and fleet.kind == "trace":
            rest = {name: value for name, value in fleet.arguments.items() if name != "path"}
            fleet = Part("groups", _grouped, {"groups": _fleet(fleet).groups, **rest})
        parts = {"task": self.task, "fleet": fleet, "method": self.method, "engine": self.engine}
        tables = {
            name: {"kind": part.kind, **written_arguments(_known(name, part.make), part.arguments)}
            for name, part in parts.items()
            if part
        }
        return tables | {"run": written_arguments(parameters(Length), vars(self.run))}


def load(source: str | Path, overrides: Iterable[str] = ()) -> Spec:
    """The spec in a file, or of a shipped name, with `table.key=value` overrides.

    >>> print(load("quadratic", ["method.buffer=3"]).build().method)
    Clip² (client-centric, M=3, K=5, downplayed)
    """
    name, tables = _tables(source)
    for text in overrides:
        override(tables, text)
    _anchor(tables, Path())
    return parse(tables, name)


def shipped() -> list[str]:
    """The names of the specs that come with the package."""
    names = [file.name for file in files("tardygrad").joinpath("specs").iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def parse(tables: Mapping[str, Any], name: str = "spec") -> Spec:
    """A spec from its tables."""
    for key, table in tables.items():
        if key not in TABLES:
            raise Invalid(f"a spec has the tables {', '.join(TABLES)}, got `{key}`.{nearest(key, TABLES)}")
        if not isinstance(table, dict):
            raise Invalid(f"[{key}] must be a table, got {shown(table)}.")
    engine = _part("engine", {"kind": "sim"} | tables.get("engine", {}))
    timed = parameters(engine.make).get("fleet")
    optional = {"engine"} | ({"fleet"} if timed is None or timed.default is None else set())
    for key in TABLES:
        if key not in tables and key not in optional:
            raise Invalid(f"a spec needs the table [{key}], got {', '.join(tables) or 'none'}.")
    task, fleet = _same_clients(tables["task"], tables.get("fleet"))
    run = construct(Length, tables["run"], "run")
    return Spec(name, task, fleet, _part("method", tables["method"]), engine, run)


def resume_keys(tables: Mapping[str, Any]) -> list[str]:
    """What may change when a run of a spec is resumed: its end, its trackers, and what its engine allows."""
    engine = ENGINES.get(tables.get("engine", {}).get("kind"), SimPool)
    return ["run.rounds", "run.track", *(f"engine.{key}" for key in engine.resume_keys)]


def override(tables: Table, text: str) -> None:
    """Set `table.key=value` in the tables, the value being TOML or else a bare string; an empty value removes."""
    key, equals, given = (part.strip() for part in text.partition("="))
    path, value = key.split("."), _value(given)
    if not equals or not all(path) or (len(path) == 1 and not isinstance(value, dict)):
        fix = places(key, given) or "Write for example run.rounds=100."
        raise Invalid(f"an override must be table.key=value, got {text!r}. {fix}")
    table = tables
    for i, name in enumerate(path[:-1], 1):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise Invalid(f"`{'.'.join(path[:i])}` must be a table to set `{key}`, got {shown(table)}.")
    if given:
        table[path[-1]] = value
    elif path[-1] in table:
        del table[path[-1]]
    else:
        raise Invalid(f"`{key}=` removes a key, but the spec does not set it.{nearest(path[-1], table)}")


def places(key: str, value: str = "VALUE") -> str:
    """Where a key that was given without its table, or as an option, belongs; nothing if it is nowhere.

    >>> places("rounds", "100")
    'Write run.rounds=100.'
    """
    table, _, name = key.rpartition(".")
    homes = [home for home, known in keys().items() if name in known and table in ("", home)]
    return f"Write {' or '.join(f'{home}.{name}={value}' for home in homes)}." if homes else ""


def keys() -> dict[str, list[str]]:
    """Every key of every table, whatever its kind."""
    known = {
        table: {key: None for make in kinds.values() for key in _known(table, make)} for table, kinds in KINDS.items()
    }
    return {"run": list(parameters(Length))} | {table: list(names) for table, names in known.items()}


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text


def _tables(source: str | Path) -> tuple[str, Table]:
    path, known = Path(source), shipped()
    if (path / "spec.json").is_file():
        path /= "spec.json"
    if path.is_file():
        tables = _parsed(path)
        if tables.keys() >= {"spec", "run", "versions"}:
            return _recorded(path.resolve().parent, tables)
        fleet = tables.get("fleet")
        if isinstance(fleet, dict) and isinstance(fleet.get("path"), str):
            fleet["path"] = str(path.parent / fleet["path"])  # a spec and its trace move together
        _anchor(tables, path.parent)
        return path.stem, tables
    if str(source) in known:
        return str(source), tomllib.loads(files("tardygrad").joinpath(f"specs/{source}.toml").read_text("utf-8"))
    if path.is_dir():
        raise Invalid(f"a spec must be a file or hold a run, got the directory {str(source)!r}. Name a file.")
    fix = nearest(str(source), known) or f" Shipped specs: {', '.join(known)}."
    if str(source) in KINDS["task"]:
        fix = f" It is a kind of task: write for example fashion task.kind={source} task.data=FOLDER."
    raise Invalid(f"a spec must be a file or the name of a shipped spec, got {str(source)!r}.{fix}")


def _recorded(folder: Path, record: Table) -> tuple[str, Table]:
    """The spec of a run, named as that run was without its number."""
    if not isinstance(record["spec"], dict):
        raise Invalid(f"a run must have a spec to begin another with it, got {folder.name!r}, begun in Python.")
    return re.sub(r"-\d+$", "", folder.name), record["spec"]


def _anchor(tables: Table, folder: Path) -> None:
    """Make paths in [task] that are there absolute, so that a run can be resumed from anywhere."""
    task = tables.get("task")
    if not isinstance(task, dict):
        return
    words = {"data": "hub", "pretrained": None, "text": "python"}  # what is never a path
    if task.get("kind") == "glue":
        words["model"] = None  # elsewhere a word
    for key, word in words.items():
        value = task.get(key)
        if isinstance(value, str) and value != word and (folder / value).exists():
            task[key] = str((folder / value).resolve())


def _parsed(path: Path) -> Table:
    language, loads = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        tables = loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"the spec {str(path)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"a spec must be UTF-8 text, got {str(path)!r}, where byte {error.start} is not.") from error
    except (ValueError, RecursionError) as error:
        raise Invalid(f"a spec must be valid {language}, got {str(path)!r}: {error}.") from error
    if not isinstance(tables, dict):
        raise Invalid(f"a spec must be made of tables, got {shown(tables)} in {str(path)!r}.")
    return tables


def _known(name: str, make: Make) -> Parameters:
    known = {**parameters(make), **(parameters(_afflicted) if name == "fleet" else {})}
    return {key: parameter for key, parameter in known.items() if key not in _MADE}


def _part(name: str, table: Table) -> Part:
    kind, rest = choose(KINDS[name], table, name)
    make = KINDS[name][kind]
    known = _known(name, make)
    for key in rest:
        kinds = [other for other, its in KINDS[name].items() if key in _known(name, its)]
        if key not in known and kinds:
            whose = f" It is one of {kinds[0]!r}: add {name}.kind={kinds[0]}, or" if len(kinds) == 1 else ""
            fix = f"{whose} remove it: add {name}.{key}=" if whose else f" Remove it: add {name}.{key}="
            raise Invalid(f"[{name}] has no key `{key}` if its kind is {kind!r}.{fix}")
    return Part(kind, make, arguments(known, rest, name))


def _same_clients(task: Table, fleet: Table | None) -> tuple[Part, Part | None]:
    """[task] and [fleet], with the `clients` of one for both."""
    if fleet is None:
        return _part("task", task), None
    said = None
    if "clients" in task:
        check_integer("task.clients", said := read(int, task["clients"], "task.clients"))
    kind, rest = choose(KINDS["fleet"], fleet, "fleet")
    if said is not None and "clients" not in rest and "clients" in parameters(KINDS["fleet"][kind]):
        fleet = fleet | {"clients": said}
    part = _part("fleet", fleet)
    clients = _fleet(part).clients
    if said not in (None, clients):
        raise Invalid(f"`clients` must agree in [task] and [fleet], got {said} and {clients}. Give it in one of them.")
    return _part("task", task | {"clients": clients}), part


def _fleet(part: Part) -> Fleet:
    own = {name: value for name, value in part.arguments.items() if name in parameters(part.make)}
    others = {name: value for name, value in part.arguments.items() if name not in own}
    fleet: Fleet = call(_afflicted, {"fleet": call(part.make, own, "fleet"), **others}, "fleet")
    return fleet
