"""The paper's accuracy tables, made again on a small scale: tuned as the paper does, resumable, one file per run.

A run's file is named after a hash of everything that was asked of it, and is written whole or not at all. So finished
runs are never repeated, and a changed experiment never takes an old one's results.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple, cast

from tardygrad.core.method import Mode
from tardygrad.core.task import Task
from tardygrad.engines.sim.pool import SimPool
from tardygrad.errors import Diverged, RecordError, Starved
from tardygrad.fleet import Fleet, Stragglers
from tardygrad.reproduce.experiments import LABELS, Cell, Experiment, Trial
from tardygrad.runs.record import Row, exclusive, plain, read_json, write_json
from tardygrad.runs.run import begin, versions


class Line(NamedTuple):
    """A cell, ours beside the paper's; without trials left to make, what the best of them gave."""

    cell: Cell
    label: str
    trials: int  # of the grid, made so far
    paper: float  # score in per cent
    paper_time: float
    best: Trial | None = None  # None: not all trials are made
    score: float | None = None  # in per cent, mean over seeds; None: it diverged
    spread: float | None = None  # standard deviation over seeds
    seeds: int = 0  # made so far
    loss: float | None = None
    time: float = 0.0  # simulated seconds
    clipped: float = 0.0  # share of the coordinates of Δ_t, mean over rounds
    local_clipped: float = 0.0  # share of the coordinates of gradients
    status: str = "not run"


def published(data: str) -> dict[Cell, tuple[float, float]]:
    """The paper's scores in per cent and runtimes."""
    text = files("tardygrad.reproduce").joinpath("tables.csv").read_text(encoding="utf-8")
    return {
        Cell(cast(Stragglers, row["stragglers"]), cast(Mode, row["mode"]), row["method"]): (
            float(row["score"]),
            float(row["runtime"]),
        )
        for row in csv.DictReader(text.splitlines())
        if row["data"] == data
    }


class Study:
    """An experiment and the folder of its finished runs."""

    def __init__(self, name: str, experiment: Experiment, out: Path, seeds: int) -> None:
        self.name, self.experiment, self.folder, self.seeds = name, experiment, out / name, seeds

    def __len__(self) -> int:
        """How many runs there are to make, some of them twice: the sweep's best thresholds are also a cell's."""
        return len(self.experiment.sweep()) + len(self.experiment.cells) * (len(self.experiment.rates) + self.seeds - 1)

    def run(self, task: Task, workers: int = 1) -> Iterator[Trial]:
        """Every run that is not there yet, one after the other; those that are there pass at once."""
        with exclusive(self.folder):
            for trial in self.experiment.sweep():
                yield self._once(trial, task, workers)
            clips = self.clips()
            assert clips is not None
            for cell in self.experiment.cells:
                for trial in self.experiment.grid(cell, clips):
                    yield self._once(trial, task, workers)
            for cell in self.experiment.cells:
                best = self._best(self.experiment.grid(cell, clips))
                for seed in range(1, self.seeds):
                    yield self._once(best._replace(seed=seed), task, workers)

    def clips(self) -> tuple[float, float] | None:
        """The thresholds of the best synchronous Clip²; None while the sweep is not done."""
        sweep = self.experiment.sweep()
        if not all(map(self.look, sweep)):
            return None
        best = self._best(sweep)
        return best.local_clip, cast(float, best.clip)

    def lines(self) -> list[Line]:
        """Every cell as far as it is made."""
        paper, clips = published(self.experiment.published), self.clips()
        found = []
        for cell in self.experiment.cells:
            grid = self.experiment.grid(cell, clips) if clips else []
            made = sum(self.look(trial) is not None for trial in grid)
            line = Line(cell, LABELS[cell.method], made, *paper[cell])
            if grid and made == len(grid):
                best = self._best(grid)
                rows = [row for seed in range(self.seeds) if (row := self.look(best._replace(seed=seed)))]
                line = line._replace(best=best, **_summed(rows))
            found.append(line)
        return found

    def path(self, trial: Trial) -> Path:
        """Where a run's result is, or will be."""
        text = json.dumps(self._asked(trial), sort_keys=True)
        name = "-".join((*trial.cell, blake2b(text.encode(), digest_size=6).hexdigest()))
        return self.folder / f"{name}.json"

    def look(self, trial: Trial) -> Row | None:
        """A run's result, if it is there; a file that is broken is not."""
        with suppress(ValueError, RecordError):
            row = read_json(self.path(trial)).get("result")
            return row if isinstance(row, dict) and _sound(row) else None
        return None

    def _asked(self, trial: Trial) -> Row:
        """All that a run depends on, but the versions and where its files are."""
        one = self.experiment
        asked = {"name": self.name, "clients": one.clients, "rounds": one.rounds, "how": one.how}
        return {**asked, "task": one.settings, **trial._asdict()}

    def _once(self, trial: Trial, task: Task, workers: int) -> Trial:
        if self.look(trial) is None:
            result = _result(self.experiment, trial, task, workers)
            write_json(self.path(trial), {**self._asked(trial), "result": result, "versions": versions()})
        return trial

    def _best(self, trials: Iterable[Trial]) -> Trial:
        """The one with the highest last score, then the lowest loss; what diverged comes last."""

        def merit(trial: Trial) -> tuple[float, float]:
            row = self.look(trial) or {}
            score, loss = row.get("score"), row.get("loss")
            return (-math.inf if score is None else score, -math.inf if loss is None else -loss)

        return max(trials, key=merit)


