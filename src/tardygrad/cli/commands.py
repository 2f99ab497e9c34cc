"""The commands of `tardygrad`: names, options and help. Their code is in `tardygrad.cli`."""

from __future__ import annotations

import sys
from typing import Annotated, Literal, NamedTuple

import typer

from tardygrad.cli.main import quiet_interrupt
from tardygrad.cli.options import (
    JOBS,
    JSON,
    MAX_MEMORY,
    MOST,
    OVERRIDES,
    RUN,
    RUNS,
    SPEC,
    TRUST,
    argument,
    command,
    complete_spec,
    flag,
    option,
    shipped_specs,
)

app = typer.Typer(
    name="tardygrad",
    help="Asynchronous training in PyTorch that survives stragglers and heavy-tailed gradients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
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


@command(app, "demo")
class Demo(NamedTuple):
    """Compare five methods on real images and a fleet with large stragglers: a table, a figure and a report.

    The clients' timing is simulated; their gradients, and so the accuracies, are real.
    """

    out: str | None = option(None, "Where to record; the default is runs/demo-NUMBER.", "DIR", "--out", "-o")
    rounds: int = option(280, "Rounds of each method.", min=1)
    jobs: int = JOBS
    open: bool = flag("--open", "Open the report in a browser.")
    json: bool = JSON


@command(app, "run")
class Run(NamedTuple):
    """Run a spec and record everything.

    SPEC is a TOML or JSON file, a name that `tardygrad specs` lists, or the directory of a run to repeat.

    TABLE.KEY=VALUE changes a setting, such as method.lr=0.1; TABLE.KEY= removes one.
    """

    source: str = SPEC
    overrides: list[str] = OVERRIDES
    out: str | None = option(None, "Where to record the run; the default is runs/SPEC-NUMBER.", "DIR", "--out", "-o")
    max_memory: str | None = MAX_MEMORY
    trust: bool = TRUST
    json: bool = JSON


@command(app, "run")
class Resume(NamedTuple):
    """Continue a run that was stopped or killed.

    RUN is its directory. Add run.rounds=200 to make it longer.
    """

    folder: str = RUN
    overrides: list[str] = OVERRIDES
    max_memory: str | None = MAX_MEMORY
    trust: bool = TRUST
    json: bool = JSON


@command(app, "replay")
class Replay(NamedTuple):
    """Recompute a recorded run and compare the final models bit by bit.

    RUN is its directory. Updates are applied in the recorded order, whatever engine produced them.
    """

    folder: str = RUN
    trust: bool = TRUST
    json: bool = JSON


@command(app, "plan")
class Plan(NamedTuple):
    """Predict the time, delays and memory of a spec, without training.

    Simulates the same method and fleet without computing gradients. SPEC and TABLE.KEY=VALUE as for `tardygrad run`.
    """

    source: str = SPEC
    overrides: list[str] = OVERRIDES
    search: bool = flag("--search", "Search over M, mode and concurrency.")
    fit: str | None = option(None, "Search on a fleet fitted to the record of this run.", "RUN")
    max_delay: int | None = option(None, "Reject settings whose largest delay exceeds this.", "ROUNDS", min=1)
    write: str | None = option(None, "Write the spec with the fitted fleet, as TOML or JSON.", "FILE")
    max_memory: str | None = option(None, "Fail if the run's vectors would need more than this, e.g. 8GB.", "SIZE")
    trust: bool = TRUST
    json: bool = JSON


@command(app, "compare")
class Compare(NamedTuple):
    """Run a spec with several values of a key side by side, and compare the runs: method.kind=clip2,fedbuff.

    SPEC and TABLE.KEY=VALUE as for `tardygrad run`; commas separate values. Each contender runs with the same seeds.
    """

    source: str = SPEC
    overrides: list[str] = OVERRIDES
    seeds: int = option(1, "Runs of each contender, with as many seeds.", min=1, max=MOST)
    target: float | None = option(None, "Score to reach; the default is 90% of the way to the best.", "SCORE")
    baseline: str | None = option(
        None, "What to compare the others with; the default is the first synchronous one.", "LABEL"
    )
    jobs: int = JOBS
    out: str | None = option(None, "Where to record; the default is runs/SPEC-compare-NUMBER.", "DIR", "--out", "-o")
    trust: bool = TRUST
    json: bool = JSON


@command(app, "sweep")
class Sweep(NamedTuple):
    """Run a spec with many settings, by default the paper's grid of rates and thresholds.

    SPEC and TABLE.KEY=VALUE as for `tardygrad run`, or SPEC is the directory of a sweep to continue.
    """

    source: str = SPEC
    overrides: list[str] = OVERRIDES
    over: list[str] | None = option(None, "Sweep this key over a list or a range; repeatable.", "TABLE.KEY=VALUES")
    sampler: str | None = option(None, "grid, random or tpe; the default is grid.", "NAME")
    trials: int | None = option(None, "Trials of random and tpe; the default is 64.", min=1, max=MOST)
    seeds: int | None = option(None, "Runs of each trial; the default is 1.", min=1, max=MOST)
    best: str | None = option(
        None, "What to rank trials by: a test score, or time; the default is accuracy if the task has one.", "WHAT"
    )
    budget: float | None = option(None, "Simulated time after which each run ends.", "SECONDS")
    target: float | None = option(None, "Score at which a run ends; for --best time.")
    prune: bool = flag("--prune", "Stop runs early that fall behind.")
    workable: float | None = option(
        None,
        "A trial is workable if it covers this share of the gap from initial to best score; the default is 0.9.",
        "SHARE",
    )
    jobs: int = option(1, "Processes; 0 is one per core.", min=0)
    out: str | None = option(None, "Where to record; the default is runs/SPEC-sweep-NUMBER.", "DIR", "--out", "-o")
    trust: bool = TRUST
    json: bool = JSON


@command(app, "report")
class Report(NamedTuple):
    """Write one HTML page about runs, readable offline: curves, clients, delays, clipping, settings.

    RUN is the directory of a run, a sweep or a comparison, or one that contains some. Several runs share the charts.
    """

    runs: list[str] = RUNS
    out: str = option("report.html", "The page to write; must end in .html.", "FILE", "--out", "-o")
    figures: str | None = option(
        None, "Also write the comparison's figures there as PDF, SVG and PNG, one and two columns wide.", "DIR"
    )
    latex: str | None = option(None, "Also write the tables for LaTeX (booktabs); must end in .tex.", "FILE")
    title: str | None = option(None, "Heading of the page.")
    baseline: str | None = option(
        None, "Run to compare speeds with; the default is the first synchronous one.", "LABEL"
    )
    target: float | None = option(None, "Test accuracy to reach, or test loss for tasks without an accuracy.")
    json: bool = JSON


@command(app, "report")
class Watch(NamedTuple):
    """Serve the report of a run on this machine and refresh it while the run goes on.

    Ctrl-C stops the server, not the run: the run's files are only read.
    """

    folder: str = RUN
    port: int = option(0, "Port on 127.0.0.1; 0 is any free one.")
    open: bool = flag("--open", "Open the page in a browser.")
    json: bool = JSON


@command(app, "doctor")
class Doctor(NamedTuple):
    """Diagnose a run: problems by severity, likely causes, suggested changes.

    RUN is its directory; the run may still be running. Without --try nothing is trained: the effect of a change on the
    clock is simulated on a fleet fitted to the record.
    """

    folder: str = RUN
    trial: bool = flag("--try", "Train briefly with each suggested change, and compare the times to the last score.")
    probe: bool = flag("--probe", "Also build the task and examine the noise of its gradients.")
    trust: bool = TRUST
    json: bool = JSON


@command(app, "export")
class Export(NamedTuple):
    """Write the metrics, updates and events of runs as flat tables, or a run's model for Hugging Face.

    RUN is the directory of a run, or a directory that contains some. With several runs, a `run` column is added.
    """

    folders: list[str] = RUNS
    csv: bool = flag("--csv", "Write CSV, the default.")
    parquet: bool = flag("--parquet", "Write Parquet.")
    out: str | None = option(None, "Where to write; the default for a single run is RUN/export.", "DIR", "--out", "-o")
    hf: str | None = option(None, "Write the trained model, for from_pretrained, and no tables.", "DIR")
    trust: bool = TRUST
    force: bool = flag("--force", "Overwrite the files of an earlier export.")
    json: bool = JSON


@command(app, "tail")
class Tail(NamedTuple):
    """Estimate how heavy-tailed the gradient noise is, layer by layer, and suggest clipping thresholds.

    SPEC_OR_RUN is a spec as for `tardygrad run`, or the directory of a run, to examine its final model.
    """

    source: str = argument("SPEC_OR_RUN", complete_spec)
    overrides: list[str] = OVERRIDES
    at: Literal["model", "init"] | None = option(
        None, "Model to examine: model (final; the default for a finished run) or init (x_0)."
    )
    clients: int = option(8, "Clients to sample.", "N")
    batches: int = option(16, "Mini-batches of each client.", "N")
    seed: int | None = option(None, "Chooses clients, mini-batches and coordinates; the default is run.seed.", "N")
    figure: str | None = option(None, "Plot the tails, as PNG or SVG.", "FILE")
    trust: bool = TRUST
    json: bool = JSON


@command(app, "theory")
class Theory(NamedTuple):
    """Print the rates, schedules and tolerable delays of the paper's theorems.

    Unknown constants are taken as 1: those hidden in O(...) and those of the problem.
    """

    tail: float = option(..., "Tail index α of the noise, above 1 and at most 2.")
    rounds: int = option(..., "Number of rounds, T.")
    method: str | None = option(
        None,
        "Only this theorem: sgdclip, clip2, clip2-tolerant, clip2-unknown-tail, sd-sgdclip, sd-clip2 or dc-clip2.",
        "NAME",
    )
    delay: int = option(1, "Delay of every update in the explicit bounds.")
    buffer: int = option(1, "Buffer size M in the explicit bounds.")
    local_steps: int = option(1, "Local steps K.")
    local_clip: float | None = option(None, "Client's threshold u; the default is the schedule's value at T.")
    local_lr: float | None = option(None, "Client's rate η_ℓ; the default is the schedule's value at T.")
    clip: float | None = option(None, "Server's threshold ũ; the default is the schedule's value at T.")
    json: bool = JSON


@app.command()
def specs(json: bool = JSON, schema: bool = flag("--schema", "Print the JSON schema of specs, for editors.")) -> None:
    """List the specs that come with tardygrad."""
    if schema:
        from json import dumps

        with quiet_interrupt():
            from tardygrad.spec.schema import schema as spec_schema
        typer.echo(dumps(spec_schema(), allow_nan=False, ensure_ascii=False, indent=1))
        return
    texts = shipped_specs()
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
