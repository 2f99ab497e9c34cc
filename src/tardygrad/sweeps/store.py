"""Finished runs of specs: one JSON file each, named after its spec, written whole or not at all.

A finished run is never repeated, several experiments can share it, and a changed spec never takes the result of the old
one. A file holds the whole spec, so `tardygrad run FILE` repeats the run.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from tardygrad.engines.processes import process_count, set_up_child_process
from tardygrad.errors import RecordError
from tardygrad.runs.record import Row, exclusive, read_json, write_json
from tardygrad.runs.run import Run, versions
from tardygrad.runs.summary import remove_model
from tardygrad.spec.spec import Spec, load
from tardygrad.sweeps.trial import TaskCache, run_seed
from tardygrad.tail.probe import probe

PLACES = ("data", "cache", "pretrained")  # keys of a task that say where files are, which changes no result


class PlannedRun(NamedTuple):
    """A run to do: a name for its file, the tables of its spec, and the test score to store as its accuracy."""

    name: str
    spec: dict[str, Any]
    score: str = "accuracy"
    tails: Sequence[int] = ()  # rounds after which the tails of its gradients are measured; `name` must mention it


class LayerTail(NamedTuple):
    """The tail of a layer's gradients after a round."""

    round: int
    layer: str  # "all": of the whole model
    alpha: float | None  # the tail index
    low: float | None
    high: float | None
    verdict: str
    scaled: float | None  # that of each coordinate's noise divided by its own scale
    scaled_verdict: str | None


class StoredResult(NamedTuple):
    """The outcome of a run. Scores are in per cent here, and shares of 1 in the file."""

    status: Literal["finished", "diverged", "starved"]
    accuracy: float | None  # the score that `PlannedRun.score` names, after the last round; None: did not finish
    loss: float | None
    time: float  # simulated seconds
    curve: list[tuple[int, float, float | None, float | None]]  # round, time, test loss, accuracy
    clipped: float  # share of the coordinates of Δ_t, mean over rounds
    local_clipped: float  # share of the coordinates of gradients
    tails: Sequence[LayerTail] = ()  # at `PlannedRun.tails`


class Store:
    """A folder of finished runs: each is done once, in several processes, and continued after a stop.

    A run is what `load_spec` returns, or a `PlannedRun` with a name and the tables of a spec.

    Args:
        folder: where the results are; it is made by the first run.
        records: also keep the record of each run, without its model, in a folder of the same name, for `report`.
        known: runs that were finished elsewhere, as `row` returns them.

    >>> import tardygrad as tg
    >>> from tempfile import mkdtemp
    >>> runs = [tg.load_spec("quadratic", ["run.rounds=3", f"run.seed={seed}"]) for seed in (1, 2)]
    >>> store = tg.Store(mkdtemp())
    >>> len(list(store.run(runs))), len(list(store.run(runs)))
    (2, 0)
    >>> store.result(runs[0]).status
    'finished'
    """

    def __init__(self, folder: str | Path, *, records: bool = False, known: Iterable[Row] = ()) -> None:
        self.folder, self.records = Path(folder), records
        self._known = {self.path(PlannedRun(row["name"], row["spec"])): row for row in known}
        self._results: dict[Path, StoredResult] = {}

    def path(self, run: Spec | PlannedRun) -> Path:
        """The file of a run's result. Its name has a hash of what the spec gives, without defaults and folders."""
        name, spec, *_ = _planned(run)
        task = {key: value for key, value in spec["task"].items() if key not in PLACES}
        engine = {key: value for key, value in spec.get("engine", {}).items() if key != "workers"}
        length = {key: value for key, value in spec["run"].items() if key != "checkpoint_every"}
        decisive = _strict({**spec, "task": task, "engine": engine, "run": length})
        digest = blake2b(decisive.encode(), digest_size=6).hexdigest()
        return self.folder / f"{name}-{digest}.json".replace("²", "2").replace(", ", "-").lower()

    def result(self, run: Spec | PlannedRun) -> StoredResult | None:
        """The result of a run; None if it is missing or its file is damaged."""
        path = self.path(run)
        if path not in self._results:
            with suppress(RecordError, ValueError, KeyError, TypeError):
                self._results[path] = _result(self._read(path)["result"])
        return self._results.get(path)

    def row(self, run: PlannedRun) -> Row:
        """A finished run as a small JSON object: its name, settings without folders, versions and result."""
        path = self.path(run)
        row = self._read(path)
        task = {key: value for key, value in run.spec["task"].items() if key not in PLACES}
        spec = json.loads(_strict({**run.spec, "task": task}, sort=False))
        return {
            "name": path.stem.rpartition("-")[0],
            "spec": spec,
            "versions": row["versions"],
            "result": row["result"],
        }

    def _read(self, path: Path) -> Row:
        return read_json(path) if path.exists() or path not in self._known else self._known[path]

    def missing(self, runs: Iterable[Spec | PlannedRun]) -> list[Spec | PlannedRun]:
        """The runs that have no result yet, each once."""
        return [run for run in {self.path(run): run for run in runs}.values() if self.result(run) is None]

    def run(
        self, wanted: Iterable[Spec | PlannedRun] | Callable[[], Iterable[Spec | PlannedRun]], jobs: int = 1
    ) -> Iterator[Path]:
        """Do the missing runs, and yield each file when it is written.

        Args:
            wanted: the runs, or a function that returns those known so far, done or not. It is called again after every
                run, whose result may add others; the first missing one starts next.
            jobs: runs at once, each in its own process; 0 is one per core.
        """
        known, jobs = wanted if callable(wanted) else list(wanted).copy, process_count("jobs", jobs)
        context = mp.get_context("fork")
        with exclusive(self.folder), ProcessPoolExecutor(jobs, context, _begin) as pool:
            running: dict[Future[Path], Spec | PlannedRun] = {}
            try:
                while True:
                    started = {self.path(run) for run in running.values()}
                    waiting = [run for run in self.missing(known()) if self.path(run) not in started]
                    for run in waiting[: jobs - len(running)]:
                        running[pool.submit(_run, self.path(run), _planned(run), self.records)] = run
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        run, path = running.pop(future), future.result()
                        if self.result(run) is None:  # else it would be run again and again
                            raise RecordError(f"{str(path)!r} has no result that can be read. Report it as a bug.")
                        yield path
            except BrokenProcessPool as error:
                raise RecordError("a process died; is there enough memory? Continue with the same command.") from error
            finally:
                pool.shutdown(cancel_futures=True)  # waits for the runs under way and keeps their results


