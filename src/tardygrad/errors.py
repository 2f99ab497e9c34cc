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
import math
import os
import re
import reprlib
import traceback
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import get_args

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
        raise Invalid(f"`{name}` must be a whole number{rule}, got {shown(value)}.{fix}")


def shown(value: object, *, toml: bool = False) -> str:
    """A value for an error message, not too long: as Python writes it, or as TOML does."""
    if toml and (value is None or isinstance(value, bool)):
        return "null" if value is None else str(value).lower()
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no numbers of more than 4,300 digits
        return "a number that is too long to write"


def is_number(value: object) -> bool:
    """Whether `value` is a number of Python or NumPy; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


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