def _result(experiment: Experiment, trial: Trial, task: Task, workers: int) -> Row:
    """Run it, to its end or to where it diverges."""
    method, fleet = experiment.method(trial), Fleet.paper(clients=task.clients, stragglers=trial.cell.stragglers)
    with SimPool(task, method, fleet, workers=workers, rounds=experiment.rounds) as pool:
        every = max(experiment.rounds // 7, 1)
        run = begin(method, task, pool, rounds=experiment.rounds, seed=trial.seed, evaluate_every=every)
        with suppress(Diverged, Starved):
            for _ in run.go():
                pass
    summary, key = run.summary(), f"test_{experiment.score}"
    curve = [(row["round"], row["time"], row[key]) for row in run.metrics if key in row]
    ended = summary.status == "finished"
    row = {
        "status": summary.status,
        "score": curve[-1][2] if ended else None,
        "loss": summary.loss if ended else None,
        "time": summary.time,
        "clipped": mean(row["clipped"] for row in run.metrics) if run.metrics else 0.0,
        "local_clipped": mean(row["local_clipped"] for row in run.metrics) if run.metrics else 0.0,
        "delay_mean": summary.delay_mean,
        "delay_max": summary.delay_max,
        "curve": curve,
        "seconds": summary.seconds,
    }
    return cast(Row, plain(row))


def _sound(row: Row) -> bool:
    """Whether a result is one that `_result` could have written."""
    number, curve = (int, float), row.get("curve")
    return (
        isinstance(row.get("status"), str)
        and all(isinstance(row.get(key, ""), (*number, type(None))) for key in ("score", "loss"))
        and all(isinstance(row.get(key), number) for key in ("time", "clipped", "local_clipped"))
        and isinstance(curve, list)
        and all(isinstance(point, list) and len(point) == 3 for point in curve)
    )


def _summed(rows: list[Row]) -> Row:
    """The runs of one setting, over their seeds."""
    scores = [100 * row["score"] for row in rows if row["score"] is not None]
    whole = len(scores) == len(rows)
    return {
        "score": mean(scores) if whole else None,
        "spread": stdev(scores) if whole and len(scores) > 1 else None,
        "seeds": len(rows),
        "loss": mean(row["loss"] for row in rows) if all(row["loss"] is not None for row in rows) else None,
        "time": mean(row["time"] for row in rows),
        "clipped": mean(row["clipped"] for row in rows),
        "local_clipped": mean(row["local_clipped"] for row in rows),
        "status": next((row["status"] for row in rows if row["score"] is None), "finished"),
    }
