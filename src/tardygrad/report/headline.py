"""The sentence that a report opens with: the result, and how far it can be trusted."""

from __future__ import annotations

from tardygrad.report.comparison import ComparedRuns, Outcome, Target, listed, score_text
from tardygrad.report.groups import seconds_of, tasks
from tardygrad.report.loader import RunView
from tardygrad.results.statistics import ALL_EQUAL
from tardygrad.runs.history import UNFINISHED
from tardygrad.runs.record_values import printable, rounded
from tardygrad.runs.run import plural
from tardygrad.sweeps import Sweep, groups
from tardygrad.sweeps.trials import best_of


def headline(compared: ComparedRuns) -> str:
    """The result of a comparison in one sentence."""
    runs = [run for group in compared.groups for run in group.runs]
    if len(runs) == 1:
        return _single(runs[0])
    if len(learned := tasks(compared.groups)) > 1:
        return f"{len(runs)} runs on different tasks ({listed(learned)}), whose scores cannot be compared."
    target = compared.target
    if target is None:
        return f"{len(runs)} runs of which none has a test score yet."
    so_far = "" if all(run.history.ended for run in runs) else "So far: "
    sound = [outcome for outcome in compared.outcomes if target.name in outcome.scores]
    if not sound:
        return f"{so_far}no method has a test {target.name} in all its runs."
    if len(compared.groups) == 1:
        return f"{so_far}{_without_rivals(compared, sound[0], target)}."
    best = (min if target.lower else max)(sound, key=lambda each: each.scores[target.name].mean)
    score = score_text(best, target.name).removesuffix(ALL_EQUAL)
    first = f"{best.group.name} ends with the best test {target.name}, {score}"
    return f"{so_far}{first}{_tied(best, sound, target)}{_fastest(compared, best, target)}; {_seeds(compared)}."


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


def _without_rivals(compared: ComparedRuns, outcome: Outcome, target: Target) -> str:
    """The result of a method that is compared with no other."""
    time = f" after {outcome.time.text().removesuffix(ALL_EQUAL)} {compared.seconds}" if outcome.time else ""
    score = f"ends with a test {target.name} of {score_text(outcome, target.name).removesuffix(ALL_EQUAL)}{time}"
    return f"{outcome.group.name} {score}; {_seeds(compared)}, and no other method to compare it with"


def _tied(best: Outcome, sound: list[Outcome], target: Target) -> str:
    """Who is as good as the best, or so close that seeds may explain it."""
    own, equal, close = best.scores[target.name], list[str](), list[str]()
    for other in sound:
        score = other.scores[target.name]
        if other is not best and score.mean == own.mean:
            equal.append(other.group.name)
        elif other is not best and abs(score.mean - own.mean) <= max(score.deviation or 0, own.deviation or 0):
            close.append(other.group.name)
    notes = [f"{listed(equal)} {'has' if len(equal) == 1 else 'have'} the same"] if equal else []
    notes += [f"{listed(close)} {'is' if len(close) == 1 else 'are'} within one standard deviation"] if close else []
    return f" ({', '.join(notes)})" if notes else ""


def _fastest(compared: ComparedRuns, best: Outcome, target: Target) -> str:
    """Who reached the target first, and how much sooner than the baseline."""
    if len({run.history.simulated for group in compared.groups for run in group.runs}) > 1:
        return "; times are not compared because the clocks differ"
    reached = [(outcome.reached, outcome) for outcome in compared.outcomes if outcome.reached is not None]
    if not reached:
        return f"; no method reached {target.text} in all its runs"
    base = next(outcome for outcome in compared.outcomes if outcome.group is compared.base)
    least = min(time for time, _ in reached)
    firsts = [outcome for time, outcome in reached if time == least]
    first = firsts[0]
    assert first.time_to_target is not None
    names = listed([outcome.group.name for outcome in firsts])
    who = ", and is" if firsts == [best] else f"; {names} {'is' if len(firsts) == 1 else 'are'}"
    whole = " in all runs" * any(len(group.runs) > 1 for group in compared.groups)
    rank = f"the first to reach {target.text}" if len(reached) > 1 else f"the only one to reach {target.text}{whole}"
    sentence = f"{who} {rank}, after {first.time_to_target.text().removesuffix(ALL_EQUAL)} {compared.seconds}"
    sync = "" if any(group.synchronous for group in compared.groups) else " (no run is synchronous)"
    if base in firsts:
        return f"{sentence}{sync}"
    if base.reached is not None and first.speedup is not None:
        other = f"{base.group.name} ({rounded(base.reached)} s)"
        return f"{sentence}, {first.speedup:.3g} times as fast as {other}{sync}"
    runs = base.group.runs
    if some := base.time_to_target and base.time_to_target.number:
        return f"{sentence}; {base.group.name} reached it in only {some} of {len(runs)} runs{sync}"
    longest = max(run.history.time for run in runs)
    return f"{sentence}; {base.group.name} did not reach it in {rounded(longest)} s{sync}"


def _seeds(compared: ComparedRuns) -> str:
    """How many seeds the result rests on."""
    counts = sorted({group.seeds for group in compared.groups})
    if counts[-1] == 1:
        return "one seed each, so small differences may be chance"
    return f"means over {counts[0]} seeds" if len(counts) == 1 else f"means over {counts[0]} to {counts[-1]} seeds"


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
