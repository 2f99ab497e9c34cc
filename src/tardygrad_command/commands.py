"""The verbs of `tardygrad`, except `reproduce`: names, options and help. Their code is in `tardygrad.cli`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from tardygrad_command import reproduce
from tardygrad_command.declare import Folder, Json, MaxMemory, Overrides, Source, verb

app = typer.Typer(
    name="tardygrad",
    help="Asynchronous training in PyTorch that survives stragglers and heavy-tailed gradients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tardygrad {version('tardygrad')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@verb(app, "demo")
def demo(
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to record; the default is runs/demo-NUMBER.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each method.")] = 280,
    json: Json = False,
) -> None:
    """Compare five methods on real images and a fleet with large stragglers: a table, a figure and a report.

    The clients' timing is simulated; their gradients, and so the accuracies, are real.
    """


@verb(app, "run")
def run(
    source: Source,
    overrides: Overrides = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to record the run; the default is runs/SPEC-NUMBER.")
    ] = None,
    max_memory: MaxMemory = None,
    json: Json = False,
) -> None:
    """Run a spec and record everything.

    SPEC is a TOML or JSON file, a name that `tardygrad specs` lists, or the directory of a run to repeat.

    TABLE.KEY=VALUE changes a setting, such as method.lr=0.1; TABLE.KEY= removes one.
    """


@verb(app, "run")
def resume(folder: Folder, overrides: Overrides = None, max_memory: MaxMemory = None, json: Json = False) -> None:
    """Continue a run that was stopped or killed.

    RUN is its directory. Add run.rounds=200 to make it longer.
    """


@verb(app, "replay")
def replay(folder: Folder, json: Json = False) -> None:
    """Recompute a recorded run and compare the final models bit by bit.

    RUN is its directory. Updates are applied in the recorded order, whatever engine produced them.
    """


@verb(app, "plan")
def plan(
    source: Source,
    overrides: Overrides = None,
    search: Annotated[bool, typer.Option("--search", help="Try every M, mode and concurrency.")] = False,
    fit: Annotated[
        str | None, typer.Option(metavar="RUN", help="Search on a fleet fitted to the record of this run.")
    ] = None,
    max_delay: Annotated[
        int | None, typer.Option(metavar="ROUNDS", min=1, help="Reject settings with a later update than this.")
    ] = None,
    figure: Annotated[str | None, typer.Option(metavar="FILE", help="Plot the search, as PNG or SVG.")] = None,
    write: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the spec with the fitted fleet, as TOML or JSON.")
    ] = None,
    max_memory: MaxMemory = None,
    json: Json = False,
) -> None:
    """Predict the time, delays and memory of a spec, without training.

    Simulates the same method and fleet without computing gradients. SPEC and TABLE.KEY=VALUE as for `tardygrad run`.
    """


@verb(app, "sweep")
def sweep(
    source: Source,
    overrides: Overrides = None,
    over: Annotated[
        list[str] | None, typer.Option(metavar="TABLE.KEY=VALUES", help="Sweep this key too: a list or a range.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(metavar="NAME", help="grid, random or tpe; the default is grid.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials of random and tpe; the default is 64.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each trial; the default is 1.")] = None,
    best: Annotated[
        str | None, typer.Option(metavar="WHAT", help="What to rank trials by: accuracy, loss or time.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Simulated time after which each run ends.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Score at which a run ends; for --best time.")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Stop runs early that fall behind.")] = False,
    workable: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of the way to the best score that counts as workable; 0.9."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0 is one per core.")] = 1,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to record; the default is runs/SPEC-sweep-NUMBER.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a spec with many settings, by default the paper's grid of rates and thresholds.

    SPEC and TABLE.KEY=VALUE as for `tardygrad run`, or SPEC is the directory of a sweep to continue.
    """


@verb(app, "report")
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...")],
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="The page to write; must end in .html.")
    ] = "report.html",
    figures: Annotated[
        str | None, typer.Option(metavar="DIR", help="Also write every figure there as PNG and SVG.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Run to compare speeds with; the default is the first synchronous one."),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Test accuracy to reach, or test loss for tasks without an accuracy.")
    ] = None,
    json: Json = False,
) -> None:
    """Write one HTML page about runs, readable offline: curves, clients, delays, clipping, settings.

    RUN is the directory of a run or of a sweep, or a directory with some below it. Several runs share the charts.
    """


