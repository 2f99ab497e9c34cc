"""The events of a run: a type for each kind, and the functions that write and read them.

Each line of events.jsonl is one JSON object. `event` names the kind (see `KINDS`); the other keys are the fields of
its type, in order. Numbers that are not finite are written as null, and read as None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, assert_never

from tardygrad.core.messages import Advanced, Asleep, Awake, Joined, Lost, Refused, Update
from tardygrad.core.task import SCORE_NAMES_IN_USE
from tardygrad.engines.recorded import Arrival as Arrival
from tardygrad.engines.recorded import ClientLost as ClientLost
from tardygrad.engines.recorded import Join as Join
from tardygrad.engines.recorded import RecordedMessage as RecordedMessage
from tardygrad.engines.recorded import Refusal as Refusal
from tardygrad.engines.recorded import Resume as Resume
from tardygrad.engines.recorded import Sleep as Sleep
from tardygrad.engines.recorded import Wake as Wake
from tardygrad.runs.checks import damaged_line
from tardygrad.runs.loop import Event
from tardygrad.runs.record import Row, read_lines
from tardygrad.tail.estimate import Tail


class Dispatch(NamedTuple):
    """A job was sent."""

    time: float  # of the engine's clock, in seconds
    client: int
    serial: int  # how many jobs this client was given before
    round: int  # that the job starts from


class Advance(NamedTuple):
    """The server completed a round; see `core.messages.Advanced`."""

    time: float
    round: int
    clients: Sequence[int]
    delays: Sequence[int]
    weights: Sequence[float | None]
    norms: Sequence[float | None]
    norm: float | None
    move: float | None
    clipped: float | None
    local_clipped: float | None
    loss: float | None
    steps: int
    snapshots: int
    seconds: float  # of computing since the run began
    epsilon: float | None = None  # that the run has spent, if its method is private


class TailEstimate(NamedTuple):
    """The tail index of a round's updates was estimated; see `tail.estimate.Tail`."""

    time: float
    round: int | None  # None: the doctor's estimate for the gradients at x_0
    index: float | None  # type: ignore[assignment]  # hides tuple.index
    low: float | None
    high: float | None
    verdict: str | None
    by: str | None
    number: int | None


class Evaluation(NamedTuple):
    """The model of a round was evaluated. In events.jsonl the scores are keys beside the other fields."""

    time: float
    round: int
    scores: Mapping[str, float | None]
    seconds: float | None  # that it took


class ClientEvaluation(NamedTuple):
    """The model of a round was evaluated on the data of each client."""

    time: float
    round: int
    on: str  # "test" or "training" rows of the clients
    by_client: Mapping[str, Sequence[float | None]]  # for each score, its value of every client; None: it has none
    seconds: float | None  # that it took


ClientEvent = Dispatch | Arrival | Refusal | ClientLost | Join | Sleep | Wake
RunEvent = ClientEvent | Advance | TailEstimate | Evaluation | ClientEvaluation | Resume

KINDS: dict[str, type[RunEvent]] = {
    "dispatch": Dispatch, "arrival": Arrival, "refusal": Refusal, "loss": ClientLost, "join": Join,
    "sleep": Sleep, "wake": Wake,
    "advance": Advance, "tail": TailEstimate, "evaluation": Evaluation,
    "client evaluation": ClientEvaluation, "resume": Resume,
}  # fmt: skip
_NAMES = {kind: name for name, kind in KINDS.items()}
_OPTIONAL = ("down", "up", "worker", "node", "state_lost", "fault", "epsilon", "discarded")  # left out if None


