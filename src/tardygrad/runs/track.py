"""Tracking: the metrics of every round, sent to TensorBoard, Weights & Biases, Trackio or MLflow.

A tracker cannot disturb a run: it receives rows that are already recorded, and if it fails it is dropped with a warning
on stderr. A resumed run sends all its rounds again, into a new run of the tracker. The classes in `TRACKERS` import
their packages when they are created.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

from tardygrad.errors import Invalid, nearest
from tardygrad.runs.record import Row, read_spec, to_json_value
from tardygrad.runs.run import Run

PROJECT = "tardygrad"  # the trackers' project or experiment
SCALARS = ("time", "loss", "clipped", "local_clipped", "norm", "move", "epsilon")  # columns that are sent unchanged


class Tracker(Protocol):
    """A service that stores the metrics of a run."""

    def log(self, round: int, scalars: dict[str, float]) -> None:
        """Store the metrics of a round."""

    def finish(self, summary: Row) -> None:
        """Store the run's summary and close."""


class TensorBoard:
    """TensorBoard: event files; a resumed run purges them and writes all rounds again."""

    def __init__(self, folder: Path, config: Row) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.config, logs = config, folder / "tensorboard"
        self.writer = SummaryWriter(str(logs), purge_step=0 if logs.exists() else None, flush_secs=10)
        self.writer.add_text("spec", f"```json\n{json.dumps(config, indent=2)}\n```", 0)

    def log(self, round: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, round)

    def finish(self, summary: Row) -> None:
        facts = {f"summary/{name}": value for name, value in numbers(summary).items()}
        self.writer.add_hparams(flat(self.config), facts, run_name=".")
        self.writer.close()


class Wandb:
    """Weights & Biases: offline files to sync later, unless WANDB_MODE or its settings choose another mode."""

    def __init__(self, folder: Path, config: Row) -> None:
        import wandb

        settings = wandb.setup().settings
        mode = settings.mode if "mode" in settings.model_fields_set else "offline"
        quiet = wandb.Settings(silent=True, console="off")
        how: Row = {"name": _name(folder), "dir": str(folder), "mode": mode, "config": config, "settings": quiet}
        self.run: Any = wandb.init(project=PROJECT, reinit="create_new", **how)

    def log(self, round: int, scalars: dict[str, float]) -> None:
        self.run.log(scalars, step=round)

    def finish(self, summary: Row) -> None:
        self.run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self.run.finish()


