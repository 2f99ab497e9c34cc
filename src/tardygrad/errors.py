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
from collections.abc import Iterable
from numbers import Real


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
    """Whether it is a number, of Python or NumPy; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: `` Did you mean 'buffer'?`` or nothing.

    >>> nearest("bufer", ["buffer", "clip"])
    " Did you mean 'buffer'?"
    """
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""
