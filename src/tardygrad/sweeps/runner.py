"""The worker processes of a sweep, forked so that they share the task; only the parent writes the study.

A worker that dies is replaced and its trial run again. If the parent dies, all workers exit at once; until the last one
has, the lock that they inherited keeps other processes out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
import torch

from tardygrad.engines.processes import Child, Children, Ended, process_count
from tardygrad.errors import Invalid, shown
from tardygrad.runs.progress import progress_bar
from tardygrad.runs.record import Row, exclusive, read_json, require_new, to_json_value, write_json
from tardygrad.runs.run import versions
from tardygrad.runs.signals import Signals
from tardygrad.sweeps.config import Config
from tardygrad.sweeps.study import Study
from tardygrad.sweeps.trial import Source
from tardygrad.sweeps.trials import Sweep, read

UNCHECKED = ("name", "source", "changes", "versions")  # keys of sweep.json that say nothing about its runs
RETRIES = 3  # worker deaths after which a trial is still run again


class Runner:
    """A sweep in its folder: iterate over `go()`, which yields the result of each trial.

    Args:
        folder: a new one, or one that holds the same sweep, which then continues.
        source: makes the runs.
        jobs: processes; 0 is one for every core this process may use.
    """

    def __init__(self, folder: Path, config: Config, source: Source, jobs: int = 1) -> None:
        self.folder, self.config, self.source = folder, config, source
        self.jobs = process_count("jobs", jobs)
        self.done = 0  # trials, earlier sessions included
        self._trials: dict[Child, optuna.trial.Trial | None] = {}  # of each worker; None: it is idle
        self._deaths: Counter[int] = Counter()
        self._stop = False

    def stop(self) -> None:
        """End soon; trials under way are run again when the sweep continues."""
        self._stop = True

    def go(self) -> Generator[Row, None, None]:
        """Run every trial that has no result yet."""
        with exclusive(require_new(self.folder), "the sweep in"):
            check_same(self.folder, self.config)
            if not (self.folder / "sweep.json").exists():
                write_json(self.folder / "sweep.json", self.config.row() | {"versions": versions()})
            study = Study(self.folder, self.config)
            self.done = study.done
            with Children() as children:
                while self._assign(study, children) and not self._stop:
                    for result in self._collect(study, children):
                        self.done = study.done
                        yield result

    def _assign(self, study: Study, children: Children) -> bool:
        """Give every idle worker a trial; whether any worker has one."""
        while len(self._trials) < min(self.jobs, self.config.trials - study.done):
            self._trials[children.start(_work, self.config, self.source)] = None
        for worker in [worker for worker, trial in self._trials.items() if trial is None]:
            if not self._stop and (trial := study.next()):
                self._send(worker, trial)
        return any(self._trials.values())

    def _send(self, worker: Child, trial: optuna.trial.Trial) -> None:
        self._trials[worker] = trial
        worker.send(trial.user_attrs["params"])

    def _collect(self, study: Study, children: Children) -> Iterator[Row]:
        """The results that arrive within half a second."""
        for worker, message in children.answers(0.5, of=[worker for worker, trial in self._trials.items() if trial]):
            trial = self._trials.pop(worker)
            assert trial is not None
            if isinstance(message, Ended):
                worker, message = children.start(_work, self.config, self.source), self._died(trial, message)
                if message is None:
                    self._send(worker, trial)
                    continue
            if isinstance(message, tuple):
                self._trials[worker] = trial
                worker.send(study.prune(trial, *message))
            else:
                self._trials[worker] = None
                study.tell(trial, message)
                yield message

    def _died(self, trial: optuna.trial.Trial, ended: Ended) -> Row | None:
        """None, to run a trial again whose worker died; or a failure, if it keeps killing workers."""
        self._deaths[trial.number] += 1
        if (deaths := self._deaths[trial.number]) <= RETRIES:
            return None
        return _failed(f"{deaths} processes died running it (exit code {ended.code}). Out of memory? Use fewer jobs.")


def run_sweep(
    config: Config, source: Source, folder: Path, *, jobs: int = 1, what: str = "trial"
) -> tuple[Sweep, int | None]:
    """Run every trial that the folder has no result of, with a progress bar on a terminal.

    Args:
        what: to call a trial.

    Returns:
        The sweep, and the number of the signal that ended it early, if one did.
    """
    before = read(folder).trials if (folder / "sweep.json").exists() else []
    values = [trial.value for trial in before if trial.value is not None]
    runner, pick = Runner(folder, config, source, jobs), max if config.direction() == "maximize" else min

    def best_so_far(result: Row) -> str:
        values.extend([] if result["value"] is None else [result["value"]])
        return f"best {pick(values):.4g}" if values and what == "trial" else ""

    with Signals(runner.stop) as signals:
        for _ in progress_bar(runner.go(), best_so_far, what=what, total=config.trials, done=len(before)):
            pass
    return read(folder), signals.received


def _failed(reason: str) -> Row:
    return {"status": "failed", "reason": reason, "value": None, "seeds": []}


def _work(pipe: Connection, config: Config, source: Source) -> None:
    """A worker's process: receive points, send results, until it is killed."""
    torch.set_num_threads(config.spec["run"]["threads"])

    def prune(round: int, loss: float) -> bool:
        pipe.send((round, loss))
        return bool(pipe.recv())

    while True:
        params = pipe.recv()
        try:
            result = run_trial(config, source, params, prune)
        except (Exception, SystemExit) as error:  # whatever is wrong with one point, the others go on
            result = _failed(f"{type(error).__name__}: {error}")
        pipe.send(result)


