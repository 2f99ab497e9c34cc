"""Everything tardygrad raises on purpose.

TardygradError
├── Invalid        a setting, a file or a message breaks a rule; says the rule, the value and the fix   (exit code 2)
├── Starved        the buffer can no longer fill: too many clients are lost, or every update is refused
├── Diverged       the model is no longer finite
├── WorkFailed     a client's work raised an error; names the client and the job
├── Interrupted    a pool was told to stop waiting
└── RecordError    a run's directory could not be read or written (disk full, damaged, in use)
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Real
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class TardygradError(Exception):
    """Any error that tardygrad raises on purpose; its text is meant for people."""


class Invalid(TardygradError, ValueError):
    """A rule was broken by what the user gave."""


class Starved(TardygradError):
    """The buffer can no longer fill."""


class Diverged(TardygradError):
    """The model is no longer finite."""


class WorkFailed(TardygradError):
    """A client's work raised an error."""


class Interrupted(TardygradError):
    """A pool was told to stop waiting."""


class RecordError(TardygradError):
    """A run's directory could not be read or written."""


def is_number(value: object) -> bool:
    """Whether `value` is a number of Python or NumPy; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_integer(name: str, value: object, least: int = 1) -> None:
    """Raise `Invalid` unless `value` is an integer ≥ `least`; booleans are not integers."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Invalid(f"`{name}` must be a whole number, {least} or more, got {value!r}.")


def check_number(name: str, value: object, least: float = 0.0, *, above: bool = False) -> None:
    """Raise `Invalid` unless `value` is a finite number ≥ `least`, or > `least` with `above`."""
    finite = is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
    if not finite or not (value > least if above else value >= least):  # type: ignore[operator]
        rule = f"above {least:g}" if above else f"{least:g} or more"
        raise Invalid(f"`{name}` must be a finite number, {rule}, got {value!r}.")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: `` Did you mean 'buffer'?`` or nothing.

    >>> nearest("bufer", ["buffer", "clip"])
    " Did you mean 'buffer'?"
    """
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def checked_call(make: Callable[P, R]) -> Callable[P, R]:
    """The same function or `__init__`, but an unknown or missing argument raises `Invalid` with the nearest name."""

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return make(*args, **kwargs)
        except TypeError as error:
            signature, name = inspect.signature(make), make.__qualname__.removesuffix(".__init__")
            for key in kwargs:
                if key not in signature.parameters:
                    known = [key for key in signature.parameters if key not in ("self", "cls")]
                    fix = nearest(key, known) or f" Its arguments are {', '.join(known)}."
                    raise Invalid(f"{name} has no argument `{key}`.{fix}") from error
            try:
                signature.bind(*args, **kwargs)
            except TypeError as mismatch:  # such as "missing a required argument: 'clients'"
                raise Invalid(f"{name}: {mismatch}.") from error
            raise

    return call
