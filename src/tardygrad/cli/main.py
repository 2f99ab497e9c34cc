"""The command `tardygrad` without the library, so that help and usage errors appear at once.

`commands` declares the commands. Their code is in `tardygrad.cli`, which is imported when one is called.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import click


WRONG_PATH = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP)
"""Errors of the system about a path that the user gave."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line.

    Exit codes: 0 success; 1 the run failed, or a replay differs; 2 invalid input; 130 and 143 stopped by Ctrl-C and
    SIGTERM.
    """
    _prepare_streams()
    with quiet_interrupt():
        import click

        from tardygrad.cli.commands import app
        from tardygrad.cli.options import Failure
    given = sys.argv[1:] if argv is None else argv
    if unusable := [word for word in given if not _is_text(word)]:
        _fail(f"an argument must have no NUL and no lone surrogate, got {unusable[0]!r}.", 2, given)
    try:
        code = app(given, prog_name="tardygrad", standalone_mode=False)
    except Failure as error:
        _fail(str(error), error.code, given)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(_usage(error, given), 2, given)
    except BrokenPipeError:  # nobody reads on, as after `| head`
        sys.stdout = io.StringIO()  # so that Python does not complain when it ends
        sys.exit(1)
    except OSError as error:
        what = error.filename or ("the output" if error.errno == errno.ENOSPC else "the system")
        _fail(f"{what}: {error.strerror or error}.", 2 if error.errno in WRONG_PATH else 1, given)
    except (KeyboardInterrupt, click.Abort) as error:
        _fail("stopped; nothing new was recorded.", 128 + (*error.args, signal.SIGINT)[0], given)
    if lost := _flushed():
        _fail(f"the output: {lost.strerror}.", 1, given)
    sys.exit(code if isinstance(code, int) else 0)


def _flushed() -> OSError | None:
    """Write what is left of the output; if that fails, drop it, on which Python would fail, and return the error."""
    try:
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = io.StringIO()
        return error
    return None


def _is_text(word: str) -> bool:
    """Whether the system can take a word as a path."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _prepare_streams() -> None:
    """Let output never fail: a question mark stands for what the encoding lacks, and closed streams are replaced.

    A closed stream's number would go to the next file that is opened, and what libraries print would land in it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


@contextmanager
def quiet_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process without a traceback: for imports, which take a while."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _usage(error: click.ClickException, argv: list[str]) -> str:
    """A usage error in one line; a setting written as an option gets the override that sets it, and the reverse."""
    import click

    from tardygrad.cli.options import as_override

    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and context:
        fix = as_override(error.option_name, argv, context.info_name or "")
        if fix:
            return f"`{error.option_name}` is not an option; set it as {fix}."
    path = context.command_path if context else "tardygrad"
    first, *hints = re.split(r" \(?Did you mean", error.format_message())  # typer and click each add one
    if argv[:1] in (["help"], ["version"]):
        hints = [f" '--{argv[0]}'?"]
    hint = " Did you mean" + hints[0].rstrip(")") if hints else ""
    return f"{first}{hint} See {path} --help."


def _fail(reason: str, code: int, argv: list[str]) -> NoReturn:
    """Print one line, `error: ...` on stderr or with --json an object on stdout, and exit."""
    import click

    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(reason.split()))
    shown = f"{click.style('error:', fg='red', bold=True)} {line}"
    try:
        if "--json" in argv:
            click.echo(json.dumps({"error": line}, ensure_ascii=False))
        else:
            click.echo(shown, err=True)
    except OSError:  # the disk is full
        with suppress(OSError):
            click.echo(shown, err=True)
    _flushed()
    sys.exit(code)