def run_trial(config: Config, source: Source, params: Row, prune: Callable[[int, float], bool]) -> Row:
    """Run a point with every seed.

    Args:
        prune: whether a run that has come to this round with this test loss, or cost, should end.
    """

    def stop(row: Row) -> str | None:
        if config.target is not None:
            score = row[f"test_{config.score}"]
            if score is not None and (score >= config.target if config.higher else score <= config.target):
                return "reached"
        return "pruned" if config.prune and prune(row["round"], _cost(config, row)) else None

    seeds = [source.run_seed(config, params, number, stop) for number in range(config.seeds)]
    key = {"time": "to_target", "loss": "loss"}.get(config.best, "accuracy")
    values: list[Any] = [row[key] if row["status"] == "finished" else None for row in seeds]
    worst = next((row for row in seeds if row["status"] != "finished"), seeds[0])
    value = None if None in values else mean(map(float, values))
    return {"status": worst["status"], "reason": worst["reason"], "value": value, "seeds": seeds}


def _cost(config: Config, row: Row) -> float:
    """The test loss, or if there is none, the score as a number of which less is better."""
    if "test_loss" in row or not config.higher:
        cost = row.get("test_loss", row.get(f"test_{config.score}"))
    else:
        cost = None if (score := row[f"test_{config.score}"]) is None else -score
    return math.inf if cost is None else cost


def check_same(folder: Path, config: Config) -> None:
    """Raise `Invalid` if the folder holds a sweep with another configuration."""
    if not (folder / "sweep.json").exists():
        return
    before, now = (_flat(row) for row in (read_json(folder / "sweep.json"), to_json_value(config.row())))
    for key in dict.fromkeys([*now, *before]):
        if key.partition(".")[0] not in UNCHECKED and now.get(key) != before.get(key):
            differs = f"`{key.removeprefix('spec.')}` is {shown(before.get(key))} there, got {shown(now.get(key))}"
            raise Invalid(f"the sweep in {str(folder)!r} has other settings: {differs}. Choose another folder.")


def _flat(value: Row, name: str = "") -> Row:
    """Nested tables as one table with dotted keys."""
    found: Row = {}
    for key, item in value.items():
        found |= _flat(item, f"{name}{key}.") if isinstance(item, dict) else {f"{name}{key}": item}
    return found