class Trackio:
    """Trackio: its own folder, which `trackio show` displays."""

    def __init__(self, folder: Path, config: Row) -> None:
        import trackio

        name, how = f"{_name(folder)}-{token_hex(3)}", {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        with redirect_stdout(sys.stderr):  # stdout is for results
            self.run: Any = trackio.init(project=PROJECT, name=name, config=config, **how)

    def log(self, round: int, scalars: dict[str, float]) -> None:
        renamed = {"clock" if name == "time" else name: value for name, value in scalars.items()}  # `time` is reserved
        self.run.log(renamed, step=round)

    def finish(self, summary: Row) -> None:
        self.run.log({f"summary/{name}": value for name, value in numbers(summary).items()}, step=summary["rounds"])
        with redirect_stdout(sys.stderr):
            self.run.finish()


class Mlflow:
    """MLflow: a database in the run's directory, unless MLFLOW_TRACKING_URI names a server."""

    def __init__(self, folder: Path, config: Row) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        self.metric, database = Metric, (folder / "mlflow").resolve()
        database.mkdir(exist_ok=True)
        uri = None if mlflow.is_tracking_uri_set() else f"sqlite:///{database / 'mlflow.db'}"
        self.client: Any = mlflow.MlflowClient(tracking_uri=uri)
        known = self.client.get_experiment_by_name(PROJECT)
        experiment = known.experiment_id if known else self.client.create_experiment(PROJECT)
        self.id = self.client.create_run(experiment, run_name=_name(folder)).info.run_id
        self.client.log_batch(self.id, params=[Param(name, str(value)[:500]) for name, value in flat(config).items()])

    def log(self, round: int, scalars: dict[str, float]) -> None:
        when = int(scalars["time"] * 1000)  # of the engine's clock, like all times in a record
        self.client.log_batch(self.id, [self.metric(name, value, when, round) for name, value in scalars.items()])

    def finish(self, summary: Row) -> None:
        facts = {f"summary/{name}": value for name, value in numbers(summary).items()}
        self.log(summary["rounds"], {"time": summary["time"], **facts})
        ends = {"finished": "FINISHED", "stopped": "KILLED"}
        self.client.set_terminated(self.id, ends.get(summary["status"], "FAILED"))


def _name(folder: Path) -> str:
    """The name of a run in a tracker."""
    return folder.parent.resolve().name


TRACKERS: dict[str, Callable[[Path, Row], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
}


def tracked(run: Run, names: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of `run.go()`, and send each to the trackers.

    Args:
        run: from `begin` or `resume`, with a directory for its record.
        names: of `TRACKERS`.
    """
    chosen = check(names)
    if run.path is None:
        raise Invalid("tracking needs a run with a record. Give it a directory, such as out='runs/mine'.")
    return _tracked(run, run.path / "track", chosen)


def check(names: Iterable[str]) -> list[str]:
    """Return the names without duplicates; raise `Invalid` if one is unknown or its package is not installed."""
    if isinstance(names, str):
        raise Invalid(f"trackers must be a list of names, got {names!r}. Use [{names!r}].")
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in TRACKERS:
            raise Invalid(
                f"a tracker must be one of {', '.join(TRACKERS)}, got {name!r}.{nearest(str(name), TRACKERS)}"
            )
        package = find_spec(name)
        if package is None or package.origin is None:  # no origin: a folder of that name, which some trackers create
            fix = f"Use pip install -c constraints.txt -e '.[{name}]'."
            raise Invalid(f"tracking with {name} needs its package, which is not installed. {fix}")
    return chosen


def _tracked(run: Run, folder: Path, names: list[str]) -> Iterator[Row]:
    live: dict[str, Tracker] | None = None  # created once this process has locked the record
    sent = steps = 0  # rounds, and the local steps in them

    def send() -> None:
        """Send the trackers the rounds that they do not have: at first all, also those made before a resume."""
        nonlocal live, sent, steps
        live = _create(run, folder, names) if live is None else live
        for row in run.metrics[sent:]:
            sent, steps = sent + 1, steps + row["steps"]
            for name, tracker in list(live.items()):
                with _harmless(name, live):
                    tracker.log(row["round"], scalars(row, steps))

    try:
        with closing(run.go()) as rows:
            for row in rows:
                send()
                yield row
        send()
    finally:
        for name, tracker in list((live or {}).items()):
            with _harmless(name, live or {}):
                tracker.finish(to_json_value(run.summary()._asdict()))


def _create(run: Run, folder: Path, names: list[str]) -> dict[str, Tracker]:
    recorded = to_json_value(run.spec_json) or read_spec(folder.parent)
    config = recorded["spec"] or {name: recorded[name] for name in ("method", "parameters", "run")}
    live: dict[str, Tracker] = {}
    for name in names:
        with _harmless(name, live):
            folder.mkdir(exist_ok=True)
            live[name] = TRACKERS[name](folder, config)
    return live


@contextmanager
def _harmless(name: str, live: dict[str, Tracker]) -> Iterator[None]:
    """Drop a tracker that raises, and let the run go on."""
    try:
        yield
    except Exception as error:
        live.pop(name, None)
        why = "".join(c for c in " ".join(str(error).split()) if c.isprintable())[:300]
        print(f"warning: {name} failed and gets no more metrics ({type(error).__name__}: {why})", file=sys.stderr)


def scalars(row: Row, steps: int) -> dict[str, float]:
    """The numbers that trackers are sent for a row of the metrics.

    Args:
        steps: local steps of all rounds so far.
    """
    delays = row["delays"]
    columns = {name: row[name] for name in row if name in SCALARS or name.startswith("test_")}
    return numbers(columns | {"steps": steps, "delay_mean": sum(delays) / len(delays), "delay_max": max(delays)})


def numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row: some trackers refuse anything else.

    >>> numbers({"status": "finished", "rounds": 3, "loss": None})
    {'rounds': 3}
    """
    return {name: value for name, value in row.items() if isinstance(value, int | float) and math.isfinite(value)}


def flat(config: Row, before: str = "") -> dict[str, str | float]:
    """A config with nested tables flattened.

    >>> flat({"run": {"rounds": 3, "track": ["mlflow"]}})
    {'run.rounds': 3, 'run.track': '["mlflow"]'}
    """
    found: dict[str, str | float] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{before}{name}.")
        else:
            found[before + name] = value if isinstance(value, str | int | float) else json.dumps(value)
    return found