@verb(app, "report")
def watch(
    folder: Folder,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 is any free one.")] = 0,
    open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    json: Json = False,
) -> None:
    """Serve the report of a run on this machine and refresh it while the run goes on.

    Ctrl-C stops the server, not the run: the run's files are only read.
    """


@verb(app, "doctor")
def doctor(
    folder: Folder,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also build the task and examine the noise of its gradients.")
    ] = False,
    json: Json = False,
) -> None:
    """Diagnose a run: problems by severity, likely causes, suggested changes.

    RUN is its directory; the run may still be going on. Nothing is trained: the effect of a change is simulated on a
    fleet fitted to the record.
    """


@verb(app, "export")
def export(
    folders: Annotated[list[str], typer.Argument(metavar="RUN...")],
    csv: Annotated[bool, typer.Option("--csv", help="Write CSV, the default.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write Parquet.")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to write; the default for a single run is RUN/export.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files of an earlier export.")] = False,
    json: Json = False,
) -> None:
    """Write the metrics, updates and events of runs as flat tables.

    RUN is the directory of a run, or a directory with runs below it. With several runs, a column has the run's name.
    """


@verb(app, "tail")
def tail(
    source: Annotated[str, typer.Argument(metavar="SPEC_OR_RUN")],
    overrides: Overrides = None,
    at: Annotated[
        Literal["model", "init"] | None,
        typer.Option(help="The run's final model, the default for a finished run, or the initial one."),
    ] = None,
    clients: Annotated[int, typer.Option(metavar="N", help="Clients to sample.")] = 8,
    batches: Annotated[int, typer.Option(metavar="N", help="Mini-batches of each client.")] = 16,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Chooses clients, mini-batches and coordinates; the default is run.seed."),
    ] = None,
    figure: Annotated[str | None, typer.Option(metavar="FILE", help="Plot the tails, as PNG or SVG.")] = None,
    json: Json = False,
) -> None:
    """Estimate how heavy-tailed the gradient noise is, layer by layer, and suggest clipping thresholds.

    SPEC_OR_RUN is a spec as for `tardygrad run`, or the directory of a run, to examine its final model.
    """


@verb(app, "theory")
def theory(
    tail: Annotated[float, typer.Option(help="Tail index α of the noise, above 1 and at most 2.")],
    rounds: Annotated[int, typer.Option(help="Number of rounds, T.")],
    method: Annotated[str | None, typer.Option(metavar="NAME", help="Only this method.")] = None,
    delay: Annotated[int, typer.Option(help="Delay of every update in the explicit bounds.")] = 1,
    buffer: Annotated[int, typer.Option(help="Buffer size M in the explicit bounds.")] = 1,
    local_steps: Annotated[int, typer.Option(help="Local steps K.")] = 1,
    local_clip: Annotated[
        float | None, typer.Option(help="Client's threshold u; the default is the schedule's value at T.")
    ] = None,
    local_lr: Annotated[
        float | None, typer.Option(help="Client's rate η_ℓ; the default is the schedule's value at T.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Server's threshold ũ; the default is the schedule's value at T.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the rates, schedules and tolerable delays of the paper's theorems.

    Unknown constants are taken as 1: those hidden in O(...) and those of the problem.
    """


@app.command()
def specs(json: Json = False) -> None:
    """List the specs that come with tardygrad."""
    found = find_spec("tardygrad")  # finds the package without importing it
    folders = found.submodule_search_locations if found else None
    files = sorted(Path((folders or ["."])[0], "specs").glob("*.toml"))
    texts = {file.stem: file.read_text("utf-8").partition("\n")[0].removeprefix("#").strip() for file in files}
    if json:
        from json import dumps

        rows = [{"name": name, "description": text} for name, text in texts.items()]
        typer.echo(dumps(rows, ensure_ascii=False, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("spec", "what it is", box=None, pad_edge=False)
    for name, text in texts.items():
        table.add_row(escape(name), escape(text))
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


app.add_typer(reproduce.app)
