"""The commands `python -m experiments.NAME`: names, options and help. Their code is in `experiments.commands`."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import click
import typer

from tardygrad.errors import Invalid, TardygradError

Options = TypeVar("Options", bound=tuple[Any, ...])

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
MOST = 10_000  # of seeds and of trials


def main(name: str, argv: list[str] | None = None) -> NoReturn:
    """Run a command; bad input is one line on stderr and exit code 2, as with `tardygrad`."""
    given = sys.argv[1:] if argv is None else argv
    try:
        code = app([name, *given], prog_name="python -m experiments", standalone_mode=False)
    except (click.ClickException, TardygradError) as error:
        usage = isinstance(error, click.ClickException)
        reason = " ".join((error.format_message() if isinstance(error, click.ClickException) else str(error)).split())
        print(f"error: {reason}", file=sys.stderr)
        sys.exit(2 if usage or isinstance(error, Invalid) else 1)
    sys.exit(code if isinstance(code, int) else 0)


def option(default: Any, help: str, metavar: str | None = None, *names: str, **rules: Any) -> Any:
    """An option with a value."""
    return typer.Option(default, *names, metavar=metavar, help=help, **rules)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(False, name, help=help)


def command(options: type[Options]) -> type[Options]:
    """Add a command with the class's name in lower case, its docstring as help, and its fields."""
    name = options.__name__.lower()

    def call(**given: Any) -> None:
        getattr(importlib.import_module("experiments.commands"), name)(options(**given))

    call.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]  # typer reads both
    call.__annotations__ = get_type_hints(options)
    app.command(name, help=options.__doc__)(call)
    return options


JOBS = option(0, "Runs at once; 0 is one per core.", min=0)
JSON = flag("--json", "Print the result as JSON.")
PAGE = option(None, "Markdown page to write the result into, with pictures beside it.", "FILE")
PLAN = flag("--plan", "Only print how many runs there are, how many are done, and the hours left.")
SAVE = option(None, "Write a summary of every finished run to this file, one per line.", "FILE")
READ = flag("--read", "Do not run anything; build the tables from stored runs.")


@command
class Clock(NamedTuple):
    """Simulate the runtimes of the paper's CIFAR-10 tables: every mode, straggler class and buffer."""

    seeds: int = option(20, "Runs per cell.", min=1, max=MOST)
    page: str | None = PAGE
    json: bool = JSON


@command
class Figure1(NamedTuple):
    """Draw the paper's Figure 1: who works when, server- and client-centric, with N = 3, M = 2 and K = 3."""

    out: str = option("figure1.svg", "The picture, as SVG.", "FILE", "--out", "-o")
    page: str | None = PAGE
    json: bool = JSON


@command
class Claims(NamedTuple):
    """Test the paper's seven claims, each with an experiment and a verdict.

    If stopped, continue with the same command.
    """

    fast: bool = flag("--fast", "Fewer seeds, methods and fleets: minutes, not hours.")
    only: list[int] | None = option(None, "Run only this claim; repeatable.", "NUMBER")
    out: str = option("runs/claims", "Where finished runs are stored.", "DIR", "--out", "-o")
    page: str | None = PAGE
    jobs: int = JOBS
    read: bool = flag("--read", "Do not run anything; judge the stored runs.")
    json: bool = JSON


@command
class Tables(NamedTuple):
    """Reproduce the paper's accuracy tables on a small scale, beside the published numbers.

    If stopped, continue with the same command.
    """

    only: list[str] | None = option(None, "Run only this experiment; repeatable.", "NAME")
    data: str | None = option(None, "Folder that contains cifar10/, glue/ and tinyvit5m_mobilesam/.", "DIR")
    out: str = option("runs/tables", "Where finished runs are stored.", "DIR", "--out", "-o")
    page: str | None = option(None, "Where the tables go; the default is results.md in --out.", "FILE")
    seeds: int = option(1, "Runs of each cell's best setting.", min=1, max=MOST)
    workers: int = option(1, "Processes per run; 0 is one per core.", min=0)
    read: bool = READ
    json: bool = JSON


@command
class Regime(NamedTuple):
    """Fine-tune pretrained transformers with every method, and judge the paper's claims there.

    It takes many hours. If stopped, continue with the same command.
    """

    quick: bool = flag(
        "--quick", "Repeat stored runs of one task with one seed, in half an hour, and judge the task with them."
    )
    plan: bool = PLAN
    only: list[str] | None = option(None, "Run only this part; repeatable. Not with --page.", "NAME")
    data: str | None = option(None, "Folder that contains glue/, cifar10/ and tinyvit5m_mobilesam/.", "DIR")
    save: str | None = SAVE
    out: str = option("runs/regime", "Where finished runs are stored.", "DIR", "--out", "-o")
    page: str | None = PAGE
    jobs: int = JOBS
    read: bool = READ
    json: bool = JSON


@command
class Baselines(NamedTuple):
    """Compare the methods, each tuned with the same number of trials on validation rows.

    It takes hours. If stopped, continue with the same command.
    """

    plan: bool = PLAN
    only: list[str] | None = option(None, "Run only this workload or method; repeatable. Not with --page.", "NAME")
    trials: int | None = option(
        None, "Settings to try for each method on each fleet, in place of the plan's.", min=1, max=MOST
    )
    seeds: int | None = option(None, "Runs of each method's best setting, in place of the plan's.", min=1, max=MOST)
    data: str | None = option(None, "Folder that contains fashion/, if no system package provides it.", "DIR")
    save: str | None = SAVE
    out: str = option("runs/baselines", "Where trials and finished runs are stored.", "DIR", "--out", "-o")
    page: str | None = PAGE
    jobs: int = JOBS
    read: bool = READ
    json: bool = JSON
