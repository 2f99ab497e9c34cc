"""Constructors of your own in a spec: `kind = "package.module:function"`.

Only names that the user has written are imported: in a spec file or on the command line. A record may come from
elsewhere, so the code that it names is imported, and the cluster that it names is joined, only if the user says that
they trust it.
"""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from tardygrad.errors import Invalid, described_error, nearest


def is_own(kind: object) -> bool:
    """Whether a `kind` names a function in a module, rather than a kind of tardygrad."""
    return isinstance(kind, str) and ":" in kind


def calls(tables: Any) -> Iterator[dict[str, Any]]:
    """The tables of a spec that name a function, at any depth."""
    if isinstance(tables, dict):
        if is_own(tables.get("kind")):
            yield tables
        for value in tables.values():
            yield from calls(value)
    elif isinstance(tables, list):
        for value in tables:
            yield from calls(value)


def names(tables: Any) -> Iterator[str]:
    """The functions that a spec names, at any depth."""
    return (table["kind"] for table in calls(tables))


def cluster(tables: Any) -> str | None:
    """The address of a cluster that a spec joins; None: none, or the one that this machine knows ("auto")."""
    address = engine_table(tables).get("address")
    return None if address == "auto" else address


def engine_table(tables: Any) -> dict[str, Any]:
    """The table [engine] of a spec; empty if the spec has none."""
    engine = tables.get("engine") if isinstance(tables, dict) else None
    return engine if isinstance(engine, dict) else {}


def trust_option(tables: Any) -> str:
    """What the next command needs after the name of a record whose code and cluster this one has used."""
    return " --trust" if any(names(tables)) or cluster(tables) else ""


def check_trust(tables: Any, where: str, fix: str = "add --trust") -> None:
    """Raise `Invalid` if the spec of a record names code."""
    for name in names(tables):
        rule = f"a function that {where!r} names is imported only if you trust it"
        raise Invalid(f"{rule}, got {name!r}{_place(name)}. Read its code, then {fix}.")


def _place(name: str) -> str:
    """Where the module of a function, or the package that it is in, would be imported from; empty if not known."""
    top = name.partition(":")[0].partition(".")[0]  # to find a module inside a package, Python imports the package
    loaded = sys.modules.get(top)
    spec = loaded.__spec__ if loaded else PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is None:
        return ""
    return f" in {next(iter(spec.submodule_search_locations or ()), spec.origin)}"


def check_cluster(tables: Any, where: str) -> None:
    """Raise `Invalid` if the spec of a record joins a cluster, which can run code here."""
    if address := cluster(tables):
        fix = f"Add --trust, or give the address: engine.address={shlex.quote(str(address))}."
        raise Invalid(f"a cluster that {where!r} names is joined only if you trust it, got {address!r}. {fix}")


def find(name: str, where: str) -> Any:
    """Import `package.module:function`, from the current directory or from what is installed."""
    module_name, _, function_name = name.partition(":")
    rule = f"`{where}.kind` must name a function that can be imported, as package.module:function"
    if not module_name or not all(function_name.split(".")):
        raise Invalid(f"{rule}, got {name!r}. Write a name on both sides of the colon.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; a command has the directory of its script there
    try:
        with chdir(here):  # and back: the module may change the current directory
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            fix = "Run the command in the folder of the module, or install it."
            raise Invalid(f"{rule}, got {name!r}: {error}. {fix}") from error
        raise Invalid(f"{rule}, got {name!r}, whose import failed: {described_error(error)}.") from error
    for part in function_name.split("."):
        if not hasattr(found, part):
            raise Invalid(f"{rule}, got {name!r}: {module_name} has no `{part}`.{nearest(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise Invalid(f"{rule}, got {name!r}, which is of type {type(found).__name__}.")
    if inspect.iscoroutinefunction(found):
        raise Invalid(f"{rule}, got {name!r}, which is asynchronous. Write def in place of async def.")
    for key, each in signature(found).parameters.items():
        if each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
            raise Invalid(f"{rule}, got {name!r}, whose argument `{key}` has no name. Remove the / from its signature.")
    return found


def signature(make: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function or class."""
    try:
        return inspect.signature(make)
    except (TypeError, ValueError) as error:
        raise Invalid(f"its function {make!r} has no signature that Python can read") from error
