"""`reproduce`: the paper's results, made again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tardygrad.cli.screen import Json, counted, say, show, show_json, show_table
from tardygrad.errors import Invalid, nearest

if TYPE_CHECKING:
    from tardygrad.reproduce.tables import Study

app = typer.Typer(name="reproduce", help="Make the paper's results again.", no_args_is_help=True)


@app.callback()
def reproduce() -> None:
    """Make the paper's results again."""


@app.command()
def clock(
    seeds: Annotated[int, typer.Option(min=1, help="Runs per cell.")] = 20,
    json: Json = False,
) -> None:
    """The simulated runtimes of the paper's CIFAR-10 tables: every mode, straggler class and buffer."""
    from tardygrad.reproduce.clock import clock, published

    cells = list(counted(clock(seeds), total=len(published()), what="cells"))
    if json:
        show_json({"seeds": seeds, "cells": [cell._asdict() for cell in cells]})
        return
    from rich.table import Table

    table = Table("mode", "stragglers", box=None, pad_edge=False)
    for heading in ("M", "ours (s)", "paper (s)", "ratio"):
        table.add_column(heading, justify="right")
    for cell in cells:
        numbers = (str(cell.buffer), f"{cell.ours:.1f}", f"{cell.paper:.1f}", f"{cell.ratio:.3f}")
        table.add_row(cell.mode, cell.stragglers, *numbers)
    show_table(table)


@app.command()
def tables(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This experiment, and others so named; all if left out.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Has cifar10/, glue/ and tinyvit5m_mobilesam/.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where finished runs are kept.")] = "runs/tables",
    page: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the tables go; the default is results.md in --out.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of a cell's best setting.")] = 1,
    workers: Annotated[int, typer.Option(min=0, help="Processes of a run; 0 is one for every core.")] = 1,
    read: Annotated[bool, typer.Option("--read", help="Run nothing: the tables of what is there.")] = False,
    json: Json = False,
) -> None:
    """The paper's accuracy tables on a small scale, beside the published ones; go on with the same command."""
    from tardygrad.reproduce.experiments import EXPERIMENTS
    from tardygrad.reproduce.report import write
    from tardygrad.reproduce.tables import Study

    for name in only or ():
        if name not in EXPERIMENTS:
            rule = f"--only must be one of {', '.join(EXPERIMENTS)}"
            raise Invalid(f"{rule}, got {name!r}.{nearest(name, EXPERIMENTS)}")
    every = [Study(name, one, Path(out), seeds) for name, one in EXPERIMENTS.items()]
    studies = [study for study in every if study.name in (only or EXPERIMENTS)]
    skipped = {} if read else _make(studies, Path(data) if data else None, workers, named=bool(only))
    where = Path(page) if page else Path(out) / "results.md"
    write(where, every)
    if json:
        cells = {study.name: [line._asdict() for line in study.lines()] for study in studies}
        show_json({"page": str(where), "skipped": skipped, "experiments": cells})
        return
    for study in studies:
        _print(study)
    show(f"page  {where}")


def _make(studies: list[Study], data: Path | None, workers: int, *, named: bool) -> dict[str, str]:
    """Run what is not there yet; the experiments that cannot be run, and why."""
    from tardygrad.cli.sitting import torch_threads

    skipped = {}
    with torch_threads(1):
        for study in studies:
            try:
                task = study.experiment.make(data)
            except Invalid as error:
                if named:
                    raise Invalid(f"{study.name} cannot be run: {error}") from error
                skipped[study.name] = str(error)
                say(f"{study.name} is skipped: {error}")
                continue
            try:
                for _ in counted(study.run(task, workers), total=len(study), what=study.name):
                    pass
            except KeyboardInterrupt:
                say(f"stopped; finished runs are kept in {study.folder}: go on with the same command")
                raise typer.Exit(130) from None
    return skipped


def _print(study: Study) -> None:
    from rich.table import Table

    from tardygrad.reproduce.report import HEADINGS, row, verdicts

    lines, grid = study.lines(), len(study.experiment.rates)
    if not any(line.trials for line in lines):
        return
    table = Table(*HEADINGS[:3], box=None, pad_edge=False, title=study.name, title_justify="left")
    for heading in HEADINGS[3:]:
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(*row(line, grid))
    show_table(table)
    show("\n".join((*verdicts(lines), "")))
