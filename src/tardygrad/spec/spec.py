"""Specs: reading TOML or JSON tables, and constructing the objects that they describe.

A spec is TOML (or JSON) with the tables [task] [fleet] [method] [engine] [run]. A table's `kind` names a constructor of
`KINDS`; its other keys are that constructor's own keyword arguments, with the types and defaults of its signature (see
constructors.py). `clients` may be given in [task] or in [fleet], and applies to both.

Overrides: `method.lr=0.1` sets a key, `method.clip=` removes it; a name with a dot is in quotes.

Errors are `Invalid`, in one or two sentences: the rule, the value, the fix.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tardygrad.constructors import (
    Call,
    Make,
    Table,
    arguments,
    call,
    choose,
    conform,
    construct,
    parameters,
    remember,
    written_arguments,
)
from tardygrad.core.method import Method
from tardygrad.core.task import Task
from tardygrad.engines.contract import Pool
from tardygrad.engines.fleet_clock import matched
from tardygrad.engines.sim.pool import SimPool
from tardygrad.errors import Invalid, check_integer, nearest, shown
from tardygrad.fleet import AvailabilityFile, Fleet
from tardygrad.own_code import check_cluster, check_trust
from tardygrad.runs.kinds import ENGINES, FLEET_KEYS, FROM_OTHER_TABLES, KINDS, TABLES, keys_of, suggest_table
from tardygrad.runs.memory import Memory, Meter
from tardygrad.runs.settings import RunTable
from tardygrad.runs.tables import make_fleet
from tardygrad.spec.sources import anchor_task, read_source

T = TypeVar("T")

DEEPEST = 30  # levels of tables and lists in a spec
NAMES = re.compile(r"fleet\.(ids\[\d+\]|groups\[\d+\]\.name)")
"""Keys with names from files of others, which may have any characters; all that is printed or drawn is cleaned."""


class SpecTable(NamedTuple):
    """A table of a spec, checked: the constructor to call, and its arguments."""

    kind: str
    make: Make
    arguments: Table  # all of them, defaults included

    @property
    def simulated(self) -> bool:
        """Whether this is the engine of the simulator."""
        return self.make is SimPool


class Built(NamedTuple):
    """The objects that a run needs."""

    method: Method
    task: Task
    fleet: Fleet | None
    engine: SpecTable
    run: RunTable

    def pool(self, grid: Any = None) -> Pool:
        """The engine, for a `with` statement.

        Args:
            grid: of a Flower app, if the run is in one.
        """
        wanted = inspect.signature(self.engine.make).parameters
        given = {"task": self.task, "method": self.method, "fleet": self.fleet, "rounds": self.run.rounds, "grid": grid}
        others = {name: given[name] for name in FROM_OTHER_TABLES if name in wanted}
        engine = call(self.engine.make, others | self.engine.arguments, "engine")
        return _checked_kind(engine, self.engine, "engine", Pool)  # type: ignore[type-abstract]

    def meter(self) -> Meter:
        """A meter for the memory of the run's vectors."""
        workers = "processes" if self.engine.simulated else "threads"
        numbers = {workers: self.engine.arguments.get("workers", 1), "batch": self.engine.arguments.get("batch", 1)}
        return Meter(self.method, self.task, **numbers, checkpoint_every=self.run.checkpoint_every)

    def memory(self, messages: int | None = None) -> Memory:
        """The peak memory of all vectors; on the simulator, up to the first `messages`."""
        if not self.engine.simulated or self.fleet is None:
            return self.meter().bound(rounds=self.run.rounds)
        run = self.run
        return self.meter().forecast(self.fleet, rounds=run.rounds, until=run.until, seed=run.seed, messages=messages)