def of_turn(turn: Event, round: int, seconds: float) -> Iterator[RunEvent]:
    """The events of one turn of the loop.

    Args:
        turn: as `drive` yields it.
        round: of the server, after it.
        seconds: of computing since the run began.
    """
    now, message, happened, jobs = turn
    match message:
        case Update() if not isinstance(happened, Refused):
            delay = happened.delays[-1] if isinstance(happened, Advanced) else happened.delay if happened else None
            start = (now, message.client, message.serial, message.round, delay, message.steps, message.loss)
            sizes = (message.down, message.up) if message.up else (None, None)
            yield Arrival._make(
                (*start, *sizes, message.worker or None, message.node or None, message.state_lost or None)
            )
        case Update() | Refused():
            lost = (isinstance(message, Update) and message.state_lost) or None
            if isinstance(happened, Refused):
                what = (message.client, message.serial, message.round, happened.reason)
                yield Refusal(now, *what, lost, happened.fault or None)
        case Lost():
            yield ClientLost(now, message.client, round)
        case Joined():
            yield Join(now, message.client, round)
        case Asleep():
            yield Sleep(now, message.client, round, message.job)
        case Awake():
            yield Wake(now, message.client, round)
        case None:
            pass
        case _:
            assert_never(message)
    if isinstance(happened, Advanced):
        yield Advance(now, *happened, seconds)
    for job in jobs:
        yield Dispatch(now, job.client, job.serial, job.round)


def tail_event(time: float, round: int | None, found: Tail | None) -> TailEstimate:
    """An estimate as an event; without one all its numbers are null."""
    return TailEstimate(time, round, *(getattr(found, field, None) for field in TailEstimate._fields[2:]))


def released(event: RunEvent) -> Sequence[Sequence[int]]:
    """The clients of each round whose model an event made known: what a private run has to account for."""
    if isinstance(event, Advance):
        return [event.clients]
    return event.discarded or () if isinstance(event, Resume) else ()


def released_after(path: Path, number: int) -> list[Sequence[int]]:
    """The clients of each round that a file's events made known, without its first `number` events."""
    later = islice(read_events(path), number, None) if path.exists() else ()
    return [clients for event in later for clients in released(event)]


def kind_of(event: RunEvent) -> str:
    """The kind of an event, as its line names it."""
    return _NAMES[type(event)]


def to_row(event: RunEvent) -> Row:
    """An event as a line of events.jsonl."""
    row: Row = {"event": kind_of(event)}
    for field, value in event._asdict().items():
        if field == "scores":
            row |= value
        elif value is not None or field not in _OPTIONAL:
            row[field] = value
    return row


def read_events(path: Path, length: int | None = None) -> Iterator[RunEvent]:
    """The events of a file, up to a length in bytes, without a torn last line. Values are as the file has them.

    Raises:
        RecordError: a line is damaged, its kind is unknown, or a field is missing.
    """
    for number, row in enumerate(read_lines(path, length), 1):
        try:
            event = _READERS[row["event"]](row)
        except (KeyError, TypeError) as error:
            raise damaged_line(path, number, f"its kind is unknown, or it has no {error}") from error
        yield event


def read_script(path: Path, length: int | None = None) -> Iterator[RecordedMessage]:
    """The messages of a run, for a `ScriptedPool`."""
    return (event for event in read_events(path, length) if isinstance(event, RecordedMessage))


def read_metrics(path: Path, length: int | None = None) -> list[Row]:
    """The metrics of a file's rounds: its lines about rounds, with the scores of those that were evaluated."""
    rows: list[Row] = []
    for row in read_lines(path, length):
        if row["event"] == "advance":
            rows.append({name: value for name, value in row.items() if name not in ("event", "seconds")})
        elif row["event"] == "evaluation":
            rows[row["round"] - 1] |= test_scores(_evaluation(row).scores)
    return rows


def test_scores(scores: Mapping[str, float | None]) -> Row:
    """Scores as the metrics of their round have them."""
    return {f"test_{name}": value for name, value in scores.items()}


def _reader(kind: type[RunEvent]) -> Callable[[Row], RunEvent]:
    fields = itemgetter(*kind._fields)
    optional = {field: None for field in _OPTIONAL if field in kind._fields}
    return lambda row: kind._make(fields(optional | row))


def _evaluation(row: Row) -> Evaluation:
    scores = {name: value for name, value in row.items() if name not in SCORE_NAMES_IN_USE}
    return Evaluation(row["time"], row["round"], scores, row["seconds"])


_READERS = {name: _reader(kind) for name, kind in KINDS.items()} | {"evaluation": _evaluation}
