"""The summary of a run's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tardygrad.core.faults import written_out
from tardygrad.errors import RecordError
from tardygrad.runs.accountant import guarantee
from tardygrad.runs.checks import checksum, quoted
from tardygrad.runs.directions import Directions
from tardygrad.runs.events import ClientEvaluation
from tardygrad.runs.record import EVENTS, Record, Row, check_id, read_json, verify_last_line, write_json

if TYPE_CHECKING:
    from tardygrad.runs.run import Run


MODEL = "model.safetensors"
Spread = dict[str, float]
"""A score over the clients: `mean`, `deviation`, and `worst_tenth`, the mean of the worst tenth of the clients."""


class Summary(NamedTuple):
    """The results of a run."""

    method: str
    status: str  # finished, stopped, starved, diverged, ...
    reason: str | None  # why it starved, diverged or failed
    rounds: int
    time: float  # of the last round, in seconds of the engine's clock
    score_round: int | None  # the last round that was evaluated; loss, accuracy and scores are its
    loss: float | None  # on the test set; None if there is none, and in a record also if it is not finite
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
    epsilon: float | None = None  # of a private run; None: above 500
    delta: float | None = None  # of a private run
    faults: Sequence[str] = ()  # why updates were not finite: of each client that sent any

    def __str__(self) -> str:
        lines = [self.method, f"{self.status} after {plural(self.rounds, 'round')}, {self.time:g} s on the clock"]
        lines += [self.reason] if self.reason else []
        when = "" if self.score_round == self.rounds else f" (of round {self.score_round})"
        scores = [f"test accuracy {self.accuracy:.1%}"] if self.accuracy is not None else []
        scores += [f"test loss {self.loss:.4g}"] if self.loss is not None else []
        for name, value in self.scores.items():
            number = "not finite" if value is None else f"{value:.4g}"
            scores.append(f"{'' if scores else 'test '}{name.replace('_', ' ')} {number}")
        lines += [f"{', '.join(scores)}{when}"] if scores else []
        for name, spread in (self.clients or {}).items():
            numbers = {key: f"{v:.1%}" if name == "accuracy" else f"{v:.4g}" for key, v in spread.items()}
            end = "lowest" if spread["worst_tenth"] < spread["mean"] else "highest"
            ends = {} if Directions().known(name) else {"worst_tenth": f" (the {end})"}
            rest = ", ".join(f"{key.replace('_', ' ')}{ends.get(key, '')} {n}" for key, n in numbers.items())
            lines.append(f"clients' {name.replace('_', ' ')} on their {self.clients_on} data: {rest}")
        arrived = f"{plural(self.updates, 'update')}, {self.lost} lost"
        lines.append(f"delay mean {self.delay_mean:.1f}, largest {self.delay_max}; {arrived}")
        lines += [f"refused {number}: {reason}" for reason, number in self.refused.items()]
        lines += [written_out(self.faults)] if self.faults and not self.reason else []
        lines += [f"privacy of each client: {guarantee(self.epsilon, self.delta)}"] if self.delta else []
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
        clients=spreads_of(run.client_evaluation, Directions.of(run.settings)) if run.client_evaluation else None,
        clients_on=run.client_evaluation.on if run.client_evaluation else None,
        epsilon=run.accountant.epsilon if run.accountant else None,
        delta=run.accountant.privacy.delta if run.accountant else None,
        faults=list(run.faults.values()),
    )


def write_summary(record: Record, summary: Summary, checks: dict[str, str]) -> None:
    """Write summary.json, with the checksums of the files that belong to it."""
    checks = {EVENTS: f"{record.end().check:08x}"} | checks
    write_json(record.path / "summary.json", summary._asdict() | {"id": record.id, "checks": checks})


def read_summary(folder: Path) -> Summary:
    """The summary of a run; raises `RecordError` if it is damaged."""
    row = read_summary_row(folder)
    return Summary(**{name: value for name, value in row.items() if name not in ("checks", "id")})


def read_summary_row(folder: Path) -> Row:
    """The content of summary.json; raises `RecordError` if the events do not end as they did with it."""
    row = _read_file(folder)
    if EVENTS in row.get("checks", {}):
        verify_last_line(folder / EVENTS, int(row["checks"][EVENTS], 16))
    return row


def _read_file(folder: Path) -> Row:
    path, fix = folder / "summary.json", f"Write it again: tardygrad resume {quoted(folder)}"
    row = read_json(path, fix)
    check_id(row.get("id"), path, folder, fix)
    return row


def read_model(folder: Path) -> bytes:
    """The content of a run's model.safetensors; raises `RecordError` if it is damaged."""
    try:
        content = (folder / MODEL).read_bytes()
    except OSError as error:
        raise RecordError(f"{str(folder / MODEL)!r} cannot be read: {error.strerror}.") from error
    if _read_file(folder).get("checks", {}).get(MODEL) not in (None, checksum(content)):
        fix = "Restore it from the last checkpoint: tardygrad resume"
        raise RecordError(f"{str(folder / MODEL)!r} is damaged: its checksum is wrong. {fix} {quoted(folder)}")
    return content


def run_length(settings: Mapping[str, Any], status: str, rounds: int, last: float) -> float:
    """The seconds of a run by its engine's clock: `until` if that is what ended it, or else the time of its last round.

    Args:
        rounds: how many were made.
        last: the time of the last one, or of a later event.
    """
    until, wanted = settings.get("until"), settings.get("rounds")
    if until is None or status != "finished" or (wanted is not None and rounds >= wanted):
        return last
    return max(float(until), last)


def spreads_of(evaluation: ClientEvaluation, directions: Directions) -> dict[str, Spread]:
    """Each score of an evaluation over the clients that have it."""
    found = {}
    for name, values in evaluation.by_client.items():
        known = np.sort([value for value in values if value is not None and np.isfinite(value)])
        if len(known):
            tenth = max(round(len(known) / 10), 1)
            worst = known[-tenth:] if directions.prefers_lower(name) else known[:tenth]
            spread = {"mean": known.mean(), "worst_tenth": worst.mean(), "deviation": known.std()}
            found[name] = {key: float(value) for key, value in spread.items()}
    return found


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


def remove_model(folder: Path) -> None:
    """Delete a run's model.safetensors, and its checksum in the summary, so that the record can still be read."""
    row = _read_file(folder)
    row.get("checks", {}).pop(MODEL, None)
    write_json(folder / "summary.json", row)
    (folder / MODEL).unlink(missing_ok=True)
