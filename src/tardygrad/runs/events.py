"""The events of a run: a type for each kind, and the functions that write and read them.

Each line of events.jsonl is one JSON object. `event` names the kind (see `KINDS`); the other keys are the fields of
its type, in order. Numbers that are not finite are written as null, and read as None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tardygrad.core.messages import Advanced, Asleep, Joined, Lost, Refused, Update
from tardygrad.core.task import SCORE_NAMES_IN_USE
from tardygrad.errors import RecordError
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


class Arrival(NamedTuple):
    """An update was accepted."""

    time: float
    client: int
    serial: int
    round: int  # that its job started from
    delay: int | None
    steps: int  # local ones
    loss: float | None  # mean over those steps
    down: int | None = None  # bytes of the job and of the update, on engines that send them over a network
    up: int | None = None
    worker: str | None = None  # that did the job, and its machine, on engines that have several
    node: str | None = None
    state_lost: bool | None = None  # True: its job began with a new inner state; see `core.messages.StateReference`


class Refusal(NamedTuple):
    """An update was refused."""

    time: float
    client: int
    serial: int
    round: int
    reason: str
    state_lost: bool | None = None
    fault: str | None = None  # why it was not finite: what is wrong, and what to do


class ClientLost(NamedTuple):
    """A client was lost."""

    time: float
    client: int
    round: int  # of the server


class Join(NamedTuple):
    """A lost client came back."""

    time: float
    client: int
    round: int


class Sleep(NamedTuple):
    """A client is not available: it gets no job until it is awake again."""

    time: float
    client: int
    round: int
    job: str  # "suspend", "cancel" or "finish": what happens to the job that it has


class Wake(NamedTuple):
    """A client that was asleep is available again."""

    time: float
    client: int
    round: int


class Advance(NamedTuple):
    """The server completed a round; see `core.messages.Advanced`."""

    time: float
    round: int
    clients: Sequence[int]
    delays: Sequence[int]
    weights: Sequence[float | None] | None  # None: an older record
    norms: Sequence[float | None]
    norm: float | None
    move: float | None
    clipped: float | None
    local_clipped: float | None
    loss: float | None
    steps: int
    snapshots: int
    seconds: float | None  # of computing since the run began; None: an older record
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


class Resume(NamedTuple):
    """A run was resumed whose clients' compression errors are lost, or whose lost rounds have to be accounted for."""

    time: float
    round: int
    discarded: Sequence[Sequence[int]] | None = None  # the clients of each private round that was lost in a crash


class Unknown(NamedTuple):
    """An event of a kind that this version does not know."""

    time: float
    event: str


ClientEvent = Dispatch | Arrival | Refusal | ClientLost | Join | Sleep | Wake
RunEvent = ClientEvent | Advance | TailEstimate | Evaluation | ClientEvaluation | Resume | Unknown

KINDS: dict[str, type[RunEvent]] = {
    "dispatch": Dispatch, "arrival": Arrival, "refusal": Refusal, "loss": ClientLost, "join": Join,
    "sleep": Sleep, "wake": Wake,
    "advance": Advance, "tail": TailEstimate, "evaluation": Evaluation,
    "client evaluation": ClientEvaluation, "resume": Resume,
}  # fmt: skip
_NAMES = {kind: name for name, kind in KINDS.items()}
_OPTIONAL = ("down", "up", "worker", "node", "state_lost", "fault", "epsilon", "discarded")  # left out if None
_MAY_MISS = dict.fromkeys((*_OPTIONAL, "weights", *TailEstimate._fields[1:], "seconds"))  # only some records have these


def of_turn(turn: Event, round: int, seconds: float) -> Iterator[RunEvent]:
    """The events of one turn of the loop.

    Args:
        turn: as `drive` yields it.
        round: of the server, after it.
        seconds: of computing since the run began.
    """
    now, message, happened, jobs = turn
    if isinstance(message, Update | Refused):
        start = (now, message.client, message.serial, message.round)
        lost = (isinstance(message, Update) and message.state_lost) or None
        if isinstance(happened, Refused):
            yield Refusal(*start, happened.reason, lost, happened.fault or None)
        elif isinstance(message, Update):
            delay = happened.delays[-1] if isinstance(happened, Advanced) else happened.delay if happened else None
            sizes = (message.down, message.up) if message.up else (None, None)
            means = (delay, message.steps, message.loss)
            where = (message.worker or None, message.node or None)
            yield Arrival._make((*start, *means, *sizes, *where, lost))
    elif isinstance(message, Asleep):
        yield Sleep(now, message.client, round, message.job)
    elif message is not None:
        kind = ClientLost if isinstance(message, Lost) else Join if isinstance(message, Joined) else Wake
        yield kind(now, message.client, round)
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
    return _NAMES.get(type(event), "unknown")


def to_row(event: RunEvent) -> Row:
    """An event as a line of events.jsonl."""
    row: Row = {"event": kind_of(event)}
    for field, value in event._asdict().items():
        if field == "scores":
            row |= value
        elif value is not None or field not in _OPTIONAL:
            row[field] = value
    return row


def script_line(event: RunEvent) -> tuple[Any, ...] | None:
    """The line of a `ScriptedPool`'s script that repeats a message; None if the event was no message."""
    match event:
        case Arrival():
            return "arrive", event.client, event.time, *_state_lost(event)
        case Refusal():
            return (
                "refuse", event.client, event.time, event.serial, event.round, event.reason, *_state_lost(event),
            )  # fmt: skip
        case ClientLost():
            return "lose", event.client, event.time
        case Join():
            return "join", event.client, event.time
        case Sleep():
            return "sleep", event.client, event.time, event.job
        case Wake():
            return "wake", event.client, event.time
        case Resume():
            return "forget", None, event.time
    return None


def _state_lost(event: Arrival | Refusal) -> tuple[str, ...]:
    return ("state lost",) if event.state_lost else ()


def read_events(path: Path, length: int | None = None) -> Iterator[RunEvent]:
    """The events of a file, up to a length in bytes, without a torn last line. Values are as the file has them.

    Raises:
        RecordError: a line is damaged, a field is missing, or there are rounds but no events.
    """
    number, metrics = 0, path.with_name("metrics.jsonl")
    for number, row in enumerate(read_lines(path, length), 1):
        try:
            reader = _READERS.get(row["event"], _unknown)
            event = reader(row)
        except (KeyError, TypeError) as error:
            missing = f"it has no `{error.args[0]}`" if isinstance(error, KeyError) else "`event` must be text"
            raise damaged_line(path, number, missing) from error
        yield event
    if not number and length is None and metrics.exists() and metrics.stat().st_size:
        raise RecordError(f"{str(path)!r} is empty, but {metrics.name} has rounds: the record is damaged.")


def _reader(kind: type[RunEvent]) -> Callable[[Row], RunEvent]:
    fields = itemgetter(*kind._fields)
    if _MAY_MISS.keys() & kind._fields:
        return lambda row: kind._make(fields(_MAY_MISS | row))
    return lambda row: kind._make(fields(row))


def _evaluation(row: Row) -> Evaluation:
    scores = {name: value for name, value in row.items() if name not in SCORE_NAMES_IN_USE}
    return Evaluation(row["time"], row["round"], scores, row.get("seconds"))


def _unknown(row: Row) -> Unknown:
    return Unknown(row["time"], row["event"])


_READERS = {name: _reader(kind) for name, kind in KINDS.items()} | {"evaluation": _evaluation}
