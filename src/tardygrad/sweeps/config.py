"""The configuration of a sweep: a spec, the space of settings, the sampler, and what makes a trial the best."""

from __future__ import annotations

import copy
import math
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
import torch

from tardygrad.constructors import Table
from tardygrad.core.hierarchy import serve
from tardygrad.errors import Invalid, check_choice, check_integer, check_number, is_number, nearest, shown
from tardygrad.own_code import check_cluster, check_trust
from tardygrad.runs.directions import Directions
from tardygrad.runs.kinds import suggest_table
from tardygrad.runs.record import Row, read_json, reading_record
from tardygrad.runs.run import label
from tardygrad.spec.spec import Spec, load, override, parse
from tardygrad.spec.toml import inline
from tardygrad.sweeps.trial import TaskCache

Sampler = Literal["grid", "random", "tpe"]
Range = dict[Literal["low", "high", "log"], float | bool]

_RATES = [0.1, 0.01, 0.001, 0.0001]
_CLIPS = np.linspace(1e-4, 1.5, 4).tolist()
PAPER = {"method.lr": _RATES, "method.local_lr": _RATES, "method.clip": _CLIPS, "method.local_clip": _CLIPS}
"""The paper's grid: 64 points for SGDClip, 256 for Clip²."""

MAX_GRID_POINTS = 100_000  # points of a grid: all are checked before the first trial

_LABELLED = ("method.kind", "method.downplay", "method.compensate")  # part of the method's label


@dataclass(frozen=True, kw_only=True)
class Config:
    """A sweep, as in its `sweep.json`."""

    name: str
    spec: dict[str, Table]  # resolved; every point overrides some of its keys
    space: dict[str, list[Any] | Range]  # key of the spec to its values
    sampler: Sampler
    trials: int
    seeds: int  # per trial: run.seed, run.seed + 1, ...
    best: str  # a test score, or time
    score: str  # the test score of targets and `workable`
    target: float | None
    budget: float | None  # in simulated seconds
    prune: bool
    workable: float
    higher: bool = False  # whether a high value of the score is good
    source: str = ""  # the spec, as it was given, and its overrides
    changes: Sequence[str] = ()
    factory: str | None = None  # name of the function that makes the runs of a sweep in Python; None: the spec
    trust: bool = False  # whether to import the functions that it names; not in `sweep.json`

    def row(self) -> Row:
        """What `sweep.json` contains."""
        return {key: value for key, value in vars(self).items() if key != "trust"}

    def grid(self) -> Iterator[Row]:
        """Every point of the space; the last key varies fastest."""
        return (dict(zip(self.space, values, strict=True)) for values in product(*self.space.values()))

    def first(self) -> Row:
        """The first point of the space."""
        return {key: value["low"] if isinstance(value, dict) else value[0] for key, value in self.space.items()}

    def at(self, params: Row) -> Spec:
        """The spec of a point."""
        if self.factory:
            raise Invalid(f"the runs of a sweep in Python are made by `{self.factory}`, not by a spec.")
        tables = copy.deepcopy(self.spec)
        for text in overrides(params):
            override(tables, text)
        if not self.trust:
            check_cluster(tables, self.name)
        return parse(tables, self.name, trust=self.trust)

    def check_trust(self, where: str) -> None:
        """Raise `Invalid` if the spec of a sweep in a folder names code or a cluster, or a swept key names code."""
        kinds = [{"kind": kind} for key, values in self.space.items() if key.endswith(".kind") for kind in values]
        check_trust([self.spec, self.space, kinds], where)
        check_cluster(self.spec, where)

    def group(self, params: Row) -> str:
        """The label of a point's method, and the values of other swept keys that are not numeric."""
        words = [] if self.factory else [label(self.at(params).build_method())]
        for key, value in params.items():
            space = self.space[key]
            numeric = isinstance(space, dict) or all(_number(item) or item == "inf" for item in space)
            if not numeric and key not in (*PAPER, *_LABELLED) and (key, value) != ("method.mode", "sync"):
                words.append(value if isinstance(value, str) else f"{key}={inline(value)}")
        return ", ".join(words) or self.name

    def direction(self) -> Literal["maximize", "minimize"]:
        """Optuna's direction of the search."""
        return "maximize" if self.best == self.score and self.higher else "minimize"


