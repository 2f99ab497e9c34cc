"""Tuning: an Optuna study for each method on each fleet, all in one SQLite file that one process writes.

The first trials are random, those after them TPE's, in batches. A trial's point follows from its number and from the
trials before its batch, so it is the same whoever finishes first and however many processes there are. A trial is told
when its run is finished: what was under way when something died is drawn again, and its finished runs are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, create_trial

from tardygrad import streams
from tardygrad.reproduce.trials import TUNING
from tardygrad.runs.record import reading_record
from tardygrad.sweep.study import database, quiet

RANDOM, BATCH = 10, 5
"""Trials that are random, and those of each batch after them."""

Space = Mapping[str, BaseDistribution]
"""What is searched: a setting's name to its range."""

Point = dict[str, float]
"""A value for every setting."""

Told = list[FrozenTrial]
"""The trials of a study so far, in order."""

_WHAT = "the study of the baselines"


def upcoming(space: Space, told: Told, trials: int) -> list[Point]:
    """The points that can be drawn now: the rest of a batch, none if so many trials are told."""
    first = len(told)
    end = RANDOM if first < RANDOM else _known(first) + BATCH
    with quiet(_WHAT):
        return [_draw(space, told[: _known(number)], number) for number in range(first, min(end, trials))]


def _known(number: int) -> int:
    """How many trials there were before a trial's batch.

    >>> [_known(number) for number in (0, 9, 10, 14, 15)]
    [0, 0, 10, 10, 15]
    """
    return 0 if number < RANDOM else number - (number - RANDOM) % BATCH


def _draw(space: Space, known: Told, number: int) -> Point:
    """A point whose numbers have three digits, so that a table shows what was run."""
    sampler = TPESampler(n_startup_trials=RANDOM, seed=streams.key(TUNING, "baselines", number) % 2**32)
    history = optuna.create_study(sampler=sampler, direction="maximize")
    history.add_trials(known)
    drawn = history.ask(dict(space)).params
    return {key: float(f"{value:.3g}") if isinstance(value, float) else value for key, value in drawn.items()}


def best(told: Told) -> Point:
    """The point of the highest value, the first of them."""
    return max(told, key=_value).params


def _value(trial: FrozenTrial) -> float:
    return trial.value if trial.value is not None else 0.0


def load(path: Path) -> dict[str, Told]:
    """Every study of a file, which need not be there."""
    if not path.exists():
        return {}
    with quiet(_WHAT), reading_record(path):
        storage = database(path, new=False)
        try:
            names = optuna.get_all_study_names(storage=storage)
            return {
                name: optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False) for name in names
            }
        finally:
            storage.engine.dispose()


def trial(space: Space, point: Point, value: float) -> FrozenTrial:
    """A trial that is finished."""
    return create_trial(params=point, distributions=dict(space), value=value)


def tell(path: Path, found: Mapping[str, Told]) -> None:
    """Add finished trials to their studies."""
    with quiet(_WHAT), reading_record(path):
        storage = database(path, new=not path.exists())
        try:
            for name, trials in found.items():
                study = optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)
                study.add_trials(trials)
        finally:
            storage.engine.dispose()
