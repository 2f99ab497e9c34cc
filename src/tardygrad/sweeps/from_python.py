"""Sweeps over runs that a function of your own makes, in the same store as those of the command line."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import numpy as np

from tardygrad.constructors import checked
from tardygrad.core.hierarchy import serve
from tardygrad.core.messages import as_vector
from tardygrad.core.method import Method, without_addresses
from tardygrad.core.task import sample_counts, start_vector
from tardygrad.engines.contract import perform
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Diverged, Invalid, Starved, WorkFailed, check_integer, shown
from tardygrad.runs.directions import Directions
from tardygrad.runs.record import Row
from tardygrad.runs.run import Run, begin
from tardygrad.runs.settings import Settings
from tardygrad.spec.toml import inline
from tardygrad.sweeps.config import Config, check_settings, check_values, corners, number_of_trials, with_goal
from tardygrad.sweeps.config import configure as configure_spec
from tardygrad.sweeps.trial import Source, Stop, score_run, start_scores
from tardygrad.sweeps.trials import MakeRun, Sweep, SweepResult, Trial, arguments, read

SOME_ROUNDS = (1, 2, 10, 100)
MOST_VALUES = 10_000  # of a key of the space, and of seeds

Space = Mapping[str, Any]
"""An argument's name to its values: a list, a range, or {"low": a, "high": b, "log": True}."""


class MadeRuns:
    """The runs of a sweep that a function makes.

    Args:
        seeds: of every trial.
        score: the test score that is stored as the accuracy.
    """

    def __init__(self, make_run: MakeRun, seeds: list[int], score: str = "accuracy") -> None:
        self.make_run, self.seeds, self.score = make_run, seeds, score
        self._known: tuple[Row, int, Run] | None = None  # a run that has ended already, with its settings and seed

    def make(self, params: Row, seed: int) -> Run:
        """Call the function, and check what it returns."""
        if self._known and self._known[:2] == (params, seed):
            return self._known[2]
        run = self.make_run(**arguments(params), seed=seed)
        if not isinstance(run, Run):
            rule = "the function must return a run, as from tg.begin(...) or tg.simulate(...)"
            raise Invalid(f"{rule}, got {type(run).__name__}.")
        if run.settings["seed"] != seed:
            got = run.settings["seed"]
            raise Invalid(f"the function must pass its argument `seed` on to the run, got {seed} and a run with {got}.")
        if not run.settings["evaluate_every"]:
            raise Invalid("runs are compared by their test scores, got one with evaluate_every=0. Use 10, for example.")
        if run.status not in ("new", "finished", "diverged", "starved"):
            raise Invalid(f"a run must be new or have ended, got one that is {run.status}.")
        return run

    def first_scores(self, points: Iterable[Row]) -> tuple[Row, Directions]:
        """The scores of x_0 in the first run that can be made, and which of them are good when they are low.

        A run that has ended is kept for its trial.
        """
        for params in points:
            try:
                run = self.make(params, self.seeds[0])
            except (Diverged, Starved):
                continue
            if run.status != "new":
                self._known = params, self.seeds[0], run
            return start_scores(run.task, self.seeds[0]), Directions.of(run.settings)
        raise Invalid("every run of the space diverges or starves. Use smaller rates, or clip.")

    def run_seed(self, config: Config, params: Row, number: int, stop: Stop) -> Row:
        """Run a point with one of its seeds and return what to store of it, with `facts` about what it ran on."""
        seed = params.get("seed", self.seeds[number])  # a point of a comparison has a seed
        try:
            run = self.make({key: value for key, value in params.items() if key != "seed"}, seed)
        except (Diverged, Starved) as error:  # in a function that runs to the end
            return _ended(seed, error)
        start = start_scores(run.task, seed)
        facts = _facts(run, start)  # before the budget changes the settings of the run
        return score_run(run, start, score=self.score, budget=config.budget, stop=stop) | {"facts": facts}

    def check_stored(self, trials: Iterable[Trial], folder: Path) -> None:
        """Raise `Invalid` if the function makes other runs now than those that a folder has results of.

        Of a function that runs to the end, which would take as long as the results did, only one run is made again:
        the first, or in a comparison the first of each method.
        """
        ended = set[str | None]()
        for trial in trials:
            params = {key: value for key, value in trial.params.items() if key != "seed"}
            if not trial.seeds or params.get("method") in ended:
                continue
            seed, facts = trial.seeds[0]["seed"], trial.seeds[0]["facts"]
            was = facts.get("settings", {}) | facts.get("computed", {})
            now: Row = {}
            with suppress(Diverged, Starved), torch_threads(1):  # as in the processes of a sweep
                run = self.make(params, seed)
                now = _settings(run, start_scores(run.task, seed)) | _computed(run)
            if not now or run.status != "new":
                ended.add(params.get("method"))
            for key in dict.fromkeys([*now, *was]):
                if now.get(key) != was.get(key):
                    which = f"`{key}` of trial {trial.number} is {was.get(key)} there, got {now.get(key)}"
                    raise Invalid(f"{str(folder)!r} has results of other runs: {which}. Choose another folder.")