@dataclass(frozen=True)
class Spec:
    """A spec in which every key is known and has the right type; constructors check the rest in `build`."""

    name: str
    task: SpecTable
    fleet: SpecTable | None
    method: SpecTable
    engine: SpecTable
    run: RunTable

    def clients(self) -> int | None:
        """The number of clients; None if only the task knows it."""
        given: int | None = self.task.arguments.get("clients")
        return _fleet(self.fleet).clients if given is None and self.fleet else given

    def build_method(self) -> Method:
        """Construct the method alone."""
        return _made(self.method, "method", Method)

    def build(self, task: Task | None = None) -> Built:
        """Construct everything that a run needs, with an existing task if one is given."""
        method = self.build_method()
        task = _made(self.task, "task", Task) if task is None else task
        fleet = _fleet(self.fleet) if self.fleet else None
        fleet = matched(fleet, task) if fleet else None
        if fleet and fleet.clients != task.clients:
            got = f"{task.clients} and {fleet.clients}"
            raise Invalid(f"[task] and [fleet] must have the same number of clients, got {got}.")
        return Built(method, task, fleet, self.engine, self.run)

    def resolved(self) -> Table:
        """The spec with all defaults filled in, as strict JSON; `parse` reads it back.

        Traces and availability are written out in full, so a record needs no other file.
        """
        fleet = self.fleet
        if fleet and (fleet.kind == "trace" or isinstance(fleet.arguments.get("availability"), AvailabilityFile)):
            fields, built = parameters(Fleet), _fleet(fleet)
            others = dict.fromkeys(FLEET_KEYS)
            fleet = SpecTable("groups", Fleet, {name: getattr(built, name) for name in fields} | others)
        sections = {"task": self.task, "fleet": fleet, "method": self.method, "engine": self.engine}
        tables = {
            name: {"kind": table.kind, **written_arguments(keys_of(name, table.make), table.arguments)}
            for name, table in sections.items()
            if table
        }
        return tables | {"run": written_arguments(parameters(RunTable), vars(self.run))}


def load(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] = (), *, trust: bool = False, starts: bool = False
) -> Spec:
    """The spec in a file, of a shipped name, or of a recorded run, with `table.key=value` overrides.

    Args:
        source: or the tables of a spec, whose functions are imported.
        trust: whether to import code that a recorded run names, and to join its cluster.
        starts: whether its engine will be started.

    >>> print(load("quadratic", ["method.buffer=3"]).build().method)
    Clip² (client-centric, M=3, K=5, downplayed)
    """
    if isinstance(source, Mapping):
        check_plain(source)
        name, tables, recorded = "spec", deepcopy(dict(source)), False
    else:
        name, tables, recorded = read_source(source)
    typed = []
    for text in overrides:
        override(tables, text)
        typed.append(text.partition("=")[0].strip())
    check_plain(tables)
    anchor_task(tables, Path())
    if recorded and not trust:
        check_trust(tables, str(source))
        if starts and "engine.address" not in typed:
            check_cluster(tables, str(source))
    return parse(tables, name, trust=True, typed=typed)


load_spec = load  # its public name


def parse(tables: Mapping[str, Any], name: str = "spec", *, trust: bool = False, typed: Collection[str] = ()) -> Spec:
    """A spec from its tables.

    Args:
        trust: whether to import the functions that it names.
        typed: the keys that overrides set, for error messages.
    """
    check_plain(tables)
    if not trust:
        check_trust(tables, name)
    for key, table in tables.items():
        if key not in TABLES:
            raise Invalid(f"a spec has the tables {', '.join(TABLES)}, got `{key}`.{nearest(key, TABLES)}")
        if not isinstance(table, dict):
            raise Invalid(f"[{key}] must be a table, got {shown(table)}.")
    given = {"kind": "sim"} | tables.get("engine", {})
    engine = _checked("engine", given, typed)
    timed = parameters(engine.make).get("fleet")
    optional = {"engine"} | ({"fleet"} if timed is None or timed.default is None else set())
    for key in TABLES:
        if key not in tables and key not in optional:
            raise Invalid(f"a spec needs the table [{key}], got {', '.join(tables) or 'none'}.")
    task, fleet = _same_clients(tables["task"], tables.get("fleet"), typed)
    run = construct(RunTable, tables["run"], "run")
    return Spec(name, task, fleet, _checked("method", tables["method"], typed), engine, run)


def check_plain(value: Any, where: str = "", depth: int = 0) -> None:
    """Raise `Invalid` if tables are nested without end, or have text or numbers that cannot be written in a line."""
    if depth > DEEPEST:
        raise Invalid(f"a spec has at most {DEEPEST} levels of tables and lists, got more in `{where[:40]}…`.")
    if isinstance(value, str) and not value.isprintable() and not NAMES.fullmatch(where):
        raise Invalid(f"`{where}` must be printable text, got {value!a}.")
    if isinstance(value, int) and value.bit_length() > 1024:
        raise Invalid(f"`{where}` must be a number of at most 300 digits, got {shown(value)}.")
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        place = f"{where}[{key}]" if not isinstance(value, Mapping) else f"{where}.{key}" if where else str(key)
        check_plain(item, place, depth + 1)


def with_tables(method: Method, task: Task, tables: Mapping[str, Any]) -> Built:
    """A method and a task from elsewhere, with the tables [engine] and [run]."""
    return Built(method, task, None, _checked("engine", tables["engine"]), construct(RunTable, tables["run"], "run"))


def build_method(table: Table) -> Method:
    """The method of a table [method]; imports the function that it names."""
    return _made(_checked("method", table), "method", Method)


