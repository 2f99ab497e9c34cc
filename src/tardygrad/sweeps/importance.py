"""How important each swept setting is, by Optuna's own measure."""

from __future__ import annotations

import math
from contextlib import suppress

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from tardygrad.sweeps.study import distribution, quiet, scalar
from tardygrad.sweeps.trials import Sweep

LEAST = 8  # trials with a value, below which nothing can be told


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
