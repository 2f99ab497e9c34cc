"""Signatures as schemas: the type hints of a constructor say what the keys and values of its table may be.

float, int, bool, str, Literal   a TOML value of exactly that type: "4" and true are not numbers
X | None                         None is the key left out, or null in JSON
a dataclass                      a table with its fields; if several classes are possible, with `kind`, the class's
                                 name in lower case, or that name alone
a schedule                       0.1, {value = 0.1, exponent = -0.5} (Power), {peak = 0.1, rounds = 140} (Cosine)
tuple                            a list; for a list of literals, also a single one
an Enum, Path                    the value of a member; a string
inf                              inf; in JSON "inf"
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from contextlib import chdir
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from tardygrad.constructors import own_code
from tardygrad.core.recipe import Make, Parameters, call_seeded, parameters
from tardygrad.core.schedules import Cosine, Power, Schedule
from tardygrad.errors import Invalid, TardygradError, described_error, is_out_of_memory, nearest
from tardygrad.type_hints import classes_in, conform, item_hints, rule, union_members

Table = dict[str, Any]
"""A table, as TOML or JSON gives it."""

NAMES = re.compile(r"fleet\.(ids\[\d+\]|groups\[\d+\]\.name)")
"""Keys with names from files of others, which may have any characters; all that is printed or drawn is cleaned."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def arguments(known: Parameters, table: Table, where: str) -> Table:
    """All arguments of a constructor: the values of a table, and defaults for the others."""
    for key in table:
        if key not in known:
            fix = nearest(key, known) or f" Known keys: {', '.join(known) or 'none'}."
            raise Invalid(f"{place(where)} has no key `{key}`.{fix}")
    for key, parameter in known.items():
        if key not in table and parameter.default is parameter.empty:
            raise Invalid(f"{place(where)} needs the key `{key}`: {rule(parameter.annotation, toml=True)}.")
    return {
        key: read(parameter.annotation, table[key], f"{where}.{key}") if key in table else parameter.default
        for key, parameter in known.items()
    }


def call(make: Make, given: Table, where: str) -> Any:
    """Call a constructor; its errors say where in the spec the values came from."""
    try:
        with chdir("."):  # own code may change the current directory; paths of the command are relative to it
            return call_seeded(make, given)
    except Invalid as error:
        raise Invalid(f"in {place(where)}: {error}") from error
    except TardygradError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error) or isinstance(error, OverflowError):
            text = f"not enough memory for these sizes ({shown(str(error))}). Use smaller values."
            raise Invalid(f"in {place(where)}: {text}") from error
        raise Invalid(f"in {place(where)}: {described_error(error)}.") from error


def construct(make: Make, table: Table, where: str) -> Any:
    """Call a constructor with the values of a table."""
    return call(make, arguments(parameters(make), table, where), where)


def choose(kinds: Mapping[str, Make], table: Table, where: str) -> tuple[str, Make, Table]:
    """A table's `kind`, its constructor, and the rest of the table."""
    rest = dict(table)
    kind = rest.pop("kind", None)
    if kind is None:
        raise Invalid(f"{place(where)} needs the key `kind`: one of {', '.join(kinds)}.")
    if own_code.is_own(kind):
        return kind, own_code.find(kind, where), rest
    if not isinstance(kind, str) or kind not in kinds:
        fix = nearest(str(kind), kinds) or " Or name your own function: package.module:function."
        raise Invalid(f"`{where}.kind` must be one of {', '.join(kinds)}, got {shown(kind)}.{fix}")
    return kind, kinds[kind], rest


def read(hint: Any, value: Any, where: str) -> Any:
    """Convert a value of a table to a type hint, or raise `Invalid`."""
    options = union_members(hint)
    if isinstance(value, str) and not value.isprintable() and not NAMES.fullmatch(where):
        raise Invalid(f"`{where}` must be printable text, got {value!a}.")
    if hint is Any:
        return value
    if isinstance(value, dict):
        if Schedule in options:
            return construct(Cosine if value.keys() & parameters(Cosine).keys() else Power, value, where)
        classes = classes_in(options)
        if len(classes) > 1:
            _, make, value = choose(classes, value, where)
            return construct(make, value, where)
        for only in classes.values():
            return construct(only, value, where)
    if isinstance(value, str) and len(named := classes_in(options)) > 1 and value in named:
        return construct(named[value], {}, where)
    if isinstance(value, str) and any(_words(option) for option in options):
        value = [value]  # a single literal in place of a list
    if isinstance(value, list):
        for option in options:
            if get_origin(option) is tuple and len(hints := item_hints(option, len(value))) == len(value):
                return tuple(read(hints[i], item, f"{where}[{i}]") for i, item in enumerate(value))
    if value == "inf" and float in options:
        return math.inf
    if isinstance(value, str) and Path in options and str not in options:
        return Path(value)
    for option in options:
        if isinstance(option, type) and issubclass(option, Enum) and value in [member.value for member in option]:
            return option(value)
    try:
        return _single(options, value)
    except ValueError as error:
        fix = _fix(options, value, where) if isinstance(value, str) else ""
        raise Invalid(f"`{where}` must be {rule(hint, toml=True)}, got {shown(value)}.{fix}") from error


def _fix(options: Iterable[Any], value: str, where: str) -> str:
    """A hint for a word that a key does not take: the nearest word, or the key `kind` of the table it belongs to."""
    classes = classes_in(options)
    for make in classes.values():
        kind = parameters(make).get("kind")
        if kind and value in _literals(kind.annotation):
            return f" Write {where}.kind={value}."
    words = [word for option in options for word in _literals(option)]
    return nearest(value, words or (classes if len(classes) > 1 else ()))


def shown(value: Any) -> str:
    """Format a value for an error message: as TOML, and not too long."""
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else _SHORT.repr(value)


def place(where: str) -> str:
    """Format the name of a table or a key for an error message."""
    return f"`{where}`" if "." in where else f"[{where}]"


def _literals(option: Any) -> tuple[str, ...]:
    return get_args(option) if get_origin(option) is Literal else ()


def _words(option: Any) -> bool:
    """Whether a hint is a tuple of literals."""
    return get_origin(option) is tuple and get_origin(get_args(option)[0]) is Literal


def _single(options: tuple[Any, ...], value: Any) -> Any:
    """A number, a string or a boolean of one of these types; raises ValueError for anything else."""
    singles = tuple(o for o in options if o != Schedule and not is_dataclass(o) and get_origin(o) is not tuple)
    if not singles:
        raise ValueError
    found = conform(Union.__getitem__(singles), value, "")
    if isinstance(found, float) and math.isnan(found):
        raise ValueError
    return float(found) if type(found) is int and float in singles and int not in singles else found