def configure(
    source: str | Path,
    changes: Sequence[str] = (),
    *,
    over: Sequence[str] = (),
    sampler: Sampler = "grid",
    trials: int | None = None,
    seeds: int = 1,
    paper: bool = True,
    best: str | None = None,
    budget: float | None = None,
    target: float | None = None,
    prune: bool = False,
    workable: float = 0.9,
    trust: bool = False,
) -> tuple[Config, TaskCache]:
    """Check the settings of a sweep and build the task of its first point.

    Args:
        source: a spec, as for `tardygrad.spec.spec.load`.
        changes: overrides of the spec; a rate or threshold that is set here is not swept.
        over: keys to sweep, as `method.buffer=[4, 10]`, or for samplers also `method.lr={low=0.001, high=1, log=true}`;
            if no rate or threshold is among them, these take the paper's values in addition.
        paper: False: no key takes the paper's values in addition.
        trials: number of points that random and tpe draw; 64 by default.
        best: a test score; by default accuracy if the task has one, else loss; time needs a target.
        budget: simulated seconds after which a run ends, with a last evaluation.
        target: a value of the test score; a run that reaches it ends.
        prune: end runs early whose test loss falls behind (successive halving).
        workable: a trial is workable if it covers this share of the way from x_0's score to the best one.
        trust: whether to import code that a recorded run names.
    """
    check_integer("seeds", seeds)
    if prune and seeds > 1:
        raise Invalid(f"pruning needs one seed per trial, got {seeds}. Use --seeds 1, or leave out --prune.")
    check_settings(sampler, best, budget, target, workable)
    base = _base(source, changes, trust=trust)
    space = _space(base, changes, over, sampler, paper=paper)
    count = number_of_trials(space, sampler, trials)
    tables = base.resolved()
    if tables.get("fleet", {}).get("kind") == "paper" and "clients" in tables["task"]:
        del tables["fleet"]["clients"]  # those of [task], which may be swept
    given: Row = {"sampler": sampler, "trials": count, "seeds": seeds, "target": target, "budget": budget}
    given |= {"name": base.name, "spec": tables, "space": space, "prune": prune, "workable": workable}
    given |= {"source": str(source), "changes": list(changes)}
    given["trust"] = True  # the spec is the user's own, or `load` has checked
    config = Config(**given, best="loss", score="loss")
    for params in config.grid() if sampler == "grid" else corners(config):
        _check(config.at(params))
    tasks = build_task(config)
    scores = tasks.start(config.at(config.first()), base.run.seed)
    directions = Directions.for_task(tasks.task(config.at(config.first())), base.run.settings())
    return with_goal(config, best, scores, directions), tasks


def with_goal(config: Config, best: str | None, scores: Row, directions: Directions) -> Config:
    """A configuration with the score to optimize: the one that `best` names, or the task's main one.

    Args:
        scores: those of x_0.
    """
    score = directions.main(scores) if best in (None, "time") else best
    if score is None:
        raise Invalid("a sweep compares test scores, and this task has none. Give it a test set.")
    if score not in scores:
        raise Invalid(f"`best` must be a test score of the task, one of {', '.join(scores)}, or time, got {score!r}.")
    higher = not directions.prefers_lower(score)
    if config.target is not None:
        check_target(config.target, score, scores[score], higher=higher)
    return replace(config, best="time" if config.target is not None else score, score=score, higher=higher)


def _base(source: str | Path, changes: Sequence[str], *, trust: bool) -> Spec:
    """The spec with its overrides; a list for a key that takes none gets the --over that sweeps it."""
    try:
        return load(source, changes, trust=trust, starts=True)
    except Invalid as error:
        for text in changes:
            key, _, value = (part.strip() for part in text.partition("="))
            if value.startswith("[") and str(error).startswith(f"`{key}` must be"):
                raise Invalid(f"{error} To sweep it: {shlex.join(['--over', text])}") from error
        raise


