"""The sentence that a report opens with: the result, and how far it can be trusted."""

from __future__ import annotations

from tardygrad.report.groups import SeedGroup, score_names, seconds_of, tasks
from tardygrad.report.loader import RunView
from tardygrad.results.comparison import Comparison, listed
from tardygrad.runs.history import UNFINISHED
from tardygrad.runs.record_values import printable, rounded
from tardygrad.runs.run import plural
from tardygrad.sweeps import Sweep, groups
from tardygrad.sweeps.trials import best_of


def headline(groups: list[SeedGroup], compared: Comparison) -> str:
    """The result of runs in one sentence."""
    runs = [run for group in groups for run in group.runs]
    if len(runs) == 1:
        return _single(runs[0])
    if len(learned := tasks(groups)) > 1:
        return f"{len(runs)} runs on different tasks ({listed(learned)}), whose scores cannot be compared."
    if not score_names(groups):
        return f"{len(runs)} runs of which none has a test score yet."
    so_far = "" if all(run.history.ended for run in runs) else "So far: "
    rivals = " (no run is synchronous)" if len(groups) > 1 and not any(group.synchronous for group in groups) else ""
    return f"{so_far}{printable(compared.result(), 600)}{rivals}."


def _single(run: RunView) -> str:
    """The result of a single run."""
    history, rounds = run.history, len(run.history.rounds)
    wanted = f" of {history.requested:,}" if history.requested and history.status != "finished" else ""
    when = (
        f"after {rounds:,}{wanted} {'round' if rounds == 1 else 'rounds'}, {rounded(history.time)} {seconds_of([run])}"
    )
    score = _last_score(run)
    rest = "a single run, so there is nothing to compare it with"
    if history.status == "finished":
        what = f"ends with a test {score}" if score else "ends without a test score"
        return f"{history.label} {what} {when}; {rest}."
    verbs = {"running": "is running", "killed": "was killed", UNFINISHED: "has not ended"}
    status = verbs.get(history.state, history.state)
    what = f"the last evaluation found a test {score}" if score else "it has no test score yet"
    return f"{history.label} {status} {when}; {what}."


def _last_score(run: RunView) -> str | None:
    """The first score of the last evaluation: "accuracy of 95.1%", for example."""
    if not run.scores.items:
        return None
    scores = {name: value for name, value in run.scores.items[-1]["scores"].items() if value is not None}
    name = run.history.directions.main(scores)
    if name is None:
        return None
    return f"{name} of {scores[name]:.1%}" if name == "accuracy" else f"{name} of {scores[name]:.4g}"


def sweep_headline(sweep: Sweep) -> str:
    """The result of a sweep in one sentence."""
    done, best = len(sweep.trials), best_of(sweep)
    trials = plural(sweep.total, "trial") if done == sweep.total else f"{done} of {plural(sweep.total, 'trial')} so far"
    if best is None or best.value is None:
        return f"{trials}, none with a {printable(sweep.goal)}."
    value = f"{best.value:.1%}" if sweep.best == "accuracy" else f"{best.value:.4g}"
    counted = [group for group in groups(sweep) if group.share is not None]
    share = f"; {sum(g.workable for g in counted)} of {sum(g.judged for g in counted)} are workable" if counted else ""
    several = len({trial.group for trial in sweep.trials}) > 1
    which = f"Trial {best.number}{f' ({printable(best.group)})' * several}"
    return f"{which} is the best of {trials}, with a {printable(sweep.goal)} of {value}{share}."
