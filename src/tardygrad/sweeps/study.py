"""The study of a sweep: an Optuna study in SQLite, written by one process.

All points of a grid are stored at the start; those of random and tpe are drawn one by one, each by a sampler whose seed
is the trial's own and whose history is the trials so far. A trial's point is therefore fixed before it starts, and a
trial that was running when a process died is queued again unchanged.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from tardygrad import streams
from tardygrad.errors import Invalid, RecordError
from tardygrad.runs.record import Row, reading_record
from tardygrad.sweeps.config import Config

Space = Mapping[str, BaseDistribution]
"""A setting's name to its range."""

Direction = Literal["maximize", "minimize"]

_NAME = "sweep"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's messages and turn its errors into `RecordError`."""
    log = logging.getLogger("optuna")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (
        optuna.exceptions.StorageInternalError,
        SQLAlchemyError,
        RuntimeError,
    ) as error:  # the last one for studies of other versions
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise RecordError(
            f"the study of the sweep cannot be read or written: {reason}. Fix that, then continue."
        ) from error
    finally:
        log.setLevel(before)


class Study:
    """The trials of a sweep: waiting, running, or with a result."""

    @quiet()
    def __init__(self, folder: Path, config: Config) -> None:
        self.config, path = config, folder / "study.db"
        with reading_record(folder):
            self.space = {key: distribution(values) for key, values in config.space.items()}
            if new := not path.exists():
                self._create(folder / "study.db.draft").replace(path)
            self.storage = _database(path, new=new)
            pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=_rung(config)) if config.prune else None
            self.study = optuna.load_study(
                study_name=_NAME, storage=self.storage, sampler=RandomSampler(), pruner=pruner
            )
            self.requeue()
            trials = self.study.get_trials(deepcopy=False)
            self._waiting = deque(trial._trial_id for trial in trials if not trial.state.is_finished())
            self.done = len(trials) - len(self._waiting)

    def _create(self, draft: Path) -> Path:
        """Write a study with every point of a grid to a draft, which is renamed when it is complete."""
        draft.unlink(missing_ok=True)
        storage = _database(draft, new=True)
        study = optuna.create_study(study_name=_NAME, storage=storage, direction=self.config.direction())
        if self.config.sampler == "grid":
            study.add_trials(map(self._trial, self.config.grid()))
        storage.engine.dispose()
        return draft

    def _trial(self, params: Row) -> FrozenTrial:
        try:
            group = self.config.group(params)
        except Invalid:  # a bad combination drawn by a sampler; the trial will fail with the reason
            group = "refused"
        return create_trial(
            state=TrialState.WAITING,
            params={key: scalar(value) for key, value in params.items()},
            distributions=self.space,
            user_attrs={"params": params, "group": group},
        )

    @quiet()
    def next(self) -> optuna.trial.Trial | None:
        """Start the next trial; None if there is none left."""
        if not self._waiting:
            trials = self.study.get_trials(deepcopy=False)
            if len(trials) >= self.config.trials:
                return None
            self.study.add_trial(self._trial(self._draw(trials)))
            self._waiting.append(self.study.get_trials(deepcopy=False)[-1]._trial_id)
        trial_id = self._waiting.popleft()
        self.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
        return optuna.trial.Trial(self.study, trial_id)

    def _draw(self, trials: list[FrozenTrial]) -> Row:
        """Draw the next point, as a function of the seed, the trial's number and the trials so far."""
        seed = streams.key(self.config.spec["run"]["seed"], "sweep", len(trials)) % 2**32
        sampler = TPESampler(seed=seed) if self.config.sampler == "tpe" else RandomSampler(seed=seed)
        drawn = draw(self.space, trials, sampler, self.config.direction())
        lists = {key: values for key, values in self.config.space.items() if isinstance(values, list)}
        return {
            key: next(item for item in lists[key] if scalar(item) == drawn[key]) if key in lists else drawn[key]
            for key in self.config.space
        }

    @quiet()
    def prune(self, trial: optuna.trial.Trial, round: int, cost: float) -> bool:
        """Whether a trial has fallen behind other trials after the same number of rounds, in the loss if there is one.

        Args:
            cost: the test loss, or a number of which less is better.
        """
        cost = cost if math.isfinite(cost) else math.inf
        trial.report(-cost if self.config.direction() == "maximize" else cost, round)
        return trial.should_prune()

    @quiet()
    def tell(self, trial: optuna.trial.Trial, result: Row) -> None:
        """Store the result of a trial; without a value it ranks last."""
        last = -math.inf if self.config.direction() == "maximize" else math.inf
        value = last if result["value"] is None else result["value"]
        trial.set_user_attr("result", result)
        state = {"failed": TrialState.FAIL, "pruned": TrialState.PRUNED}.get(result["status"], TrialState.COMPLETE)
        self.study.tell(trial, value if state == TrialState.COMPLETE else None, state)
        self.done += 1

    @quiet()
    def requeue(self) -> None:
        """Put running trials back into the queue."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._forget(trial._trial_id)
            self.storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    @quiet()
    def restart(self, trial: optuna.trial.Trial) -> optuna.trial.Trial:
        """Reset a running trial to its start."""
        self._forget(trial._trial_id)
        return optuna.trial.Trial(self.study, trial._trial_id)

    def _forget(self, trial_id: int) -> None:
        """Delete what the pruner has seen of a trial, which would change its decision; Optuna never does so."""
        with self.storage.engine.begin() as db:
            for rows in ("trial_intermediate_values", "trial_system_attributes"):
                db.execute(text(f"DELETE FROM {rows} WHERE trial_id = :id"), {"id": trial_id})

    def close(self) -> None:
        """Close the database."""
        self.storage.engine.dispose()


def draw(space: Space, trials: Sequence[FrozenTrial], sampler: BaseSampler, direction: Direction) -> Row:
    """The point that a sampler draws after these trials."""
    history = optuna.create_study(sampler=sampler, direction=direction)
    history.add_trials(trials)
    return history.ask(dict(space)).params


def _database(path: Path, *, new: bool) -> optuna.storages.RDBStorage:
    """Open a database; a new one skips Optuna's slow compatibility check."""
    patient: dict[str, Any] = {"connect_args": {"timeout": 60}}
    url = f"sqlite:///{path.resolve()}"
    return optuna.storages.RDBStorage(url, engine_kwargs=patient, skip_compatibility_check=new)


def distribution(values: Any) -> BaseDistribution:
    """Optuna's distribution of a key's values: a list, or a range."""
    if isinstance(values, list):
        return CategoricalDistribution([scalar(value) for value in values])
    low, high, log = values["low"], values["high"], values["log"]
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def scalar(value: Any) -> Any:
    """A value that Optuna accepts: tables and lists become text."""
    if not isinstance(value, dict | list):
        return value
    return json.dumps(value, separators=(", ", " = "), ensure_ascii=False, default=str)


def _rung(config: Config) -> int:
    """The evaluated round at which a trial is first compared: about a sixteenth of all rounds."""
    run = config.at(config.first()).run
    if run.rounds is None:
        raise Invalid(
            "pruning compares runs at equal rounds, got a spec without `run.rounds`. Set it, or do not prune."
        )
    return run.evaluate_every * max(run.rounds // 16 // run.evaluate_every, 1)