def check_settings(
    sampler: Sampler, best: str | None, budget: float | None, target: float | None, workable: float
) -> None:
    """Raise `Invalid` if a setting of a sweep is wrong."""
    check_choice("sampler", sampler, Sampler)
    if not (is_number(workable) and 0 < workable <= 1):
        raise Invalid(f"`workable` must be above 0 and at most 1, got {workable!r}.")
    if budget is not None:
        check_number("budget", budget, above=True)
    if target is not None:
        check_number("target", target, -math.inf)
    if (best == "time") != (target is not None):
        raise Invalid(f"--best time and --target must be used together, got best={best} and target={target}.")


def number_of_trials(space: Row, sampler: Sampler, trials: int | None) -> int:
    """The points of a grid, or the trials that a sampler draws."""
    if sampler == "grid" and trials is not None:
        raise Invalid(f"a grid has as many trials as points, got {trials}. Use the sampler random or tpe.")
    count = math.prod(map(len, space.values())) if sampler == "grid" else 64 if trials is None else trials
    check_integer("trials", count)
    if sampler == "grid" and count > MAX_GRID_POINTS:
        raise Invalid(f"a grid must have at most {MAX_GRID_POINTS:,} points, got {count:,}. Use the sampler random.")
    return count


def check_target(target: float, score: str, start: float, *, higher: bool) -> None:
    """Raise `Invalid` for a target that is impossible or that x_0 already meets."""
    if score == "accuracy" and not 0 < target <= 1:
        fix = f" Did you mean {target / 100:g}?" if 1 < target <= 100 else ""
        raise Invalid(f"a target accuracy must be above 0 and at most 1, got {target!r}.{fix}")
    if start >= target if higher else start <= target:
        way = "higher" if higher else "lower"
        raise Invalid(f"x_0 already has a test {score} of {start:.4g}, got the target {target:g}. Use a {way} target.")


def saved_config(folder: Path, *, trust: bool = False) -> Config:
    """The configuration of the sweep in a folder, to continue it.

    Args:
        trust: whether to import the functions that it names.
    """
    row = read_json(folder / "sweep.json")
    with reading_record(folder):
        config = Config(**{key: value for key, value in row.items() if key != "versions"}, trust=trust)
        if config.factory:
            fix = f"Continue it there: tardygrad.sweep({config.factory}, ..., out={str(folder)!r})."
            raise Invalid(f"the sweep in {str(folder)!r} was started in Python. {fix}")
        if not trust:
            config.check_trust(str(folder))
        try:
            config.at(config.first())
        except Invalid as error:
            raise ValueError(f"spec: {str(error).rstrip('.')}") from error
    return config


def build_task(config: Config) -> TaskCache:
    """Build the task of the first point; it is the task of all points unless a key of [task] is swept."""
    tasks = TaskCache()
    device = getattr(tasks.task(config.at(config.first())), "device", torch.device("cpu"))
    if device.type != "cpu":
        raise Invalid(f"the processes of a sweep compute on CPUs, got a task on {device}.")
    return tasks


def overrides(params: Row) -> list[str]:
    """A point as overrides of the command line.

    >>> overrides({"method.lr": 0.1, "method.downplay": True, "fleet.stragglers": "mild"})
    ['method.lr=0.1', 'method.downplay=true', 'fleet.stragglers="mild"']
    """
    return [f"{key}={inline(value)}" for key, value in params.items()]


def command(sweep: Row, params: Row) -> list[str]:
    """The command that runs a point: that of the sweep with `run` for `sweep`, and the point as overrides.

    Args:
        sweep: the whole `sweep.json`.
    """
    return ["tardygrad", "run", sweep["source"], *sweep["changes"], *overrides(params)]


