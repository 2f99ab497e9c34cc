"""The summary of a run's results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tardygrad.runs.events import ClientEvaluation
from tardygrad.runs.record import Row

if TYPE_CHECKING:
    from tardygrad.runs.run import Run


Spread = dict[str, float]
"""A score over the clients: `mean`, `deviation`, and `worst_tenth`, the mean of the worst tenth of the clients."""


class Summary(NamedTuple):
    """The results of a run."""

    method: str
    status: str  # finished, stopped, starved, diverged, ...
    reason: str | None  # why it starved, diverged or failed
    rounds: int
    time: float  # seconds of the engine's clock
    score_round: int | None  # the last round that was evaluated; loss, accuracy and scores are its
    loss: float | None  # on the test set
    accuracy: float | None
    best_accuracy: float | None
    scores: dict[str, float | None]  # other scores of the task, such as f1 or pearson
    delay_mean: float
    delay_max: int
    updates: int
    refused: dict[str, int]
    lost: int
    local_steps: int
    snapshots: int  # largest number of past models held at once
    seconds: float  # of computing
    clients: dict[str, Spread] | None = None  # scores on each client's own data, in the last such evaluation
    clients_on: str | None = None  # "test" or "training": which rows of the clients those are

    def __str__(self) -> str:
        lines = [self.method, f"{self.status} after {plural(self.rounds, 'round')}, {self.time:g} s on the clock"]
        lines += [self.reason] if self.reason else []
        loss = "not finite" if self.loss is None else f"{self.loss:.4g}"
        accuracy = "" if self.accuracy is None else f"test accuracy {self.accuracy:.1%}, "
        when = "" if self.score_round == self.rounds else f" (of round {self.score_round})"
        others = "".join(
            f", {name.replace('_', ' ')} {'not finite' if value is None else f'{value:.4g}'}"
            for name, value in self.scores.items()
        )
        if accuracy or self.loss is not None:
            lines.append(f"{accuracy}test loss {loss}{others}{when}")
        elif others:
            lines.append(f"test{others.removeprefix(',')}{when}")
        for name, spread in (self.clients or {}).items():
            numbers = {key: f"{v:.1%}" if name == "accuracy" else f"{v:.4g}" for key, v in spread.items()}
            rest = ", ".join(f"{key.replace('_', ' ')} {number}" for key, number in numbers.items())
            lines.append(f"clients' {name.replace('_', ' ')} on their {self.clients_on} data: {rest}")
        arrived = f"{plural(self.updates, 'update')}, {self.lost} lost"
        lines.append(f"delay mean {self.delay_mean:.1f}, largest {self.delay_max}; {arrived}")
        lines += [f"refused {number}: {reason}" for reason, number in self.refused.items()]
        return "\n".join(lines)


def summarize(run: Run) -> Summary:
    """Summarize the results of a run so far."""
    metrics = run.metrics
    evaluated = [row for row in metrics if any(name.startswith("test_") for name in row)]
    last: Row = evaluated[-1] if evaluated else {}
    scores = {name.removeprefix("test_"): value for name, value in last.items() if name.startswith("test_")}
    accuracies = [row["test_accuracy"] for row in evaluated if row.get("test_accuracy") is not None]
    delays = np.array([delay for row in metrics for delay in row["delays"]] or [0])
    return Summary(
        method=str(run.server.method),
        status=run.status,
        reason=run.reason or _warning(run),
        rounds=run.server.round,
        time=metrics[-1]["time"] if metrics else 0.0,
        score_round=last.get("round"),
        loss=scores.pop("loss", None),
        accuracy=scores.pop("accuracy", None),
        best_accuracy=max(accuracies, default=None),
        scores=scores,
        delay_mean=float(delays.mean()),
        delay_max=int(delays.max()),
        updates=run.counts["arrival"],
        refused=dict(run.refused),
        lost=run.counts["loss"],
        local_steps=sum(row["steps"] for row in metrics),
        snapshots=max((row["snapshots"] for row in metrics), default=0),
        seconds=run.seconds,
        clients=spreads_of(run.client_evaluation) if run.client_evaluation else None,
        clients_on=run.client_evaluation.on if run.client_evaluation else None,
    )


def spreads_of(evaluation: ClientEvaluation) -> dict[str, Spread]:
    """Each score of an evaluation over the clients that have it."""
    found = {}
    for name, values in evaluation.by_client.items():
        known = np.sort([value for value in values if value is not None and np.isfinite(value)])
        if len(known):
            tenth = max(round(len(known) / 10), 1)
            worst = known[-tenth:] if lower_is_better(name) else known[:tenth]
            spread = {"mean": known.mean(), "worst_tenth": worst.mean(), "deviation": known.std()}
            found[name] = {key: float(value) for key, value in spread.items()}
    return found


def lower_is_better(score: str) -> bool:
    """Whether a low value of a score is a good one.

    >>> lower_is_better("loss"), lower_is_better("accuracy")
    (True, False)
    """
    return any(word in score.lower() for word in ("loss", "perplexity", "distance", "error", "mse", "mae"))


def _warning(run: Run) -> str | None:
    """A warning if the time was up before the first round, or if no region has reported to the global server."""
    if run.status == "finished" and not run.server.round:
        return f"no round was complete within {run.settings['until']:g} s: use a larger `until`."
    top, *regions = run.server.levels
    if not regions or top.round or not run.server.round:
        return None
    return "no report of a region has reached the global server, whose model is still x_0: use a smaller `every`."


def plural(number: int, what: str) -> str:
    """A number and a noun, in the plural unless the number is 1.

    >>> plural(1, "round"), plural(140, "round")
    ('1 round', '140 rounds')
    """
    return f"{number} {what}{'s' * (number != 1)}"
