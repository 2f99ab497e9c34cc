"""The commands of `tardygrad reproduce`: names, options and help. Their code is in `tardygrad.cli.reproduce`."""

from __future__ import annotations

from typing import NamedTuple

import typer

from tardygrad_command.options import JOBS, JSON, MOST, command, flag, option

app = typer.Typer(name="reproduce", help="Reproduce the paper's results.", no_args_is_help=True)

PAGE = option(None, "Markdown page to write the result into, with pictures beside it.", "FILE")
PLAN = flag("--plan", "Only print how many runs there are, how many are done, and the hours left.")
SAVE = option(None, "Write a summary of every finished run to this file, one per line.", "FILE")
READ = flag("--read", "Do not run anything; build the tables from stored runs.")


@command(app, "reproduce")
class Clock(NamedTuple):
    """Simulate the runtimes of the paper's CIFAR-10 tables: every mode, straggler class and buffer."""

    seeds: int = option(20, "Runs per cell.", min=1, max=MOST)
    page: str | None = PAGE
    json: bool = JSON


@command(app, "reproduce")
class Timeline(NamedTuple):
    """Draw the paper's Figure 1: who works when, server- and client-centric, with N = 3, M = 2 and K = 3."""

    out: str = option("timeline.svg", "The picture, as SVG.", "FILE", "--out", "-o")
    page: str | None = PAGE
    json: bool = JSON


@command(app, "reproduce")
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


@command(app, "reproduce")
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


@command(app, "reproduce")
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


@command(app, "reproduce")
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
