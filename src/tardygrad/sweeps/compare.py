"""Compare methods over the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tardygrad.constructors import checked
from tardygrad.core.method import Method, without_addresses
from tardygrad.core.task import Task
from tardygrad.errors import Invalid, WorkFailed, check_number, is_number
from tardygrad.fleet import Fleet
from tardygrad.results.comparison import Comparison, Contender, SeedResult, first_time
from tardygrad.runs.directions import Directions
from tardygrad.runs.record import Row, make_directory, read_json, reading_record, require_new, write_json
from tardygrad.runs.run import Run, begin
from tardygrad.sweeps.config import Config, check_target
from tardygrad.sweeps.from_python import MadeRuns, check_call, run_made, seed_list
from tardygrad.sweeps.trials import Sweep, SweepResult, Trial, read

METHOD = "method"  # the key of the methods' names in the space; the other one is `seed`
FILE = "comparison.json"  # what to show of the runs, besides `sweep.json` and the study


@checked
def compare(
    contenders: Mapping[str, Method | SweepResult | Callable[..., Run]],
    *,
    seeds: int | Sequence[int] = 5,
    target: float | None = None,
    reference: str | None = None,
    score: str | None = None,
    budget: float | None = None,
    confidence: float = 0.95,
    task: Task | None = None,
    fleet: Fleet | None = None,
    rounds: int | None = None,
    evaluate_every: int | None = None,
    lower_is_better: Sequence[str] = (),
    jobs: int = 1,
    out: str | Path | None = None,
) -> Comparison:
    """Run methods with the same seeds, so with the same arrivals job by job, and return a table of their results.

    The table has each method's final test score, mean ± confidence interval by Student's t; its difference from the
    reference, paired by seed, with the p-value of a paired t-test, adjusted by Holm's method for the number of methods;
    the simulated time to the target, with the same statistics; and for results of `tg.sweep` the share of workable
    settings.

    Args:
        contenders: by name, a method, to be simulated; a result of `tg.sweep`, whose best settings run; or a function
            `make_run(seed=…)`, which returns a run.
        seeds: how many, from 0, or which; use others than for tuning.
        target: a test score; its time is that of the first evaluation that reaches it.
        reference: the name of the method that the others are compared with; by default the first.
        score: the test score to compare; by default accuracy if the task has one, else loss, else the first.
        budget: simulated seconds after which every run ends, with a last evaluation.
        confidence: of the intervals.
        task, fleet, rounds, evaluate_every: of the runs of methods; as for `tg.simulate`.
        lower_is_better: scores of which a low value is good, if their names and the runs do not say it.
        jobs: processes; 0 is one for every core.
        out: a folder for the results, for `tardygrad report` and to continue a comparison; None stores nothing.
    """
    from tardygrad.sweeps.runner import check_same  # Optuna is slow to import

    numbers = seed_list(seeds)
    given = {"rounds": rounds, "until": budget, "evaluate_every": evaluate_every}
    settings = {name: value for name, value in given.items() if value is not None}
    functions = _functions(contenders, task, fleet, settings)
    reference = next(iter(functions)) if reference is None else reference
    if reference not in functions:
        raise Invalid(f"`reference` must be one of {', '.join(functions)}, got {reference!r}.")
    for name, value in {"budget": budget, "target": target}.items():
        if value is not None:
            check_number(name, value, -float("inf") if name == "target" else 0.0, above=True)
    if not (is_number(confidence) and 0 < confidence < 1):
        raise Invalid(f"`confidence` must be between 0 and 1, got {confidence!r}.")
    source = MadeRuns(lambda method, seed: functions[method](seed=seed), numbers)
    scores, directions = source.first_scores({METHOD: name} for name in functions)
    directions = Directions.of({"lower_is_better": list(lower_is_better)}, directions._asdict())
    score = score or directions.main(scores)
    if score is None:
        raise Invalid("`compare` needs a task with test scores, got one without any. Give it a test set.")
    if score not in scores:
        raise Invalid(f"`score` must be a test score of the task, one of {', '.join(scores)}, got {score!r}.")
    source.score = "accuracy" if score == "loss" else score
    higher = not directions.prefers_lower(score)
    if target is not None:
        check_target(target, score, scores[score], higher=higher)
    compared = settings | {"score": source.score} | _described(contenders, task, fleet)
    config = Config(
        name="compare", factory="compare",
        spec={"run": {"seed": numbers[0], "seeds": numbers, "threads": 1, "compared": compared}},
        space={METHOD: list(functions), "seed": numbers}, sampler="grid", trials=len(functions) * len(numbers), seeds=1,
        best=score, score=score, higher=higher, target=None, budget=budget, prune=False, workable=0.9,
    )  # fmt: skip
    tuned = {name: result for name, result in contenders.items() if isinstance(result, SweepResult)}
    view: Row = {
        "score": score, "higher": higher, "reference": reference, "target": target, "confidence": confidence,
        "workable": {name: result.workable for name, result in tuned.items()},
        "settings": {name: result.best for name, result in tuned.items()},
        "notes": [*_notes(tuned.values(), numbers), *filter(None, [directions.note(score)])],
    }  # fmt: skip
    if out is not None:
        check_same(Path(out), config)
        make_directory(require_new(Path(out)))
        write_json(Path(out) / FILE, view)
    found = run_made(config, source, jobs=jobs, out=out, what="run")
    for trial in found.trials:
        if trial.status == "failed":
            raise WorkFailed(
                f"the run of {trial.params[METHOD]!r} with seed {trial.params['seed']} failed: {trial.reason}"
            )
    return _comparison(found, view)


def is_comparison(folder: Path) -> bool:
    """Whether the sweep in a folder is a comparison."""
    return (folder / FILE).exists()


def read_comparison(folder: Path) -> Comparison:
    """A stored comparison, finished or not."""
    view, found = read_json(folder / FILE), read(folder)
    with reading_record(folder):
        return _comparison(found, view)


def _comparison(found: Sweep, view: Row) -> Comparison:
    """The comparison of the runs of a sweep over methods and seeds.

    Args:
        view: the content of the file `FILE`: what to show of the runs.
    """
    higher, trials = view["higher"], {(trial.params[METHOD], trial.params["seed"]): trial for trial in found.trials}
    by_method = {
        name: [
            _seed_result(seed, trials.get((name, seed)), view["score"], view["target"], higher)
            for seed in found.space["seed"]
        ]
        for name in found.space[METHOD]
    }
    workable, settings = dict(view["workable"]), dict(view["settings"])
    return Comparison(
        [Contender(name, runs, workable.get(name), settings.get(name, {})) for name, runs in by_method.items()],
        **{name: view[name] for name in ("score", "reference", "target", "confidence", "notes")},
        higher=higher,
    )


def _seed_result(seed: int, trial: Trial | None, score: str, target: float | None, higher: bool) -> SeedResult:
    """The result of a run from what is stored of it."""
    column = 2 if score == "loss" else 3
    if trial is None or not trial.seeds:  # not run yet, or failed
        return SeedResult(seed, trial.status if trial else "waiting", None, None, 0.0, [], {})
    (row,) = trial.seeds
    final = row["loss"] if score == "loss" else row["accuracy"]
    points = [(at[1], at[column]) for at in row["curve"] if at[column] is not None]
    reached = first_time(points, target, higher=higher)
    return SeedResult(row["seed"], row["status"], final, reached, row["time"], points, row["facts"])


def _described(contenders: Mapping[str, Any], task: Task | None, fleet: Fleet | None) -> Row:
    """What is compared, as far as it can be written down: a stored comparison continues only with the same."""
    objects = {name: contender for name, contender in contenders.items() if isinstance(contender, Method)}
    return {
        name: without_addresses(repr(component))
        for name, component in {**objects, "task": task, "fleet": fleet}.items()
    }


def _functions(
    contenders: Mapping[str, Any], task: Task | None, fleet: Fleet | None, settings: Row
) -> dict[str, Callable[..., Run]]:
    """The functions that make the runs."""
    if not isinstance(contenders, Mapping) or not contenders:
        raise Invalid(f'`compare` needs a dict of names and methods, such as {{"FedAvg": ...}}, got {contenders!r}.')
    for name in contenders:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise Invalid(f"the name of a method must be text on one line, got {name!r}.")
    found: dict[str, Callable[..., Run]] = {}
    for name, contender in contenders.items():
        if isinstance(contender, Method):
            if task is None or fleet is None:
                raise Invalid(f"`compare` needs task=... and fleet=... to run the method {name!r}.")
            found[name] = partial(begin, contender, task, fleet, **settings)
        elif isinstance(contender, SweepResult):
            contender.best  # noqa: B018 (raises `Invalid` if it has none)
            found[name] = contender.run
        elif callable(contender):
            check_call(contender, "the comparison", name, [])
            found[name] = contender
        else:
            rule = "a contender must be a method, a result of tg.sweep or a function that makes a run"
            raise Invalid(f"{rule}, got {contender!r} for {name!r}.")
    for name in {"rounds", "evaluate_every"} & settings.keys():
        if not any(isinstance(contender, Method) for contender in contenders.values()):
            raise Invalid(f"`{name}` is a setting for methods, got only functions and sweeps, which set it themselves.")
    return found


def _notes(tuned: Iterable[SweepResult], seeds: list[int]) -> list[str]:
    """A warning if methods were tuned with the seeds that they are compared with."""
    used = {seed for result in tuned for seed in result.seeds}
    both = sorted(used.intersection(seeds))
    if not both:
        return []
    fresh = max(used) + 1
    fix = f"use other seeds, such as seeds=range({fresh}, {fresh + len(seeds)})"
    which = f"seed {both[0]} was" if len(both) == 1 else f"seeds {', '.join(map(str, both))} were"
    return [f"{which} also used for tuning, which flatters tuned methods: {fix}"]