def _facts(run: Run, start: Row) -> Row:
    """What a run ran on: its clock, whether its fleet is random, and its settings."""
    return {
        "simulated": run.pool.virtual_clock,
        "random_fleet": (run.spec_json or {}).get("random_fleet"),
        "settings": _settings(run, start),
        "computed": _computed(run),
    }


def _settings(run: Run, start: Row) -> dict[str, str]:
    """What a run was made of, by key, and the scores of x_0, which tell objects apart that look alike."""
    recorded = run.spec_json or {}
    tables = recorded.get("spec") or recorded.get("described") or {}
    keys = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    for key in ("run.seed", "run.threads"):
        keys.pop(key, None)
    keys["the score of x_0"] = {name: f"{value:.6g}" for name, value in start.items()}
    return {key: _written(value) for key, value in keys.items()}


def _computed(run: Run) -> dict[str, str]:
    """What a run computes at its beginning, which tells functions and data apart that look alike."""
    found = {"rates, clips and weights in some rounds": _rules(run.server.method), "first update": _first_update(run)}
    return {key: _written(value) for key, value in found.items()}


def _rules(method: Method) -> str:
    """The numbers of a method's steps and weights, which may be functions without a name."""
    functions = (method.inner.form, method.outer.form, method.weight_of)
    return repr([[_value_at(function, number) for function in functions] for number in SOME_ROUNDS])


def _value_at(function: Callable[[int], Any], number: int) -> Any:
    try:
        return function(number)
    except Exception as error:  # a schedule of the user's own may end before this round
        return type(error).__name__


def _first_update(run: Run) -> dict[str, str]:
    """What the first job of a run gives: its data, its loss and all that decides on its steps."""
    if not run.pool.opens_data:
        return {}
    method, task, seed = run.server.method, run.task, run.settings["seed"]
    server = serve(
        method, start_vector(task, seed), clients=task.clients, seed=seed, module_buffers=task.init_module_buffers(),
        samples=sample_counts(task, method.weight_by),
    )  # fmt: skip
    jobs = server.dispatch(run.pool.asleep)
    if not jobs:
        return {}
    try:
        update = perform(jobs[0], task, method)
    except WorkFailed:  # the run will say it
        return {}
    numbers = {"loss": float(update.loss), "norm": float(as_vector(update.delta).norm()), "steps": update.steps}
    return {name: f"{value:.5g}" for name, value in numbers.items()}


