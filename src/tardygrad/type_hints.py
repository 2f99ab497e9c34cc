"""Type hints as rules: whether a value is of the type that an argument wants, and how to say what that is.

The same rules hold for calls in Python (`errors.checked_call`) and for values of a spec
(`constructors/signature.py`): text is no number, and neither is True. A list may stand for a tuple.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin


def is_number(value: object) -> bool:
    """Whether `value` is a number of Python or NumPy; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


@cache
def union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; otherwise the hint itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def classes_in(members: Iterable[Any]) -> dict[str, Callable[..., Any]]:
    """The dataclasses among the members of a union, by their names in lower case."""
    return {option.__name__.lower(): option for option in members if isinstance(option, type) and is_dataclass(option)}


def item_hints(option: Any, length: int) -> list[Any]:
    """The hints of a tuple's items."""
    hints = get_args(option)
    return [hints[0]] * length if hints[-1] is Ellipsis else list(hints)


class Mismatch(ValueError):
    """A value is of another type than its hint."""

    def __init__(self, name: str, hint: Any, value: Any) -> None:
        super().__init__(name)
        self.name, self.hint, self.value = name, hint, value


def conform(hint: Any, value: Any, name: str) -> Any:
    """A value that is of a type, with tuples in place of lists where the type wants them.

    Args:
        name: of the value, for the error.

    Raises:
        Mismatch: it is of another type, or one of its items is.

    >>> conform(tuple[float, ...] | None, [1, 2.5], "seconds")
    (1, 2.5)
    """
    for option in union_members(hint):
        origin, args = get_origin(option), get_args(option)
        if origin is tuple and isinstance(value, tuple | list):
            if args[-1] is Ellipsis and set(map(type, value)) <= {args[0]}:  # quick for long tuples
                return tuple(value)
            hints = item_hints(option, len(value))
            if len(hints) == len(value):
                return tuple(conform(hints[i], item, f"{name}[{i}]") for i, item in enumerate(value))
        elif _is(option, value):
            items = enumerate(value) if origin is list else value.items() if origin in (dict, Mapping) else ()
            for key, item in items:
                conform(args[-1], item, f"{name}[{key!r}]")
            return value
    raise Mismatch(name, hint, value)


def _is(option: Any, value: Any) -> bool:
    """Whether a value is of a type that is no union and no tuple; True if that cannot be told.

    Functions are not looked at: who calls them knows better what they must be.
    """
    origin = get_origin(option)
    if option is float:
        return is_number(value) and _fits(value)
    if option is str:
        return isinstance(value, str | PathLike)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is Literal:
        return any(type(value) is type(word) and value == word for word in get_args(option))
    if origin in (list, dict, Mapping):
        return isinstance(value, origin)
    if origin in (Sequence, Iterable):
        return _iterates(value) and not isinstance(value, str | Mapping)
    if getattr(option, "_is_protocol", False):
        if not option._is_runtime_protocol or any(isinstance(member, property) for member in vars(option).values()):
            return not isinstance(value, bool | int | float | str | None)  # to look for properties may compute them
        return isinstance(value, option) and not isinstance(value, type)
    if origin is tuple:
        return False  # `conform` has looked at it
    return option is Any or not isinstance(option, type) or isinstance(value, option)


def _iterates(value: Any) -> bool:
    """Whether a value has items; an array without dimensions has the method for it, and none."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _fits(number: Any) -> bool:
    """Whether a float can hold a number."""
    try:
        float(number)
    except OverflowError:
        return False
    return True


_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "a string", Any: "any value"}
_IN_PYTHON = _WORDS | {bool: "True or False", Path: "a path", type(None): "None"}
_IN_SPEC = _WORDS | {bool: "true or false", Path: "a string", type(None): ""}


def rule(hint: Any, *, toml: bool = False) -> str:
    """What a value may be, for an error message: in Python, or in a spec.

    >>> rule(int | None), rule(tuple[str, ...], toml=True)
    ('a whole number or None', 'a list, each item a string')
    """
    words, options = _IN_SPEC if toml else _IN_PYTHON, union_members(hint)
    rules = (words[each] if each in words else _rule(each, options, toml=toml) for each in options)
    return " or ".join(filter(None, dict.fromkeys(rules)))


def _rule(option: Any, options: tuple[Any, ...], *, toml: bool) -> str:
    """The rule for one of the types of a union."""
    origin, hints = get_origin(option), get_args(option)
    if origin is Literal:
        return "one of " * (len(hints) > 1) + ", ".join(map(str, hints))
    if origin is Callable:
        return "a schedule such as {value = 0.1, exponent = -0.5}" if toml else "a function"
    if origin is tuple:
        several = f"a {'list' if toml else 'tuple'}, each item {rule(hints[0], toml=toml)}"
        return several if hints[-1] is Ellipsis else "a pair"
    if isinstance(option, type) and issubclass(option, Enum) and toml:
        return f"one of {', '.join(str(member.value) for member in option)}"
    if toml:
        kinds = list(classes_in(options))
        return f"a table whose kind is one of {', '.join(kinds)}" if len(kinds) > 1 else "a table"
    if origin in (Mapping, Sequence, Iterable):
        return "a dict" if origin is Mapping else "a list"
    names = [each.__name__ for each in options if isinstance(each, type) and each not in _IN_PYTHON]
    if len(names) > 1:
        return f"one of {', '.join(names)}"
    name = str(getattr(origin or option, "__name__", option))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
