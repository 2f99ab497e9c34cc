"""The study: an Optuna study in SQLite, which one process writes.

All points of a grid are there from the beginning; those of random and tpe are drawn one by one, each by a sampler whose
seed is the trial's own and whose history is the trials so far. So a trial's point is fixed before it begins, and one
that was under way when something died goes back to those that wait, as it was.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from tardygrad import streams
from tardygrad.errors import Invalid, RecordError
from tardygrad.runs.record import Row, reading_record
from tardygrad.sweep.config import Asked, toml

_NAME = "sweep"


@contextmanager
def quiet(what: str = "the study of the sweep") -> Iterator[None]:
    """Optuna without its messages, and its errors in our words."""
    log = logging.getLogger("optuna")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError, RuntimeError) as error:  # the last: other versions
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise RecordError(f"{what} cannot be read or written: {reason}. Go on when it can.") from error
    finally:
        log.setLevel(before)


class Study:
    """The trials of a sweep: which wait, which are under way, and what came of the others."""

    @quiet()
    def __init__(self, folder: Path, asked: Asked) -> None:
        self.asked, path = asked, folder / "study.db"
        with reading_record(folder):
            self.space = {key: _distribution(values) for key, values in asked.space.items()}
            if new := not path.exists():
                self._create(folder / "study.db.draft").replace(path)
            self.storage = database(path, new=new)
            pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=_rung(asked)) if asked.prune else None
            self.study = optuna.load_study(
                study_name=_NAME, storage=self.storage, sampler=RandomSampler(), pruner=pruner
            )
            self.put_back()
            trials = self.study.get_trials(deepcopy=False)
            self._waiting = deque(trial._trial_id for trial in trials if not trial.state.is_finished())
            self.done = len(trials) - len(self._waiting)

    def _create(self, draft: Path) -> Path:
        """A study with every point of a grid, in a file of its own until it is whole."""
        draft.unlink(missing_ok=True)
        storage = database(draft, new=True)
        study = optuna.create_study(study_name=_NAME, storage=storage, direction=self.asked.better())
        if self.asked.sampler == "grid":
            study.add_trials(map(self._trial, self.asked.grid()))
        storage.engine.dispose()
        return draft

    def _trial(self, params: Row) -> optuna.trial.FrozenTrial:
        try:
            group = self.asked.group(params)
        except Invalid:  # a combination that a sampler drew; the trial will say why
            group = "refused"
        return create_trial(
            state=TrialState.WAITING,
            params={key: _told(value) for key, value in params.items()},
            distributions=self.space,
            user_attrs={"params": params, "group": group},
        )

    @quiet()
    def next(self) -> optuna.trial.Trial | None:
        """The next trial, which is then under way; None if there is none left to begin."""
        if not self._waiting:
            trials = self.study.get_trials(deepcopy=False)
            if len(trials) >= self.asked.trials:
                return None
            self.study.add_trial(self._trial(self._draw(trials)))
            self._waiting.append(self.study.get_trials(deepcopy=False)[-1]._trial_id)
        one = self._waiting.popleft()
        self.storage.set_trial_state_values(one, TrialState.RUNNING)
        return optuna.trial.Trial(self.study, one)

    def _draw(self, trials: list[optuna.trial.FrozenTrial]) -> Row:
        """The next point of a sampler: a function of the seed, the trial's number and the trials so far."""
        seed = streams.key(self.asked.spec["run"]["seed"], "sweep", len(trials)) % 2**32
        sampler = TPESampler(seed=seed) if self.asked.sampler == "tpe" else RandomSampler(seed=seed)
        history = optuna.create_study(sampler=sampler, direction=self.asked.better())
        history.add_trials(trials)
        drawn = history.ask(self.space).params
        meant = {key: values for key, values in self.asked.space.items() if isinstance(values, list)}
        return {
            key: next(one for one in meant[key] if _told(one) == drawn[key]) if key in meant else drawn[key]
            for key in self.asked.space
        }

    @quiet()
    def prune(self, trial: optuna.trial.Trial, round: int, loss: float) -> bool:
        """Whether a trial's test loss has fallen behind those of others after as many rounds."""
        loss = loss if math.isfinite(loss) else math.inf
        trial.report(-loss if self.asked.best == "accuracy" else loss, round)
        return trial.should_prune()

    @quiet()
    def tell(self, trial: optuna.trial.Trial, result: Row) -> None:
        """What came of a trial; without a value it ranks last."""
        last = -math.inf if self.asked.best == "accuracy" else math.inf
        value = last if result["value"] is None else result["value"]
        trial.set_user_attr("result", result)
        state = {"failed": TrialState.FAIL, "pruned": TrialState.PRUNED}.get(result["status"], TrialState.COMPLETE)
        self.study.tell(trial, value if state == TrialState.COMPLETE else None, state)
        self.done += 1

    @quiet()
    def put_back(self) -> None:
        """Trials that were under way wait again."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._forget(trial._trial_id)
            self.storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    @quiet()
    def restart(self, trial: optuna.trial.Trial) -> optuna.trial.Trial:
        """A trial under way, as it was when it began."""
        self._forget(trial._trial_id)
        return optuna.trial.Trial(self.study, trial._trial_id)

    def _forget(self, one: int) -> None:
        """Remove what the pruner has seen of a trial, which would change its fate; Optuna itself never does."""
        with self.storage.engine.begin() as db:
            for rows in ("trial_intermediate_values", "trial_system_attributes"):
                db.execute(text(f"DELETE FROM {rows} WHERE trial_id = :one"), {"one": one})

    def close(self) -> None:
        """Let go of the file."""
        self.storage.engine.dispose()


def database(path: Path, *, new: bool) -> optuna.storages.RDBStorage:
    """A database; one that is new needs no check, which is slow, that this Optuna can read it."""
    patient: dict[str, Any] = {"connect_args": {"timeout": 60}}
    url = f"sqlite:///{path.resolve()}"
    return optuna.storages.RDBStorage(url, engine_kwargs=patient, skip_compatibility_check=new)


def _distribution(values: Any) -> BaseDistribution:
    if isinstance(values, list):
        return CategoricalDistribution([_told(value) for value in values])
    low, high, log = values["low"], values["high"], values["log"]
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def _told(value: Any) -> Any:
    """A value as Optuna takes it: tables and lists as text."""
    return toml(value) if isinstance(value, dict | list) else value


def _rung(asked: Asked) -> int:
    """The rounds after which a trial is first compared: a sixteenth of all, and it must be evaluated there."""
    run = asked.at(asked.first()).run
    return run.evaluate_every * max(run.rounds // 16 // run.evaluate_every, 1)
