"""Everything tardygrad raises on purpose.

TardygradError
├── Invalid        a setting, a file or a message breaks a rule; says the rule, the value and the fix   (exit code 2)
├── Starved        the buffer can no longer fill: too many clients are lost, or every update is refused
├── Diverged       the model is no longer finite
├── WorkFailed     a client's work raised an error; names the client and the job
├── Interrupted    a pool was interrupted while waiting
├── TimeUp         a pool's next message comes after the end of the run's time; caught by `drive`
└── RecordError    a run's directory could not be read or written (disk full, damaged, in use)
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import re
import reprlib
import traceback
from collections.abc import Callable, Iterable
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from tardygrad.type_hints import Mismatch, classes_in, conform, rule, union_members
from tardygrad.type_hints import is_number as is_number

P = ParamSpec("P")
R = TypeVar("R")

OBJECTS = ("method", "task", "fleet", "pool", "run")
"""Arguments whose types have checks of their own, which say more."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


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
    """A pool was interrupted while waiting for a message."""


class TimeUp(TardygradError):
    """The next message of a pool comes after its deadline."""


class RecordError(TardygradError):
    """A run's directory could not be read or written."""


def described_error(error: BaseException) -> str:
    """The type and the text of an error, and the last line of the user's own code that it came through."""
    own = _own_frames(error)
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    text = _text(error)
    if "Original Traceback" in text:  # of a DataLoader's process
        return text.strip().splitlines()[-1] + where
    return f"{type(error).__name__}: {shortened(text, 2000)}{where}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # of a `__str__` of the user's own
        return "an error without a text"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, NumPy or torch could not get memory."""
    of_torch = isinstance(error, RuntimeError) and re.search("allocate memory|size calculation", _text(error))
    return bool(of_torch) or isinstance(error, MemoryError)


def is_of_own_code(error: BaseException) -> bool:
    """Whether an error came through the user's own code."""
    return bool(_own_frames(error))


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    ours = (str(Path(__file__).parent), str(Path(os.__file__).parent), "<")  # tardygrad, Python and its packages
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    frames = [frame for frame in frames if "site-packages" not in frame.filename]
    return [frame for frame in frames if os.path.isabs(frame.filename) or Path(frame.filename).exists()]  # not Cython


def shortened(text: str, most: int) -> str:
    """A text of at most this number of characters, in one that can be written to a file.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    text = text.encode("utf-8", "backslashreplace").decode()  # lone surrogates, as in names of files
    return text if len(text) <= most else text[: most - 1] + "…"


def type_and_first_line(error: BaseException) -> str:
    """The type of an error and the first line of its message.

    >>> type_and_first_line(ValueError("No luck.  \\nAt all."))
    'ValueError: No luck'
    """
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    return shortened(": ".join([type(error).__name__, *lines[:1]]), 300).rstrip(".")


FIX_CHECKPOINT = (
    "Resume with the objects of its run, remove its folder to resume from the one before, or start a new run."
)
"""What to do about a checkpoint with right checksums that does not fit: it is forged, or the objects are others."""

COUNTABLE = 2**53
"""The largest number to which floats can count."""


def check_integer(name: str, value: object, least: int = 1, most: float = COUNTABLE) -> None:
    """Raise `Invalid` unless `value` is an integer from `least` to `most`; booleans are not integers."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        too_many = most == COUNTABLE and isinstance(value, int) and value > most
        rule = f" from {least} to {most:,}" if too_many or most < COUNTABLE else f", {least} or more"
        fix = " Convert it by int()." if hasattr(value, "__index__") and not isinstance(value, int) else ""
        raise Invalid(f"`{name}` must be a whole number{rule}, got {_shown(value)}.{fix}")


def _shown(value: object) -> str:
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no numbers of more than 4,300 digits
        return f"a {type(value).__name__} that is too long to write"


