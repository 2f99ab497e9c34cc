"""The command line. One file per group of verbs; `COMMANDS` is the list of them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import click
import typer

from tardygrad.cli import reproduce
from tardygrad.cli.demo import demo
from tardygrad.cli.doctor import doctor
from tardygrad.cli.export import export
from tardygrad.cli.plan import plan
from tardygrad.cli.replay import replay
from tardygrad.cli.report import report, watch
from tardygrad.cli.run import resume, run
from tardygrad.cli.specs import specs
from tardygrad.cli.sweep import sweep
from tardygrad.cli.tail import tail
from tardygrad.cli.theory import theory
from tardygrad.errors import Invalid, TardygradError
from tardygrad.spec.spec import places

COMMANDS: tuple[Callable[..., Any], ...] = (
    demo,
    run,
    resume,
    replay,
    plan,
    sweep,
    report,
    watch,
    doctor,
    export,
    tail,
    theory,
    specs,
)

app = typer.Typer(
    name="tardygrad",
    help="Asynchronous training in PyTorch that survives stragglers and heavy-tailed gradients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(reproduce.app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tardygrad {version('tardygrad')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(argv: list[str] | None = None) -> NoReturn:
    """The command `tardygrad`.

    Exit codes: 0 done; 1 the run failed, or a replay differs; 2 a rule was broken; 130 and 143 stopped by Ctrl-C and
    SIGTERM.
    """
    given = sys.argv[1:] if argv is None else argv
    try:
        code = app(given, prog_name="tardygrad", standalone_mode=False)
    except TardygradError as error:
        _fail(str(error), 2 if isinstance(error, Invalid) else 1, given)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.NoSuchOption as error:
        _fail(_key(error, given) or f"{error.format_message()} See tardygrad --help.", 2, given)
    except click.ClickException as error:
        _fail(f"{error.format_message()} See tardygrad --help.", 2, given)
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}.", 1, given)
    except (KeyboardInterrupt, click.Abort) as error:
        _fail("stopped before there was anything new to keep.", 128 + (*error.args, signal.SIGINT)[0], given)
    sys.exit(code if isinstance(code, int) else 0)


def _key(error: click.NoSuchOption, argv: list[str]) -> str:
    """Where a setting that was written as an option belongs; nothing if it is none."""
    option = error.option_name
    after = [later for one, later in pairwise([*argv, "VALUE"]) if one == option]
    given = [one.partition("=")[2] for one in argv if one.startswith(f"{option}=")]
    verb = error.ctx.info_name if error.ctx else None
    where = places(option.lstrip("-").replace("-", "_"), (after + given)[0])
    takes = verb in ("run", "resume", "plan", "sweep", "tail")
    return f"a setting is no option, got {option}. {where}" if where and takes else ""


def _fail(reason: str, code: int, argv: list[str]) -> NoReturn:
    """One line: `error: ...` on stderr, or with --json an object on stdout."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(reason.split()))
    if "--json" in argv:
        typer.echo(json.dumps({"error": line}, ensure_ascii=False))
    else:
        typer.echo(f"{typer.style('error:', fg='red', bold=True)} {line}", err=True)
    sys.exit(code)
