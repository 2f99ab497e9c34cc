"""The study of a sweep: Optuna's journal of the trials that have ended, and a study in memory that draws and prunes.

A trial enters the journal when it has ended, whole, so each counts exactly once whatever dies: what was under way is
run again from its start. Points have numbers: of a grid the place in it, of a sampler the order in which they are
drawn, each by a sampler whose seed is the number's own and whose history is the trials so far.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from tardygrad import streams
from tardygrad.errors import Invalid, RecordError
from tardygrad.runs.record import Row
from tardygrad.sweeps.config import Config
from tardygrad.sweeps.trials import Sweep

Space = Mapping[str, BaseDistribution]
"""A setting's name to its range."""

Direction = Literal["maximize", "minimize"]

FILE = "study.jsonl"
NAME = "sweep"  # of the study in the journal
LEAST = 8  # trials with a value, below which nothing can be told of importances


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's messages."""
    log = logging.getLogger("optuna")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


class Study:
    """The trials of a sweep: waiting, under way, or ended. Only the process that has locked the folder may have one."""

    @quiet()
    def __init__(self, folder: Path, config: Config) -> None:
        self.config, self.space = config, {key: distribution(values) for key, values in config.space.items()}
        path, direction = folder / FILE, config.direction()
        _repair(path)
        if _is_begun(path):
            self._journal = _load(path)
        else:
            self._journal = optuna.create_study(study_name=NAME, storage=_storage(path), direction=direction)
        ended = sorted(self._journal.get_trials(deepcopy=False), key=_number)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=_rung(config)) if config.prune else None
        self._live = optuna.create_study(direction=direction, pruner=pruner or optuna.pruners.NopPruner())
        self._live.add_trials(ended)
        self._verdicts: dict[tuple[int, int], bool] = {}  # point and round → whether the pruner ended it there
        self._begun = {_number(trial) for trial in ended}
        self._waiting = (
            (number, params) for number, params in self._points() if number not in self._begun
        )  # of a sampler endless
        self.done = len(ended)

    def _points(self) -> Iterator[tuple[int, Row]]:
        """The points by their numbers; those of samplers are drawn when they are taken."""
        if self.config.sampler == "grid":
            yield from enumerate(self.config.grid())
            return
        for number in range(self.config.trials):
            yield number, {} if number in self._begun else self._draw(number)

    @quiet()
    def next(self) -> optuna.trial.Trial | None:
        """Begin the next trial; None if there is none left."""
        if (point := next(self._waiting, None)) is None:
            return None
        number, params = point
        try:
            group = self.config.group(params)
        except Invalid:  # a bad combination drawn by a sampler; the trial will fail with the reason
            group = "refused"
        self._live.add_trial(
            create_trial(
                state=TrialState.WAITING,
                params={key: scalar(value) for key, value in params.items()},
                distributions=self.space,
                user_attrs={"number": number, "params": params, "group": group},
            )
        )
        return self._live.ask()

    def _draw(self, number: int) -> Row:
        """Draw a point, as a function of the seed, its number and the trials so far."""
        seed = streams.key(self.config.spec["run"]["seed"], "sweep", number) % 2**32
        sampler = TPESampler(seed=seed) if self.config.sampler == "tpe" else RandomSampler(seed=seed)
        drawn = draw(self.space, self._live.get_trials(deepcopy=False), sampler, self.config.direction())
        lists = {key: values for key, values in self.config.space.items() if isinstance(values, list)}
        return {
            key: next(item for item in lists[key] if scalar(item) == drawn[key]) if key in lists else drawn[key]
            for key in self.config.space
        }

    @quiet()
    def prune(self, trial: optuna.trial.Trial, round: int, cost: float) -> bool:
        """Whether a trial has fallen behind other trials after the same number of rounds, in the loss if there is one.

        A trial that is run again because its process died gets the answers it had.

        Args:
            cost: the test loss, or a number of which less is better.
        """
        place = trial.number, round
        if place not in self._verdicts:
            cost = cost if math.isfinite(cost) else math.inf
            trial.report(-cost if self.config.direction() == "maximize" else cost, round)
            self._verdicts[place] = trial.should_prune()
        return self._verdicts[place]

    @quiet()
    def tell(self, trial: optuna.trial.Trial, result: Row) -> None:
        """Store the result of a trial; without a value it ranks last."""
        last = -math.inf if self.config.direction() == "maximize" else math.inf
        value = last if result["value"] is None else result["value"]
        trial.set_user_attr("result", result)
        state = {"failed": TrialState.FAIL, "pruned": TrialState.PRUNED}.get(result["status"], TrialState.COMPLETE)
        ended = self._live.tell(trial, value if state == TrialState.COMPLETE else None, state)
        try:
            self._journal.add_trial(ended)
        except OSError as error:
            raise RecordError(
                f"cannot write the study of the sweep: {error}. Free some space, then continue."
            ) from error
        self.done += 1


def ended_trials(folder: Path) -> list[FrozenTrial]:
    """The trials of a sweep that have ended, by their numbers; also of one that is running."""
    if (folder / "study.db").exists():
        raise Invalid(f"the sweep in {str(folder)!r} is of an earlier version. Run it again in another folder.")
    if not _is_begun(folder / FILE):
        return []
    with quiet():
        return sorted(_load(folder / FILE).get_trials(deepcopy=False), key=_number)


def _is_begun(path: Path) -> bool:
    """Whether a journal has its first line, which creates the study; the process that writes it may do so just now."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return file.readline().endswith(b"\n")


def _load(path: Path) -> optuna.Study:
    try:
        return optuna.load_study(study_name=NAME, storage=_storage(path))
    except (KeyError, ValueError) as error:
        fix = "Restore it from a copy, or start the sweep again in another folder."
        raise RecordError(f"the study in {str(path)!r} is damaged ({error}). {fix}") from error


def _number(trial: FrozenTrial) -> int:
    return int(trial.user_attrs["number"])


def _storage(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))


def _repair(path: Path) -> None:
    """Remove what a killed process left of a journal: half of a last line, and Optuna's own lock."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.exists():
        with path.open("r+b") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)


def draw(space: Space, trials: Sequence[FrozenTrial], sampler: BaseSampler, direction: Direction) -> Row:
    """The point that a sampler draws after these trials."""
    history = optuna.create_study(sampler=sampler, direction=direction)
    history.add_trials(trials)
    return history.ask(dict(space)).params


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


@quiet()
def importances(sweep: Sweep) -> dict[str, float]:
    """The share of the variance of the values that each setting explains (functional ANOVA), the largest first.

    Trials without a value, such as those that diverged, are left out. Empty if fewer than `LEAST` remain, if all have
    the same value, or if fewer than two settings vary.
    """
    space = {key: distribution(values) for key, values in sweep.space.items()}
    study = optuna.create_study()
    for trial in sweep.trials:
        if trial.value is not None and math.isfinite(trial.value):
            params = {key: scalar(trial.params[key]) for key in space if key in trial.params}
            known = {key: space[key] for key in params}
            with suppress(ValueError):  # a value outside the space, in a record that was changed
                study.add_trial(create_trial(params=params, distributions=known, value=trial.value))
    trials = study.get_trials(deepcopy=False)
    varying = [key for key in space if len({trial.params.get(key) for trial in trials}) > 1]
    if len(trials) < LEAST or len(varying) < 2 or len({trial.value for trial in trials}) < 2:
        return {}
    return dict(get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0), params=varying))