def check_number(name: str, value: object, least: float = 0.0, *, above: bool = False) -> None:
    """Raise `Invalid` unless `value` is a finite number ≥ `least`, or > `least` with `above`."""
    finite = is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
    if not finite or not (value > least if above else value >= least):  # type: ignore[operator]
        rule = "" if least == -math.inf else f", above {least:g}" if above else f", {least:g} or more"
        raise Invalid(f"`{name}` must be a finite number{rule}, got {value!r}.")


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise `Invalid` unless `value` is one of the words of `choices`, a `Literal`."""
    words = get_args(choices)
    if value not in words:
        raise Invalid(f"`{name}` must be one of {', '.join(words)}, got {value!r}.{nearest(str(value), words)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: `` Did you mean 'buffer'?`` or nothing.

    >>> nearest("bufer", ["buffer", "clip"])
    " Did you mean 'buffer'?"
    """
    words = list(known)
    if word == "async" and "sync" in words:  # the nearest word is its opposite
        return " Use 'server' or 'client'."
    found = difflib.get_close_matches(word, words, n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def checked_call(make: Callable[P, R]) -> Callable[P, R]:
    """The same function or `__init__`, but an argument that is unknown, missing or of another type raises `Invalid`."""
    name, parameters = make.__qualname__.removesuffix(".__init__"), inspect.signature(make).parameters.values()
    by_position = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        known = _arguments(make)
        if len(args) > len(by_position):
            extra, named = args[len(by_position)], [key for key in known if key not in by_position]
            if not named:
                raise Invalid(f"{name} has no argument after `{[*known][-1]}`, got {extra!r}.")
            raise Invalid(f"{name} takes its settings by name, got {extra!r}. Use {name}({named[0]}=..., ...).")
        for key in kwargs:
            if key not in known:
                fix = nearest(key, known) or f" Its arguments are {', '.join(known)}."
                raise Invalid(f"{name} has no argument `{key}`.{fix}")
        given = {*by_position[: len(args)], *kwargs}
        if missing := [f"`{key}`" for key in required if key not in given]:
            raise Invalid(f"{name} needs {', '.join(missing)}.")
        by_order: Any = [
            checked_value(key, known.get(key), value) for key, value in zip(by_position, args, strict=False)
        ]
        by_name: Any = {key: checked_value(key, known[key], value) for key, value in kwargs.items()}
        return make(*by_order, **by_name)

    return call


C = TypeVar("C", bound=type)


def checked_class(cls: C) -> C:
    """The same class, whose arguments are checked as those of a function with `checked_call`."""
    cls.__init__ = checked_call(cls.__init__)  # type: ignore[misc]
    return cls


def checked_value(name: str, hint: Any, value: object) -> object:
    """The value of an argument; raises `Invalid` if it is of another type than its hint."""
    try:
        return value if hint is None else conform(hint, value, name)
    except Mismatch as found:
        options = union_members(found.hint)
        words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
        classes = [option.__name__ for option in classes_in(options).values()]
        fix = f" Use {classes[0]}(...)." if classes else nearest(str(found.value), words)
        raise Invalid(f"`{found.name}` must be {rule(found.hint)}, got {_shown(found.value)}.{fix}") from found


@cache
def _arguments(make: Callable[..., object]) -> dict[str, Any]:
    """The names and types of a function's arguments, with those of a TypedDict in `**settings: Unpack[...]`."""
    try:
        hints = get_type_hints(make)
    except (NameError, TypeError):  # such as names that are imported for type checkers only
        hints = {}
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (settings,) = get_args(hints[name])
            found |= get_type_hints(settings)
        elif name not in ("self", "cls"):
            found[name] = Any if name in OBJECTS else hints.get(name, Any)
    return found


def passes_to(*targets: Callable[..., object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for functions that pass arguments to others, so that help and specs show those arguments in full.

    The arguments in the function's `**` get the types and defaults of the targets; arguments that its docstring leaves
    out get the descriptions of the targets.
    """

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(make)
        passed = {key: found for each in targets for key, found in inspect.signature(each).parameters.items()}
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for name in signature.parameters.keys() - {p.name for p in parameters}:
            (settings,) = get_args(get_type_hints(make)[name])  # of Unpack[a TypedDict]
            for key, hint in get_type_hints(settings).items():
                parameters.append(passed[key].replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint))
        make.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        annotations = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
        make.__annotations__ = annotations | {"return": signature.return_annotation}
        own, texts = described(make), {key: text for each in targets for key, text in described(each).items()}
        lines = [f"    {p.name}: {texts[p.name]}" for p in parameters if p.name not in own and p.name in texts]
        text, blank, example = (inspect.getdoc(make) or "").partition("\n\n>>>")
        make.__doc__ = "\n".join([text if own else f"{text}\n\nArgs:", *lines]) + blank + example
        return make

    return decorate


def described(make: Callable[..., object]) -> dict[str, str]:
    """The descriptions of a function's or a class's arguments in its docstring."""
    _, _, text = (inspect.getdoc(make) or "").partition("Args:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(description.split()) for name, description in found}