def _planned(run: Spec | PlannedRun) -> PlannedRun:
    return PlannedRun(run.name, run.resolved()) if isinstance(run, Spec) else run


def _strict(spec: dict[str, Any], *, sort: bool = True) -> str:
    """A spec as strict JSON, in which an infinite setting is "inf"."""
    return json.dumps(spec, sort_keys=sort, default=str).replace("Infinity", '"inf"')


def _result(row: Row) -> StoredResult:
    curve = [(number, time, loss, _percent(score)) for number, time, loss, score in row["curve"] if number > 0]
    tails = [LayerTail(**tail) for tail in row.get("tails", ())]
    shares = row["clipped"], row["local_clipped"]
    return StoredResult(row["status"], _percent(row["accuracy"]), row["loss"], row["time"], curve, *shares, tails)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


_tasks = TaskCache()  # of this process


def _begin() -> None:
    set_up_child_process()
    torch.set_num_threads(1)


def _run(path: Path, run: PlannedRun, records: bool) -> Path:
    spec, record = load(run.spec), path.with_suffix("")
    if records:
        shutil.rmtree(record, ignore_errors=True)  # of a run that was stopped
    tails = list[LayerTail]()

    def measure(current: Run) -> None:
        if current.server.round in run.tails:
            tails.extend(layer_tails(current))

    settings: dict[str, Any] = {"score": run.score, "out": record if records else None}
    result = run_seed(spec, _tasks, spec.run.seed, **settings, watch=measure if run.tails else None)
    if run.tails:
        result["tails"] = [row._asdict() for row in tails]
    if records:
        shutil.rmtree(record / "checkpoints", ignore_errors=True)
        remove_model(record)
    del result["seconds"]  # the only part that differs when the run is repeated
    write_json(path, {"spec": spec.resolved(), "run": spec.run.settings(), "versions": versions(), "result": result})
    return path


def layer_tails(run: Run) -> list[LayerTail]:
    """The tails of the gradients at a run's model."""
    found = probe(run.task, run.x, module_buffers=run.module_buffers)
    rows = []
    for layer in (found.whole, *found.layers):
        if tail := layer.tail:
            scaled = (layer.scaled.index, layer.scaled.verdict) if layer.scaled else (None, None)
            rows.append(LayerTail(run.server.round, layer.name, tail.index, tail.low, tail.high, tail.verdict, *scaled))
    return rows
