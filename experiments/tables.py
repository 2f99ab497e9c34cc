"""The paper's accuracy tables at a small scale: tuned as in the paper, and resumable."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, cast

from experiments.paper import LABELS, published_cells
from experiments.table_experiments import Experiment, TableCell, TableRun
from experiments.trials import mean_spread, mean_time
from tardygrad.core.method import Mode
from tardygrad.fleet import Stragglers
from tardygrad.spec.spec import load
from tardygrad.sweeps.store import PlannedRun, Store, StoredResult


class CellLine(NamedTuple):
    """A cell of a table: the paper's numbers, and ours once all its trials are done."""

    cell: TableCell
    label: str
    trials: int  # done so far
    paper: float  # score in per cent
    paper_time: float
    best: TableRun | None = None  # None: not all trials are done
    score: float | None = None  # in per cent, mean over seeds; None: diverged
    spread: float | None = None  # standard deviation over seeds
    seeds: int = 0  # done so far
    loss: float | None = None
    time: float = 0.0  # simulated seconds
    clipped: float = 0.0  # share of the coordinates of Δ_t, mean over rounds
    local_clipped: float = 0.0  # share of the coordinates of gradients
    status: str = "not run"


def published(data: str) -> dict[TableCell, tuple[float, float]]:
    """The paper's scores in per cent and runtimes."""
    methods = {label: name for name, label in LABELS.items()}
    return {
        TableCell(cast(Stragglers, line.stragglers), cast(Mode, line.mode), methods[line.method]): line[-2:]
        for line in published_cells()
        if line.data == data
    }


class Table:
    """An experiment and the store of its runs."""

    def __init__(self, name: str, experiment: Experiment, out: Path, seeds: int) -> None:
        self.name, self.experiment, self.seeds = name, experiment, seeds
        self.store = Store(out / name)

    def prepare(self, data: Path | None) -> dict[str, str]:
        """Build the task, which all runs share, and return the folders of its files."""
        folders = self.experiment.data_folders(data)
        load(self.experiment.run(self.experiment.sweep()[0], folders).spec).build()
        return folders

    def wanted(self, folders: dict[str, str], workers: int = 1) -> list[PlannedRun]:
        """The runs known so far; when all of them are done, there may be more."""
        trials = self.experiment.sweep()
        if clips := self.clips():
            grids = [self.experiment.grid(cell, clips) for cell in self.experiment.cells]
            best = [trial for grid in grids if (trial := self._best(grid))]
            trials += [trial for grid in grids for trial in grid]
            trials += [trial._replace(seed=seed) for trial in best for seed in range(1, self.seeds)]
        return [self.experiment.run(trial, folders, workers) for trial in trials]

    def result(self, trial: TableRun) -> StoredResult | None:
        """The result of a trial, if it is done."""
        return self.store.result(self.experiment.run(trial, {}))

    def clips(self) -> tuple[float, float] | None:
        """The thresholds of the best synchronous Clip²; None while the sweep is not done."""
        best = self._best(self.experiment.sweep())
        return (best.local_clip, cast(float, best.clip)) if best else None

    def lines(self) -> list[CellLine]:
        """Every cell, as far as it is done."""
        paper, clips = published(self.experiment.published), self.clips()
        lines = []
        for cell in self.experiment.cells:
            grid = self.experiment.grid(cell, clips) if clips else []
            done = sum(self.result(trial) is not None for trial in grid)
            line = CellLine(cell, LABELS[cell.method], done, *paper[cell])
            if best := self._best(grid):
                results = [result for seed in range(self.seeds) if (result := self.result(best._replace(seed=seed)))]
                line = line._replace(best=best, **_over_seeds(results))
            lines.append(line)
        return lines

    def _best(self, trials: list[TableRun]) -> TableRun | None:
        """The trial with the highest score, then the lowest loss; diverged ones rank last. None: some are not done."""
        results = [result for trial in trials if (result := self.result(trial))]
        if not trials or len(results) < len(trials):
            return None
        merits = [result.merit for result in results]
        return trials[merits.index(max(merits))]


def _over_seeds(results: list[StoredResult]) -> dict[str, Any]:
    """The results of one setting, over its seeds."""
    scores = [result.accuracy for result in results if result.accuracy is not None]
    losses = [result.loss for result in results if result.loss is not None]
    score, spread = mean_spread(scores) if len(scores) == len(results) else (None, None)
    return {
        "score": score,
        "spread": spread,
        "seeds": len(results),
        "loss": mean(losses) if len(losses) == len(results) else None,
        "time": mean_time(results),
        **{key: mean(getattr(result, key) for result in results) for key in ("clipped", "local_clipped")},
        "status": next((result.status for result in results if result.accuracy is None), "finished"),
    }


if __name__ == "__main__":
    from experiments.options import main

    main("tables")
