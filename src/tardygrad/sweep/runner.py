"""The processes that make the trials, forked so that they share the task; one process writes the study.

A process that dies is replaced, and its trial begun again. If the one that writes dies, they all end at once; until the
last has, the lock they inherited keeps others out.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

import optuna
import torch

from tardygrad.core.task import Task
from tardygrad.engines.sim.process_pool import serve_parent
from tardygrad.errors import Invalid
from tardygrad.runs.record import Row, exclusive, unused, write_json
from tardygrad.runs.run import versions
from tardygrad.spec.signature import shown
from tardygrad.sweep.config import Asked, again
from tardygrad.sweep.study import Study
from tardygrad.sweep.table import read
from tardygrad.sweep.trial import Bench

LIVES = 3  # deaths of processes over one trial that are forgiven


class Hand:
    """One process, and the trial it is at."""

    def __init__(self, process: ForkProcess, line: Connection) -> None:
        self.process, self.line = process, line
        self.trial: optuna.trial.Trial | None = None


class Crew:
    """A sweep at work in its folder: iterate over `go()`, which yields what came of each trial.

    Args:
        folder: of a new sweep, or of one that goes on if it was asked the same.
        task: that of the first point.
        jobs: processes; 0 is one for every core this process may use.
    """

    def __init__(self, folder: Path, asked: Asked, task: Task, jobs: int = 1) -> None:
        if jobs < 0:
            raise Invalid(f"`jobs` must be 0 or more, got {jobs}.")
        self.folder, self.asked, self.task = folder, asked, task
        self.jobs = jobs or len(os.sched_getaffinity(0))
        self.done = 0  # trials, in all sittings
        self._hands: list[Hand] = []
        self._deaths: Counter[int] = Counter()
        self._stop = False

    def stop(self) -> None:
        """End soon; trials under way will be begun again."""
        self._stop = True

    def go(self) -> Generator[Row, None, None]:
        """Make every trial that is not made yet."""
        with _ours(self.folder, self.asked):
            study = Study(self.folder, self.asked)
            self.done = study.done
            try:
                while self._busy(study) and not self._stop:
                    for result in self._collect(study):
                        self.done = study.done
                        yield result
            finally:
                for hand in self._hands:
                    hand.process.kill()
                for hand in self._hands:
                    hand.process.join()
                    hand.line.close()
                self._hands = []
                study.put_back()
                study.close()

    def _busy(self, study: Study) -> bool:
        """Give everyone a trial; whether anyone has one."""
        while len(self._hands) < min(self.jobs, self.asked.trials - study.done):
            self._hands.append(self._hire())
        for hand in self._hands:
            if hand.trial is None and not self._stop and (trial := study.next()):
                self._send(hand, trial)
        return any(hand.trial for hand in self._hands)

    def _hire(self) -> Hand:
        context = mp.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_labour, args=(theirs, self.asked, self.task), daemon=True)
        process.start()
        theirs.close()
        return Hand(process, ours)

    def _send(self, hand: Hand, trial: optuna.trial.Trial) -> None:
        hand.trial = trial
        with suppress(OSError):  # a death is noticed when answers are collected
            hand.line.send(trial.user_attrs["params"])

    def _collect(self, study: Study) -> Iterator[Row]:
        """What the processes have to say, after half a second at most."""
        lines = {hand.line: hand for hand in self._hands if hand.trial}
        for line in wait(list(lines), 0.5):
            hand = lines[line]  # type: ignore[index]
            trial = hand.trial
            assert trial is not None
            try:
                said = hand.line.recv()
            except (EOFError, OSError):
                said = self._replace(hand, trial, study)
            if isinstance(said, tuple):
                with suppress(OSError):
                    hand.line.send(study.prune(trial, *said))
            elif said is not None:
                hand.trial = None
                study.tell(trial, said)
                yield said

    def _replace(self, hand: Hand, trial: optuna.trial.Trial, study: Study) -> Row | None:
        """A process has died: another begins its trial again, unless it is the trial's fault."""
        hand.process.join()
        hand.line.close()
        heir = self._hire()
        hand.process, code, hand.line = heir.process, hand.process.exitcode, heir.line
        self._deaths[trial.number] += 1
        if self._deaths[trial.number] > LIVES:
            deaths = self._deaths[trial.number]
            return _failed(
                f"{deaths} processes died over it (exit code {code}). Is there enough memory? Try fewer jobs."
            )
        self._send(hand, study.restart(trial))
        return None


def _failed(reason: str) -> Row:
    return {"status": "failed", "reason": reason, "value": None, "seeds": []}


def _labour(line: Connection, asked: Asked, task: Task) -> None:
    """The life of a process: points in, results out, until it is ended."""
    serve_parent()
    torch.set_num_threads(asked.spec["run"]["threads"])
    bench = Bench(asked, task)

    def look(round: int, loss: float) -> bool:
        line.send((round, loss))
        return bool(line.recv())

    while True:
        params = line.recv()
        try:
            result = bench.trial(params, look)
        except Exception as error:  # whatever is wrong with one point, the others go on
            result = _failed(f"{type(error).__name__}: {error}")
        line.send(result)


@contextmanager
def _ours(folder: Path, asked: Asked) -> Iterator[None]:
    """A folder that holds this sweep and is no one else's meanwhile."""
    with exclusive(unused(folder), "the sweep in"):
        if (folder / "sweep.json").exists():
            same(folder, asked)
            read(folder)  # refuses one that is damaged before Optuna mends it in its own way
        elif (folder / "study.db").exists():
            raise Invalid(f"the folder {str(folder)!r} holds a study without its sweep.json. Choose another one.")
        else:
            write_json(folder / "sweep.json", vars(asked) | {"versions": versions()})
        yield


def same(folder: Path, asked: Asked) -> None:
    """Refuse to go on with a sweep that was asked something else."""
    before, now = _flat(vars(again(folder))), _flat(vars(asked))
    for key in dict.fromkeys([*now, *before]):
        if key != "name" and now.get(key) != before.get(key):
            differs = f"`{key.removeprefix('spec.')}` was {shown(before.get(key))} there, got {shown(now.get(key))}"
            raise Invalid(f"the sweep in {str(folder)!r} was asked otherwise: {differs}. Choose another folder.")


def _flat(value: Row, name: str = "") -> Row:
    """Nested tables as one, with dotted keys."""
    found: Row = {}
    for key, item in value.items():
        found |= _flat(item, f"{name}{key}.") if isinstance(item, dict) else {f"{name}{key}": item}
    return found
