"""The verbs of `tardygrad reproduce`: names, options and help. Their code is in `tardygrad.cli.reproduce`."""

from __future__ import annotations

from typing import Annotated

import typer

from tardygrad_command.declare import Json, verb

app = typer.Typer(name="reproduce", help="Reproduce the paper's results.", no_args_is_help=True)


@app.callback()
def reproduce() -> None:
    """Reproduce the paper's results."""


Page = Annotated[
    str | None, typer.Option(metavar="FILE", help="Markdown page to write the result into, with pictures beside it.")
]
Jobs = Annotated[int, typer.Option(min=0, help="Runs at once; 0 is one per core.")]


@verb(app, "reproduce")
def clock(
    seeds: Annotated[int, typer.Option(min=1, help="Runs per cell.")] = 20,
    page: Page = None,
    json: Json = False,
) -> None:
    """Simulate the runtimes of the paper's CIFAR-10 tables: every mode, straggler class and buffer."""


@verb(app, "reproduce")
def timeline(
    out: Annotated[str, typer.Option(metavar="FILE", help="The picture, as SVG.")] = "timeline.svg",
    page: Page = None,
    json: Json = False,
) -> None:
    """Draw the paper's Figure 1: who works when, server- and client-centric, with N = 3, M = 2 and K = 3."""


@verb(app, "reproduce")
def claims(
    fast: Annotated[bool, typer.Option("--fast", help="Fewer seeds, methods and fleets: minutes, not hours.")] = False,
    only: Annotated[list[int] | None, typer.Option(metavar="NUMBER", help="Only this claim; may be repeated.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where finished runs are stored.")] = "runs/claims",
    page: Page = None,
    jobs: Jobs = 0,
    read: Annotated[bool, typer.Option("--read", help="Run nothing; judge the stored runs.")] = False,
    json: Json = False,
) -> None:
    """Test the paper's seven claims, each with an experiment and a verdict.

    If stopped, continue with the same command.
    """


@verb(app, "reproduce")
def tables(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this experiment; may be repeated.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Holds cifar10/, glue/ and tinyvit5m_mobilesam/.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where finished runs are stored.")] = "runs/tables",
    page: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the tables go; the default is results.md in --out.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each cell's best setting.")] = 1,
    workers: Annotated[int, typer.Option(min=0, help="Processes per run; 0 is one per core.")] = 1,
    read: Annotated[bool, typer.Option("--read", help="Run nothing; make the tables of the stored runs.")] = False,
    json: Json = False,
) -> None:
    """Reproduce the paper's accuracy tables on a small scale, beside the published numbers.

    If stopped, continue with the same command.
    """


@verb(app, "reproduce")
def baselines(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="Only this method; may be repeated. Not with --page."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Settings to try for each method on each fleet.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method's best setting.")] = 3,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Holds fashion/, if no system package provides it.")
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Where trials and finished runs are stored.")
    ] = "runs/baselines",
    page: Page = None,
    jobs: Jobs = 0,
    read: Annotated[bool, typer.Option("--read", help="Run nothing; make the tables of the stored runs.")] = False,
    json: Json = False,
) -> None:
    """Compare the methods, each tuned with the same number of trials.

    If stopped, continue with the same command.
    """