def _written(value: Any) -> str:
    """A setting as text of limited length, which tells different settings apart."""
    text = without_addresses(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 60 else f"{text[:50]}… ({crc32(text.encode()):08x})"


def _ended(seed: int, error: Diverged | Starved) -> Row:
    """What to store of a run that diverged or starved inside the function."""
    status = {"seed": seed, "status": type(error).__name__.lower(), "reason": str(error)}
    nothing = dict.fromkeys(("accuracy", "loss", "to_target"), None)
    zero = dict.fromkeys(("time", "clipped", "local_clipped", "seconds"), 0.0)
    empty: Row = {"scores": {}, "facts": {}, "curve": []}
    return {**status, **nothing, **zero, **empty, "start": {}, "rounds": 0}


@checked
def sweep(
    make_run: MakeRun | str | Path,
    space: Space,
    *,
    seeds: int | Sequence[int] = 1,
    budget: float | None = None,
    target: float | None = None,
    sampler: str | None = None,
    trials: int | None = None,
    best: str | None = None,
    workable: float = 0.9,
    jobs: int = 1,
    out: str | Path | None = None,
) -> SweepResult:
    """Run a function of your own, or a spec, with many settings, and find the best ones.

    Each trial calls `make_run(seed=…, **settings)`, with settings of the space, for every seed. It returns a run: from
    `tg.begin(method, task, fleet, …)`, which the sweep runs and can end early, or from `tg.simulate(…)`. Ctrl-C ends
    the sweep; the same call with the same `out` continues it.

    Args:
        make_run: the function; it must pass `seed` on to the run. Or a spec: a file, or the name of one that comes with
            tardygrad; then the space has its keys, such as "method.lr", and seeds are a number, from `run.seed`.
        space: for each argument a list of values or a range, or {"low": 0.001, "high": 1.0, "log": True}.
        seeds: how many, from 0, or which; a trial's numbers are means over them.
        budget: simulated seconds after which a run ends, with a last evaluation.
        target: a value of the test score: the best settings reach it in the least simulated time.
        sampler: "grid", "random" or "tpe"; by default tpe if the space has a low and a high, else grid.
        trials: number of points that random and tpe draw; 64 by default.
        best: the test score to optimize; by default accuracy if the task has one, else loss. Of scores with names that
            do not say it, runs say whether low values are good: `lower_is_better`.
        workable: a trial is workable if it covers this share of the way from x_0's score to the best one.
        jobs: processes; 0 is one for every core.
        out: the folder of the sweep, for `tardygrad report` and to continue it; None stores nothing.
    """
    how: Row = {"budget": budget, "target": target, "trials": trials, "best": best, "workable": workable}
    if isinstance(make_run, str | Path):
        return _sweep_spec(make_run, space, seeds, sampler, how, jobs=jobs, out=out)
    config, source = configure(make_run, space, seed_list(seeds), sampler=sampler, **how)
    return SweepResult(run_made(config, source, jobs=jobs, out=out), make_run, source.seeds)


def _sweep_spec(
    spec: str | Path, space: Space, seeds: Any, sampler: Any, how: Row, *, jobs: int, out: str | Path | None
) -> SweepResult:
    if not isinstance(seeds, int):
        raise Invalid(f"the seeds of a spec are a number of them, from its run.seed, got {seeds!r}. Use seeds=5.")
    values = _values(space)
    if how["target"] is not None:
        how = how | {"best": "time"}
    over = [f"{key}={inline(each)}" for key, each in values.items()]
    how |= {"sampler": sampler or _sampler(values), "seeds": seeds, "paper": False}
    config, tasks = configure_spec(spec, over=over, **how)

    def make_run(*, seed: int, **params: Any) -> Run:
        point = config.at(params)
        built = point.build(tasks.task(point))
        settings: Settings = {**point.run.settings(), "seed": seed}
        return begin(built.method, built.task, built.pool(), **settings)

    first = config.spec["run"]["seed"]
    return SweepResult(run_made(config, tasks, jobs=jobs, out=out), make_run, list(range(first, first + seeds)))


def _values(space: Space) -> dict[str, Any]:
    """The values of a space as JSON can hold them."""
    if not isinstance(space, Mapping) or not space:
        raise Invalid(f'`space` must be a dict such as {{"lr": [0.1, 1.0]}}, got {shown(space)}.')
    return {key: dict(each) if isinstance(each, Mapping) else _listed(key, each) for key, each in space.items()}


def _sampler(values: Mapping[str, Any]) -> str:
    return "tpe" if any(isinstance(each, dict) for each in values.values()) else "grid"


def configure(
    make_run: MakeRun,
    space: Space,
    seeds: list[int],
    *,
    budget: float | None,
    target: float | None,
    sampler: Any,
    trials: int | None,
    best: Any,
    workable: float,
) -> tuple[Config, MadeRuns]:
    """Check the settings of a sweep and make its first run; the arguments are those of `sweep`."""
    listed = _values(space)
    sampler = sampler or _sampler(listed)
    if target is not None and best is not None:
        raise Invalid(f"with a target, the best settings are those that reach it first, got best={best!r} too.")
    check_settings(sampler, "time" if target is not None else best, budget, target, workable)
    stored: dict[str, Any] = {key: check_values(key, values, sampler) for key, values in listed.items()}
    function = make_run.func if isinstance(make_run, functools.partial) else make_run
    name = getattr(function, "__name__", "make_run")
    if not callable(make_run):
        raise Invalid(f"a sweep needs a function that makes a run, got {make_run!r}.")
    if "seed" in stored:
        raise Invalid("`seed` is not a setting to sweep. Use seeds=5, for example.")
    check_call(make_run, "the sweep", name, list(stored))
    config = Config(
        name=name, factory=name, spec={"run": {"seed": seeds[0], "seeds": seeds, "threads": 1}}, space=stored,
        sampler=sampler, trials=number_of_trials(stored, sampler, trials), seeds=len(seeds), best="loss", score="loss",
        target=target, budget=budget, prune=False, workable=workable,
    )  # fmt: skip
    source = MadeRuns(make_run, seeds)
    scores, directions = source.first_scores(config.grid() if sampler == "grid" else corners(config))
    config = with_goal(config, best, scores, directions)
    source.score = "accuracy" if config.score == "loss" else config.score
    return config, source


def run_made(config: Config, source: Source, *, jobs: int, out: str | Path | None, what: str = "trial") -> Sweep:
    """Run every trial that the folder `out` has no result of.

    Args:
        what: to call a trial.
    """
    from tardygrad.sweeps.runner import check_same, run_sweep

    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "sweep" if out is None else Path(out)
        check_same(folder, config)
        if isinstance(source, MadeRuns) and (folder / "sweep.json").exists():
            source.check_stored(read(folder).trials, folder)
        found, signal = run_sweep(config, source, folder, jobs=jobs, what=what)
    if signal is not None:
        fix = "Nothing is stored without out=..." if out is None else "The same call continues"
        raise KeyboardInterrupt(f"stopped after {len(found.trials)} of {config.trials} {what}s. {fix}.")
    if all(trial.status == "failed" for trial in found.trials):
        raise WorkFailed(f"every {what} failed, the first with: {found.trials[0].reason}")
    return found


def seed_list(seeds: int | Sequence[int]) -> list[int]:
    """The seeds that an argument `seeds` means."""
    if isinstance(seeds, int):
        check_integer("seeds", seeds, most=MOST_VALUES)
        return list(range(seeds))
    given = _first(seeds, "`seeds`") if isinstance(seeds, Iterable) and not isinstance(seeds, str) else []
    if not given or len(set(given)) < len(given):
        raise Invalid(f"`seeds` must be a number, or one or more different seeds, got {seeds!r}.")
    for seed in given:
        check_integer("seeds", seed, 0, math.inf)
    return given


def _listed(key: str, values: Any) -> list[Any]:
    """The values of a key as a list that JSON can hold."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        fix = f'Use "{key}": [{shown(values)}], or pass it to the function yourself.'
        raise Invalid(f"`{key}` needs a list, a range, or a dict with low and high, got {shown(values)}. {fix}")
    plain = [value.item() if isinstance(value, np.generic) else value for value in _first(values, f"`{key}`")]
    for value in plain:
        if not isinstance(value, str | int | float | list | dict | None):
            rule = f"the values of `{key}` must be numbers, text, lists or dicts, which a file can hold"
            raise Invalid(f"{rule}, got {type(value).__name__}. Use names, and look them up in the function.")
    return plain


def _first(values: Iterable[Any], name: str) -> list[Any]:
    """The values as a list; raise `Invalid` if there are too many, or no end of them."""
    found = list(islice(values, MOST_VALUES + 1))
    if len(found) > MOST_VALUES:
        fix = 'For a space, use {"low": ..., "high": ...} with a sampler.'
        raise Invalid(f"{name} must have at most {MOST_VALUES:,} values, got more. {fix}")
    return found


def check_call(make_run: MakeRun, caller: str, name: str, keys: list[str]) -> None:
    """Raise `Invalid` if a function cannot be called with these settings and a seed."""
    try:
        inspect.signature(make_run).bind(**dict.fromkeys([*keys, "seed"]))
    except TypeError as error:
        call = f"{name}({', '.join(f'{key}=...' for key in (*keys, 'seed'))})"
        raise Invalid(f"{caller} calls {call}, but: {error}.") from error
    except ValueError:  # no signature that Python can read
        return