def _space(base: Spec, changes: Iterable[str], over: Iterable[str], sampler: Sampler, *, paper: bool) -> dict[str, Any]:
    """All swept keys: those of `over`; if no rate or threshold is among them, also the paper's grid of these."""
    fixed = {".".join(text.partition("=")[0].strip().split(".")[:2]) for text in changes}
    swept: dict[str, Any] = {}
    for text in over:
        key, values = _values(text, sampler)
        if key in swept:
            raise Invalid(f"a key can be swept only once, got `{key}` twice. Put all values in one list.")
        swept[key] = values
    for key in swept:
        if inner := [other for other in swept if other.startswith(f"{key}.")]:
            raise Invalid(f"a key and a key inside it cannot both be swept, got `{key}` and `{inner[0]}`.")
    here = [key for key in PAPER if key.removeprefix("method.") in base.method.arguments and key not in fixed]
    if base.method.arguments.get("local_lr", 1.0) is None:  # the task has a training loop of its own
        here = [key for key in here if key not in ("method.local_lr", "method.local_clip")]
    if not paper or any(f"{key}.".startswith(f"{rate}.") for key in swept for rate in PAPER):
        here = []
    rates = {key: swept.get(key, PAPER[key]) for key in PAPER if key in here or key in swept}
    return {key: values for key, values in swept.items() if key not in rates} | rates


def _values(text: str, sampler: Sampler) -> tuple[str, Any]:
    """The key and the values of an --over."""
    key, equals, given = (part.strip() for part in text.partition("="))
    rule = "--over must be TABLE.KEY=[VALUES] or, with random or tpe, TABLE.KEY={low=A, high=B, log=true}"
    try:
        values = tomllib.loads(f"value = {given}")["value"]
    except (ValueError, RecursionError):
        values = None
    if not equals or "." not in key or not isinstance(values, list | dict):
        fix = suggest_table(key, given) if equals and "." not in key else ""
        raise Invalid(f"{rule}; got {text!r}. {fix}".rstrip())
    if key in ("engine.workers", "run.threads", "run.checkpoint_every", "run.tail_every"):
        raise Invalid(f"`{key}` does not change results, so it cannot be swept. Leave it out.")
    return key, check_values(key, values, sampler)


def check_values(key: str, values: list[Any] | Row, sampler: Sampler) -> list[Any] | Row:
    """The values of a swept key as they are stored; raise `Invalid` if there are none, or two are the same."""
    if isinstance(values, dict):
        if sampler == "grid":
            raise Invalid(f"a grid needs lists, got a range for `{key}`. Use a list, or the sampler random or tpe.")
        return _range(key, values)
    values = ["inf" if value == math.inf else value for value in values]  # as in a spec's JSON
    differ = {value if isinstance(value, str | int | float) else (inline(value),) for value in values}
    if not values or len(differ) < len(values):
        raise Invalid(f"`{key}` needs one or more different values, got {shown(values)}.")
    return values


def _range(key: str, given: Row) -> Row:
    known = ("low", "high", "log")
    for name in given.keys() - set(known):
        raise Invalid(f"a range has low, high and log, got `{name}` for `{key}`.{nearest(name, known)}")
    low, high, log = given.get("low"), given.get("high"), given.get("log", False)
    if not (_number(low) and _number(high) and isinstance(log, bool)):
        raise Invalid(f"a range needs two finite numbers, low and high, got {shown(given)} for `{key}`.")
    if low >= high or (log and low <= 0):
        rule = "0 < low < high" if log else "low < high"
        raise Invalid(f"a range must have {rule}, got low={low} and high={high} for `{key}`.")
    return {"low": low, "high": high, "log": log}


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def corners(config: Config) -> Iterator[Row]:
    """The first point, then variations of it with every other listed value or the upper end of a range."""
    first = config.first()
    yield first
    for key, values in config.space.items():
        yield from (first | {key: value} for value in (values[1:] if isinstance(values, list) else [values["high"]]))


def _check(spec: Spec) -> None:
    """Raise `Invalid` for a point that no run could start with."""
    if spec.run.evaluate_every == 0:
        raise Invalid("a sweep compares test scores, got run.evaluate_every=0. Use 10, or leave it out.")
    if spec.run.track:
        raise Invalid("the trials of a sweep are not tracked. Add run.track=[] to sweep this spec.")
    if spec.engine.simulated and (workers := spec.engine.arguments["workers"]) != 1:
        raise Invalid(f"a sweep uses one process per trial, got engine.workers={workers}. Use --jobs {workers}.")
    if clients := spec.clients():
        serve(spec.build_method(), torch.zeros(1), clients=clients, seed=0)