def build_fleet(table: Table) -> Fleet:
    """The fleet of a table [fleet]; imports the functions that it names."""
    return _fleet(_checked("fleet", table))


def resume_keys(tables: Mapping[str, Any]) -> list[str]:
    """The keys that may change when a run is resumed: its length, trackers, and what the engine allows."""
    engine = ENGINES.get(str(tables.get("engine", {}).get("kind", "sim")), Pool)  # Pool: one of the user's own
    return ["run.rounds", "run.until", "run.track", *(f"engine.{key}" for key in engine.resume_keys)]


def override(tables: Table, text: str) -> None:
    """Apply `table.key=value`; the value is TOML or else a bare string, and an empty one removes the key."""
    key, equals, given = (part.strip() for part in text.partition("="))
    path, value = _path(key), _value(given)
    if not equals or not all(path) or (len(path) == 1 and not isinstance(value, dict)):
        fix = suggest_table(key, given if equals else "VALUE") or "Write for example run.rounds=100."
        raise Invalid(f"an override must be table.key=value, got {text!r}. {fix}")
    table = tables
    for i, name in enumerate(path[:-1], 1):
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            fix = " Give the whole list." if isinstance(table, list) else ""
            raise Invalid(f"`{'.'.join(path[:i])}` must be a table to set `{key}`, got {shown(table)}.{fix}")
    if given:
        table[path[-1]] = value
    elif path[-1] in table:
        del table[path[-1]]
    else:
        raise Invalid(f"`{key}=` removes a key, but the spec does not set it.{nearest(path[-1], table)}")


def _path(key: str) -> list[str]:
    """The names in a dotted key; one with a dot of its own is in quotes, as in TOML.

    >>> _path('engine.place."site.a"')
    ['engine', 'place', 'site.a']
    """
    path = []
    try:
        rest: Any = tomllib.loads(f"{key} = 0")
        while isinstance(rest, dict):
            ((name, rest),) = rest.items()
            path.append(name)
    except ValueError:  # not a key in TOML, or more than a key
        return key.split(".")
    return path


def _value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text


def _checked(name: str, table: Table, typed: Collection[str] = ()) -> SpecTable:
    """Check the kind and the keys of a table, and convert its values to the types of the arguments."""
    kind, make, rest = choose(KINDS[name], table, name)
    known = keys_of(name, make)
    for key in rest:
        kinds = [other for other, its in KINDS[name].items() if key in keys_of(name, its)]
        if key not in known and kinds:
            fix = f" It belongs to {kinds[0]!r}: add {name}.kind={kinds[0]}." if len(kinds) == 1 else ""
            if f"{name}.{key}" not in typed:
                fix += f" To remove it, delete its line or append {name}.{key}="
            elif not fix:
                fix = f" Known keys: {', '.join(known) or 'none'}."
            raise Invalid(f"[{name}] has no key `{key}` if its kind is {kind!r}.{fix}")
    return SpecTable(kind, make, arguments(known, rest, name))


def _same_clients(task: Table, fleet: Table | None, typed: Collection[str]) -> tuple[SpecTable, SpecTable | None]:
    """Check [task] and [fleet]; `clients` of one applies to both."""
    if fleet is None:
        return _checked("task", task, typed), None
    given = None
    if "clients" in task:
        check_integer("task.clients", given := conform(int, task["clients"], "task.clients", spec=True))
    _, make, rest = choose(KINDS["fleet"], fleet, "fleet")
    if given is not None and "clients" not in rest and "clients" in parameters(make):
        fleet = fleet | {"clients": given}
    checked = _checked("fleet", fleet, typed)
    clients = _fleet(checked).clients
    if given not in (None, clients):
        raise Invalid(f"`clients` must agree in [task] and [fleet], got {given} and {clients}. Give it in one of them.")
    _, make, _ = choose(KINDS["task"], task, "task")
    task = task | ({"clients": clients} if "clients" in parameters(make) else {})
    return _checked("task", task, typed), checked


def _made(table: SpecTable, where: str, wanted: type[T]) -> T:
    """Call a table's constructor, and check what it returns."""
    built = _checked_kind(call(table.make, table.arguments, where), table, where, wanted)
    return remember(built, Call(table.make, table.arguments))


def _checked_kind(built: object, table: SpecTable, where: str, wanted: type[T]) -> T:
    if not isinstance(built, wanted):
        rule = f"`{where}.kind` must be a function that returns a {wanted.__name__}"
        raise Invalid(f"{rule}, got a {type(built).__name__} from {table.kind!r}.")
    return built


def _fleet(table: SpecTable) -> Fleet:
    return make_fleet(table.make, table.arguments)
